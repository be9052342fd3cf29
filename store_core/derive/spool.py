"""Sort the queue entries of a whole log by queue in bounded memory: packed sorted runs in a scratch file."""

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
_SHORT_ITEM_ROWS: Final = 64  # finding an item of fewer rows in a run takes longer than reading it
Stretches = NDArray[Any]  # of kernel.derive.STRETCH


# A queue whose rows, in log order, have consecutive numbers: the first number, the count, offset and store time of the last
# record. Any other queue has 0 rows.
PLAIN_QUEUE: Final = np.dtype(
    [("queue_offset", "i8"), ("rows", "i8"), ("last_phy_offset", "i8"), ("last_store_timestamp_ms", "i8")]
)


class PlainQueue(NamedTuple):
    """The fields of a ``PLAIN_QUEUE``."""

    queue_offset: int
    rows: int
    last_phy_offset: int
    last_store_timestamp_ms: int


class Run(NamedTuple):
    """The index of a sorted run, one item for each queue: id, number of rows, position and size in the file."""

    key_id: NDArray[Any]
    rows: NDArray[Any]
    at: NDArray[Any]
    size_bytes: NDArray[Any]

    @classmethod
    def all_of(cls, runs: Sequence[Run]) -> Run:
        """Return the items of several runs by queue, those of a queue in the order of the runs."""
        columns = [np.concatenate(column) for column in zip(*runs, strict=True)] or [np.empty(0, np.int64)] * 4
        order = np.argsort(columns[0], kind="stable")
        return cls(*(column[order] for column in columns))

    def items(self, low: int, high: int) -> Run:
        """Return items [low, high)."""
        return Run(self.key_id[low:high], self.rows[low:high], self.at[low:high], self.size_bytes[low:high])

    def of(self, key_id: int) -> Run:
        """Return the items of one queue from the result of ``all_of``."""
        low, high = np.searchsorted(self.key_id, [key_id, key_id + 1]).tolist()
        return self.items(low, high)


class PackedRows(Closing):
    """Sorted runs of rows in a scratch file in a folder, removed with this object."""

    def __init__(self, folder: Path) -> None:
        self._spool = Spool(folder)

    def close(self) -> None:
        """Release the scratch file."""
        self._spool.close()

    def write(self, rows: Sequence[NDArray[np.uint8]], key_id: Sequence[NDArray[Any]], keys: int) -> Run:
        """Write a run of rows, in parts as ``pack_rows`` takes them.

        Raises:
            FailedError: there is no room.
        """
        packed, ids, counts, sizes = pack_rows(rows, key_id, keys)
        return Run(ids, counts, self._spool.append(packed.data) + np.cumsum(sizes, dtype=np.int64) - sizes, sizes)

    def read(self, run: Run, start: int = 0, stop: int | None = None) -> Iterator[Rows]:
        """Yield rows [start, stop) of one queue's items in order, in chunks of at most READ_ROWS plus a run's rows."""
        return (unpack_rows(packed, rows)[wanted] for packed, rows, wanted in self._packed(run, start, stop))

    def entries(self, run: Run, start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
        """Yield the rows of ``read`` as entries of queue files, u8[n, 20]."""
        return (unpack_entries(packed, rows)[wanted] for packed, rows, wanted in self._packed(run, start, stop))

    def stretches(self, run: Run) -> Iterator[Stretches]:
        """Yield all rows of one queue's items as ranges of consecutive numbers, which end at chunks' ends."""
        return (unpack_stretches(packed, rows) for packed, rows, _ in self._packed(run))

    def merged(self, runs: Sequence[Run], most_rows: int) -> tuple[Run, NDArray[Any]]:
        """Merge sorted runs so that each queue of at most ``most_rows`` rows has one item; also return the PLAIN_QUEUEs by key id.

        With many queues a run has a few rows of each, and reading one queue would read as many places as there are runs. The
        PLAIN_QUEUEs answer questions that are repeated for each of many queues.
        """
        keys = max((int(run.key_id[-1]) for run in runs if len(run.key_id)), default=-1) + 1
        rows = sum((np.bincount(run.key_id, run.rows, keys) for run in runs), np.zeros(keys)).astype(np.int64)
        done: list[Run] = []
        plain = np.zeros(keys, PLAIN_QUEUE)
        for low, high in _groups(rows, most_rows):
            parts = [run.items(*np.searchsorted(run.key_id, [low, high]).tolist()) for run in runs]
            parts = [part for part in parts if len(part.key_id)]
            if rows[low] > most_rows:  # then the group is this queue alone
                done += parts
                continue
            ids = [np.repeat(part.key_id - low, part.rows) for part in parts]
            found = [self._rows_of(part) for part in parts]
            plain[low:high] = _plain_queues(np.concatenate(found), np.concatenate(ids), high - low)
            done.append(self.write([rows.view(np.uint8) for rows in found], ids, high - low))
            done[-1] = done[-1]._replace(key_id=done[-1].key_id + low)
        return Run.all_of(done), plain

    def _rows_of(self, part: Run) -> Rows:
        """Return all rows of items that are adjacent in the file."""
        size_bytes = int(part.at[-1] + part.size_bytes[-1] - part.at[0])
        return unpack_rows(self._spool.read(int(part.at[0]), size_bytes), part.rows)

    def _packed(self, run: Run, start: int = 0, stop: int | None = None) -> Iterator[tuple[bytes, NDArray[Any], slice]]:
        """Yield packed items that contain rows [start, stop), by the chunk: bytes, rows of each item, slice of the requested rows."""
        if len(run.key_id) == 1 and run.rows[0] <= READ_ROWS:
            count = int(run.rows[0])
            wanted = slice(start, count if stop is None else min(stop, count))
            if wanted.start < wanted.stop:
                yield self._spool.read(int(run.at[0]), int(run.size_bytes[0])), run.rows, wanted
            return
        ends = np.cumsum(run.rows, dtype=np.int64)
        total = int(ends[-1]) if len(ends) else 0
        stop = total if stop is None else min(stop, total)
        while start < stop:
            first = int(np.searchsorted(ends, start, "right"))
            past = int(np.searchsorted(ends, min(start + READ_ROWS, stop))) + 1
            items_start = int(ends[first] - run.rows[first])
            places = zip(run.at[first:past].tolist(), run.size_bytes[first:past].tolist(), strict=True)
            packed = b"".join(self._spool.read(at, size) for at, size in places)
            yield packed, run.rows[first:past], slice(start - items_start, stop - items_start)
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
    ids_found = ids[begins]
    found["queue_offset"][ids_found], found["rows"][ids_found] = rows["queue_offset"][begins], lasts + 1 - begins
    found["last_phy_offset"][ids_found] = rows["phy_offset"][lasts]
    found["last_store_timestamp_ms"][ids_found] = rows["store_timestamp_ms"][lasts]
    found["rows"][ids[1:][breaks]] = 0
    return found


def _groups(rows: NDArray[np.int64], most: int) -> Iterator[tuple[int, int]]:
    """Yield key ranges [low, high) with at most ``most`` rows together, or of one key; ``rows``: the rows of each key."""
    ends = np.cumsum(rows)
    low = 0
    while low < len(rows):
        before = int(ends[low - 1]) if low else 0
        high = max(int(np.searchsorted(ends, before + most, "right")), low + 1)
        yield low, high
        low = high


class RowSpool:
    """Rows by key id, the rows of a key in the order of ``add``. Add first, then ``seal``, then read."""

    def __init__(self, folder: Path, run_rows: int = RUN_ROWS) -> None:
        self._packed = PackedRows(folder)
        self._run_rows = run_rows
        self._waiting: list[DispatchColumns] = []
        self._waiting_rows = 0
        self._runs: list[Run] = []
        self._plain: NDArray[Any] = np.zeros(0, PLAIN_QUEUE)

    def close(self) -> None:
        """Release the scratch file and the rows in memory."""
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
        """End adding, and index where each key's rows are."""
        self._flush()
        items = sum(len(run.key_id) for run in self._runs)
        if len(self._runs) > 1 and sum(int(run.rows.sum()) for run in self._runs) <= _SHORT_ITEM_ROWS * items:
            self._sorted, self._plain = self._packed.merged(self._runs, self._run_rows)
        else:
            self._sorted = Run.all_of(self._runs)
        self._runs.clear()

    def plain(self, key_id: int) -> PlainQueue | None:
        """Return the summary of a queue whose rows have consecutive numbers, if it is known without reading them."""
        found = self._plain[key_id].item() if key_id < len(self._plain) else (0, 0, 0, 0)
        return PlainQueue(*found) if found[1] else None

    def key_ids(self) -> list[int]:
        """Return the ids of keys that have rows."""
        return [int(k) for k in np.unique(self._sorted.key_id)]

    def count(self, key_id: int) -> int:
        return int(self._sorted.of(key_id).rows.sum())

    def read(self, key_id: int, start: int = 0, stop: int | None = None) -> Iterator[Rows]:
        """Yield rows [start, stop) of a key, in order, by the chunk."""
        return self._packed.read(self._sorted.of(key_id), start, stop)

    def entries(self, key_id: int, start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
        """Yield the rows of ``read`` as entries of queue files."""
        return self._packed.entries(self._sorted.of(key_id), start, stop)

    def stretches(self, key_id: int) -> Iterator[Stretches]:
        """Yield all rows of a key as ranges of consecutive numbers, by the chunk."""
        return self._packed.stretches(self._sorted.of(key_id))


class QueueSpooler:
    """Collects the rows of all queues from a scan. Give every table to ``add``, in log order, then call ``finish``."""

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
    """Every message's entry by queue, in log order. A context manager, whose end releases the scratch file."""

    def __init__(self, dispatcher: Dispatcher, rows: RowSpool) -> None:
        self.rules = dispatcher.rules
        self._ids = {dispatcher.keys[key_id]: key_id for key_id in rows.key_ids()}
        self._rows = rows

    def close(self) -> None:
        self._rows.close()

    def queue_keys(self) -> list[QueueKey]:
        """Return the queues that messages were dispatched to, in order."""
        return sorted(self._ids)

    def count(self, key: QueueKey) -> int:
        return self._rows.count(self._ids[key]) if key in self._ids else 0

    def rows(self, key: QueueKey, start: int = 0, stop: int | None = None) -> Iterator[Rows]:
        """Yield rows [start, stop) of a queue by the chunk, in log order."""
        return self._rows.read(self._ids[key], start, stop) if key in self._ids else iter(())

    def plain(self, key: QueueKey) -> PlainQueue | None:
        """Return ``RowSpool.plain`` of a queue, or None."""
        return self._rows.plain(self._ids[key]) if key in self._ids else None

    def row(self, key: QueueKey, number: int) -> Any:
        """Return a row of a queue, as ``kernel.derive.ROW``."""
        return next(self.rows(key, number, number + 1))[0]

    def entries(self, key: QueueKey, start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
        """Yield the rows as entries of an ordinary queue's files, u8[n, 20], by the chunk, of a queue that has rows."""
        return self._rows.entries(self._ids[key], start, stop)

    def stretches(self, key: QueueKey) -> Iterator[Stretches]:
        """Yield a queue's rows as ranges of consecutive numbers, by the chunk, in log order, for ``number_rows``."""
        return self._rows.stretches(self._ids[key]) if key in self._ids else iter(())
