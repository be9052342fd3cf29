"""The newest messages of the log, and those that come while one looks (live stores; a torn tail is no damage there)."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from store_core.codec.record import Message, RecordError, body_crc_ok, decode_blank, decode_record
from store_core.layout import record
from store_core.read.records import read_record_bytes
from store_core.storage.sequence import SegmentSequence
from store_core.storage.store import Store

POLL_SECONDS: Final = 0.2
Wanted = Callable[[Message], bool]


def last_messages(store: Store, count: int, wanted: Wanted) -> tuple[list[Message], int]:
    """The newest ``count`` messages that are wanted, in log order, and where the log ends.

    Walks segments from the newest back until there are enough.
    """
    import numpy as np

    from store_core.scan.log import ScanOptions, scan_segment

    count = min(count, sys.maxsize)
    found: list[Message] = []
    end: int | None = None
    for segment in reversed(store.log.segments):
        newest: deque[Message] = deque(maxlen=max(count - len(found), 0))
        last_end: int | None = None
        for table in scan_segment(store, segment, ScanOptions(check_crc=False, properties=False)):
            rows = np.flatnonzero(table.messages)
            if len(rows):
                last_end = int(table.phy_offset[rows[-1]] + table.size_bytes[rows[-1]])
            if newest.maxlen:
                newest.extend(m for row in rows if wanted(m := table.message(int(row))))
        end = last_end if end is None else end
        found[:0] = newest
        if end is not None and len(found) >= count:
            break
    return found, store.log.min_phy_offset if end is None else end


def follow(
    store: Store,
    phy_offset: int,
    *,
    sleep: Callable[[float], None] = time.sleep,
    poll_seconds: float = POLL_SECONDS,
) -> Iterator[Message]:
    """Messages from the log's end on, as they are written; never ends by itself.

    A record counts once it is whole: a half-written one, or one whose checksum does not hold yet, is looked at again.
    """
    log = store.log
    while True:
        message = _whole_record(log, phy_offset)
        if message is not None:
            yield message
            phy_offset += message.size_bytes
            continue
        following = _next_segment(log, phy_offset)
        if following is not None:
            phy_offset = following
            continue
        sleep(poll_seconds)
        log = SegmentSequence(store.settings.commitlog_paths, store.cache, store.settings.segment_size_bytes)


def _whole_record(log: SegmentSequence, phy_offset: int) -> Message | None:
    data = read_record_bytes(log, phy_offset)
    if data is None:
        return None
    try:
        message = decode_record(data, 0, phy_offset)
    except RecordError:
        return None
    return message if body_crc_ok(message) else None


def _next_segment(log: SegmentSequence, phy_offset: int) -> int | None:
    """Where the log goes on if nothing more can come at an offset: behind a blank, or where the file has gone."""
    segment = log.find(phy_offset)
    if segment is not None and decode_blank(log.read(phy_offset, record.PREFIX.size_bytes), 0) is None:
        return None
    start = phy_offset if segment is None else segment.end_phy_offset
    return next((s.phy_offset for s in log.segments if s.phy_offset >= start), None)
