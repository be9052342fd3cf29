"""Messages of many windows as one record batch a group: rows are put where they belong while they are decoded.

Sorting decoded rows would copy them all once more, and many short batches cost the writer as much as sorting does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_core.export.rows import schema
from store_core.export.rows.batches import in_a_row
from store_core.export.rows.bodies import Bodies, inflated
from store_core.export.rows.columns import FIXED_COLUMNS, Cut, array_of, parts_of
from store_core.findings import Finding
from store_core.kernel.arrow import ArrowColumns, collector
from store_core.layout import record
from store_core.scan.frames import FrameTable, Ints

# What a row takes besides what its record holds: numbers, message id, bounds.
_ROW_SIZE_BYTES: Final = 200


class CollectedRows:
    """Rows of ``schema.WRITTEN``, collected by group until they are drained. Groups are numbered from 0 on."""

    def __init__(self, store: str, expected_bytes: int) -> None:
        """``expected_bytes``: how long the records until the next ``drained`` will be together, about."""
        self._store = store
        self._collector = collector(parts_of(schema.WRITTEN.names), expected_bytes)
        self._topics: dict[bytes, int] = {}
        self._clear()

    def _clear(self) -> None:
        self.size_bytes = 0  # of memory, about
        self._fixed: dict[str, list[NDArray[Any]]] = {name: [] for name in (*FIXED_COLUMNS, "topic_id")}
        self._groups: list[NDArray[np.uint32]] = []
        self._compressed: list[NDArray[np.bool_]] = []
        self._plain: list[tuple[bytes | None, ...]] = []

    def add(self, table: FrameTable, rows: Ints, groups: NDArray[np.uint32]) -> Iterator[tuple[Finding, ...]]:
        """Take in messages of a table, row numbers ascending, each with its group's number.

        After each portion, of a few tens of MiB of bodies, comes what was found in it (L012); ``drained`` may be called then.
        """
        compressed = (table.sys_flag[rows] & record.FLAG_COMPRESSED) != 0
        for bodies in inflated(table, rows, compressed):
            self._add(table, rows[bodies.places], groups[bodies.places], bodies)
            yield bodies.findings

    def _add(self, table: FrameTable, rows: Ints, groups: NDArray[np.uint32], bodies: Bodies) -> None:
        which = in_a_row(rows)
        sizes = table.size_bytes[which]
        self._collector.add(table.window, table.phy_offset[which] - table.window_phy_offset, sizes, groups)
        for name in FIXED_COLUMNS:
            self._fixed[name].append(getattr(table, name)[which])
        numbers = [self._topics.setdefault(bytes(topic), len(self._topics)) for topic in table.topics]
        self._fixed["topic_id"].append(np.array(numbers, np.int32)[table.topic_id[which]])
        self._groups.append(groups)
        self._compressed.append(bodies.compressed)
        self._plain.append(bodies.plain)
        plain_bytes = 2 * sum(len(body or b"") for body in bodies.plain)  # once more when they become a column
        self.size_bytes += int(sizes.sum()) + len(rows) * _ROW_SIZE_BYTES + plain_bytes

    def drained(self) -> dict[int, pa.RecordBatch]:
        """The rows of each group in the order they came; none are left."""
        if not self._groups:
            return {}
        groups = np.concatenate(self._groups)
        counts = np.bincount(groups)
        small = groups.astype(np.uint16) if len(counts) <= 1 << 16 else groups  # of two bytes, they are sorted by radix
        order = np.argsort(small, kind="stable")
        fixed = {name: np.concatenate(parts).take(order) for name, parts in self._fixed.items()}
        plain = _Plain(np.concatenate(self._compressed), self._plain, order)
        self._clear()
        batches: dict[int, pa.RecordBatch] = {}
        end = 0
        for number in np.flatnonzero(counts).tolist():
            start, end = end, end + int(counts[number])
            batches[number] = self._batch(fixed, slice(start, end), self._collector.take(number), plain)
        return batches

    def _batch(self, fixed: dict[str, NDArray[Any]], rows: slice, parts: ArrowColumns, plain: _Plain) -> pa.RecordBatch:
        count = rows.stop - rows.start
        bodies = plain.bodies(rows)
        cut = Cut(lambda name: fixed[name][rows], tuple(self._topics), count, self._store, parts, bodies, in_words=True)
        return pa.RecordBatch.from_arrays([array_of(name, cut) for name in schema.WRITTEN.names], schema=schema.WRITTEN)


class _Plain:
    """Bodies that were compressed, of rows that came in portions and are wanted in another order."""

    def __init__(
        self, compressed: NDArray[np.bool_], plain: Sequence[tuple[bytes | None, ...]], order: NDArray[np.intp]
    ) -> None:
        """``plain``: portion by portion, for each compressed row its body; ``order``: which rows are wanted."""
        self._bodies = [body for portion in plain for body in portion]
        self._compressed = compressed[order]
        self._number = (np.cumsum(compressed) - 1)[order] if self._bodies else order  # among those compressed

    def bodies(self, rows: slice) -> Bodies:
        """Of some places in that order."""
        compressed = self._compressed[rows]
        plain = tuple(self._bodies[number] for number in self._number[rows][compressed].tolist())
        return Bodies(rows, compressed, plain)
