"""Compare two logs to prove that one is a copy of the other where a range is to be taken.

Two logs that parted never become one again: if a record after a place is the same in both, everything before it is. A record
that is damaged in one log is compared by its head. A record that is unreadable in the copy, or that rmqctl wrote there, proves
nothing, and the next record is compared. If the copy has a sound record across the start of a record here, the logs have parted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Final

import numpy as np

from store_core.codec.properties import TAGS
from store_core.codec.record import Message, RecordError, body_crc_ok, decode_record, identity_of
from store_core.codec.tags import tags_code
from store_core.errors import UsageError
from store_core.kernel.codes import FrameCode
from store_core.layout import marks
from store_core.layout.record import MIN_RECORD_SIZE_BYTES
from store_core.read.records import read_message, read_record_bytes
from store_core.recovery.damage_scan import LogSurvey, Neighbour, Region
from store_core.recovery.lost_from_queues import queue_entry_at
from store_core.scan.frames import filler_rows, tombstone_rows
from store_core.scan.log import scan_log
from store_core.storage.store import QueueKey, Store

_SAMPLES: Final = 64
_MOST_LOOKED_BACK: Final = 1 << 10
_LOOKED_BACK_BYTES: Final = (64 << 10, 4 << 20)  # windows that are read in turn
_END_BYTES: Final = 16  # of a record, which damage after it may reach

Span = tuple[int, int]  # start and size of a record


@dataclass(slots=True)
class Kinship:
    """A store and a copy, compared at good records of the store. ``compared`` and ``same`` count them."""

    store: Store
    sibling: Store
    survey: LogSurvey
    compared: int = 0
    same: int = 0
    _known: dict[Span, bool | None] = field(default_factory=dict)
    _proven: int = -1  # up to this offset both are one log
    _silent: int = (1 << 63) - 1  # from this offset on no record proves anything

    def is_same(self, phy_offset: int, size_bytes: int) -> bool | None:
        """Return True if both hold the same record at an offset; None if the copy's record proves nothing."""
        place = (phy_offset, size_bytes)
        if place not in self._known:
            found = self._known[place] = self._compared(phy_offset, size_bytes)
            if found:
                self._proven = max(self._proven, phy_offset)
        return self._known[place]

    def _compared(self, phy_offset: int, size_bytes: int) -> bool | None:
        sibling_data = self.sibling.log.read(phy_offset, size_bytes)
        if len(sibling_data) < size_bytes:
            return None
        data = self.store.log.read(phy_offset, size_bytes)
        self.compared += 1
        found: bool | None = sibling_data == data
        if not found:
            message, other = _decoded(data, phy_offset), read_message(self.sibling.log, phy_offset)
            if other is not None and _is_by_rmqctl(other):
                return None
            found = message is not None and other is not None and identity_of(message) == identity_of(other)
            if not found and (other is None or other.own_phy_offset != phy_offset or not body_crc_ok(other)):
                return False if any(sibling_data) and self._has_another_across(phy_offset) else None
        self.same += bool(found)
        return found

    def _has_another_across(self, phy_offset: int) -> bool:
        """Return True if a sound record of the copy begins before an offset and ends after it."""
        return any(
            start + size > phy_offset
            for start, size in islice(_good_before(self.sibling, phy_offset, _LOOKED_BACK_BYTES), 1)
        )

    def start_in(self, region: Region) -> int | None:
        """Return the offset from which to take a region's records; None if the log is no copy there.

        A record before the region is taken, too, if the damage has reached its end.
        """
        before = _place(region.before)
        is_kin = True if region.end_phy_offset <= self._proven else self._is_same_log_after(region)
        if is_kin is None and before is not None:  # the copy or this log ends in the region
            is_kin = self._is_same_before(before, _SAMPLES)
        if not is_kin:
            return None
        return before[0] if before is not None and self._reaches_into(before, region.phy_offset) else region.phy_offset

    def _is_same_log_after(self, region: Region) -> bool | None:
        """Return True if a record after a region is the same, False if only different ones are found, else None."""
        if region.end_phy_offset >= self._silent:
            return None
        after = self._record_after(region)
        is_kin = self.is_same(*after) if after is not None else None
        if not is_kin:
            later = (self.is_same(*place) for place in self._good_after(region.end_phy_offset))
            is_kin = _any(chain((is_kin,), later))
        if is_kin is None:
            self._silent = region.end_phy_offset
        return is_kin

    def start_after(self) -> int | None:
        """Return the offset from which to take records after this log's end; None if the other is no copy.

        It is the end of this log's last record, or its start if the record is torn.
        """
        start, end = self.survey.last_phy_offset, self.survey.end_phy_offset
        if not self.survey.messages or not self._is_same_before((start, end - start)):
            return None
        return start if self._reaches_into((start, end - start), end) else end

    def same_begin(self) -> bool:
        """Return True if both hold this log's first good record, so that the copy's earlier records belong before it."""
        begin = self.store.log.min_phy_offset
        first = next((region for region in self.survey.regions if region.phy_offset == begin), None)
        at = begin if first is None else first.end_phy_offset
        return bool(_any(self.is_same(*place) for place in self._good_after(at)))

    def assert_related(self, root: Path) -> None:
        """Compare records at the regions, at the log's end and at segment starts. Raises UsageError for a log that is no copy."""
        if not self.survey.messages:
            return
        self.start_after()
        for region in self.survey.regions[:_SAMPLES]:
            self.start_in(region)
        for place in self._first_records(self.store.log.min_phy_offset):
            self.is_same(*place)
        if not self.compared:
            raise UsageError(
                "the sibling's log has no offset in common with this store's",
                path=str(root),
                to_do="name a copy of this store",
            )
        if not self.same:
            raise UsageError(
                f"not a copy of this store: of {self.compared} good records compared none is the same there",
                path=str(root),
                to_do="name a master's, a slave's or a backup's copy of this store",
            )

    def _is_same_before(self, place: Span, limit: int = _MOST_LOOKED_BACK) -> bool:
        """Return True if the last record up to ``place`` that both have is the same, or this log's is torn."""
        if self._is_torn(*place):
            self.compared += 1
            self.same += 1
            return True
        earlier = islice(_good_before(self.store, place[0], _LOOKED_BACK_BYTES), limit)
        results = (self.is_same(*other) for other in chain((place,), earlier))
        return next((result for result in results if result is not None), False)

    def _reaches_into(self, place: Span, phy_offset: int) -> bool:
        """Return True if damage at an offset took the end of the record before it, which the copy has whole.

        No checksum covers that end.
        """
        at, size = place
        if at + size != phy_offset or not self.is_same(at, size):
            return at + size == phy_offset and self._is_torn(at, size)
        data, sibling_data = self.store.log.read(at, size), self.sibling.log.read(at, size)
        message, other = _decoded(data, at), _decoded(sibling_data, at)
        if data == sibling_data or message is None or other is None or not body_crc_ok(other):
            return False
        entry = queue_entry_at(self.store, QueueKey(message.topic, message.queue_id), message.queue_offset)
        codes = _tags_code(message), _tags_code(other)
        if entry is not None and entry[:2] == place and codes[0] != codes[1] and entry[2] in codes:
            return entry[2] == codes[1]
        return data[-_END_BYTES:] != sibling_data[-_END_BYTES:] and not sibling_data.endswith(b"\0")

    def _is_torn(self, phy_offset: int, size_bytes: int) -> bool:
        """Return True if this log's record equals the copy's up to a byte after its body's start, then is zeros.

        A lost page that begins in a record's topic or properties leaves such a record, which no checksum shows.
        """
        data, sibling_data = self.store.log.read(phy_offset, size_bytes), self.sibling.log.read(phy_offset, size_bytes)
        whole = len(data.rstrip(b"\0"))
        return (
            len(sibling_data) == size_bytes > whole
            and whole >= MIN_RECORD_SIZE_BYTES
            and sibling_data.startswith(data[:whole])
        )

    def _record_after(self, region: Region) -> Span | None:
        """Return offset and size of the first good record after a region; other regions may lie between."""
        by_start = {other.phy_offset: other for other in self.survey.regions}
        following: Region | None = region
        while following is not None:
            if following.after is not None:
                return _place(following.after)
            at = following.segment_end_phy_offset if following.blank_follows else following.end_phy_offset
            following = by_start.get(at)
        data = read_record_bytes(self.store.log, at)
        return (at, len(data)) if data is not None else None

    def _good_after(self, phy_offset: int) -> Iterator[Span]:
        """Yield good records of this store from an offset on: the next ones, and the first ones of segments."""
        yield from islice(_good_in(self.store, phy_offset, None), _SAMPLES)
        yield from self._first_records(phy_offset)

    def _first_records(self, phy_offset: int) -> Iterator[Span]:
        starts = [s.phy_offset for s in self.store.log.segments if s.phy_offset >= phy_offset]
        for at in starts[:: max(len(starts) // _SAMPLES, 1)]:
            if (data := read_record_bytes(self.store.log, at)) is not None:
                yield at, len(data)


def _good_in(store: Store, start: int, end: int | None) -> Iterator[Span]:
    """Yield sound records that rmqctl did not write."""
    for table in scan_log(store, from_phy_offset=start, to_phy_offset=end):
        good = table.messages & table.of_code(FrameCode.OK)
        good[[*filler_rows(table), *tombstone_rows(table)]] = False
        for row in np.flatnonzero(good):
            yield int(table.phy_offset[row]), int(table.size_bytes[row])


def _good_before(store: Store, phy_offset: int, looked_back_bytes: Iterable[int]) -> Iterator[Span]:
    """Yield the sound records in windows that end at an offset, from the last one backwards."""
    end = phy_offset
    for size in looked_back_bytes:
        start = max(phy_offset - size, 0)
        yield from reversed(list(_good_in(store, start, end)))
        end = start


def _any(results: Iterable[bool | None]) -> bool | None:
    """Return True if a result is True, else False if one is False, else None."""
    found: bool | None = None
    for result in results:
        if result:
            return True
        found = found if result is None else result
    return found


def _place(neighbour: Neighbour | None) -> Span | None:
    return (neighbour.phy_offset, neighbour.size_bytes) if neighbour is not None else None


def _decoded(data: bytes, phy_offset: int) -> Message | None:
    try:
        return decode_record(data, 0, phy_offset)
    except RecordError:
        return None


def _is_by_rmqctl(message: Message) -> bool:
    return message.topic == marks.FILLER_TOPIC or marks.TOMBSTONE_PROPERTY in message.properties


def _tags_code(message: Message) -> int:
    return tags_code(message.properties.get(TAGS))
