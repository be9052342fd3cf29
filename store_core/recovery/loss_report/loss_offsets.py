"""Find the offsets in the log of lost records from their queue entries."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from store_core.layout import queue, record
from store_core.recovery.lost_run import LostRun
from store_core.storage.store import Store

Ints = NDArray[np.int64]
_CHUNK_ENTRIES: Final = 1 << 16
_MOST_HELD: Final = 1 << 18


@dataclass(slots=True)
class Places:
    """A set of ranges of the log. Adjoining ranges are merged when many are held, which bounds memory."""

    _starts: list[Ints] = field(default_factory=list)
    _ends: list[Ints] = field(default_factory=list)
    _held: int = 0

    def add(self, starts: Ints, sizes: Ints) -> None:
        self._starts.append(starts.astype(np.int64))
        self._ends.append(starts.astype(np.int64) + sizes)
        self._held += len(starts)
        if self._held > _MOST_HELD:
            merged = self.merged()
            self._starts, self._ends = [merged[0]], [merged[1]]
            self._held = len(merged[0]) // 2  # so that ranges that do not merge are not tried at every call

    def merged(self) -> tuple[Ints, Ints]:
        """Return (starts, ends) in log order, of ranges that do not touch each other."""
        empty = np.zeros(0, np.int64)
        starts, ends = np.concatenate([*self._starts, empty]), np.concatenate([*self._ends, empty])
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], np.maximum.accumulate(ends[order]) if len(order) else ends
        first = np.r_[True, starts[1:] > ends[:-1]] if len(starts) else np.zeros(0, bool)
        last = np.r_[first[1:], True] if len(starts) else first
        return starts[first], ends[last]


@dataclass(frozen=True, slots=True)
class RunPlace:
    """Offsets in the log of a run's first and last record."""

    first_phy_offset: int
    last_phy_offset: int


def places_of(store: Store, runs: Iterable[LostRun], places: Places) -> dict[LostRun, RunPlace]:
    """Return the place of each run's records by its queue entries, and add their ranges to ``places``.

    Runs without a remaining entry are left out, and those of batch queues, whose entries are not found by queue offset.
    """
    found = {}
    for run in runs:
        if run.topic is None or run.queue_id is None or run.first_queue_offset is None or run.last_queue_offset is None:
            continue
        files = store.queue(run.topic, run.queue_id)
        if files is None:
            continue
        low, high = None, None
        for first in range(run.first_queue_offset, run.last_queue_offset + 1, _CHUNK_ENTRIES):
            count = min(_CHUNK_ENTRIES, run.last_queue_offset + 1 - first)
            data = files.read(first * queue.ENTRY.size_bytes, count * queue.ENTRY.size_bytes)
            entries = np.frombuffer(data, queue.ENTRY.dtype, len(data) // queue.ENTRY.size_bytes)
            starts, sizes = entries["phy_offset"].astype(np.int64), entries["size_bytes"].astype(np.int64)
            real = (sizes >= record.MIN_RECORD_SIZE_BYTES) & (sizes <= record.MAX_RECORD_SIZE_BYTES) & (starts >= 0)
            if not real.any():
                continue
            places.add(starts[real], sizes[real])
            low = int(starts[real][0]) if low is None else low
            high = int(starts[real][-1])
        if low is not None and high is not None:
            found[run] = RunPlace(low, high)
    return found
