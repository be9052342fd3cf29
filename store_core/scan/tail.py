"""Find the end of the log and the stale records after it.

A broker that reuses or cuts a file leaves old, whole records after the end of the log. A record there is stale if its own
offset is lower than its position and no queue entry points to it. Inside the log a broker keeps such a record as a message.
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
    """Return the offset of the first stale record after the log's end, None without one. The store caches it."""
    if _CACHE_KEY not in store.__dict__:
        store.__dict__[_CACHE_KEY] = None  # so that the scan in _find does not call this again
        store.__dict__[_CACHE_KEY] = _find(store)
    found: int | None = store.__dict__[_CACHE_KEY]
    return found


def _find(store: Store) -> int | None:
    """Return the first stale record: walk segments from the newest, until one has a message that is not stale."""
    from store_core.scan.log import ScanOptions, scan_segment

    start: int | None = None
    for segment in reversed(store.log.segments):
        run: int | None = None
        is_stale = True
        for table in scan_segment(store, segment, ScanOptions(check_crc=False)):
            old = table.messages & table.of_code(FrameCode.OWN_OFFSET) & (table.own_phy_offset < table.phy_offset)
            good_rows = np.flatnonzero(table.messages & ~old)
            first_candidate = 0
            if len(good_rows):
                run, is_stale, first_candidate = None, False, int(good_rows[-1]) + 1
            for row in np.flatnonzero(old[first_candidate:]) + first_candidate:
                if has_entry(store, table, int(row)):
                    run, is_stale = None, False
                elif run is None:
                    run = int(table.phy_offset[row])
        if run is not None:
            start = run
        if not is_stale:
            break
    return start


def has_entry(store: Store, table: FrameTable, row: int) -> bool:
    queue = store.queue_alone(table.topic(row).decode("utf-8", "replace"), int(table.queue_id[row]))
    if queue is None:
        return False
    entry = queue.read(int(table.queue_offset[row]) * ENTRY.size_bytes, ENTRY.size_bytes)
    return len(entry) == ENTRY.size_bytes and ENTRY.read(entry)["phy_offset"] == int(table.phy_offset[row])
