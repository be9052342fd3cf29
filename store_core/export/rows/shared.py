"""Rows of many small groups, collected together in the order they came, and taken out sorted.

Columns of its own cost a group, however few rows it has, as much as some hundred rows; a log of a broker with many topics has
a few rows of each between two flushes.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_MANY_WORDS: Final = 1000
Place = tuple[str, str]  # a folder, and what rows are sorted by in it


class Stretch(NamedTuple):
    """Rows [start, end) of those that are sorted, all for one folder: whole groups, the first of which is ``group``."""

    group: int
    start: int
    end: int


class SharedRows:
    """``groups``: each row's group; ``make``: gives the rows, and is asked once; ``place_of``: where a group's rows belong."""

    def __init__(
        self, groups: NDArray[np.uint32], make: Callable[[], pa.RecordBatch], place_of: Callable[[int], Place]
    ) -> None:
        there, number = np.unique(groups, return_inverse=True)
        places = [(place_of(group), group) for group in there.tolist()]
        by_place = sorted(range(len(there)), key=places.__getitem__)
        rank = np.empty(len(there), np.int64)
        rank[by_place] = np.arange(len(there))
        ranks = rank[number]
        self._groups = [places[each] for each in by_place]
        self._ends = np.cumsum(np.bincount(ranks))
        self._make = make
        self._rows: pa.RecordBatch | None = None
        self.order = np.argsort(ranks, kind="stable")  # where the sorted rows are among those that came

    def stretches(self, size_bytes: NDArray[Any], least_bytes: int, others: Sequence[Place]) -> Iterator[Stretch]:
        """The rows in stretches of ``least_bytes`` and more, but where ``others``, ascending, come in between, or another folder; a
        group that has as many by itself is one by itself. ``size_bytes``: of each row, as they came."""
        sums = np.concatenate(([0], np.cumsum(size_bytes[self.order])))
        ends = self._ends.tolist()
        sums_at = dict(zip([0, *ends], sums[[0, *ends]].tolist(), strict=True))
        start = at = 0
        first, among = self._groups[0][1], ("", 0)
        for (place, group), end in zip(self._groups, ends, strict=True):
            here = (place[0], bisect(others, place))
            is_large = sums_at[end] - sums_at[at] >= least_bytes or sums_at[at] - sums_at[start] >= least_bytes
            if start < at and (is_large or here != among):
                yield Stretch(first, start, at)
                start = at
            if start == at:
                first, among = group, here
            at = end
        yield Stretch(first, start, at)

    def taken(self, stretch: Stretch) -> pa.RecordBatch:
        """The rows of a stretch, sorted."""
        if self._rows is None:
            self._rows = self._make()
        return with_few_words(self._rows.take(pa.array(self.order[stretch.start : stretch.end])))


def with_few_words(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows without the words of others, where these are many: each row group's file part would hold them all."""
    for number, field in enumerate(rows.schema):
        words = rows.column(number)
        if pa.types.is_dictionary(field.type) and len(words.dictionary) > _MANY_WORDS:
            rows = rows.set_column(number, field, words.dictionary_decode().dictionary_encode())
    return rows
