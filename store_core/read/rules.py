"""What a reader needs to know of the broker's release: two rules differ between 4.x and 5.x (store behaviour 10.2, 11.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class ReadRules:
    """How one family of releases finds a queue's begin and an offset by time.

    ``searches_min``: the queue's min is found by checks on its ends and a binary search, not by a linear scan.
    ``has_boundary``: time look-ups know lower and upper and go by messages, not by files' modification times.
    """

    family: str
    searches_min: bool
    has_boundary: bool


RULES_4: Final = ReadRules("4.x", searches_min=False, has_boundary=False)
RULES_5: Final = ReadRules("5.x", searches_min=True, has_boundary=True)


def rules_for(broker_version: str | None) -> ReadRules:
    """The rules of a release such as ``4.9.7`` or ``5.3``; 5.x where nothing is known."""
    return RULES_4 if broker_version is not None and broker_version.split(".")[0] == "4" else RULES_5
