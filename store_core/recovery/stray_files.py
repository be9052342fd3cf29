"""Files of the log that stand under wrong names, as a wrong copy or a slip leaves them: their records say where they belong.

They may have changed places, have another offset's name, or a name that is no segment's at all, with which a broker refuses to
start. What a record says of its place is believed where most others of its file say the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from store_core.codec.record import Message, RecordError, body_crc_ok, decode_record, possible_starts
from store_core.layout.queue import BATCH_ENTRY, ENTRY
from store_core.read.records import read_message
from store_core.recovery.damage_scan import LogSurvey
from store_core.storage.overlay import Borrowed, Patch
from store_core.storage.sequence import Segment, SegmentSequence
from store_core.storage.store import QueueKey, Store

_LOOKED_AT_BYTES: Final = 1 << 20  # of a file whose first record does not tell
_MOST_WITNESSES: Final = 16
_MOST_MISSING_SEGMENTS: Final = 64  # between the log's last segment and one that is to be put behind it
_BATCH_READ_BYTES: Final = 1 << 20
_NO_PLACE: Final = -1


class Move(NamedTuple):
    """What belongs at ``phy_offset``: ``size_bytes`` of the file ``path``, from its begin on."""

    phy_offset: int
    path: Path
    size_bytes: int
    mtime_ns: int


@dataclass(slots=True)
class Displaced:
    """``emptied``: segments whose bytes belong elsewhere, while their own are nowhere."""

    moves: list[Move] = field(default_factory=list)
    emptied: list[Segment] = field(default_factory=list)

    def patches(self, log: SegmentSequence, end_phy_offset: int | None = None) -> dict[int, Patch]:
        """The bytes, read where they lie now, by their offset in the log; up to the log's end, if that is given."""
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
    """What would have to stand elsewhere, so that records lie where they say. No place is given twice, none that is right is given away."""
    log = store.log
    homes = _homes(log)
    right = {s.phy_offset for s in log.segments if s in homes and homes[s].phy_offset == s.phy_offset}
    standing = right | {segment.phy_offset for segment in log.segments if segment not in homes}
    claims: dict[int, Segment] = {}
    for file, home in sorted(homes.items(), key=lambda told: told[0].size_bytes):
        if home.phy_offset not in right:
            claims[home.phy_offset] = file
    found = Displaced()
    for place in _reachable(store, claims, homes, standing):
        file = claims[place]
        size = min(file.size_bytes, log.file_size_bytes)
        found.moves.append(Move(place, file.path, size, file.mtime_ns))
    taken = {move.phy_offset for move in found.moves}
    found.emptied = [
        segment
        for segment in log.segments
        if segment in homes
        and segment.phy_offset not in right | taken
        and (homes[segment].phy_offset in taken or _stands(log, homes[segment]))
    ]
    return found


def is_better(before: LogSurvey, after: LogSurvey) -> bool:
    """Whether more records lie where they say, or as many and fewer elsewhere."""
    wrong_before, wrong_after = len(before.wrong_own_offsets), len(after.wrong_own_offsets)
    right_before, right_after = before.messages - wrong_before, after.messages - wrong_after
    return right_after > right_before or (right_after == right_before and wrong_after < wrong_before)


class _Home(NamedTuple):
    """Where a file belongs, and records of it that say so. Their own positions are those in the file."""

    phy_offset: int
    witnesses: tuple[Message, ...]


def _homes(log: SegmentSequence) -> dict[Segment, _Home]:
    """Where every file of the log's folders belongs whose records tell; one with a name that is none has no place of its own."""
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
    told: Counter[int] = Counter()
    witnesses = list(_witnesses(log.alone(Segment(file.path, 0, file.size_bytes)), size_bytes))
    told.update(message.own_phy_offset - message.phy_offset for message in witnesses)
    for place, votes in told.most_common(1):
        if 2 * votes > len(witnesses):
            own = tuple(m for m in witnesses if m.own_phy_offset - m.phy_offset == place)
            return _Home(place, own)
    return None


def _witnesses(alone: SegmentSequence, size_bytes: int) -> Iterator[Message]:
    """The first records of a file that are whole and may lie in a segment where they lie in it."""
    data = alone.read(0, _LOOKED_AT_BYTES)
    found, end = 0, 0
    for start in possible_starts(data):
        if start < end:  # in another one's body
            continue
        try:
            message = decode_record(data, start, start)
        except RecordError:
            continue
        place = message.own_phy_offset - start
        if body_crc_ok(message) and place >= 0 and place % size_bytes == 0:
            yield message
            end, found = start + message.size_bytes, found + 1
            if found == _MOST_WITNESSES:
                return


def _reachable(
    store: Store, claims: dict[int, Segment], homes: dict[Segment, _Home], standing: set[int]
) -> Iterator[int]:
    """Places inside the log, right in front of it, and behind it where the queues still point there.

    What is further in front has expired; what is behind, and no queue knows, is of an earlier life of the log.
    """
    size = store.log.file_size_bytes
    standing = standing | {segment.phy_offset for segment in store.log.segments if segment.phy_offset in claims}
    low, high = min(standing, default=min(claims, default=0)), max(standing, default=max(claims, default=0))
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
    """Whether its queue has an entry for a record, at the place that it says."""
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


def _stands(log: SegmentSequence, home: _Home) -> bool:
    """Whether the records of a file stand where they belong, so that it holds nothing but copies."""
    return any(read_message(log, m.own_phy_offset) == Message((m.own_phy_offset, *m[1:])) for m in home.witnesses)


def _up_to(end_phy_offset: int | None, phy_offset: int, size_bytes: int) -> int:
    return size_bytes if end_phy_offset is None else max(min(size_bytes, end_phy_offset - phy_offset), 0)
