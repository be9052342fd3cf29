"""Queue entries of a whole log, by queue, in bounded memory: sorted runs in a scratch file, packed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from store_core.closing import Closing
from store_core.derive.dispatch import DispatchColumns, Dispatcher, Rows
from store_core.kernel.derive import pack_rows, unpack_entries, unpack_rows, unpack_stretches
from store_core.scan.frames import FrameTable
from store_core.storage.spool import Spool
from store_core.storage.store import QueueKey

RUN_ROWS: Final = 1 << 16  # 2.5 MB, of which there are two while a run is sorted
READ_ROWS: Final = 1 << 15
_SHORT_ITEM_ROWS: Final = 64  # where a run has no more of a queue, looking for them takes longer than reading them
Stretches = NDArray[Any]  # of kernel.derive.STRETCH


# A queue whose rows, in log order, have consecutive numbers: the first, how many, and where its last record lies and its store time;
# no rows (0) for any other queue.
PLAIN_QUEUE: Final = np.dtype(
    [("queue_offset", "i8"), ("rows", "i8"), ("last_phy_offset", "i8"), ("last_store_timestamp_ms", "i8")]
)


class PlainQueue(NamedTuple):
    """A ``PLAIN_QUEUE``."""

    queue_offset: int
    rows: int
    last_phy_offset: int
    last_store_timestamp_ms: int


class Run(NamedTuple):
    """Where the rows of each queue lie in one sorted run: ids, how many rows, positions and sizes in the file. One item a queue."""

    key_id: NDArray[Any]
    rows: NDArray[Any]
    at: NDArray[Any]
    size_bytes: NDArray[Any]

    @classmethod
    def all_of(cls, runs: Sequence[Run]) -> Run:
        """Several runs' items by queue, those of a queue in the order of the runs."""
        columns = [np.concatenate(column) for column in zip(*runs, strict=True)] or [np.empty(0, np.int64)] * 4
        order = np.argsort(columns[0], kind="stable")
        return cls(*(column[order] for column in columns))

    def items(self, low: int, high: int) -> Run:
        """Items [low, high)."""
        return Run(self.key_id[low:high], self.rows[low:high], self.at[low:high], self.size_bytes[low:high])

    def of(self, key_id: int) -> Run:
        """The items of one queue, of ``all_of``."""
        low, high = np.searchsorted(self.key_id, [key_id, key_id + 1]).tolist()
        return self.items(low, high)


class PackedRows(Closing):
    """Sorted runs of rows in a scratch file, which vanishes with it; it lies in the system's folder for such, if none is given."""

    def __init__(self, folder: Path | None = None) -> None:
        self._spool = Spool(folder)

    def close(self) -> None:
        """Give the scratch file back."""
        self._spool.close()

    def write(self, rows: Sequence[NDArray[np.uint8]], key_id: Sequence[NDArray[Any]], keys: int) -> Run:
        """One more run, of rows in parts as ``pack_rows`` takes them. Raises FailedError where there is no room."""
        packed, ids, counts, sizes = pack_rows(rows, key_id, keys)
        return Run(ids, counts, self._spool.append(packed.data) + np.cumsum(sizes, dtype=np.int64) - sizes, sizes)

    def read(self, run: Run, start: int = 0, stop: int | None = None) -> Iterator[Rows]:
        """Rows [start, stop) of one queue's items, in order, in chunks of up to READ_ROWS and as many as a run may have."""
        return (unpack_rows(packed, rows)[asked] for packed, rows, asked in self._packed(run, start, stop))

    def entries(self, run: Run, start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
        """The same rows as entries of queue files, u8[n, 20]."""
        return (unpack_entries(packed, rows)[asked] for packed, rows, asked in self._packed(run, start, stop))

    def stretches(self, run: Run) -> Iterator[Stretches]:
        """All rows of one queue's items as stretches of consecutive numbers, which end where a chunk does."""
        return (unpack_stretches(packed, rows) for packed, rows, _ in self._packed(run))

    def merged(self, runs: Sequence[Run], most_rows: int) -> tuple[Run, NDArray[Any]]:
        """Sorted runs written once more as one, in which each queue has one item, if it has no more than ``most_rows``.

        With many queues a run has a few rows of each, and who asks for one queue would read as many places as there are runs.
        Beside it what such queues are as PLAIN_QUEUEs, by key id: who has many is asked for the same of each again and again.
        """
        keys = max((int(run.key_id[-1]) for run in runs if len(run.key_id)), default=-1) + 1
        rows = sum((np.bincount(run.key_id, run.rows, keys) for run in runs), np.zeros(keys)).astype(np.int64)
        done: list[Run] = []
        plain = np.zeros(keys, PLAIN_QUEUE)
        for low, high in _groups(rows, most_rows):
            parts = [run.items(*np.searchsorted(run.key_id, [low, high]).tolist()) for run in runs]
            parts = [part for part in parts if len(part.key_id)]
            if rows[low] > most_rows:  # then it is alone
                done += parts
                continue
            ids = [np.repeat(part.key_id - low, part.rows) for part in parts]
            found = [self._rows_of(part) for part in parts]
            plain[low:high] = _plain_queues(np.concatenate(found), np.concatenate(ids), high - low)
            done.append(self.write([rows.view(np.uint8) for rows in found], ids, high - low))
            done[-1] = done[-1]._replace(key_id=done[-1].key_id + low)
        return Run.all_of(done), plain

    def _rows_of(self, part: Run) -> Rows:
        """All rows of items that lie back to back in the file."""
        size_bytes = int(part.at[-1] + part.size_bytes[-1] - part.at[0])
        return unpack_rows(self._spool.read(int(part.at[0]), size_bytes), part.rows)

    def _packed(self, run: Run, start: int = 0, stop: int | None = None) -> Iterator[tuple[bytes, NDArray[Any], slice]]:
        """Packed items that hold rows [start, stop), by the chunk: bytes, the rows of each item, which are asked for."""
        if len(run.key_id) == 1 and run.rows[0] <= READ_ROWS:
            count = int(run.rows[0])
            asked = slice(start, count if stop is None else min(stop, count))
            if asked.start < asked.stop:
                yield self._spool.read(int(run.at[0]), int(run.size_bytes[0])), run.rows, asked
            return
        ends = np.cumsum(run.rows, dtype=np.int64)
        total = int(ends[-1]) if len(ends) else 0
        stop = total if stop is None else min(stop, total)
        while start < stop:
            first = int(np.searchsorted(ends, start, "right"))
            past = int(np.searchsorted(ends, min(start + READ_ROWS, stop))) + 1
            begins = int(ends[first] - run.rows[first])
            places = zip(run.at[first:past].tolist(), run.size_bytes[first:past].tolist(), strict=True)
            packed = b"".join(self._spool.read(at, size) for at, size in places)
            yield packed, run.rows[first:past], slice(start - begins, stop - begins)
            start = int(ends[past - 1])


def _plain_queues(rows: Rows, key_id: NDArray[Any], keys: int) -> NDArray[Any]:
    """Return the PLAIN_QUEUEs of some queues, given all of their rows, those of each in log order."""
    found = np.zeros(keys, PLAIN_QUEUE)
    if not len(rows):
        return found
    order = np.argsort(key_id, kind="stable")
    ids, rows = key_id[order], rows[order]
    is_other = np.diff(ids) != 0
    breaks = ~is_other & (np.diff(rows["queue_offset"]) != 1)
    begins, lasts = np.r_[0, np.flatnonzero(is_other) + 1], np.r_[np.flatnonzero(is_other), len(ids) - 1]
    of = ids[begins]
    found["queue_offset"][of], found["rows"][of] = rows["queue_offset"][begins], lasts + 1 - begins
    found["last_phy_offset"][of] = rows["phy_offset"][lasts]
    found["last_store_timestamp_ms"][of] = rows["store_timestamp_ms"][lasts]
    found["rows"][ids[1:][breaks]] = 0
    return found


def _groups(rows: NDArray[np.int64], most: int) -> Iterator[tuple[int, int]]:
    """Keys [low, high) that have no more than ``most`` rows together, or are one key; ``rows`` of each."""
    ends = np.cumsum(rows)
    low = 0
    while low < len(rows):
        before = int(ends[low - 1]) if low else 0
        high = max(int(np.searchsorted(ends, before + most, "right")), low + 1)
        yield low, high
        low = high


class RowSpool:
    """Rows by key id, each key's in the order they were added. Add first, then ``seal``, then read."""

    def __init__(self, folder: Path, run_rows: int = RUN_ROWS) -> None:
        self._packed = PackedRows(folder)
        self._run_rows = run_rows
        self._waiting: list[DispatchColumns] = []
        self._waiting_rows = 0
        self._runs: list[Run] = []
        self._plain: NDArray[Any] = np.zeros(0, PLAIN_QUEUE)

    def close(self) -> None:
        """Give the scratch file back, and the rows that have not gone there."""
        self._packed.close()
        self._waiting.clear()

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
        rows, ids = [c.rows.view(np.uint8) for c in self._waiting], [c.key_id for c in self._waiting]
        self._runs.append(self._packed.write(rows, ids, keys))
        self._waiting.clear()
        self._waiting_rows = 0

    def seal(self) -> None:
        """No more rows will come: sort out where each key's rows lie."""
        self._flush()
        items = sum(len(run.key_id) for run in self._runs)
        if len(self._runs) > 1 and sum(int(run.rows.sum()) for run in self._runs) <= _SHORT_ITEM_ROWS * items:
            self._sorted, self._plain = self._packed.merged(self._runs, self._run_rows)
        else:
            self._sorted = Run.all_of(self._runs)
        self._runs.clear()

    def plain(self, key_id: int) -> PlainQueue | None:
        """What a queue is whose rows have consecutive numbers, where that is known without looking at them."""
        found = self._plain[key_id].item() if key_id < len(self._plain) else (0, 0, 0, 0)
        return PlainQueue(*found) if found[1] else None

    def key_ids(self) -> list[int]:
        """Keys that have rows."""
        return [int(k) for k in np.unique(self._sorted.key_id)]

    def count(self, key_id: int) -> int:
        return int(self._sorted.of(key_id).rows.sum())

    def read(self, key_id: int, start: int = 0, stop: int | None = None) -> Iterator[Rows]:
        """Rows [start, stop) of a key, in order, by the chunk."""
        return self._packed.read(self._sorted.of(key_id), start, stop)

    def entries(self, key_id: int, start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
        """The same rows as entries of queue files."""
        return self._packed.entries(self._sorted.of(key_id), start, stop)

    def stretches(self, key_id: int) -> Iterator[Stretches]:
        """All rows of a key as stretches of consecutive numbers, by the chunk."""
        return self._packed.stretches(self._sorted.of(key_id))


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
        return self._rows.read(self._ids[key], start, stop) if key in self._ids else iter(())

    def plain(self, key: QueueKey) -> PlainQueue | None:
        """As ``RowSpool.plain``."""
        return self._rows.plain(self._ids[key]) if key in self._ids else None

    def row(self, key: QueueKey, number: int) -> Any:
        """A row of a queue, as ``kernel.derive.ROW``."""
        return next(self.rows(key, number, number + 1))[0]

    def entries(self, key: QueueKey, start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
        """The same rows of a queue that has them as entries of an ordinary queue's files, u8[n, 20], by the chunk."""
        return self._rows.entries(self._ids[key], start, stop)

    def stretches(self, key: QueueKey) -> Iterator[Stretches]:
        """A queue's rows as stretches of consecutive numbers, by the chunk, in log order: what ``number_rows`` takes."""
        return self._rows.stretches(self._ids[key]) if key in self._ids else iter(())
