"""Find the place of the next record: the log's end, proven by a walk and by the queues (store behaviour 3.1, 3.2).

A store whose end is in doubt is not written to, because the next start of a broker could drop an appended record.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from store_core.broker.record_check import CheckRules, Verdict
from store_core.broker.versions import Behaviour
from store_core.broker.walk import SegmentWalk, WalkRules
from store_core.codec.record import Message
from store_core.engine.queue_end import LastEntry, newest_entry
from store_core.errors import FailedError
from store_core.layout import paths, record
from store_core.read.pull import require_queue_files
from store_core.read.records import read_message
from store_core.scan.frames import FrameTable
from store_core.storage.sequence import Segment, SegmentSequence
from store_core.storage.store import Store

RECOVER_FIRST: Final = "run `rmqctl recover` first"
_ZERO_WINDOW_BYTES: Final = 1 << 20
_KEPT_PLACES: Final = 64
_WITH_ENTRY: Final = (record.TRANSACTION_NONE, record.TRANSACTION_COMMIT)


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a log.

    * ``end_phy_offset``: where the next record starts if it fits.
    * ``last``: the newest record, None in an empty log.
    * ``newest``: the places of the newest records of the walk: (offset, size), in log order.
    """

    end_phy_offset: int
    last: Message | None = None
    newest: tuple[tuple[int, int], ...] = ()

    @property
    def last_store_timestamp_ms(self) -> int:
        return self.last.store_timestamp_ms if self.last is not None else 0


@dataclass(slots=True)
class _Walked:
    """The result of a walk so far: the newest records, and the newest one that must have a queue entry."""

    newest: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_KEPT_PLACES))
    last_queued: tuple[int, int] | None = None


def find_tail(store: Store, behaviour: Behaviour) -> Tail:
    """Return the end of a cleanly stopped store's log; every record from the start of the newest segment on is checked.

    Raises FailedError where the log's end is torn or damaged, has left-overs after it, or does not fit the queues, and for stores whose queues are
    not in files.
    """
    require_queue_files(store)
    _refuse_odd_files(store)
    newest = newest_entry(store)
    segments = store.log.segments
    if not segments:
        return Tail(0)
    start = store.log.find(newest.phy_offset) if newest is not None else segments[0]
    if start is None:
        raise _refusal("a queue points beyond the end of the log", store.root / paths.CONSUMEQUEUE)
    end, walked = _walk(store, start, behaviour)
    _compare(walked, newest)
    _refuse_leftovers(store, end)
    last = read_message(store.log, *walked.newest[-1]) if walked.newest else None
    return Tail(end, last, tuple(walked.newest))


def _refuse_odd_files(store: Store) -> None:
    size = store.log.file_size_bytes
    for segment in store.log.segments:
        if segment.size_bytes != size or segment.phy_offset % size:
            raise _refusal(f"a segment does not have the size of {size} bytes", segment.path)
    if any(not stray.is_folder for stray in store.log.strays):
        raise _refusal("a foreign file lies between the segments", store.log.strays[0].path)


def _walk(store: Store, segment: Segment, behaviour: Behaviour) -> tuple[int, _Walked]:
    """Walk over whole segments until no record follows; return the place of the next record."""
    check = CheckRules.of(behaviour, check_crc=True, verify_property_crc=store.settings.flag("forceVerifyPropCRC"))
    walked = _Walked()
    while True:
        walk = SegmentWalk(store.log, segment, WalkRules(check), segment.phy_offset, segment.end_phy_offset)
        for table in walk:
            _add_records(table, walked)
        if walk.stopped.verdict is not Verdict.BLANK:
            return walk.end, walked
        following = store.log.find(segment.end_phy_offset)
        if following is None:
            return _after_blank(store.log, walk.end, segment), walked
        segment = following


def _add_records(table: FrameTable, walked: _Walked) -> None:
    if not len(table):
        return
    rows = slice(-_KEPT_PLACES, None)
    walked.newest.extend(zip(table.phy_offset[rows].tolist(), table.size_bytes[rows].tolist(), strict=True))
    queued = np.flatnonzero(np.isin(table.sys_flag & record.TRANSACTION_MASK, _WITH_ENTRY))
    if len(queued):
        walked.last_queued = int(table.phy_offset[queued[-1]]), int(table.size_bytes[queued[-1]])


def _after_blank(log: SegmentSequence, blank_at: int, segment: Segment) -> int:
    """Return the place of the next record after a blank without a next segment.

    The next record overwrites such a blank, as in brokers, but never old bytes.
    """
    rest = blank_at + record.PREFIX.size_bytes
    return blank_at if is_zero(log, rest, segment.end_phy_offset) else segment.end_phy_offset


def _compare(walked: _Walked, newest: LastEntry | None) -> None:
    """Raise FailedError unless the newest record that needs an entry is the newest entry's record."""
    newest_place = (newest.phy_offset, newest.size_bytes) if newest is not None else None
    if walked.last_queued == newest_place:
        return
    if newest_place is None or (walked.last_queued is not None and walked.last_queued > newest_place):
        at = walked.last_queued[0] if walked.last_queued else None
        raise _refusal("the log holds records that no queue knows", phy_offset=at)
    raise _refusal("the log is damaged in its newest segment, or ends before the queues do", phy_offset=newest_place[0])


def _refuse_leftovers(store: Store, end: int) -> None:
    """Raise FailedError unless only zeros, or a blank and zeros, follow the end of the log.

    The zeros may include segments that a broker made ahead. With writeWithoutMmap other bytes are allowed up to the next page.
    """
    zeros_from = record.page_end(end) if store.settings.flag("writeWithoutMmap") else end
    for segment in store.log.segments:
        start = max(segment.phy_offset, zeros_from)
        if start >= segment.end_phy_offset:
            continue
        is_blank = start == end and end != segment.phy_offset and _has_blank(store.log, end)
        if not is_zero(store.log, start + (record.PREFIX.size_bytes if is_blank else 0), segment.end_phy_offset):
            raise _refusal("there are bytes after the end of the log", segment.path, phy_offset=start)


def _has_blank(log: SegmentSequence, phy_offset: int) -> bool:
    data = log.read(phy_offset, record.PREFIX.size_bytes)
    return len(data) == record.PREFIX.size_bytes and record.PREFIX.read(data)["magic"] == record.MAGIC_BLANK


def is_zero(files: SegmentSequence, start: int, end: int) -> bool:
    """Return True if a range inside a file has only zeros; sparse holes are not read."""
    zeros = bytes(_ZERO_WINDOW_BYTES)
    at: int | None = start
    while at is not None and at < end:
        at = files.next_data(at)
        if at is None or at >= end:
            return True
        window = files.read(at, min(_ZERO_WINDOW_BYTES, end - at))
        if not window or window != zeros[: len(window)]:
            return False
        at += len(window)
    return True


def _refusal(what: str, path: object = None, *, phy_offset: int | None = None) -> FailedError:
    where = str(path) if path is not None else f"offset {phy_offset}" if phy_offset is not None else ""
    return FailedError(
        what, where=where, to_do=RECOVER_FIRST, path=str(path) if path is not None else None, phy_offset=phy_offset
    )
