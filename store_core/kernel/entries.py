"""Summarize many queue entries at once, for the simulation of a broker's start; compiled where possible.

Entries are given as stored, one after another: those of ordinary queues, or those of batch queues, which are longer and have the same first fields
(store format 6.1, 6.6).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from store_core.kernel import is_native
from store_core.layout.record import MAX_RECORD_SIZE_BYTES

Entries = NDArray[Any]
Ints = NDArray[np.int64]
_MIX = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class GoodRun(NamedTuple):
    """``length`` entries.

    ``highest``: the highest offset in the log among them and earlier ones. ``falling``: places of entries with a lower log offset than an entry
    before them.
    """

    length: int
    highest: int
    falling: list[int]


class ChainSums(NamedTuple):
    """Sums with one item for each segment.

    * ``sums`` u64: the hashes of the records' starts, minus those of their ends.
    * ``counts``: records.
    * ``last``: the highest end.
    """

    sums: NDArray[np.uint64]
    counts: Ints
    last: Ints


def good_run(entries: Entries, *, below: int = 1 << 63, highest: int = -1, room: int = 0) -> GoodRun:
    """Return the first entries that are plausible: a log offset in [0, ``below``) and a size above 0. At most ``room`` falling ones."""
    return GoodRun(*_kernel().good_run(_bytes(entries), entries.itemsize, below, highest, room))


def chain_sums(entries: Entries, starts: Ints, ends: Ints) -> ChainSums:
    """Return the sums of entries with a possible record size for each segment [start, end) of the log.

    Where the records of a segment are consecutive, all hashes but the first start's and the last end's cancel out. So the sums show without sorting
    whether the entries leave out a record.
    """
    starts, ends = np.ascontiguousarray(starts, np.int64), np.ascontiguousarray(ends, np.int64)
    return ChainSums(*_kernel().chain_sums(_bytes(entries), entries.itemsize, starts, ends, MAX_RECORD_SIZE_BYTES))


def hashes(values: Ints) -> NDArray[np.uint64]:
    """Return numbers that differ widely for neighbours, so that sums distinguish sets of numbers."""
    mixed = values.astype(np.uint64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX[0]
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX[1]
    found: NDArray[np.uint64] = mixed ^ (mixed >> np.uint64(31))
    return found


def _bytes(entries: Entries) -> NDArray[np.uint8]:
    return np.ascontiguousarray(entries).view(np.uint8)


def _kernel() -> ModuleType:
    if is_native():
        from store_core.kernel import _native

        return _native
    from store_core.kernel.reference import entries as reference

    return reference
