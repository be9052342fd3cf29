"""Group lost messages into runs by queue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Final, NamedTuple

import numpy as np

from store_core.recovery.damage_scan import Region
from store_core.recovery.lost_record import LostRecord
from store_core.recovery.lost_run import MOST_KEYS_PER_RUN, LostRun
from store_core.recovery.lost_table import (
    ROW,
    Lost,
    LostRows,
    LostTable,
    Rows,
    Source,
    entries_of,
    head_of,
    records_of_rows,
)
from store_core.storage.store import QueueKey

_MOST_KEYS_TRIED: Final = 1000  # for the keys of a run
_MOST_AT_ONCE: Final = 1 << 14
_MOST_HEADS_PER_PART: Final = 64  # that are read for keys


class LostMessages:
    """Lost records, each once, and numbers of queues of which nothing else is known: (queue, first, count).

    Numbers of known records count once. The others become rows of ``table``, which also holds the lost records that are rows.
    """

    def __init__(
        self,
        lost: Iterable[Lost] = (),
        missing: Iterable[tuple[QueueKey, int, int]] = (),
        table: LostTable | None = None,
    ) -> None:
        self._rows: list[LostRows] = []
        self._records: set[LostRecord] = set()
        self._table = table
        for item in lost:
            if isinstance(item, LostRows):
                self._rows.append(item)
            else:
                self._records.add(item)
        if table is not None:
            self._add_missing(sorted(missing), table)

    def __bool__(self) -> bool:
        return bool(self._rows or self._records)

    def first(self, count: int) -> list[LostRecord]:
        """Return the first ``count`` records in log order; those of unknown place come last."""
        if self._table is None:
            return _in_order(self._records, count)
        table = self._table
        ranks = {topic: rank for rank, topic in enumerate(sorted({key.topic for key in table.queues}))}
        rank = np.array([ranks[key.topic] for key in table.queues], np.int64)
        queue_id = np.array([key.queue_id for key in table.queues], np.int64)
        placed = others = np.zeros(0, ROW)
        for chunk in (chunk for rows in self._rows for chunk in rows.chunks()):
            is_placed = table.told_by(chunk, Source.PLACE)
            placed = np.concatenate([placed, chunk[is_placed]])
            placed = placed[np.argsort(placed["phy_offset"], kind="stable")[:count]]
            others = np.concatenate([others, chunk[~is_placed]])
            queue = others["queue"]
            others = others[np.lexsort((others["queue_offset"], queue_id[queue], rank[queue]))[:count]]
        nowhere = (LostRecord(lost.topic, lost.queue_id, lost.queue_offset) for lost in entries_of(table, others))
        return _in_order([*self._records, *records_of_rows(table, placed), *nowhere], count)

    def runs(self, unknown: Iterable[Region] = ()) -> list[LostRun]:
        """Return runs of consecutive numbers by queue, and a run without a queue for each ``unknown`` region."""
        parts = [_part(record) for record in self._records]
        parts += [part for rows in self._rows for chunk in rows.chunks() for part in _parts_of(rows.table, chunk)]
        parts.sort(key=lambda part: (*part.key, part.first, part.last, part.phy_offset))
        runs: list[list[_Part]] = []
        for part in parts:
            if runs and (*runs[-1][-1].key, runs[-1][-1].last + 1) == (*part.key, part.first):
                runs[-1].append(part)
            else:
                runs.append([part])
        return [
            *(_run(run) for run in runs),
            *(LostRun(None, None, None, None, None, region.size_bytes) for region in unknown),
        ]

    def _add_missing(self, missing: Sequence[tuple[QueueKey, int, int]], table: LostTable) -> None:
        known_runs: dict[QueueKey, list[LostRun]] = {}
        for run in self.runs() if missing else ():
            known_runs.setdefault(QueueKey(run.topic or "", run.queue_id or 0), []).append(run)
        for key, first, count in missing:
            for run_first, run_stop in _between(known_runs.get(key, ()), first, first + count):
                for at in range(run_first, run_stop, _MOST_AT_ONCE):
                    rows = np.zeros(min(_MOST_AT_ONCE, run_stop - at), ROW)
                    rows["queue_offset"] = np.arange(at, at + len(rows))
                    rows["queue"], rows["batch_size"] = table.queue_number(key, Source.NUMBER), 1
                    self._rows.append(table.append(rows))


def _in_order(records: Iterable[LostRecord], count: int) -> list[LostRecord]:
    return sorted(
        records, key=lambda r: (r.phy_offset is None, r.phy_offset or 0, r.topic, r.queue_id, r.queue_offset)
    )[:count]


def _between(runs: Iterable[LostRun], first: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of numbers [first, stop) outside runs of the same queue, which rise."""
    for run in runs:
        run_first, run_last = run.first_queue_offset or 0, run.last_queue_offset or 0
        if first < min(run_first, stop):
            yield first, min(run_first, stop)
        first = max(first, run_last + 1)
    if first < stop:
        yield first, stop


class _Part(NamedTuple):
    """A part of a run: queue offsets [first, last]. ``heads``: the first few rows whose heads have keys besides ``keys``."""

    key: QueueKey
    first: int
    last: int
    size_bytes: int
    phy_offset: int
    keys: tuple[str, ...] = ()
    heads: Rows | None = None
    table: LostTable | None = None

    def some_keys(self) -> Iterator[str]:
        yield from self.keys
        if self.heads is not None and self.table is not None:
            for row in self.heads:
                head = head_of(self.table, row)
                yield from head.keys if head is not None else ()


def _part(record: LostRecord) -> _Part:
    key, first = QueueKey(record.topic, record.queue_id), record.queue_offset
    at = -1 if record.phy_offset is None else record.phy_offset
    return _Part(key, first, first + record.batch_size - 1, record.size_bytes, at, record.keys)


def _parts_of(table: LostTable, rows: Rows) -> Iterator[_Part]:
    """Yield the parts of runs within some rows."""
    rows = rows.copy()
    rows["size_bytes"][~table.told_by(rows, Source.PLACE)] = 0
    numbers, which = np.unique(rows["queue"], return_inverse=True)
    queue = np.array([table.queue_number(table.queues[number]) for number in numbers.tolist()])[
        which
    ]  # one number for all sources
    order = np.lexsort((rows["phy_offset"], rows["queue_offset"], queue))
    rows, queue = rows[order], queue[order]
    starts = (np.diff(queue) != 0) | (np.diff(rows["queue_offset"]) != rows["batch_size"][:-1])
    for part in np.split(rows, np.flatnonzero(starts) + 1):
        yield _Part(
            table.queues[int(part["queue"][0])],
            int(part["queue_offset"][0]),
            int(part["queue_offset"][-1] + part["batch_size"][-1]) - 1,
            int(part["size_bytes"].sum(dtype=np.int64)),
            int(part["phy_offset"][0]),
            heads=part[table.told_by(part, Source.KEYS)][:_MOST_HEADS_PER_PART].copy(),
            table=table,
        )


def _run(parts: Sequence[_Part]) -> LostRun:
    """Return consecutive parts of one queue as one run."""
    (topic, queue_id), first, last = parts[0].key, parts[0].first, parts[-1].last
    keys: dict[str, None] = {}
    for key in islice(chain.from_iterable(part.some_keys() for part in parts), _MOST_KEYS_TRIED):
        keys[key] = None
        if len(keys) == MOST_KEYS_PER_RUN:
            break
    size = sum(part.size_bytes for part in parts)
    return LostRun(topic, queue_id, first, last, last - first + 1, size, tuple(keys))
