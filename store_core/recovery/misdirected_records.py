"""Find log files under wrong names and records written over others, and put their bytes where the records belong.

A copy, restore or rename under the wrong file name causes the first: segments that have changed places, that have another
offset's name, or a name that is no offset, with which a broker refuses to start; or a copy of one segment in the place of
another (tests/recovery/test_recover.py). The own offset of records is believed if most of the file's first records agree.

A misdirected write leaves whole records inside the log (tests/recovery/test_misdirected.py). Their own offset names
another place, and they are at that place as well, or their queue's entry points there. The range they cover becomes a hole; a
record that is missing at its own place returns to it. If only the own offset is damaged, the entry points to the record,
and it stays.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

from store_core.codec.record import Message, RecordError, body_crc_ok, decode_record, possible_starts
from store_core.layout.queue import BATCH_ENTRY, ENTRY
from store_core.read.records import read_message
from store_core.recovery.damage_scan import LogSurvey, Ranges, Region
from store_core.recovery.header_repair import Repair
from store_core.recovery.lost_from_queues import queue_entry_at
from store_core.storage.overlay import Borrowed, Patch
from store_core.storage.sequence import Segment, SegmentSequence
from store_core.storage.store import QueueKey, Store

_MOST_PUT_BACK_BYTES: Final = 4 << 20  # a plan holds these bytes; further records stay where they can be read
_LOOKED_AT_BYTES: Final = 1 << 20  # of a file whose first record is not at its own offset
_MOST_WITNESSES: Final = 16
_MOST_MISSING_SEGMENTS: Final = 64  # between the log's last segment and a file that is to follow it
_BATCH_READ_BYTES: Final = 1 << 20
_NO_PLACE: Final = -1


@dataclass(slots=True)
class Misdirected:
    """Edits by log offset: ``zeros`` over misdirected records, ``put_back`` with records for their own places.

    ``repairs`` describe the records that are put back.
    """

    zeros: dict[int, Patch] = field(default_factory=dict)
    put_back: dict[int, Patch] = field(default_factory=dict)
    repairs: list[Repair] = field(default_factory=list)


class _Stray(NamedTuple):
    phy_offset: int
    home: int
    size_bytes: int
    is_copy: bool  # the same bytes are at ``home``


def misdirected(store: Store, survey: LogSurvey) -> Misdirected:
    """Return the edits that move misdirected records of the store's log; no file is changed."""
    strays = [stray for at in survey.wrong_own_offsets if (stray := _stray(store, at)) is not None]
    while True:  # a record whose own place is taken stays, and may be in the way of others
        moving = Ranges((stray.phy_offset, stray.phy_offset + stray.size_bytes) for stray in strays)
        movable = [s for s in strays if s.is_copy or _is_free(survey.regions, moving, s.home, s.home + s.size_bytes)]
        if len(movable) == len(strays):
            break
        strays = movable
    found, start, end = Misdirected(), 0, 0
    room = _MOST_PUT_BACK_BYTES
    for at, home, size, is_copy in strays:
        if not is_copy and home not in found.put_back:
            if (room := room - size) < 0:
                continue
            data = store.log.read(at, size)
            found.put_back[home] = Patch(0, size, ((0, data),))
            message = decode_record(data, 0, at)
            key = message.topic, message.queue_id, message.queue_offset
            found.repairs.append(Repair(*key, home, size, ("phy_offset",), ((home, data),)))
        start = start if at == end else at
        end = at + size
        found.zeros[start] = Patch(0, end - start)  # one patch for records that follow each other
    return found


def _stray(store: Store, phy_offset: int) -> _Stray | None:
    """Return the record at an offset as a stray, unless nothing else proves the place that it names."""
    message = read_message(store.log, phy_offset)
    if message is None or message.own_phy_offset < 0:
        return None
    home, size, points_to = message.own_phy_offset, message.size_bytes, _points_to(store, message)
    if points_to == phy_offset:
        return None
    is_copy = store.log.read(home, size) == store.log.read(phy_offset, size)
    return _Stray(phy_offset, home, size, is_copy) if is_copy or points_to == home else None


def _points_to(store: Store, message: Message) -> int | None:
    """Return the offset in the queue entry at a record's number; None if the size differs."""
    entry = queue_entry_at(store, QueueKey(message.topic, message.queue_id), message.queue_offset)
    return entry[0] if entry is not None and entry[1] == message.size_bytes else None


def _is_free(regions: list[Region], moving: Ranges, start: int, end: int) -> bool:
    """Return True if no readable bytes that stay lie in [start, end); ``regions`` are in log order."""
    before = bisect_right(regions, start, key=attrgetter("phy_offset")) - 1
    is_lost = before >= 0 and end <= regions[before].end_phy_offset
    return is_lost or not any(moving.outside(start, end))


class Move(NamedTuple):
    """The first ``size_bytes`` of the file ``path``, which belong at ``phy_offset``."""

    phy_offset: int
    path: Path
    size_bytes: int
    mtime_ns: int


@dataclass(slots=True)
class Displaced:
    """Files to move. ``emptied``: segments whose bytes belong elsewhere and whose own bytes are lost."""

    moves: list[Move] = field(default_factory=list)
    emptied: list[Segment] = field(default_factory=list)

    def patches(self, log: SegmentSequence, end_phy_offset: int | None = None) -> dict[int, Patch]:
        """Return patches by log offset that read the bytes where they are now, up to ``end_phy_offset``."""
        patches: dict[int, Patch] = {}
        for move in self.moves:
            if size := _up_to(end_phy_offset, move.phy_offset, move.size_bytes):
                alone = log.alone(Segment(move.path, 0, move.size_bytes))
                patches[move.phy_offset] = Borrowed(0, size, log=alone, path=move.path, mtime_ns=move.mtime_ns)
        for segment in self.emptied:
            if size := _up_to(end_phy_offset, segment.phy_offset, segment.size_bytes):
                patches[segment.phy_offset] = Patch(0, size)
        return patches


def displaced(store: Store) -> Displaced:
    """Return the moves that put each file where its records belong. Each place is given once; correct segments keep theirs."""
    log = store.log
    homes = _homes(log)
    right = {s.phy_offset for s in log.segments if s in homes and homes[s].phy_offset == s.phy_offset}
    occupied = right | {segment.phy_offset for segment in log.segments if segment not in homes}
    claims: dict[int, Segment] = {}
    for file, home in sorted(homes.items(), key=lambda item: item[0].size_bytes):
        if home.phy_offset not in right:
            claims[home.phy_offset] = file
    found = Displaced()
    for place in _reachable(store, claims, homes, occupied):
        file = claims[place]
        size = min(file.size_bytes, log.file_size_bytes)
        found.moves.append(Move(place, file.path, size, file.mtime_ns))
    taken = {move.phy_offset for move in found.moves}
    found.emptied = [
        segment
        for segment in log.segments
        if segment in homes
        and segment.phy_offset not in right | taken
        and (homes[segment].phy_offset in taken or _is_in_log(log, homes[segment]))
    ]
    return found


def is_better(before: LogSurvey, after: LogSurvey) -> bool:
    """Return True if more records are at their own offset, or as many and fewer elsewhere."""
    wrong_before, wrong_after = len(before.wrong_own_offsets), len(after.wrong_own_offsets)
    right_before, right_after = before.messages - wrong_before, after.messages - wrong_after
    return right_after > right_before or (right_after == right_before and wrong_after < wrong_before)


class _Home(NamedTuple):
    """The place of a file, and the records that prove it; their ``phy_offset`` is the position in the file."""

    phy_offset: int
    witnesses: tuple[Message, ...]


def _homes(log: SegmentSequence) -> dict[Segment, _Home]:
    """Return where each file of the log's folders belongs, if its records prove it.

    Files whose name is no offset are included.
    """
    size = log.file_size_bytes
    strays = [
        Segment(stray.path, _NO_PLACE, stray.size_bytes, stray.mtime_ns)
        for stray in log.strays
        if not stray.is_folder and stray.duplicate_of is None
    ]
    files = (*log.segments, *strays) if size else ()
    return {file: home for file in files if (home := _home(log, file, size)) is not None}


def _home(log: SegmentSequence, file: Segment, size_bytes: int) -> _Home | None:
    first = read_message(log, file.phy_offset) if file.phy_offset != _NO_PLACE else None
    if first is not None and first.own_phy_offset == file.phy_offset:
        return _Home(file.phy_offset, (first,))
    counts: Counter[int] = Counter()
    witnesses = list(_witnesses(log.alone(Segment(file.path, 0, file.size_bytes)), size_bytes))
    counts.update(message.own_phy_offset - message.phy_offset for message in witnesses)
    for place, votes in counts.most_common(1):
        if 2 * votes > len(witnesses):
            own = tuple(m for m in witnesses if m.own_phy_offset - m.phy_offset == place)
            return _Home(place, own)
    return None


def _witnesses(alone: SegmentSequence, size_bytes: int) -> Iterator[Message]:
    """Yield the first whole records of a file whose own offsets fit their positions in a segment."""
    data = alone.read(0, _LOOKED_AT_BYTES)
    count, end = 0, 0
    for start in possible_starts(data):
        if start < end:  # inside the body of another record
            continue
        try:
            message = decode_record(data, start, start)
        except RecordError:
            continue
        place = message.own_phy_offset - start
        if body_crc_ok(message) and place >= 0 and place % size_bytes == 0:
            yield message
            end, count = start + message.size_bytes, count + 1
            if count == _MOST_WITNESSES:
                return


def _reachable(
    store: Store, claims: dict[int, Segment], homes: dict[Segment, _Home], occupied: set[int]
) -> Iterator[int]:
    """Yield the claimed places inside the log, directly before it, and after it if queues still point there.

    Files further before the log have expired; files after it that no queue knows are left of an earlier log. In a store without
    queues the place directly after the log counts, too.
    """
    size = store.log.file_size_bytes
    occupied = occupied | {segment.phy_offset for segment in store.log.segments if segment.phy_offset in claims}
    low, high = min(occupied, default=min(claims, default=0)), max(occupied, default=max(claims, default=0))
    yield from sorted(place for place in claims if low <= place <= high)
    for place in sorted((place for place in claims if place < low), reverse=True):
        if place == low - size:
            yield place
            low = place
    has_queues = bool(store.queues or store.batch_queues)
    for place in sorted(place for place in claims if place > high):
        is_near = place <= high + (_MOST_MISSING_SEGMENTS if has_queues else 1) * size
        if is_near and (not has_queues or any(_is_pointed_to(store, m) for m in homes[claims[place]].witnesses)):
            yield place
            high = place


def _is_pointed_to(store: Store, message: Message) -> bool:
    """Return True if a record's queue has an entry that points to its own offset."""
    key = QueueKey(message.topic, message.queue_id)
    files, batch = store.queues.get(key), store.batch_queues.get(key)
    if files is not None and message.queue_offset >= 0:
        data = files.read(message.queue_offset * ENTRY.size_bytes, ENTRY.size_bytes)
        if len(data) == ENTRY.size_bytes and ENTRY.read(data)["phy_offset"] == message.own_phy_offset:
            return True
    wanted = BATCH_ENTRY.field_struct("phy_offset").pack(message.own_phy_offset)
    return batch is not None and any(
        wanted in batch.read(at, _BATCH_READ_BYTES)
        for segment in batch.segments
        for at in range(segment.phy_offset, segment.end_phy_offset, _BATCH_READ_BYTES)
    )


def _is_in_log(log: SegmentSequence, home: _Home) -> bool:
    """Return True if records of a file are also in the log at their own offset: it holds only copies."""
    return any(read_message(log, m.own_phy_offset) == Message((m.own_phy_offset, *m[1:])) for m in home.witnesses)


def _up_to(end_phy_offset: int | None, phy_offset: int, size_bytes: int) -> int:
    return size_bytes if end_phy_offset is None else max(min(size_bytes, end_phy_offset - phy_offset), 0)
