"""Choose a reader's rules by the broker's release: three rules differ (store behaviour 10.1, 10.2, 11.3)."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from store_core.layout import checkpoint, paths
from store_core.storage.files import open_read_only
from store_core.storage.store import Store


@dataclass(frozen=True, slots=True)
class ReadRules:
    """Rules by which a family of releases finds a queue's start and an offset by time.

    * ``major``: the family's first number.
    * ``searches_min``: the queue's min is found by checks on its ends and a binary search, not by a linear scan.
    * ``has_boundary``: time look-ups know lower and upper and use messages, not modification times of files.
    * ``begins_again``: a consumer after the end of a queue that starts at 0 is sent back to 0 (up to 4.9.3).
    """

    major: int
    searches_min: bool
    has_boundary: bool
    begins_again: bool = False


RULES_4: Final = ReadRules(4, searches_min=False, has_boundary=False)
_GOES_TO_THE_END: Final = [4, 9, 4]
_NEWEST: Final = 99  # patch of a release that is named without one
RULES_5: Final = ReadRules(5, searches_min=True, has_boundary=True)


def rules_for(broker_version: str | None) -> ReadRules:
    """Return the rules of a release such as ``4.9.7`` or ``5.3``; 5.x without a known release."""
    numbers = [*map(int, re.findall(r"\d+", broker_version or "")), _NEWEST]
    if numbers[0] != RULES_4.major:
        return RULES_5
    return replace(RULES_4, begins_again=numbers < _GOES_TO_THE_END)


# Names that only 5.x brokers leave in a root.
_TRACES_OF_5: Final = (
    paths.ABORT_BAK,
    paths.BATCHCONSUMEQUEUE,
    paths.COMPACTION,
    paths.ROCKSDBSTORE,
    paths.TIMERLOG,
    paths.TIMERWHEEL,
    paths.TIMERCHECK,
    f"{paths.CONFIG}/consumerOrderInfo.json",
)
_TOPICS: Final = f"{paths.CONFIG}/topics.json"
_MARK_OF_5: Final = b'"stateVersion"'  # of every dataVersion since 5.0
_LONGEST_TOPICS_BYTES: Final = 32 << 20


def rules_of(store: Store) -> ReadRules:
    """Return the rules of the release in the settings, else of the family whose traces are in the root; 5.x without traces.

    Only a few names are checked, so that a point read stays quick.
    """
    if store.settings.broker_version is not None:
        return rules_for(store.settings.broker_version)
    root = store.root
    if traces_of_5(root):
        return RULES_5
    topics = _read(root / _TOPICS, _LONGEST_TOPICS_BYTES)
    return RULES_4 if topics and _MARK_OF_5 not in topics else RULES_5


def traces_of_5(root: Path) -> list[str]:
    """Return names under a root that only 5.x brokers leave there; the checkpoint if fields of 5.x are set."""
    found = [name for name in _TRACES_OF_5 if (root / name).exists()]
    if any(_read(root / paths.CHECKPOINT, checkpoint.CHECKPOINT.size_bytes)[_OF_5:]):
        found.append(paths.CHECKPOINT)
    return found


_OF_5: Final = checkpoint.CHECKPOINT.offset_of("master_flushed_offset")


def _read(path: Path, size_bytes: int) -> bytes:
    try:
        with open(open_read_only(path), "rb") as file:
            return file.read(size_bytes)
    except OSError:
        return b""
