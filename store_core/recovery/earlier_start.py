"""What a sibling has of the log before its first byte here: it is not taken unasked, for it may have expired (store behaviour 11)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from store_core.check.log_begin import LogBegin, log_begin
from store_core.recovery.replica import Earlier
from store_core.storage.store import Store


@dataclass(frozen=True, slots=True)
class SkippedEarlier:
    """What sibling number ``sibling`` has of the log before its first byte here, and what tells of that here."""

    sibling: int
    phy_offset: int
    begin: LogBegin

    @property
    def size_bytes(self) -> int:
        return self.begin.phy_offset - self.phy_offset

    def as_json(self) -> dict[str, Any]:
        return {
            "phy_offset": self.phy_offset,
            "size_bytes": self.size_bytes,
            "queue_entries": self.begin.messages,
            "groups": list(self.begin.groups),
            "is_young": self.begin.is_young,
        }


def weighed(
    store: Store, earlier: Iterable[Earlier], begin_phy_offset: int, last_store_timestamp_ms: int
) -> list[SkippedEarlier]:
    """What is left out of each sibling's log where ours will begin at ``begin_phy_offset``."""
    found = [each for each in earlier if each.phy_offset < begin_phy_offset]
    if not found:
        return []
    begin = log_begin(store, begin_phy_offset=begin_phy_offset, last_timestamp_ms=last_store_timestamp_ms)
    return [SkippedEarlier(each.sibling, each.phy_offset, begin) for each in found]
