"""Write the rows of a split to files, by the layout: sorted by topic, in folders for topics or days.

A topic that fills a row group starts a new one, so that a query for a topic reads little else; small topics share a
group. Rows of a topic stay in log order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store_core.codec.text import decode_text
from store_core.export.dest.layout import Layout
from store_core.export.dest.parts import ROW_GROUP_SIZE_BYTES, Part, Partition, PartWriter
from store_core.export.dest.task_destination import Place
from store_core.export.rows import schema
from store_core.export.rows.columns import microseconds
from store_core.export.rows.group_by_topic import CollectedRows
from store_core.export.rows.many_topics import SortKey, even_bounds
from store_core.findings import Finding
from store_core.scan.frames import FrameTable, Ints
from store_core.storage.buffers import give_freed_memory_back

_MANY_WORDS: Final = 1000


def with_own_words(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Convert the rows of a row group to ``schema.WRITTEN``.

    Columns where the kernel has met too many words for a dictionary get one here. Large dictionaries are replaced by
    smaller ones: otherwise each row group's part of a file would hold all words of a run.
    """
    columns = [_encoded(column, field.type) for column, field in zip(rows.columns, schema.WRITTEN, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema.WRITTEN)


def _encoded(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    if pa.types.is_map(wanted):
        return _with_encoded_keys(column)
    return _dictionary_of(column) if pa.types.is_dictionary(wanted) and _is_to_be_encoded(column) else column


def _is_to_be_encoded(texts: pa.Array) -> bool:
    return not pa.types.is_dictionary(texts.type) or len(texts.dictionary) > _MANY_WORDS


def _dictionary_of(texts: pa.Array) -> pa.DictionaryArray:
    plain = texts.dictionary_decode() if pa.types.is_dictionary(texts.type) else texts
    return plain.dictionary_encode()


def _with_encoded_keys(column: pa.MapArray) -> pa.MapArray:
    if not _is_to_be_encoded(column.keys):
        return column
    bounds = column.offsets
    first, last = bounds[0].as_py(), bounds[-1].as_py()
    keys, items = (part.slice(first, last - first) for part in (column.keys, column.items))
    return pa.MapArray.from_arrays(pc.subtract(bounds, bounds[0]), _dictionary_of(keys), items)


_RUN_SIZE_BYTES: Final = 192 << 20  # maximum memory of rows that are sorted at once
_RUN_LOG_BYTES: Final = 128 << 20  # bytes of the log in a run: a split of the usual size is two runs
_LEAST_GROUP_SIZE_BYTES: Final = 4 << 20
_MANY_PLAIN_BYTES: Final = 32 << 20  # inflated bodies leave holes in the heap that are too small for later ones
_DAY_MS: Final = 24 * 60 * 60 * 1000

_Key = tuple[Partition, str]  # a partition and a topic


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of one topic in one partition, in log order, or of several small topics, one after another."""

    partition: Partition
    topic: str
    rows: pa.RecordBatch

    @property
    def size_bytes(self) -> int:
        size: int = self.rows.nbytes
        return size


class MessageWriter:
    """Takes a split's messages in log order and writes them in the layout; ``abort`` removes the files."""

    def __init__(self, place: Place, store: str, stem: str, layout: Layout, expected_bytes: int) -> None:
        """``expected_bytes``: the approximate length of the split's records."""
        self._place, self._store, self._stem = place, store, stem
        self._whole_files = layout.whole_files
        self._sorted_by = ("topic", "phy_offset") if layout.cluster == "topic" else ("phy_offset",)
        self._is_in_order = layout.cluster == "offset" and layout.partition_by is None
        self._most_bytes = ROW_GROUP_SIZE_BYTES if self._is_in_order else _RUN_SIZE_BYTES
        self._runs = max(-(-expected_bytes // _RUN_LOG_BYTES), 1)  # remaining runs, all of one length
        self._run_log_bytes = -(-expected_bytes // self._runs)
        self._keys = _Keys(layout)
        self._collected = CollectedRows(store, min(self._run_log_bytes, self._most_bytes))
        self._writer: PartWriter | None = None  # of the present file
        self._parts: list[Part] = []
        self._partition: Partition = None  # of the present file

    def write(self, table: FrameTable, rows: Ints) -> Iterator[Finding]:
        """Write messages of a table by their row numbers, in log order, and yield findings about bodies. Raises
        FailedError.
        """
        if len(rows):
            for findings in self._collected.add(table, rows, self._keys.numbers(table, rows)):
                yield from findings
                if self._is_run():
                    self._flush()

    def close(self) -> list[Part]:
        """Finish the files and return their descriptions. Raises FailedError."""
        self._flush()
        self._close_file()
        return self._parts

    def abort(self) -> None:
        if self._writer is not None:
            self._writer.abort()
        for part in self._parts:
            self._place.remove(part.staged)

    def _is_run(self) -> bool:
        """Return True if the collected rows are to be written now."""
        if self._collected.size_bytes >= self._most_bytes:
            return True
        if self._is_in_order or self._runs == 1 or self._collected.log_bytes < self._run_log_bytes:
            return False
        self._runs -= 1
        return True

    def _place_of(self, group: int) -> SortKey:
        """Return the sort key of a group: its partition's value and its topic."""
        partition, topic = self._keys.of(group)
        return (partition[1] or "" if partition is not None else "", topic)

    def _open(self, partition: Partition, phy_offset: int) -> PartWriter:
        name = f"{self._stem}-{phy_offset:020d}.parquet"
        return PartWriter(
            self._place,
            "messages",
            self._store,
            name,
            partition,
            whole=self._whole_files,
            sorted_by=self._sorted_by,
        )

    def _close_file(self) -> None:
        if self._writer is not None:
            self._parts.append(self._writer.close())
            self._writer = None

    def _flush(self) -> None:
        """Write the collected rows: a file for each partition, or the one file of an unpartitioned layout."""
        has_many_holes = self._collected.plain_bytes >= _MANY_PLAIN_BYTES
        found = self._collected.drained(self._place_of, range(_LEAST_GROUP_SIZE_BYTES, ROW_GROUP_SIZE_BYTES))
        drained = sorted(found, key=lambda item: self._place_of(item.group))
        first_offsets: dict[Partition, int] = {}
        for item in drained:
            partition, _ = self._keys.of(item.group)
            first_offsets[partition] = min(item.first_phy_offset, first_offsets.get(partition, item.first_phy_offset))
        # Rows are made topic by topic, and freed when they are written.
        rows = (_Rows(*self._keys.of(item.group), item.rows()) for item in drained)
        for group in _grouped(rows):
            partition = group[0].partition
            if self._writer is None or self._partition != partition:
                self._close_file()
                self._writer, self._partition = self._open(partition, first_offsets[partition]), partition
            self._writer.write_group([with_own_words(item.rows) for item in group])
        if not self._is_in_order and self._partition is not None:
            self._close_file()
        if has_many_holes:
            give_freed_memory_back()


class _Keys:
    """Numbers the pairs of partition and topic as they appear."""

    def __init__(self, layout: Layout) -> None:
        self._by = layout.partition_by
        self._sorts = layout.cluster == "topic"
        self._numbers: dict[_Key, int] = {}
        self._all: list[_Key] = []

    def of(self, number: int) -> _Key:
        return self._all[number]

    def numbers(self, table: FrameTable, rows: Ints) -> NDArray[np.uint32]:
        """Return a number for each of the rows."""
        times = np.clip(table.store_timestamp_ms[rows], schema.LEAST_TIME_MS - 1, schema.LARGEST_TIME_MS + 1)
        days = times // _DAY_MS if self._by == "day" else None
        if self._sorts or self._by == "topic":
            texts, topics = list(map(decode_text, table.topics)), table.topic_id[rows]
        else:
            texts, topics = [""], np.zeros(len(rows), np.int32)
        if days is None:
            present, places = np.flatnonzero(np.bincount(topics)), topics
            numbers = np.zeros(int(present[-1]) + 1, np.uint32)
            numbers[present] = [self._number(texts[topic], None) for topic in present.tolist()]
            return numbers[places]
        pairs, places = np.unique(np.stack((days, topics), 1), axis=0, return_inverse=True)
        return np.array([self._number(texts[topic], day) for day, topic in pairs.tolist()], np.uint32)[places]

    def _number(self, topic: str, day: int | None) -> int:
        value = topic if self._by == "topic" else None if day is None else _day_text(day)
        partition = (self._by, value or None) if self._by is not None else None
        key = (partition, topic if self._sorts else "")
        if key not in self._numbers:
            self._numbers[key] = len(self._all)
            self._all.append(key)
        return self._numbers[key]


def _day_text(day: int) -> str | None:
    """Return year, month and day of a day since the epoch; None where its times are null."""
    text: str | None = pc.strftime(microseconds(np.array([day * _DAY_MS])), format="%Y-%m-%d")[0].as_py()
    return text


def _grouped(found: Iterable[_Rows]) -> Iterator[list[_Rows]]:
    """Yield sorted rows as row groups, each of one partition.

    A large topic has groups of its own, of about one size; small topics share a group.
    """
    small: list[_Rows] = []
    size = 0
    for topic_rows in found:
        fills = topic_rows.size_bytes >= _LEAST_GROUP_SIZE_BYTES
        if small and (fills or size >= _LEAST_GROUP_SIZE_BYTES or topic_rows.partition != small[-1].partition):
            yield small
            small, size = [], 0
        if fills:
            yield from ([part] for part in _divided(topic_rows))
        else:
            small.append(topic_rows)
            size += topic_rows.size_bytes
    if small:
        yield small


def _divided(topic_rows: _Rows) -> Iterator[_Rows]:
    count = round(topic_rows.size_bytes / ROW_GROUP_SIZE_BYTES)
    # A body that was compressed may be longer than its record.
    lengths = pc.add(topic_rows.rows.column("size_bytes"), pc.binary_length(topic_rows.rows.column("body")))
    bounds = even_bounds(np.concatenate(([0], np.cumsum(lengths.to_numpy(), dtype=np.int64))), count)
    for start, end in pairwise(bounds):
        yield replace(topic_rows, rows=topic_rows.rows.slice(start, end - start))
