"""Read the newest messages of the log, and follow a live log (a torn tail is no damage there)."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from store_core.codec.record import Message, RecordError, body_crc_ok, decode_blank, decode_record
from store_core.findings import Finding, finding
from store_core.layout import record
from store_core.read.records import read_message, read_record_bytes
from store_core.storage.live_start import Begin
from store_core.storage.sequence import SegmentSequence
from store_core.storage.store import Store

if TYPE_CHECKING:
    from numpy.typing import NDArray

POLL_SECONDS: Final = 0.2


def last_messages(
    store: Store, count: int, topics: frozenset[str] = frozenset(), findings: list[Finding] | None = None
) -> tuple[Iterator[Message], int]:
    """Return the newest ``count`` messages of some topics (all if none is named) in log order, and the log's end.

    Segments are walked from the newest back until there are enough. Only offsets are kept in memory, and each message is read when it is yielded.
    Messages that are gone by then are left out, with a finding.
    """
    import numpy as np

    from store_core.read.log import LogFilter
    from store_core.scan.log import ScanOptions, scan_segment

    wanted = LogFilter(topics=topics)
    newest: list[NDArray[Any]] = []
    missing = count
    end: int | None = None
    for segment in reversed(store.log.segments):
        found: deque[NDArray[Any]] = deque()
        held = 0
        last_end: int | None = None
        for table in scan_segment(store, segment, ScanOptions(check_crc=False, properties=False)):
            rows = np.flatnonzero(table.messages)
            if len(rows):
                last_end = int(table.phy_offset[rows[-1]] + table.size_bytes[rows[-1]])
            places = table.phy_offset[wanted.rows(table)][-missing:] if missing else rows[:0]
            if len(places):
                found.append(places)
                held += len(places)
            while found and held - len(found[0]) >= missing:
                held -= len(found.popleft())
        end = last_end if end is None else end
        newest[:0] = found
        missing = max(missing - held, 0)
        if end is not None and not missing:
            break
    places = np.concatenate(newest)[-count:] if newest else np.empty(0, np.int64)
    return _messages_at(
        store, places.tolist(), [] if findings is None else findings
    ), store.log.min_phy_offset if end is None else end


def _messages_at(store: Store, places: list[int], findings: list[Finding]) -> Iterator[Message]:
    """Yield the records at these offsets; add a finding for each run of records that are gone."""
    gone: list[int] = []
    for phy_offset in places:
        message = read_message(store.log, phy_offset)
        if message is None:
            gone.append(phy_offset)
            continue
        if gone:
            findings.append(_lost_messages(store, gone, phy_offset))
            gone = []
        yield message
    if gone:
        findings.append(_lost_messages(store, gone, store.log.max_phy_offset))


def _lost_messages(store: Store, places: list[int], end_phy_offset: int) -> Finding:
    """Return the finding for a run of records that are gone; something else starts at ``end_phy_offset``."""
    start, last = places[0], store.log.find(places[-1])
    end = end_phy_offset if last is None else min(last.end_phy_offset, end_phy_offset)
    is_front = Begin(store.log).has_passed(end)
    text = f"{len(places)} messages went away while the log was read"
    return finding("L025" if is_front else "L006", text, phy_offset=start, size_bytes=end - start)


def follow(
    store: Store,
    phy_offset: int,
    *,
    sleep: Callable[[float], None] = time.sleep,
    poll_seconds: float = POLL_SECONDS,
    on_loss: Callable[[Finding], None] | None = None,
) -> Iterator[Message]:
    """Yield messages from the log's end on as a broker writes them; never ends by itself.

    A record counts once it is whole: one that is half-written, or whose checksum does not match yet, is read again. ``on_loss`` gets a finding for
    files that were removed before they were read.
    """
    log = store.log
    has_begun = bool(log.segments)
    while True:
        message = _whole_record(log, phy_offset)
        if message is not None:
            yield message
            phy_offset, has_begun = phy_offset + message.size_bytes, True
            continue
        following = _next_segment(log, phy_offset)
        if following is not None:
            segment = log.find(phy_offset)
            read_end = phy_offset if segment is None else segment.end_phy_offset
            if has_begun and on_loss is not None and following > read_end:
                on_loss(_removed_files(log, read_end, following))
            phy_offset, has_begun = following, True
            continue
        sleep(poll_seconds)
        log = SegmentSequence(store.settings.commitlog_paths, store.cache, store.settings.segment_size_bytes)


def _removed_files(log: SegmentSequence, phy_offset: int, end_phy_offset: int) -> Finding:
    code = "L025" if Begin(log).has_passed(end_phy_offset) else "L006"
    size = end_phy_offset - phy_offset
    return finding(code, "files of the log went away before they were read", phy_offset=phy_offset, size_bytes=size)


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
    """Return the start of the next segment if no more can come at an offset: after a blank, or where the file is gone."""
    segment = log.find(phy_offset)
    if segment is not None and decode_blank(log.read(phy_offset, record.PREFIX.size_bytes), 0) is None:
        return None
    start = phy_offset if segment is None else segment.end_phy_offset
    return next((s.phy_offset for s in log.segments if s.phy_offset >= start), None)
