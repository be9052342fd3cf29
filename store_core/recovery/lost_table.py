"""Store lost records that their queue entry or head describes completely as rows in a scratch file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntFlag
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from store_core.closing import Closing
from store_core.codec.properties import parse_properties
from store_core.codec.text import decode_text
from store_core.derive.dispatch import inner_batch_size, light_queues
from store_core.kernel.codes import PropertyFlag
from store_core.layout.record import MIN_RECORD_SIZE_BYTES, PROPERTY_CRC
from store_core.read.records import read_message
from store_core.recovery.lost_record import LostRecord, from_record_head, more_complete
from store_core.scan.frames import FrameTable
from store_core.storage.sequence import SegmentSequence
from store_core.storage.spool import Spool
from store_core.storage.store import QueueKey

# ``lights``: number of light queues that list the record, too; a table holds the first of them at ``lights_at``.
ROW: Final = np.dtype(
    [
        ("phy_offset", "i8"),
        ("queue_offset", "i8"),
        ("tags_code", "i8"),
        ("size_bytes", "i4"),
        ("queue", "i4"),
        ("batch_size", "i4"),
        ("lights", "i4"),
        ("lights_at", "i8"),
    ]
)
LIGHT: Final = np.dtype([("queue_offset", "i8"), ("queue", "i4")])
FEWEST_ROWS: Final = 64  # fewer consecutive ones are kept as records
_CHUNK_ROWS: Final = 1 << 14
_MOST_HELD_ROWS: Final = 1 << 15
_PART_SIZE_BYTES: Final = 4 << 20  # of the log, whose rows are sorted in memory
_LEAST_FREE_BYTES: Final = MIN_RECORD_SIZE_BYTES + PROPERTY_CRC.size_bytes  # between two rows: room for a filler
_MOST_FREE_BYTES: Final = 1 << 20
Rows = NDArray[Any]


class Source(IntFlag):
    """Sources of what is known about a lost record."""

    NUMBER = 0  # a queue that lacks its number: place and size are unknown
    ENTRY = 1  # its queue entry
    HEAD = 2  # its own head
    KEYS = 4  # the head has keys
    PLACE = ENTRY | HEAD  # sources that know its place


class LostTable(Closing):
    """Rows of ROW, numbered from 0 in the order they are added. ``queue`` is a number that ``queue_number`` returned.

    ``queues`` and ``sources`` are by that number; heads are read in ``log``, once the caller has set it. The scratch file has no
    name and lies in the system's temporary folder. Raises FailedError where it cannot grow.
    """

    def __init__(self) -> None:
        self.queues: list[QueueKey] = []
        self.sources: list[Source] = []
        self._sources = np.zeros(0, np.int8)
        self.log: SegmentSequence | None = None
        self._numbers: dict[tuple[QueueKey, Source], int] = {}
        self._spool: Spool | None = None
        self._lights: Spool | None = None
        self._orders: list[InLogOrder] = []
        self._count = 0

    def close(self) -> None:
        """Delete the rows."""
        for spool in (self._spool, self._lights):
            if spool is not None:
                spool.close()
        for order in self._orders:
            order.close()

    def in_log_order(self) -> InLogOrder:
        """Return a new ``InLogOrder`` that is closed with the table."""
        self._orders.append(InLogOrder())
        return self._orders[-1]

    def queue_number(self, key: QueueKey, source: Source = Source.ENTRY) -> int:
        """Return the number that rows use for a queue and the sources of their data."""
        if (key, source) not in self._numbers:
            self._numbers[key, source] = len(self.queues)
            self.queues.append(key)
            self.sources.append(source)
        return self._numbers[key, source]

    def told_by(self, rows: Rows, source: Source) -> NDArray[np.bool_]:
        """Return a mask of the rows that have ``source``, or one of several."""
        if len(self._sources) < len(self.sources):
            self._sources = np.array(self.sources, np.int8)
        mask: NDArray[np.bool_] = (self._sources[rows["queue"]] & int(source)) != 0
        return mask

    def add_lights(self, lights: Rows) -> int:
        """Append rows of LIGHT, those of a record consecutive, and return the number of the first."""
        self._lights = self._lights or Spool()
        return self._lights.append(lights.tobytes()) // LIGHT.itemsize

    def lights_of(self, rows: Rows) -> Iterator[tuple[tuple[str, int], ...]]:
        """Yield the light queues that list each row's record, with its number there."""
        starts, ends = rows["lights_at"], rows["lights_at"] + rows["lights"]
        for part in np.split(np.arange(len(rows)), np.flatnonzero(starts[1:] != ends[:-1]) + 1) if len(rows) else ():
            first, stop = int(starts[part[0]]), int(ends[part[-1]])
            if first == stop:
                yield from ((),) * len(part)
                continue
            assert self._lights is not None  # there are none without it
            size = LIGHT.itemsize
            lights = np.frombuffer(self._lights.read(first * size, (stop - first) * size), LIGHT)
            listed = [(self.queues[queue].topic, number) for number, queue in lights.tolist()]
            for row in part.tolist():
                yield tuple(listed[starts[row] - first : ends[row] - first])

    def append(self, rows: Rows) -> LostRows:
        """Append rows in log order, at least one, which do not overlap, and return them as ``LostRows``."""
        if self._spool is None:
            self._spool = Spool()
        first, self._count = self._count, self._count + len(rows)
        self._spool.append(np.ascontiguousarray(rows, ROW).tobytes())
        return self.rows(first, self._count)

    def add_to(self, lost: list[Lost], rows: Rows) -> None:
        """Append rows to the table and to ``lost``, joined to its last item if possible.

        They are in log order, at least one, and join.
        """
        added, last = self.append(rows), lost[-1] if lost else None
        if (
            isinstance(last, LostRows)
            and last.stop == added.first
            and joining(self.read(added.first - 1, added.first + 1))[0]
        ):
            lost[-1] = self.rows(last.first, added.stop)
        else:
            lost.append(added)

    def add_all(self, lost: list[Lost], rows: Rows) -> None:
        """Append rows as ``add_to`` does, but they need not join."""
        for part in np.split(rows, np.flatnonzero(~joining(rows)) + 1):
            self.add_to(lost, part)

    def rows(self, first: int, stop: int) -> LostRows:
        """Return rows [first, stop), which are in log order, as ``LostRows``."""
        start, end = self.read(first, first + 1)[0], self.read(stop - 1, stop)[0]
        return LostRows(self, first, stop, int(start["phy_offset"]), int(end["phy_offset"]) + int(end["size_bytes"]))

    def read(self, first: int, stop: int) -> Rows:
        """Return rows by their numbers."""
        assert self._spool is not None  # there are none without it
        size = ROW.itemsize
        return np.frombuffer(self._spool.read(first * size, (stop - first) * size), ROW)


@dataclass(frozen=True, slots=True)
class LostRows:
    """Lost records in log order, at least one: rows [first, stop) of a table, in [phy_offset, end_phy_offset) of the log.

    Between two of them lies nothing, or room for a record.
    """

    table: LostTable
    first: int
    stop: int
    phy_offset: int
    end_phy_offset: int

    def chunks(self) -> Iterator[Rows]:
        """Yield all rows in chunks."""
        for at in range(self.first, self.stop, _CHUNK_ROWS):
            yield self.table.read(at, min(at + _CHUNK_ROWS, self.stop))

    def records(self) -> Iterator[LostRecord]:
        """Yield the rows as records."""
        for rows in self.chunks():
            yield from records_of_rows(self.table, rows)

    def around(self, start: int, end: int) -> Rows:
        """Return the rows that overlap [start, end) of the log, and one more on each side."""
        first = max(self._first_after(start) - 2, self.first)
        return self.table.read(first, min(max(self._first_after(end), first) + 1, self.stop))

    def first_from(self, phy_offset: int) -> int | None:
        """Return the start of the first row at or after an offset; None without one."""
        if phy_offset <= self.phy_offset:
            return self.phy_offset
        number = self._first_after(phy_offset)
        return int(self.table.read(number, number + 1)[0]["phy_offset"]) if number < self.stop else None

    def apart(self, places: Sequence[int]) -> Iterator[LostRecord | LostRows]:
        """Yield the rows split at ``places``, which rise; a row that starts at a place becomes a record."""
        at = self.first
        for place in places:
            if not self.phy_offset <= place < self.end_phy_offset:
                continue
            number = self._first_after(place)
            if at < number:
                yield self.table.rows(at, number)
            at = number
            if number < self.stop and int(self.table.read(number, number + 1)[0]["phy_offset"]) == place:
                yield from records_of_rows(self.table, self.table.read(number, number + 1))
                at = number + 1
        if at < self.stop:
            yield self.table.rows(at, self.stop) if at > self.first else self

    def without_first(self) -> Iterator[LostRecord | LostRows]:
        """Yield the first row as a record, then the others."""
        return self.apart([self.phy_offset])

    def without_last(self) -> Iterator[LostRecord | LostRows]:
        """Yield the other rows, then the last one as a record."""
        return self.apart([int(self.table.read(self.stop - 1, self.stop)[0]["phy_offset"])])

    def _first_after(self, phy_offset: int) -> int:
        """Return the number of the first row that starts at or after an offset; ``stop`` without one."""
        low, high = self.first, self.stop
        while high - low > _CHUNK_ROWS:
            middle = (low + high) // 2
            if self.table.read(middle, middle + 1)[0]["phy_offset"] < phy_offset:
                low = middle
            else:
                high = middle
        return low + int(np.searchsorted(self.table.read(low, high)["phy_offset"], phy_offset))


class InLogOrder(Closing):
    """Rows of a type like ROW by their place in the log. Rows that do not fit in memory are in a scratch file, one part of
    the log after the other."""

    def __init__(self, dtype: np.dtype[Any] = ROW) -> None:
        self._dtype = dtype
        self._held: list[Rows] = []
        self._count = 0
        self._spool: Spool | None = None
        self._parts: dict[int, list[tuple[int, int]]] = {}  # (position, rows) of each part of the log

    def close(self) -> None:
        """Delete the rows."""
        if self._spool is not None:
            self._spool.close()

    def add(self, rows: Rows) -> None:
        """Add rows in any order."""
        if not len(rows):
            return
        self._held.append(rows)
        self._count += len(rows)
        if self._count > _MOST_HELD_ROWS:
            self._put_away()

    def stretches(self) -> Iterator[Rows]:
        """Yield all rows sorted by place, those of one place as they were added. No place is in two arrays."""
        if self._spool is None:
            if self._count:
                yield _sorted(np.concatenate(self._held))
            return
        self._put_away()
        for part in sorted(self._parts):
            rows = np.zeros(0, self._dtype)
            for at, count in self._parts[part]:
                read = np.frombuffer(self._spool.read(at, count * self._dtype.itemsize), self._dtype)
                rows = _without_repeats(np.concatenate([rows, read]))
            yield _sorted(rows)

    def _put_away(self) -> None:
        if not self._held:
            return
        rows = _sorted(np.concatenate(self._held))
        self._held, self._count = [], 0
        self._spool = self._spool or Spool()
        number = rows["phy_offset"] // _PART_SIZE_BYTES
        for part in np.split(rows, np.flatnonzero(np.diff(number)) + 1):
            place = self._spool.append(part.tobytes())
            self._parts.setdefault(int(part["phy_offset"][0]) // _PART_SIZE_BYTES, []).append((place, len(part)))


def _sorted(rows: Rows) -> Rows:
    return rows[np.argsort(rows["phy_offset"], kind="stable")]


def _without_repeats(rows: Rows) -> Rows:
    """Return the first row of each queue for a place: damage may repeat queue entries without end."""
    order = np.lexsort((rows["queue"], rows["phy_offset"]))
    same = np.diff(rows["phy_offset"][order]) == 0
    same &= np.diff(rows["queue"][order]) == 0
    return rows[np.sort(order[np.r_[True, ~same]])] if same.any() else rows


Lost = LostRecord | LostRows


def joining(rows: Rows) -> NDArray[np.bool_]:
    """Return a mask of rows[1:] that follow the row before directly or after room for a filler."""
    free = rows["phy_offset"][1:] - rows["phy_offset"][:-1] - rows["size_bytes"][:-1]
    mask: NDArray[np.bool_] = (free == 0) | ((free >= _LEAST_FREE_BYTES) & (free <= _MOST_FREE_BYTES))
    return mask


def head_rows(table: LostTable, frames: FrameTable, rows: NDArray[np.int64]) -> Rows:
    """Return some messages of a table of frames as rows of ROW."""
    has_keys = frames.with_property(PropertyFlag.KEYS)[rows]
    kinds = np.stack([frames.topic_id[rows], frames.queue_id[rows], has_keys], axis=1).astype(np.int64)
    distinct, which = np.unique(kinds, axis=0, return_inverse=True)
    numbers = [
        table.queue_number(
            QueueKey(decode_text(frames.topics[topic]), queue_id),
            Source.HEAD | Source.KEYS if keys else Source.HEAD,
        )
        for topic, queue_id, keys in distinct.tolist()
    ]
    found = np.zeros(len(rows), ROW)
    for name in ("phy_offset", "queue_offset", "size_bytes"):
        found[name] = getattr(frames, name)[rows]
    found["queue"] = np.array(numbers, np.int32)[which.reshape(-1)]
    found["batch_size"] = 1
    lights: list[tuple[int, int]] = []
    listed = np.flatnonzero(frames.with_property(PropertyFlag.INNER_MULTI_DISPATCH | PropertyFlag.INNER_NUM)[rows])
    for place in listed.tolist():
        properties = parse_properties(frames.properties(int(rows[place])))
        own_lights = [(number, table.queue_number(QueueKey(name, 0))) for name, number in light_queues(properties)]
        found["batch_size"][place] = inner_batch_size(properties)
        found["lights"][place], found["lights_at"][place] = len(own_lights), len(lights)
        lights += own_lights
    if lights:
        found["lights_at"][listed] += table.add_lights(np.array(lights, LIGHT))
    return found


def records_of(lost: Iterable[Lost]) -> Iterator[LostRecord]:
    """Yield lost records one by one."""
    for item in lost:
        if isinstance(item, LostRows):
            yield from item.records()
        else:
            yield item


def from_queue_entries(lost: Iterable[Lost]) -> Iterator[LostRecord]:
    """Yield lost records one by one, except rows with a sound head."""
    for item in lost:
        if isinstance(item, LostRows):
            for rows in item.chunks():
                yield from entries_of(item.table, rows[~item.table.told_by(rows, Source.HEAD)])
        else:
            yield item


def entries_of(table: LostTable, rows: Rows) -> Iterator[LostRecord]:
    """Yield rows as records with the data of their columns."""
    columns = [rows[name].tolist() for name in ("phy_offset", "queue_offset", "tags_code", "size_bytes", "batch_size")]
    for number, lights, at, queue_offset, tags_code, size, batch_size in zip(
        rows["queue"].tolist(), table.lights_of(rows), *columns, strict=True
    ):
        key, source = table.queues[number], table.sources[number]
        yield LostRecord(
            key.topic,
            key.queue_id,
            queue_offset,
            at,
            size,
            batch_size=batch_size,
            light_queues=lights,
            tags_code=tags_code if source & Source.ENTRY else None,
        )


def records_of_rows(table: LostTable, rows: Rows) -> Iterator[LostRecord]:
    """Yield rows as records with the data of their columns and their heads."""
    for row, entry in zip(rows, entries_of(table, rows), strict=True):
        head = head_of(table, row)
        yield entry if head is None else more_complete(head, entry)


def head_of(table: LostTable, row: Any) -> LostRecord | None:
    """Return the data in the head of a row's record; None without a head that can be read."""
    if table.log is None or not table.sources[int(row["queue"])] & Source.HEAD:
        return None
    message = read_message(table.log, int(row["phy_offset"]), int(row["size_bytes"]))
    return from_record_head(message) if message is not None else None
