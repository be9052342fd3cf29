"""Queue entries of a whole log, by queue, in bounded memory: sorted runs in a scratch file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from store_core.closing import Closing
from store_core.derive.dispatch import ROW, DispatchColumns, Dispatcher, Rows
from store_core.kernel.derive import group_rows
from store_core.scan.frames import FrameTable
from store_core.storage.spool import Spool
from store_core.storage.store import QueueKey

RUN_ROWS: Final = 1 << 16  # 2.5 MB, of which there are two while a run is sorted
READ_ROWS: Final = 1 << 15


@dataclass(frozen=True, slots=True)
class _Run:
    """Where the rows of each queue lie in one sorted run: ids, first rows (in the whole file), counts."""

    key_id: NDArray[Any]
    start: NDArray[Any]
    count: NDArray[Any]


class RowSpool:
    """Rows by key id, each key's in the order they were added. Add first, then ``seal``, then read."""

    def __init__(self, folder: Path, run_rows: int = RUN_ROWS) -> None:
        self._spool = Spool(folder)
        self._run_rows = run_rows
        self._waiting: list[DispatchColumns] = []
        self._waiting_rows = 0
        self._runs: list[_Run] = []

    def close(self) -> None:
        self._spool.close()

    def add(self, columns: DispatchColumns) -> None:
        if not len(columns.rows):
            return
        self._waiting.append(columns)
        self._waiting_rows += len(columns.rows)
        if self._waiting_rows >= self._run_rows:
            self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        keys = max(int(c.key_id.max()) for c in self._waiting) + 1
        rows, counts = group_rows(
            [c.rows.view(np.uint8) for c in self._waiting], [c.key_id for c in self._waiting], ROW.itemsize, keys
        )
        start = self._spool.append(rows.data) // ROW.itemsize
        ids = np.flatnonzero(counts)
        count = counts[ids]
        first = np.cumsum(count, dtype=np.int64) - count
        self._runs.append(_Run(ids.astype(np.int32), first + start, count))
        self._waiting.clear()
        self._waiting_rows = 0

    def seal(self) -> None:
        """No more rows will come: sort out where each key's rows lie."""
        self._flush()
        parts = self._runs or [_Run(np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int32))]
        key_id = np.concatenate([r.key_id for r in parts])
        order = np.argsort(key_id, kind="stable")
        self._start = np.concatenate([r.start for r in parts])[order]
        self._count = np.concatenate([r.count for r in parts])[order]
        self._key_id = key_id[order]
        self._runs.clear()

    def key_ids(self) -> list[int]:
        """Keys that have rows."""
        return [int(k) for k in np.unique(self._key_id)]

    def count(self, key_id: int) -> int:
        low, high = np.searchsorted(self._key_id, [key_id, key_id + 1])
        return int(self._count[low:high].sum())

    def read(self, key_id: int, start: int = 0, stop: int | None = None) -> Iterator[Rows]:
        """Rows [start, stop) of a key, in order, in chunks of up to READ_ROWS."""
        parts: list[bytes] = []
        room = READ_ROWS
        for at, count in self._places(key_id, start, stop):
            while count:
                size = min(count, room)
                parts.append(self._spool.read(at * ROW.itemsize, size * ROW.itemsize))
                at, count, room = at + size, count - size, room - size
                if not room:
                    yield np.frombuffer(b"".join(parts), ROW)
                    parts.clear()
                    room = READ_ROWS
        if parts:
            yield np.frombuffer(b"".join(parts), ROW)

    def _places(self, key_id: int, start: int, stop: int | None) -> Iterator[tuple[int, int]]:
        """Where in the file rows [start, stop) of a key lie: first row and count, one for each run."""
        low, high = np.searchsorted(self._key_id, [key_id, key_id + 1])
        counts = self._count[low:high]
        ends = np.cumsum(counts, dtype=np.int64)
        for piece in range(int(np.searchsorted(ends, start, "right")), len(ends)):
            begins = int(ends[piece]) - int(counts[piece])
            first = max(start - begins, 0)
            last = int(counts[piece]) if stop is None else min(stop - begins, int(counts[piece]))
            if first >= last:
                return
            yield int(self._start[low + piece]) + first, last - first


class QueueSpooler:
    """The sink of a scan from which all queues are built. Give every table to ``add``, in log order, then call ``finish``."""

    def __init__(self, dispatcher: Dispatcher, folder: Path, run_rows: int = RUN_ROWS) -> None:
        self.dispatcher = dispatcher
        self._rows = RowSpool(folder, run_rows)

    def add(self, table: FrameTable) -> None:
        self._rows.add(self.dispatcher.columns(table))

    def close(self) -> None:
        self._rows.close()

    def finish(self) -> RowsByQueue:
        self._rows.seal()
        return RowsByQueue(self.dispatcher, self._rows)


class RowsByQueue(Closing):
    """Every message's entry by queue, in log order. A context that gives its scratch file back."""

    def __init__(self, dispatcher: Dispatcher, rows: RowSpool) -> None:
        self.rules = dispatcher.rules
        self._ids = {dispatcher.keys[key_id]: key_id for key_id in rows.key_ids()}
        self._rows = rows

    def close(self) -> None:
        self._rows.close()

    def queue_keys(self) -> list[QueueKey]:
        """Queues that messages were dispatched to, in order."""
        return sorted(self._ids)

    def count(self, key: QueueKey) -> int:
        return self._rows.count(self._ids[key]) if key in self._ids else 0

    def rows(self, key: QueueKey, start: int = 0, stop: int | None = None) -> Iterator[Rows]:
        """Rows [start, stop) of a queue by the chunk, in log order."""
        if key in self._ids:
            yield from self._rows.read(self._ids[key], start, stop)
