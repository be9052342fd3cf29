"""How the rows of a split become files: sorted by topic where that is asked for, in a folder a topic or a day.

Row groups begin with a topic that is large enough to fill one, so that a query for a topic reads little else; small ones
share a group. Rows of a topic stay in log order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from store_core.export.dest.layout import Layout
from store_core.export.dest.parts import ROW_GROUP_SIZE_BYTES, Part, Partition, PartWriter
from store_core.export.dest.place import Place

_RUN_SIZE_BYTES: Final = 160 << 20  # rows that are sorted at once: those of a split of the usual size
_LEAST_GROUP_SIZE_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class _Slice:
    """Rows of one topic in one partition, in log order."""

    partition: Partition
    topic: str
    rows: pa.RecordBatch
    size_bytes: int


class MessageWriter:
    """Takes a split's messages in log order, and writes them as the layout asks; ``abort`` removes what was written."""

    def __init__(self, place: Place, store: str, stem: str, layout: Layout) -> None:
        self._place, self._store, self._stem, self._layout = place, store, stem, layout
        self._writer: PartWriter | None = None  # of the file that is being written
        self._parts: list[Part] = []
        self._partition: Partition = None  # of that file
        self._slices: list[_Slice] = []
        self._pending_bytes = 0
        self._keeps_order = layout.cluster == "offset" and layout.partition_by is None

    def write(self, batch: pa.RecordBatch) -> None:
        """Rows of the table, in log order. Raises FailedError."""
        if not len(batch):
            return
        if self._keeps_order:
            self._plain_writer(batch).write(batch)
            return
        self._slices += _slices_of(batch, self._layout)
        self._pending_bytes += batch.nbytes
        if self._pending_bytes >= _RUN_SIZE_BYTES:
            self._flush()

    def close(self) -> list[Part]:
        """Finish the files; tells what they are. Raises FailedError."""
        self._flush()
        if self._writer is not None:
            self._close_file()
        return self._parts

    def abort(self) -> None:
        if self._writer is not None:
            self._writer.abort()
        for part in self._parts:
            self._place.remove(part.staged)

    def _plain_writer(self, batch: pa.RecordBatch) -> PartWriter:
        if self._writer is None:
            self._writer = self._open(None, batch.column("phy_offset")[0].as_py())
        return self._writer

    def _open(self, partition: Partition, phy_offset: int) -> PartWriter:
        name = f"{self._stem}-{phy_offset:020d}.parquet"
        return PartWriter(self._place, "messages", self._store, name, partition, whole=self._layout.whole_files)

    def _close_file(self) -> None:
        if self._writer is not None:
            self._parts.append(self._writer.close())
            self._writer = None

    def _flush(self) -> None:
        """Write the slices so far: a file a partition, or into the one file where there are none."""
        slices = sorted(self._slices, key=_order)  # stable: in log order within a topic
        self._slices, self._pending_bytes = [], 0
        least: dict[Partition, int] = {}
        for each in slices:
            first = each.rows.column("phy_offset")[0].as_py()
            least[each.partition] = min(first, least.get(each.partition, first))
        for group in _grouped(slices):
            partition = group[0].partition
            if self._writer is not None and self._partition != partition:
                self._close_file()
            if self._writer is None:
                self._writer, self._partition = self._open(partition, least[partition]), partition
            self._writer.write_group([each.rows for each in group])
        if self._layout.partition_by is not None:
            self._close_file()


def _slices_of(batch: pa.RecordBatch, layout: Layout) -> Iterator[_Slice]:
    """A batch cut by what it is sorted by, each slice in log order."""
    topics = _topics(batch, layout)
    partitions = _partitions(batch, layout)
    codes = partitions.indices.to_numpy() * np.int64(len(topics.dictionary)) + topics.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    if not np.array_equal(order, np.arange(len(order))):
        batch = batch.take(pa.array(order))
    codes = codes[order]
    bounds = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]
    for first, end in pairwise(bounds):
        number, topic = divmod(int(codes[first]), len(topics.dictionary))
        value = partitions.dictionary[number].as_py()
        partition = (layout.partition_by, value or None) if layout.partition_by is not None else None
        rows = batch.slice(first, end - first)
        yield _Slice(partition, topics.dictionary[topic].as_py(), rows, rows.nbytes)


def _topics(batch: pa.RecordBatch, layout: Layout) -> pa.DictionaryArray:
    """The topic of each row; the same for all where rows are not sorted by it."""
    return batch.column("topic").dictionary_encode() if layout.cluster == "topic" else _all(len(batch), "")


def _all(count: int, value: str) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([value]))


def _partitions(batch: pa.RecordBatch, layout: Layout) -> pa.DictionaryArray:
    """What each row is partitioned by; empty for no value."""
    if layout.partition_by == "topic":
        return batch.column("topic").dictionary_encode()
    if layout.partition_by == "day":
        return pc.strftime(batch.column("store_time"), format="%Y-%m-%d").fill_null("").dictionary_encode()
    return _all(len(batch), "")


def _order(each: _Slice) -> tuple[str, str]:
    return (each.partition[1] or "" if each.partition is not None else "", each.topic)


def _grouped(slices: Sequence[_Slice]) -> Iterator[list[_Slice]]:
    """Sorted slices as row groups, each of one partition."""
    group: list[_Slice] = []
    size = 0
    for number, each in enumerate(slices):
        begins = size >= ROW_GROUP_SIZE_BYTES or (bool(group) and each.partition != group[0].partition)
        if group and each.topic != group[-1].topic:
            begins = begins or size >= _LEAST_GROUP_SIZE_BYTES or _fills_a_group(slices, number)
        if group and begins:
            yield group
            group, size = [], 0
        group.append(each)
        size += each.size_bytes
    if group:
        yield group


def _fills_a_group(slices: Sequence[_Slice], first: int) -> bool:
    """Whether the topic that begins here is large enough for a group of its own."""
    size = 0
    for each in slices[first:]:
        if (each.partition, each.topic) != (slices[first].partition, slices[first].topic):
            return False
        size += each.size_bytes
        if size >= _LEAST_GROUP_SIZE_BYTES:
            return True
    return False
