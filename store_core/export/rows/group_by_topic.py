"""Collect the messages of many windows as one record batch for each group, sorted while they are decoded.

Sorting decoded rows would copy them once more, and many short batches cost the writer as much as sorting does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_core.export.rows import schema
from store_core.export.rows.batches import in_a_row
from store_core.export.rows.bodies import Bodies, inflated
from store_core.export.rows.columns import FIXED_COLUMNS, Cut, array_of, parts_of
from store_core.export.rows.many_topics import SharedRecords, SortedGroups, SortKey
from store_core.findings import Finding
from store_core.kernel.arrow import ArrowColumns, collector
from store_core.layout import record
from store_core.scan.frames import FrameTable, Ints

# Memory of a row besides its record's bytes: numbers, message id, bounds.
_ROW_SIZE_BYTES: Final = 200
# The first groups get columns of their own, if they are few. All others share columns: the collector reserves room by a new
# group's share of the rows so far, which would be far too much if many groups appear one after another.
_MOST_APART: Final = 8
_FIRST_PART: Final = 1 / 16  # share of the expected bytes
_PARTS: Final = parts_of(schema.WRITTEN.names)
_NOWHERE: Final = np.uint32(0xFFFFFFFF)


@dataclass(frozen=True, slots=True)
class Drained:
    """A group's number, its first row's offset, and a function that returns its rows once and frees them.

    If there are many groups, an item may hold several small ones, with the number of the first; its ``rows`` are
    sorted by group.
    """

    group: int
    first_phy_offset: int
    rows: Callable[[], pa.RecordBatch]


class CollectedRows:
    """Collects rows by group until they are drained, as columns of ``schema.WRITTEN``. Groups are numbered from 0."""

    def __init__(self, store: str, expected_bytes: int) -> None:
        """``expected_bytes``: the approximate length of all records until the next ``drained``."""
        self._store = store
        self._expected_bytes = expected_bytes
        self._collector = collector(_PARTS, expected_bytes)
        self._topics: dict[bytes, int] = {}
        self._clear()

    def _clear(self) -> None:
        self.size_bytes = 0  # approximate memory
        self._counted_bytes = 0
        self.log_bytes = 0  # of records
        self.plain_bytes = 0  # of bodies that were compressed
        self._fixed: dict[str, list[NDArray[Any]]] = {name: [] for name in (*FIXED_COLUMNS, "topic_id")}
        self._groups: list[NDArray[np.uint32]] = []
        self._columns_of = np.zeros(0, np.uint32)  # by group: the number of its columns
        self._apart = 0  # groups with columns of their own
        self._shared: SharedRecords | None = None
        self._compressed: list[NDArray[np.bool_]] = []
        self._plain: list[tuple[bytes | None, ...]] = []

    def add(self, table: FrameTable, rows: Ints, groups: NDArray[np.uint32]) -> Iterator[tuple[Finding, ...]]:
        """Add messages of a table, row numbers ascending, each with its group's number.

        Yields the findings (L012) of each portion of some tens of MiB of bodies; ``drained`` may be called then.
        """
        compressed = (table.sys_flag[rows] & record.FLAG_COMPRESSED) != 0
        for bodies in inflated(table, rows, compressed):
            self._add(table, rows[bodies.places], groups[bodies.places], bodies)
            yield bodies.findings

    def _add(self, table: FrameTable, rows: Ints, groups: NDArray[np.uint32], bodies: Bodies) -> None:
        which = in_a_row(rows)
        sizes = table.size_bytes[which]
        self._collect(table.window, table.phy_offset[which] - table.window_phy_offset, sizes, self._numbers(groups))
        for name in FIXED_COLUMNS:
            self._fixed[name].append(getattr(table, name)[which])
        numbers = [self._topics.setdefault(bytes(topic), len(self._topics)) for topic in table.topics]
        self._fixed["topic_id"].append(np.array(numbers, np.int32)[table.topic_id[which]])
        self._groups.append(groups)
        self._compressed.append(bodies.compressed)
        self._plain.append(bodies.plain)
        plain_bytes = sum(len(body or b"") for body in bodies.plain)
        self.plain_bytes += plain_bytes
        log_bytes = int(sizes.sum())
        self.log_bytes += log_bytes
        self._counted_bytes += log_bytes + len(rows) * _ROW_SIZE_BYTES
        # Thousands of keys or properties need more memory, and move as they grow; bodies are stored a second time in a column.
        self.size_bytes = max(self._counted_bytes, self._collector.size_bytes * 5 // 4) + 2 * self.plain_bytes

    def _collect(self, window: memoryview, at: Ints, sizes: Ints, numbers: NDArray[np.uint32]) -> None:
        is_shared = numbers == _MOST_APART
        if not is_shared.any():
            self._collector.add(window, at, sizes, numbers)
            return
        if not is_shared.all():
            self._collector.add(window, at[~is_shared], sizes[~is_shared], numbers[~is_shared])
        if self._shared is None:
            self._shared = SharedRecords(max(self._expected_bytes - self.log_bytes, 0))
        self._shared.add(window, at[is_shared], sizes[is_shared])

    def _numbers(self, groups: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Return the number of its group's columns for each row."""
        unknown = int(groups.max()) + 1 - len(self._columns_of)
        if unknown > 0:
            self._columns_of = np.concatenate((self._columns_of, np.full(unknown, _NOWHERE)))
        new = groups[self._columns_of[groups] == _NOWHERE]
        if len(new):
            new_groups = np.unique(new)
            if len(new_groups) > _MOST_APART or self.log_bytes > self._expected_bytes * _FIRST_PART:
                self._apart = _MOST_APART
            self._columns_of[new_groups] = np.minimum(self._apart + np.arange(len(new_groups)), _MOST_APART)
            self._apart = min(self._apart + len(new_groups), _MOST_APART)
        return self._columns_of[groups]

    def drained(self, place_of: Callable[[int], SortKey], wanted_bytes: range) -> list[Drained]:
        """Return the rows of each group in the order they came, and forget them.

        The caller must take them before it adds others. With many groups, small ones are joined up to
        ``wanted_bytes``. ``place_of``: the key by which the result is sorted.
        """
        if not self._groups:
            return []
        groups = np.concatenate(self._groups)
        numbers = self._columns_of[groups].astype(np.uint8)  # numpy sorts bytes by radix
        counts = np.bincount(numbers, minlength=_MOST_APART + 1).tolist()
        order = np.argsort(numbers, kind="stable")
        shared_start = len(order) - counts[_MOST_APART]  # groups with shared columns follow the others
        shared, small = self._shared, SortedGroups(groups[order[shared_start:]], place_of) if self._shared else None
        if small is not None:
            order[shared_start:] = order[shared_start:][small.order]
        groups = groups[order]
        fixed = {name: np.concatenate(parts).take(order) for name, parts in self._fixed.items()}
        plain = _Plain(np.concatenate(self._compressed), self._plain, order)
        self._clear()

        def drained(group: int, rows: slice, columns: Callable[[], ArrowColumns]) -> Drained:
            first_phy_offset = int(fixed["phy_offset"][rows].min())
            return Drained(group, first_phy_offset, lambda: self._batch(fixed, rows, columns(), plain))

        found: list[Drained] = []
        end = 0
        for number, count in enumerate(counts[:_MOST_APART]):
            start, end = end, end + count
            if count:
                take = partial(self._collector.take, number)
                found.append(drained(int(groups[start]), slice(start, end), take))
        if shared is not None and small is not None:
            columns = shared.columns(_PARTS, small.order)
            sizes = fixed["size_bytes"][shared_start:] + _ROW_SIZE_BYTES
            for group, start, end in small.stretches(
                sizes, wanted_bytes, sorted(place_of(item.group) for item in found)
            ):
                found.append(
                    drained(group, slice(shared_start + start, shared_start + end), partial(columns, slice(start, end)))
                )
        return found

    def _batch(self, fixed: dict[str, NDArray[Any]], rows: slice, parts: ArrowColumns, plain: _Plain) -> pa.RecordBatch:
        count, bodies = rows.stop - rows.start, plain.taken(rows)
        cut = Cut(lambda name: fixed[name][rows], tuple(self._topics), count, self._store, parts, bodies, in_words=True)
        names = schema.WRITTEN.names
        return pa.RecordBatch.from_arrays([array_of(name, cut) for name in names], names)


class _Plain:
    """Decompressed bodies of rows that came in portions and are read in another order."""

    def __init__(
        self, compressed: NDArray[np.bool_], plain: Sequence[tuple[bytes | None, ...]], order: NDArray[np.intp]
    ) -> None:
        """``plain``: portion by portion, the body of each compressed row; ``order``: the wanted rows."""
        self._bodies: list[bytes | None] = [body for portion in plain for body in portion]
        self._compressed = compressed[order]
        self._number = (np.cumsum(compressed) - 1)[order] if self._bodies else order  # among those compressed

    def taken(self, rows: slice) -> Bodies:
        """Return the bodies of some places in that order, and forget them."""
        compressed = self._compressed[rows]
        numbers = self._number[rows][compressed].tolist()
        plain = tuple(self._bodies[number] for number in numbers)
        for number in numbers:
            self._bodies[number] = None
        return Bodies(rows, compressed, plain)
