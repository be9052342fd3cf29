"""Find lost records of damaged regions by the queue entries that point there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from store_core.layout import marks, paths, queue, record
from store_core.layout.schema import Layout
from store_core.recovery.damage_scan import Region
from store_core.recovery.lost_record import LostRecord
from store_core.recovery.lost_table import (
    FEWEST_ROWS,
    LIGHT,
    ROW,
    InLogOrder,
    Lost,
    LostTable,
    Rows,
    Source,
    entries_of,
    head_of,
    joining,
)
from store_core.recovery.tombstones import can_be_told, smallest_tombstone_size_bytes
from store_core.scan.walk_progress import WalkProgress
from store_core.storage.sequence import SegmentSequence
from store_core.storage.store import QueueKey, Store

_FEW_ENTRIES, _CHUNK_ENTRIES = 1 << 8, 1 << 16  # read of a file first, and later: most light queues have few
_ENTRY: Final = np.dtype([*ROW.descr, ("region", "i4")])
_LARGEST: Final = (1 << 63) - 1
_POWERS_OF_TEN: Final = 10 ** np.arange(1, 19)
Ints = NDArray[np.int64]
OnHead = Callable[[int, LostRecord], None]  # a region's number, and a record in it


def queue_entry_at(store: Store, key: QueueKey, queue_offset: int) -> tuple[int, int, int] | None:
    """Return log offset, size and tags code stored at a number of a queue, unchecked; None without an entry."""
    files, size = store.queues.get(key), queue.ENTRY.size_bytes
    data = files.read(queue_offset * size, size) if files is not None and queue_offset >= 0 else b""
    if len(data) < size:
        return None
    entry = queue.ENTRY.read(data)
    return entry["phy_offset"], entry["size_bytes"], entry["tags_code"]


def lost_by_queue_entries(
    store: Store,
    regions: Sequence[Region],
    table: LostTable,
    walks: WalkProgress | None = None,
    *,
    heads: InLogOrder | None = None,
    on_head: OnHead | None = None,
    property_crc: bool = False,
) -> dict[int, list[Lost]]:
    """Return the records that queue entries place inside each region, by its index, in log order.

    Regions do not overlap. An entry counts if a record of its size fits into the region. Of several entries for one place, the
    one of the queue that the record was sent to is taken, as far as names show; the light queues are added to it. Many
    consecutive records become rows of ``table`` if a tombstone fits in each one's place, with a checksum if ``property_crc``.
    ``walks`` receives how many bytes of the queues have been read.

    Many ``heads``, and the entries that agree with them, become rows as well; ``on_head`` receives each other head, for which
    ``table.log`` is read.
    """
    if not regions:
        return {}
    starts = np.array([r.phy_offset for r in regions], np.int64)
    ends = np.array([r.end_phy_offset for r in regions], np.int64)
    trees = ((store.queues, queue.ENTRY), (store.batch_queues, queue.BATCH_ENTRY))
    whole = sum(files.size_bytes for queues, _ in trees for files in queues.values())
    on_bytes, done = walks.piece(whole) if walks is not None else None, 0
    with InLogOrder(_ENTRY) as entries:
        for key, files, layout in ((k, f, layout) for queues, layout in trees for k, f in queues.items()):
            done += files.size_bytes
            if on_bytes is not None:
                on_bytes(done)
            number: int | None = None
            for part in _entries_in(files, layout, starts, ends):
                number = table.queue_number(key) if number is None else number
                part["queue"] = number
                entries.add(part)
        has_heads = False
        for part in heads.stretches() if heads is not None else ():
            rows = _heads_in(part, starts, ends)
            has_heads |= bool(len(rows))
            entries.add(rows)
        kinds = _Kinds(table, has_heads=has_heads, property_crc=property_crc)
        found = _Items(table, kinds, on_head)
        for part in entries.stretches():
            found.add(part)
    return found.lost


class _Kinds:
    """Columns by queue number: is it light, length and rank of its name, least size of a tombstone.

    ``topic`` is equal for queues of one topic; ``with_head`` has the numbers of the same queue for records that a head describes
    as well, without and with keys.
    """

    def __init__(self, table: LostTable, *, has_heads: bool, property_crc: bool) -> None:
        entry, head, keys = Source.ENTRY, Source.HEAD, Source.KEYS
        self.with_head = np.array(
            [
                (table.queue_number(key, entry | head), table.queue_number(key, entry | head | keys))
                for key in list(table.queues)
            ]
            if has_heads
            else [],
            np.int32,
        )
        topics: dict[str, int] = {}
        self.topic = np.array([topics.setdefault(key.topic, len(topics)) for key in table.queues], np.int32)
        self.is_light = np.array([_is_light(key.topic) for key in table.queues], bool)
        self.name_size_bytes = np.array([len(key.topic.encode()) for key in table.queues], np.int64)
        ranks = {topic: rank for rank, topic in enumerate(sorted(topics))}
        self.rank = np.array([ranks[key.topic] for key in table.queues], np.int32)
        self.batch_size_bytes = _more_for(LostRecord("t", 0, _LARGEST, batch_size=_LARGEST))
        self.lights_size_bytes = _more_for(LostRecord("t", 0, 0, light_queues=(("", 0),)))
        self.least_size_bytes = np.array([_least(key, property_crc=property_crc) for key in table.queues], np.int64)


def _least(key: QueueKey, *, property_crc: bool) -> int:
    known = LostRecord(key.topic, key.queue_id, 0)
    if not can_be_told(known):
        return record.MAX_RECORD_SIZE_BYTES + 1
    return smallest_tombstone_size_bytes(known, marked=False, property_crc=property_crc)


class _Items:
    """The lost records of each region, by its index: rows if many that are completely described follow each other."""

    def __init__(self, table: LostTable, kinds: _Kinds, on_head: OnHead | None) -> None:
        self.lost: dict[int, list[Lost]] = {}
        self._table = table
        self._kinds = kinds
        self._on_head = on_head

    def add(self, rows: Rows) -> None:
        """Add entries and heads, sorted by place, after those before."""
        if len(self._kinds.with_head):
            rows = self._paired(rows)
        rows, needed = self._one_a_place(rows)
        new_place = np.r_[True, np.diff(rows["phy_offset"]) != 0]
        plain = new_place & np.r_[new_place[1:], True]
        plain &= rows["size_bytes"] >= needed
        plain &= rows["size_bytes"] <= marks.MAX_FILLER_SIZE_BYTES
        joins = plain[1:] & plain[:-1] & joining(rows) & (np.diff(rows["region"]) == 0)
        starts = np.r_[0, np.flatnonzero(~joins) + 1]
        counts = np.diff(starts, append=len(rows))
        at = 0
        for many in np.flatnonzero(counts >= FEWEST_ROWS).tolist():
            start, stop = int(starts[many]), int(starts[many] + counts[many])
            self._add_few(rows[at:start])
            region = self.lost.setdefault(int(rows["region"][start]), [])
            self._table.add_to(region, rows[start:stop][list(ROW.names or ())])
            at = stop
        self._add_few(rows[at:])

    def _add_few(self, rows: Rows) -> None:
        """Add entries and heads as records, not as rows."""
        if not len(rows):
            return
        if self._on_head is not None:
            for row in rows[self._table.told_by(rows, Source.HEAD)]:
                if (head := head_of(self._table, row)) is not None:
                    self._on_head(int(row["region"]), head)
        rows = self._one_a_place(rows[self._table.told_by(rows, Source.ENTRY)])[0]
        for region, lost in zip(rows["region"].tolist(), entries_of(self._table, rows), strict=True):
            self.lost.setdefault(region, []).append(lost)

    def _one_a_place(self, rows: Rows) -> tuple[Rows, Ints]:
        """Return one row for all entries of a place without a head, and the tombstone size of each row.

        The row is of the queue that the record was sent to, as far as names show: the first that is not light. The light queues
        are added to it.
        """
        needed = self._kinds.least_size_bytes[rows["queue"]]
        needed += np.where(rows["batch_size"] > 1, self._kinds.batch_size_bytes, 0)
        by_heads = np.flatnonzero(rows["lights"])
        for row, light_list in zip(by_heads.tolist(), self._table.lights_of(rows[by_heads]), strict=True):
            needed[row] += self._kinds.lights_size_bytes + sum(len(f"{name}{n}".encode()) + 2 for name, n in light_list)
        starts = np.flatnonzero(np.diff(rows["phy_offset"], prepend=-1) != 0)
        if len(starts) == len(rows):
            return rows, needed
        counts = np.diff(starts, append=len(rows))
        place = np.repeat(np.arange(len(starts)), counts)
        is_light = self._kinds.is_light[rows["queue"]]
        own = np.minimum.reduceat(np.where(is_light, len(rows), np.arange(len(rows))), starts)
        own = np.where(own < len(rows), own, starts + counts - 1)
        has_head_and_entry = np.logical_or.reduceat(self._table.told_by(rows, Source.HEAD), starts) & (counts > 1)
        listed = np.flatnonzero(is_light & ~has_head_and_entry[place])
        listed = listed[listed != own[place[listed]]]
        listed = listed[
            np.lexsort((rows["queue_offset"][listed], self._kinds.rank[rows["queue"][listed]], place[listed]))
        ]
        lights = np.zeros(len(listed), LIGHT)
        lights["queue_offset"], lights["queue"] = rows["queue_offset"][listed], rows["queue"][listed]
        width = self._kinds.name_size_bytes[lights["queue"]] + _digits(lights["queue_offset"]) + 2  # with separators
        rows, which = rows.copy(), own[place[listed]]
        if len(listed):
            first = np.flatnonzero(np.r_[True, np.diff(which) != 0])
            with_lights = which[first]
            rows["lights"][with_lights] = np.diff(first, append=len(which))
            rows["lights_at"][with_lights] = self._table.add_lights(lights) + first
            needed[with_lights] += np.add.reduceat(width, first) + self._kinds.lights_size_bytes
        kept = has_head_and_entry[place] | (own[place] == np.arange(len(rows)))
        return rows[kept], needed[kept]

    def _paired(self, rows: Rows) -> Rows:
        """Return the rows, with head and entry joined where a place has one of each and they agree."""
        starts = np.flatnonzero(np.diff(rows["phy_offset"], prepend=-1) != 0)
        is_head = self._table.told_by(rows, Source.HEAD)
        is_own = ~is_head & ~self._kinds.is_light[rows["queue"]]
        place = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(rows)))
        both = np.flatnonzero((np.bincount(place, is_head) == 1) & (np.bincount(place, is_own) == 1))
        head, entry = (
            np.maximum.reduceat(np.where(m, np.arange(len(rows)), -1), starts)[both] for m in (is_head, is_own)
        )
        queue, topic = rows["queue"], self._kinds.topic
        same = (rows["size_bytes"][head] == rows["size_bytes"][entry]) & (topic[queue[head]] == topic[queue[entry]])
        same &= rows["batch_size"][head] == rows["batch_size"][entry]
        same &= self._lists_all(rows, place, both, head)
        head, entry, both = head[same], entry[same], both[same]
        has_keys = self._table.told_by(rows[head], Source.KEYS)
        rows = rows.copy()
        rows["queue"][entry] = self._kinds.with_head[queue[entry], has_keys.astype(np.int8)]
        for name in ("lights", "lights_at"):
            rows[name][entry] = rows[name][head]
        kept = ~np.isin(place, both)
        kept[entry] = True
        return rows[kept]

    def _lists_all(self, rows: Rows, place: Ints, places: Ints, heads: Ints) -> NDArray[np.bool_]:
        """Return a mask of the places whose head lists all light queues whose entries point there."""
        by_place: dict[int, set[tuple[str, int]]] = {}
        for row in np.flatnonzero(self._kinds.is_light[rows["queue"]]).tolist():
            number = self._table.queues[int(rows["queue"][row])].topic, int(rows["queue_offset"][row])
            by_place.setdefault(int(place[row]), set()).add(number)
        if not by_place:
            return np.ones(len(places), bool)
        lists = zip(places.tolist(), self._table.lights_of(rows[heads]), strict=True)
        return np.array([by_place.get(at, set()) <= set(listed) for at, listed in lists], bool)


def _heads_in(rows: Rows, starts: Ints, ends: Ints) -> NDArray[Any]:
    """Return the rows that lie inside one of the regions, as rows of _ENTRY."""
    number = np.searchsorted(starts, rows["phy_offset"], "right") - 1
    inside = (number >= 0) & (rows["phy_offset"] + rows["size_bytes"] <= ends[number])
    found = np.zeros(int(inside.sum()), _ENTRY)
    for name in ROW.names or ():
        found[name] = rows[name][inside]
    found["region"] = number[inside]
    return found


def _digits(numbers: Ints) -> Ints:
    """Return how many decimal digits each number has; none is negative."""
    return np.searchsorted(_POWERS_OF_TEN, numbers, "right") + 1


def _more_for(lost: LostRecord) -> int:
    """Return how many more bytes a tombstone needs for data besides its queue and number."""
    bare = LostRecord(lost.topic, lost.queue_id, lost.queue_offset)
    return smallest_tombstone_size_bytes(lost) - smallest_tombstone_size_bytes(bare)


def _is_light(topic: str) -> bool:
    return topic.startswith(paths.LMQ_PREFIX)


def _entries_in(files: SegmentSequence, layout: Layout, starts: Ints, ends: Ints) -> Iterator[NDArray[Any]]:
    """Yield entries of records that lie inside one of the regions, as rows of _ENTRY without the queue."""
    width = layout.size_bytes
    is_batch = "batch_size" in layout.names
    for segment in files.segments:
        at = segment.phy_offset - segment.phy_offset % width
        chunk = _FEW_ENTRIES
        while at + width <= segment.end_phy_offset:
            data_at = files.next_data(max(at, segment.phy_offset))
            if data_at is None:  # no bytes were written after it, or the file is missing
                break
            at = data_at - data_at % width
            data = files.read(at, chunk * width)
            chunk = min(chunk * 16, _CHUNK_ENTRIES)
            entries = np.frombuffer(data, layout.dtype, count=len(data) // width)
            if not len(entries):
                break
            phy_offset = entries["phy_offset"].astype(np.int64)
            size = entries["size_bytes"].astype(np.int64)
            number = np.searchsorted(starts, phy_offset, "right") - 1
            inside = (number >= 0) & (phy_offset <= ends[number] - size)
            inside &= (size >= record.MIN_RECORD_SIZE_BYTES) & (size <= record.MAX_RECORD_SIZE_BYTES)
            if is_batch:
                inside &= (entries["batch_size"] > 0) & (entries["queue_offset"] >= 0)
            if inside.any():
                rows = np.zeros(int(inside.sum()), _ENTRY)
                rows["phy_offset"], rows["size_bytes"] = phy_offset[inside], size[inside]
                rows["queue_offset"] = (
                    entries["queue_offset"][inside] if is_batch else at // width + np.flatnonzero(inside)
                )
                rows["tags_code"], rows["region"] = entries["tags_code"][inside], number[inside]
                rows["batch_size"] = entries["batch_size"][inside] if is_batch else 1
                yield rows
            at += len(entries) * width
