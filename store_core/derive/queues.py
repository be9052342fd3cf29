"""Build queue files from the log, for rebuild, recover, truncate and put (store format 6; store behaviour 7, 15)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from store_core.derive.ext import ExtPlan, is_plain_unit
from store_core.derive.numbering import (
    LARGEST_QUEUE_OFFSET,
    Misnumbered,
    Numbering,
    Stray,
    Stretch,
    number_rows,
)
from store_core.derive.spool import READ_ROWS, PlainQueue, RowsByQueue
from store_core.layout import paths, queue
from store_core.storage.digest import Hole
from store_core.storage.files import FileCache
from store_core.storage.sequence import SegmentSequence
from store_core.storage.store import QueueKey, Store

_FIRST_READ_BYTES, _MAX_READ_BYTES = 1 << 12, 1 << 20
ENTRY_SIZE_BYTES: Final = queue.ENTRY.size_bytes
FILLER: Final = (queue.FILLER_PHY_OFFSET, queue.FILLER_SIZE_BYTES, queue.FILLER_TAGS_CODE)
Entry = tuple[int, int, int]  # phy_offset, size_bytes, tags_code
GapEntry = Callable[[QueueKey, int], Entry | None]
Array = NDArray[Any]


class Content(Protocol):
    """The content of a file to write."""

    @property
    def size_bytes(self) -> int: ...
    @property
    def read(self) -> Callable[[], Iterator[bytes | Hole]]: ...


@dataclass(frozen=True, slots=True)
class QueueFile:
    """A planned file: each call of ``read`` yields its content by the chunk. ``mtime_ms``: its last message's store time.

    ``data_bytes``: an upper bound of the bytes outside holes, as zeros fill the file up.
    """

    name: str
    size_bytes: int
    mtime_ms: int
    read: Callable[[], Iterator[bytes | Hole]]
    data_bytes: int


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """The contents of a queue built from the log. Numbers are queue offsets; ``gaps`` are (first missing, count)."""

    first_queue_offset: int
    end_queue_offset: int
    messages: int
    gaps: tuple[tuple[int, int], ...]
    misnumbered: tuple[Misnumbered, ...]
    strays: tuple[Stray, ...]
    superseded: int
    generations: int
    last_phy_offset: int
    last_store_timestamp_ms: int

    def is_whole_from(self, queue_offset: int) -> bool:
        """Return True if the queue starts at ``queue_offset`` and its messages have consecutive numbers in log order."""
        is_consecutive = self.messages == self.end_queue_offset - queue_offset and self.generations == 1
        is_plain = not (self.gaps or self.misnumbered or self.strays or self.superseded)
        return self.first_queue_offset == queue_offset and is_consecutive and is_plain


def plain_queue(rows: RowsByQueue, key: QueueKey) -> PlainQueue | None:
    """Return the summary of a queue whose rows need no numbering, or None."""
    plain = rows.plain(key)
    return plain if plain is not None and 0 <= plain.queue_offset <= LARGEST_QUEUE_OFFSET else None


class QueueBuilder:
    """Builds the files of ordinary queues from spooled rows.

    Args:
        gap_entry: returns the entry for a number between two messages that no message has. None, or no function, makes it a
            filler, which a broker takes for an entry that cannot be read (a zero would end the queue there).
        existing: the existing queues, whose entries for records before the log's first byte (``log_min_phy_offset``) are
            carried over into the first file, instead of fillers.
        existing_ext: their ConsumeQueueExt files; if the log's start has expired, units keep the places of the existing ones.
    """

    def __init__(
        self,
        rows: RowsByQueue,
        file_size_bytes: int,
        *,
        gap_entry: GapEntry | None = None,
        existing: Mapping[QueueKey, SegmentSequence] | None = None,
        log_min_phy_offset: int = 0,
        ext_file_size_bytes: int | None = None,
        existing_ext: Mapping[QueueKey, SegmentSequence] | None = None,
    ) -> None:
        self._rows = rows
        self.file_size_bytes = file_size_bytes
        self._gap_entry = gap_entry
        self._existing = existing or {}
        self._log_min = log_min_phy_offset
        self._ext_size = ext_file_size_bytes
        self._existing_ext = existing_ext or {}
        self._numbering = lru_cache(maxsize=1024)(self._number)
        self._ext_plan = lru_cache(maxsize=1024)(self._plan_ext)

    def queue_keys(self) -> list[QueueKey]:
        """Return the ordinary queues that messages were dispatched to."""
        return [key for key in self._rows.queue_keys() if key.topic not in self._rows.rules.batch_topics]

    def numbering(self, key: QueueKey) -> Numbering:
        """Return which message of a queue has which number."""
        return self._numbering(key)

    def summary(self, key: QueueKey) -> QueueSummary:
        """Return the summary of the files that will be built."""
        if (plain := plain_queue(self._rows, key)) is not None:
            end = plain.queue_offset + plain.rows
            return QueueSummary(
                plain.queue_offset,
                end,
                plain.rows,
                gaps=(),
                misnumbered=(),
                strays=(),
                superseded=0,
                generations=1,
                last_phy_offset=plain.last_phy_offset,
                last_store_timestamp_ms=plain.last_store_timestamp_ms,
            )
        numbering = self._numbering(key)
        last = self._last_row(key, numbering, numbering.end_queue_offset)
        return QueueSummary(
            numbering.first_queue_offset,
            numbering.end_queue_offset,
            numbering.entries,
            tuple(numbering.gaps),
            tuple(numbering.misnumbered),
            tuple(numbering.strays),
            numbering.superseded,
            numbering.generations,
            last_phy_offset=int(last["phy_offset"]) if last is not None else -1,
            last_store_timestamp_ms=int(last["store_timestamp_ms"]) if last is not None else 0,
        )

    def phy_offset_of(self, key: QueueKey, queue_offset: int) -> int | None:
        """Return the physical offset of the message at a number, or None."""
        row = self._numbering(key).row_of(queue_offset)
        return None if row is None else int(self._rows.row(key, row)["phy_offset"])

    def has(self, key: QueueKey, queue_offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return the mask of the numbers that a message has."""
        numbering = self._numbering(key)
        inside = (queue_offsets >= numbering.first_queue_offset) & (queue_offsets < numbering.end_queue_offset)
        if numbering.gaps and inside.any():
            firsts, counts = np.array(list(numbering.gaps), np.int64).T
            at = np.searchsorted(firsts, queue_offsets, "right") - 1
            inside &= (at < 0) | (queue_offsets >= firsts[at] + counts[at])
        return inside

    def files(self, key: QueueKey) -> Iterator[QueueFile]:
        """Yield the queue's files in order, from the file of the first message; none for a queue without messages."""
        numbering = self._numbering(key)
        size = self.file_size_bytes
        per_file = size // ENTRY_SIZE_BYTES
        if not numbering.stretches:
            return
        first = numbering.first_queue_offset // per_file
        last = (numbering.end_queue_offset - 1) // per_file
        for number in range(first, last + 1):
            start, end = number * per_file, (number + 1) * per_file
            yield QueueFile(
                paths.segment_name(number * size),
                size,
                self._last_timestamp_ms(key, numbering, end),
                partial(self._content, key, start, end),
                (min(numbering.end_queue_offset, end) - start) * ENTRY_SIZE_BYTES,
            )

    def ext_files(self, key: QueueKey) -> Iterator[QueueFile]:
        """Yield the queue's ConsumeQueueExt files, from the file of the first message's unit.

        Yields nothing without an ext file size, or for a light queue.
        """
        plan = self._ext_plan(key)
        if plan is None:
            return
        numbering = self._numbering(key)
        for number in range(plan.first_file, plan.files(numbering.entries)):
            ends = plan.units_before(number + 1)
            row = self._nth_row(key, numbering, min(ends, numbering.entries) - 1)
            yield QueueFile(
                paths.segment_name(number * plan.file_size_bytes),
                plan.file_size_bytes,
                int(row["store_timestamp_ms"]),
                partial(self._ext_content, plan, key, numbering, number),
                plan.data_bytes(number, numbering.entries),
            )

    def _ext_content(self, plan: ExtPlan, key: QueueKey, numbering: Numbering, number: int) -> Iterator[bytes]:
        rows = self._ordered(key, numbering, plan.units_before(number))
        return plan.content(number, rows, self._existing_ext.get(key))

    def _number(self, key: QueueKey) -> Numbering:
        if (plain := plain_queue(self._rows, key)) is not None:
            return Numbering([Stretch(plain.queue_offset, 0, plain.rows)])
        return number_rows(
            self._rows.stretches(key), partial(self._rows.row, key), partial(self._phy_offset_in_queue, key)
        )

    def _phy_offset_in_queue(self, key: QueueKey, queue_offset: int) -> int | None:
        entry = self._queue_entry_at(key, queue_offset)
        return int(entry["phy_offset"]) if entry["size_bytes"] > 0 else None

    def _queue_entry_at(self, key: QueueKey, queue_offset: int) -> dict[str, Any]:
        files = self._existing.get(key)
        data = files.read(queue_offset * ENTRY_SIZE_BYTES, ENTRY_SIZE_BYTES) if files is not None else b""
        return queue.ENTRY.read(data.ljust(ENTRY_SIZE_BYTES, b"\0"))

    def _plan_ext(self, key: QueueKey) -> ExtPlan | None:
        if self._ext_size is None or key.topic.startswith(paths.LMQ_PREFIX):
            return None
        plan = ExtPlan(self._ext_size)
        return ExtPlan(self._ext_size, self._first_unit(key, plan)) if self._log_min else plan

    def _first_unit(self, key: QueueKey, plan: ExtPlan) -> int:
        """Return the place of the first message's unit, computed from the address in an entry, or 0.

        The entries of the first message and of a few later ones are tried. The first whose unit is good decides; if there is
        none, several entries must agree.
        """
        files, numbering = self._existing_ext.get(key), self._numbering(key)
        last = numbering.entries - 1
        first_units: list[int] = []
        for ordinal in sorted({0, last, *(1 << n for n in range(last.bit_length()))}) if last >= 0 else ():
            queue_offset, number = numbering.nth(ordinal)
            entry, row = self._queue_entry_at(key, queue_offset), self._rows.row(key, number)
            address = int(entry["tags_code"])
            if entry["phy_offset"] != row["phy_offset"] or not queue.is_ext_address(address):
                continue
            unit = plan.unit_at(address)
            if unit is None or unit < ordinal:
                continue
            unit_values = int(row["tags_code"]), int(row["store_timestamp_ms"])
            if files is not None and is_plain_unit(files, address, *unit_values):
                return unit - ordinal
            first_units.append(unit - ordinal)
        return first_units[0] if len(first_units) > 1 and len(set(first_units)) == 1 else 0

    def _last_row(self, key: QueueKey, numbering: Numbering, end: int) -> Any:
        """Return the row of the last message below a number, or None."""
        for stretch in reversed(numbering.stretches):
            if stretch.queue_offset < end:
                row = stretch.row + min(stretch.end, end) - 1 - stretch.queue_offset
                return next(self._rows.rows(key, row, row + 1))[0]
        return None

    def _last_timestamp_ms(self, key: QueueKey, numbering: Numbering, end: int) -> int:
        """Return the store time of the last message below a number; 0 if there is none."""
        if end >= numbering.end_queue_offset and (plain := plain_queue(self._rows, key)) is not None:
            return plain.last_store_timestamp_ms
        row = self._last_row(key, numbering, end)
        return int(row["store_timestamp_ms"]) if row is not None else 0

    def _nth_row(self, key: QueueKey, numbering: Numbering, number: int) -> Any:
        return self._rows.row(key, numbering.nth(number)[1])

    def _ordered(self, key: QueueKey, numbering: Numbering, skip: int) -> Iterator[Any]:
        """Yield rows in the order of their numbers, without the first ``skip``."""
        for stretch in numbering.stretches:
            if skip < stretch.count:
                yield from self._rows.rows(key, stretch.row + skip, stretch.row + stretch.count)
            skip = max(skip - stretch.count, 0)

    def _content(self, key: QueueKey, start: int, end: int) -> Iterator[bytes | Hole]:
        """Yield entries [start, end) of a queue as bytes, by the chunk, and a hole after the last message."""
        numbering = self._numbering(key)
        used = min(numbering.end_queue_offset, end)
        for at in range(start, used, READ_ROWS):
            yield self._chunk(key, numbering, at, min(at + READ_ROWS, used))
        if used < end:
            yield Hole((end - max(used, start)) * ENTRY_SIZE_BYTES)

    def _chunk(self, key: QueueKey, numbering: Numbering, start: int, end: int) -> bytes:
        whole = next((s for s in numbering.stretches if s.queue_offset <= start and end <= s.end), None)
        if whole is not None and self._ext_plan(key) is None:
            row = whole.row + start - whole.queue_offset
            return b"".join(part.data for part in self._rows.entries(key, row, row + end - start))
        entries = np.full(end - start, np.array(FILLER, queue.ENTRY.dtype))
        first = numbering.first_queue_offset
        if start < first:
            self._carry(key, entries[: first - start], start)
        if self._gap_entry is not None:
            for gap, count in numbering.gaps:
                for number in range(max(gap, start), min(gap + count, end)):
                    entries[number - start] = self._gap_entry(key, number) or FILLER
        before = 0  # number of earlier messages, which ext addresses count
        for stretch in numbering.stretches:
            low, high = max(stretch.queue_offset, start), min(stretch.end, end)
            if low < high:
                place = slice(low - start, high - start)
                self._fill(key, entries[place], stretch, low, before + low - stretch.queue_offset)
            before += stretch.count
        return entries.tobytes()

    def _fill(self, key: QueueKey, entries: Array, stretch: Stretch, low: int, ordinal: int) -> None:
        """Write the entries of a range from number ``low`` on; ``ordinal``: how many messages of the queue precede it."""
        row = stretch.row + low - stretch.queue_offset
        plan = self._ext_plan(key)
        as_bytes = entries.view(np.uint8).reshape(-1, ENTRY_SIZE_BYTES)  # numpy copies records field by field
        at = 0
        for part in self._rows.entries(key, row, row + len(entries)):
            as_bytes[at : at + len(part)] = part
            at += len(part)
        if plan is not None:
            entries["tags_code"] = plan.addresses(ordinal, len(entries))

    def _carry(self, key: QueueKey, entries: Array, start: int) -> None:
        """Copy entries for expired records from the existing queue."""
        files = self._existing.get(key)
        if files is None:
            return
        data = files.read(start * ENTRY_SIZE_BYTES, len(entries) * ENTRY_SIZE_BYTES)
        old = np.frombuffer(data, queue.ENTRY.dtype, len(data) // ENTRY_SIZE_BYTES)
        expired = (old["size_bytes"] > 0) & (old["phy_offset"] >= 0) & (old["phy_offset"] < self._log_min)
        entries[: len(old)][expired] = old[expired]


def queue_builder(
    store: Store, rows: RowsByQueue, log_min_phy_offset: int, gap_entry: GapEntry | None = None
) -> QueueBuilder:
    """Return the builder of a store's ordinary queues from the rows of a log that starts at ``log_min_phy_offset``."""
    size = file_size_of(store.queues.values()) or store.settings.queue_file_size_bytes
    return QueueBuilder(
        rows,
        size or queue.DEFAULT_FILE_SIZE_BYTES,
        gap_entry=gap_entry,
        existing=store.queues,
        log_min_phy_offset=log_min_phy_offset,
        ext_file_size_bytes=file_size_of(store.ext_queues.values()) or None,
        existing_ext=store.ext_queues,
    )


def file_size_of(sequences: Iterable[SegmentSequence]) -> int:
    """Return the file size in bytes, which all queues of a kind share; 0 if no queue shows it."""
    return next((s.file_size_bytes for s in sequences if s.file_size_bytes), 0)


def same_content(store: Store, path: Path, made: Content) -> bool:
    """Return True if the file exists and has exactly this content."""
    try:
        if os.stat(path).st_size != made.size_bytes:
            return False
    except OSError:
        return False
    at = 0
    for chunk in made.read():
        if isinstance(chunk, Hole):
            if not _is_zero(store.cache, path, at, at + len(chunk)):
                return False
        elif store.cache.read(path, at, len(chunk)) != chunk:
            return False
        at += len(chunk)
    return at == made.size_bytes


def are_as_built(store: Store, files: SegmentSequence, made: Iterable[QueueFile]) -> bool:
    """Return True if a queue has exactly the built files, with their content."""
    found = {segment.name: segment.path for segment in files.segments}
    return all(file.name in found and same_content(store, found.pop(file.name), file) for file in made) and not found


def _is_zero(cache: FileCache, path: Path, at: int, end: int) -> bool:
    """Return True if bytes [at, end) of a file are zero; holes are not read."""
    size = _FIRST_READ_BYTES
    while at < end and (data_at := cache.next_data(path, at)) is not None:
        data = cache.read(path, data_at, min(size, max(end - data_at, 0)))
        if data.count(0) < len(data):
            return False
        if not data:
            return data_at >= end
        at, size = data_at + len(data), min(size * 16, _MAX_READ_BYTES)
    return True
