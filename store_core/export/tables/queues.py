"""Read the table of queue entries: every place of every queue, as stored (store format, section 6)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from numpy.typing import NDArray

from store_core.errors import UnreadableError
from store_core.export.rows.batches import topic_kind
from store_core.export.rows.schema import TIME, Column
from store_core.export.tables.table import (
    Batches,
    Mask,
    StoresTable,
    Where,
    needed,
    only,
    refuse_gone,
    times,
    wanted_rows,
)
from store_core.findings import Finding, finding
from store_core.layout import paths
from store_core.layout import queue as layout
from store_core.read.dump import QueueDump, after_end, all_queues
from store_core.read.entries import ExtUnit
from store_core.read.queue import BatchQueue, Queue, end_of_entries, layout_of
from store_core.read.types import queue_faults
from store_core.scan.frames import Ints

QUEUE_COLUMNS: Final = (
    Column("store", pa.string(), "name of the store", repeats=True),
    Column("topic", pa.string(), "topic of the queue", repeats=True),
    Column(
        "kind", pa.string(), "user, half, op, delayed, retry, dlq or system: what the topic makes of it", repeats=True
    ),
    Column("queue_id", pa.int32(), "queue number, from 0"),
    Column("queue_offset", pa.int64(), "entry number in the queue; in a batch queue, the number of its first message"),
    Column("phy_offset", pa.int64(), "byte offset of the record in the log"),
    Column("size_bytes", pa.int32(), "length of the record, bytes"),
    Column("tags_code", pa.int64(), "as stored: hash of the tag, delivery time in ms, or address in ConsumeQueueExt"),
    Column(
        "state",
        pa.string(),
        "message; expired: before the log's start; filler: of a queue that starts within its file; dead: skips a lost message",
        repeats=True,
    ),
    Column("batch_size", pa.int32(), "messages of the entry: 1 but in batch queues"),
    Column("store_time", TIME, "of an entry of a batch queue or with a ConsumeQueueExt unit; else null", nullable=True),
    Column("deliver_time", TIME, "of a delayed message, when it is due; else null", nullable=True),
    Column("ext_tags_code", pa.int64(), "what tags_code would be, from ConsumeQueueExt; else null", nullable=True),
    Column("ext_bitmap", pa.binary(), "bitmap of the filter, from ConsumeQueueExt; else null", nullable=True),
)
_CHUNK_ENTRIES: Final = 1 << 16
_STATES: Final = pa.array(["message", "expired", "filler", "dead"])
_MESSAGE, _EXPIRED, _FILLER, _DEAD = range(4)


class QueuesTable(StoresTable):
    """Entries of all queues of some stores, from the start of each one's first file to the queue's end."""

    columns: Sequence[Column] = QUEUE_COLUMNS

    def batches(self, columns: Sequence[str], where: Where | None = None) -> Batches:
        """Yield the wanted rows. Raises FailedError where a store keeps its queues in RocksDB."""
        for name, store in self._stores:
            queues = all_queues(store)
            self.tell(name, queue_faults(store))
            for queue in queues:
                yield from self.of_queue(name, queue, columns, where)

    def of_queue(
        self,
        store: str,
        queue: QueueDump,
        columns: Sequence[str],
        where: Where | None = None,
        *,
        places: range | None = None,
        passes_over: bool = False,
    ) -> Batches:
        """Yield the entries of one queue; none where the condition excludes the whole queue.

        Args:
            places: the wanted places, counted from 0 for the queue's whole life; None for all.
            passes_over: report unreadable entries as findings, else as an error.
        """
        field = ds.field
        promise = (field("store") == store) & (field("topic") == queue.topic) & (field("queue_id") == queue.queue_id)
        if where is not None and not where.possible([promise]):
            return
        names = needed(columns, where)
        places = places_of(queue.queue) if places is None else places
        files = queue.queue.files.segments
        if files and places.stop * layout_of(queue.queue).size_bytes <= files[-1].phy_offset:
            refuse_gone(files[-1].path)  # a removed file looks like an earlier end of the queue
        refused = _Refused(queue) if passes_over else None
        for entries in _chunks(queue.queue, places, refused):
            chunk = _Chunk(store, queue, entries)
            made = {column.name: chunk.column(column.name) for column in QUEUE_COLUMNS if column.name in names}
            rows = pa.RecordBatch.from_arrays(list(made.values()), schema=only(QUEUE_COLUMNS, names))
            self.tell(store, chunk.findings)
            yield wanted_rows(rows, columns, where)
        self.tell(store, refused.findings if refused is not None else ())
        with suppress(UnreadableError):  # already reported, or beyond the wanted places
            if places.stop == places_of(queue.queue).stop:
                self.tell(store, after_end(queue))


class _Refused:
    """Collects findings about unreadable places of a queue."""

    def __init__(self, dumped: QueueDump) -> None:
        self.findings: list[Finding] = []
        self._dumped = dumped

    def add(self, path: Path, places: range, error: UnreadableError) -> None:
        self.findings.append(refused_places(self._dumped, path, places, error))


def refused_places(dumped: QueueDump, path: Path, places: range, error: UnreadableError) -> Finding:
    """Return the finding for unreadable places of a queue in a file; ``places`` is empty if they are unknown."""
    entries = f"{len(places)} entries" if len(places) else "a file"
    why = os.strerror(error.number).lower()
    return finding(
        "Q018",
        f"{entries} cannot be read: {why}",
        file=f"{path.parts[-4]}/{dumped.topic}/{dumped.queue_id}/{path.name}",
        size_bytes=len(places) * layout_of(dumped.queue).size_bytes or None,
        topic=dumped.topic,
        queue_id=dumped.queue_id,
        queue_offset=places.start if len(places) and isinstance(dumped.queue, Queue) else None,
    )


@dataclass(frozen=True, slots=True)
class _Entries:
    """Some consecutive entries of a queue; ``rows`` of ``layout.queue.ENTRY`` or ``BATCH_ENTRY``."""

    queue_offset: Ints
    rows: NDArray[np.void]


def places_of(queue: Queue | BatchQueue) -> range:
    """Return the places of a queue, from its first file's start to its end. In a batch queue they are no queue
    offsets.
    """
    return range(min(queue.files.min_phy_offset // layout_of(queue).size_bytes, queue.end_slot), queue.end_slot)


def readable_places_of(dumped: QueueDump) -> tuple[range, list[Finding]]:
    """Return the places of a queue as ``places_of`` does, and findings.

    If a file with the queue's end is unreadable, the end is that of the newest readable file with entries, and each
    later file is a finding.
    """
    try:
        return places_of(dumped.queue), []
    except UnreadableError:
        entry, files = layout_of(dumped.queue), dumped.queue.files
        findings: list[Finding] = []
        first = end = files.min_phy_offset
        for segment in reversed(files.segments):
            try:
                end = end_of_entries(files.alone(segment), entry)
            except UnreadableError as error:
                findings.append(refused_places(dumped, segment.path, range(0), error))
            if end > segment.phy_offset:
                break
        return range(first // entry.size_bytes, end // entry.size_bytes), findings


def _chunks(queue: Queue | BatchQueue, places: range, refused: _Refused | None) -> Iterator[_Entries]:
    entry = layout_of(queue)
    step = entry.size_bytes
    for segment in queue.files.segments:
        place = max(-(-segment.phy_offset // step), places.start)
        end = min(segment.end_phy_offset // step, places.stop)
        while place < end:
            wanted = range(place, min(end, place + _CHUNK_ENTRIES))
            try:
                data = queue.files.read(place * step, len(wanted) * step)
            except UnreadableError as error:
                if refused is None:
                    raise
                refused.add(segment.path, wanted, error)
                place = wanted.stop
                continue
            rows = np.frombuffer(data, entry.dtype, len(data) // step)
            if not len(rows):  # the file was cut during the read
                refuse_gone(segment.path)
                break
            numbers = np.arange(place, place + len(rows)) if entry is layout.ENTRY else rows["queue_offset"]
            yield _Entries(numbers.astype(np.int64), rows)
            place += len(rows)


class _Chunk:
    """The columns of some entries, each made on request."""

    def __init__(self, store: str, dumped: QueueDump, entries: _Entries) -> None:
        self.findings: list[Finding] = []
        self._store, self._dumped, self._entries = store, dumped, entries

    def column(self, name: str) -> pa.Array:
        rows = self._entries.rows
        match name:
            case "store" | "topic" | "kind":
                texts = {"store": self._store, "topic": self._dumped.topic, "kind": topic_kind(self._dumped.topic)}
                return pa.repeat(pa.scalar(texts[name]), len(rows))
            case "queue_id":
                return pa.array(np.full(len(rows), self._dumped.queue_id, np.int32))
            case "queue_offset":
                return pa.array(self._entries.queue_offset)
            case "phy_offset" | "tags_code":
                return pa.array(rows[name].astype(np.int64))
            case "size_bytes":
                return pa.array(rows[name].astype(np.int32))
            case "state":
                return _STATES.take(pa.array(self._state()))
            case "batch_size":
                return pa.array(rows[name].astype(np.int32) if self._is_batch else np.ones(len(rows), np.int32))
            case "deliver_time":
                return self._deliver_time()
            case "store_time" if self._is_batch:
                return times(rows["store_timestamp_ms"])
            case "store_time":
                return times(*self._of_ext(lambda unit: unit.store_timestamp_ms))
            case "ext_tags_code":
                values, missing = self._of_ext(lambda unit: unit.tags_code)
                return pa.array(values, mask=missing)
        if not self._units:  # ext_bitmap
            return pa.nulls(len(rows), pa.binary())
        bitmaps = [unit.bitmap if (unit := self._units.get(row)) is not None else None for row in range(len(rows))]
        return pa.array(bitmaps, pa.binary())

    @property
    def _is_batch(self) -> bool:
        return isinstance(self._dumped.queue, BatchQueue)

    def _state(self) -> Ints:
        at, size, tags = (self._entries.rows[name] for name in ("phy_offset", "size_bytes", "tags_code"))
        log = self._dumped.queue.log
        state = np.where(at < log.min_phy_offset, _EXPIRED, _MESSAGE)
        segment = log.file_size_bytes
        if segment:
            state[((at + 1) % segment == 0) & (size == layout.DEAD_ENTRY_SIZE_BYTES) & (tags == 0)] = _DEAD
        filler = at == layout.FILLER_PHY_OFFSET
        filler &= (size == layout.FILLER_SIZE_BYTES) & (tags == layout.FILLER_TAGS_CODE)
        state[filler] = _FILLER
        return state.astype(np.int8)

    def _deliver_time(self) -> pa.Array:
        codes = self._entries.rows["tags_code"].astype(np.int64)
        if self._dumped.topic != paths.SCHEDULE_TOPIC:
            return pa.nulls(len(codes), TIME)
        is_ext = codes <= layout.EXT_MAX_ADDRESS
        ext_values, missing = self._of_ext(lambda unit: unit.tags_code)
        return times(np.where(is_ext, ext_values, codes), is_ext & missing)

    def _of_ext(self, value_of: Callable[[ExtUnit], int]) -> tuple[Ints, Mask]:
        """Return a number of each entry's ConsumeQueueExt unit, and a mask of the entries without one."""
        values, missing = np.zeros(len(self._entries.rows), np.int64), np.ones(len(self._entries.rows), np.bool_)
        for row, unit in self._units.items():
            values[row], missing[row] = value_of(unit), False
        return values, missing

    @cached_property
    def _units(self) -> dict[int, ExtUnit]:
        """ConsumeQueueExt units by row; few stores have any."""
        queue = self._dumped.queue
        codes = self._entries.rows["tags_code"]
        units: dict[int, ExtUnit] = {}
        if not isinstance(queue, Queue):
            return units
        for row in np.flatnonzero(codes <= layout.EXT_MAX_ADDRESS):
            try:
                unit = queue.ext_of(int(codes[row]))
            except UnreadableError:
                unit = None
            if unit is None and not self._is_expired(int(row)):
                self._miss(int(row))
            elif unit is not None:
                units[int(row)] = unit
        return units

    def _is_expired(self, row: int) -> bool:
        return bool(0 <= self._entries.rows[row]["phy_offset"] < self._dumped.queue.log.min_phy_offset)

    def _miss(self, row: int) -> None:
        entry = self._entries.rows[row]
        self.findings.append(
            finding(
                "Q016",
                "no good unit at the address",
                phy_offset=int(entry["phy_offset"]),
                size_bytes=int(entry["size_bytes"]),
                topic=self._dumped.topic,
                queue_id=self._dumped.queue_id,
                queue_offset=int(self._entries.queue_offset[row]),
            )
        )
