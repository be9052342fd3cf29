"""Describe what a sibling has of the log before this store's first byte (store behaviour 11).

It may have expired here, so it is taken only if the operator requests it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from store_core.check.log_begin import LogBegin, log_begin
from store_core.recovery.replica import Earlier
from store_core.storage.store import Store


@dataclass(frozen=True, slots=True)
class SkippedEarlier:
    """The log of sibling number ``sibling`` before this store's first byte. ``begin``: traces of it in this store."""

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
    """Return what is not taken of each sibling's log if this store's log will start at ``begin_phy_offset``."""
    found = [item for item in earlier if item.phy_offset < begin_phy_offset]
    if not found:
        return []
    begin = log_begin(store, begin_phy_offset=begin_phy_offset, last_timestamp_ms=last_store_timestamp_ms)
    return [SkippedEarlier(item.sibling, item.phy_offset, begin) for item in found]
