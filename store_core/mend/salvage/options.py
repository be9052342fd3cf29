"""What ``recover --policy keep`` is asked to do otherwise than by default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from store_core.errors import UsageError

Gaps = Literal["tombstone", "skip"]
GAPS: Final[tuple[Gaps, ...]] = ("tombstone", "skip")


@dataclass(frozen=True, slots=True)
class KeepOptions:
    """``gaps``: what stands in a queue for a lost message, a tombstone or a dead entry. ``fill``: whether holes are closed."""

    gaps: Gaps = "tombstone"
    fill: bool = True

    def __post_init__(self) -> None:
        if self.gaps not in GAPS:
            raise UsageError(f"unknown gaps {self.gaps!r}", to_do=f"one of {', '.join(GAPS)}")

    @property
    def skips(self) -> bool:
        return self.gaps == "skip"

    def as_arguments(self) -> dict[str, Any]:
        """For a builder: only what is not as by default, so that ordinary plans stay the same."""
        arguments: dict[str, Any] = {} if self.gaps == "tombstone" else {"gaps": self.gaps}
        return arguments if self.fill else {**arguments, "fill": False}

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> KeepOptions:
        """What ``as_arguments`` gave."""
        return cls(gaps=arguments.get("gaps", "tombstone"), fill=arguments.get("fill", True))
