"""Where the log ends and left-overs begin.

A broker that reuses or cuts a file leaves old, whole records behind the tail. A record there that says it lies further
in front, and to which no queue entry points, is stale; inside the log brokers keep such a record, so it is a message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from store_core.kernel.codes import FrameCode
from store_core.layout.queue import ENTRY

if TYPE_CHECKING:
    from store_core.scan.frames import FrameTable
    from store_core.storage.store import Store

_CACHE_KEY = "stale_from"


def stale_from(store: Store) -> int | None:
    """Offset of the first stale record behind the tail, None if there is none. Remembered on the store."""
    if _CACHE_KEY not in store.__dict__:
        store.__dict__[_CACHE_KEY] = None  # so that the scan below does not ask again
        store.__dict__[_CACHE_KEY] = _find(store)
    found: int | None = store.__dict__[_CACHE_KEY]
    return found


def _find(store: Store) -> int | None:
    """Walk back over segments as long as all of their last messages point further in front and no queue knows them."""
    from store_core.scan.log import ScanOptions, scan_segment

    start: int | None = None
    for segment in reversed(store.log.segments):
        run: int | None = None
        whole = True
        for table in scan_segment(store, segment, ScanOptions(check_crc=False)):
            old = table.messages & table.of_code(FrameCode.OWN_OFFSET) & (table.own_phy_offset < table.phy_offset)
            others = np.flatnonzero(table.messages & ~old)
            behind = 0
            if len(others):
                run, whole, behind = None, False, int(others[-1]) + 1
            for row in np.flatnonzero(old[behind:]) + behind:
                if has_entry(store, table, int(row)):
                    run, whole = None, False
                elif run is None:
                    run = int(table.phy_offset[row])
        if run is not None:
            start = run
        if not whole:
            break
    return start


def has_entry(store: Store, table: FrameTable, row: int) -> bool:
    queue = store.queue_alone(table.topic(row).decode("utf-8", "replace"), int(table.queue_id[row]))
    if queue is None:
        return False
    entry = queue.read(int(table.queue_offset[row]) * ENTRY.size_bytes, ENTRY.size_bytes)
    return len(entry) == ENTRY.size_bytes and ENTRY.read(entry)["phy_offset"] == int(table.phy_offset[row])
