"""Collect the messages that a start or a cut removes, by queue, in runs of consecutive queue offsets."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from store_core.codec.properties import KEYS, parse_properties, split_keys
from store_core.derive.dispatch import inner_batch_size
from store_core.kernel.codes import FrameCode, PropertyFlag
from store_core.recovery.lost_record import MOST_KEYS_PER_RUN, LostRun

if TYPE_CHECKING:
    from store_core.scan.frames import FrameTable
    from store_core.storage.store import QueueKey

Ints = NDArray[np.int64]

_MOST_LOOKED_AT: Final = 64  # records of a table that are searched for the keys of a run
_NONE: Final = -1
_RUN: Final = np.dtype(
    [("queue", "i8"), ("first", "i8"), ("messages", "i8"), ("size_bytes", "i8"), ("has_keys", np.bool_)]
)
_OF_RUNS: Final = ("_runs", "_newest", "_keys")  # attributes that are changed in place


@dataclass(slots=True)
class LossBook:
    """Lost messages by queue, which ``number_of`` numbers from 0. Memory grows only with runs and queues.

    Messages with a wrong body checksum are included; ``readable`` is a book without these.
    """

    messages: int = 0
    _runs: NDArray[Any] = field(default_factory=lambda: np.zeros(0, _RUN))  # longer than ``_count``
    _count: int = 0
    _newest: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # each queue's newest run
    _keys: dict[int, list[str]] = field(default_factory=dict)  # keys by run
    _numbers: dict[QueueKey, int] = field(default_factory=dict)
    _readable: LossBook | None = None  # None while all messages are readable

    @property
    def readable(self) -> LossBook:
        return self._readable or self

    def number_of(self, key: QueueKey) -> int:
        """Return the number of a queue."""
        return self._numbers.setdefault(key, len(self._numbers))

    def add(self, table: FrameTable, rows: Ints, queues: Ints) -> None:
        """Add rows of a table in log order, with the queue number of each row."""
        bad = table.of_code(FrameCode.BAD_CRC)[rows]
        if self._readable is None and bad.any():
            self._readable = replace(self, **{name: deepcopy(getattr(self, name)) for name in _OF_RUNS})
        self._add(runs_of(table, rows, queues), table)
        if self._readable is not None:
            self._readable._add(runs_of(table, rows[~bad], queues[~bad]), table)

    def _add(self, found: TableRuns, table: FrameTable) -> None:
        if not len(found.starts):
            return
        self._newest = with_room(self._newest, int(found.queues[-1]) + 1, _NONE)
        run = self._newest[found.queues]
        known = self._runs[run] if self._count else np.zeros(len(run), _RUN)
        # Only the first run of a queue in a table can continue a known run, because a table's own runs do not join.
        continues = (run != _NONE) & (known["first"] + known["messages"] == found.firsts)
        continues[1:] &= found.queues[1:] != found.queues[:-1]
        new = np.flatnonzero(~continues)
        run[new] = np.arange(self._count, self._count + len(new))
        self._count += len(new)
        self._runs = with_room(self._runs, self._count)
        self._runs["queue"][run[new]], self._runs["first"][run[new]] = found.queues[new], found.firsts[new]
        self._runs["messages"][run] += found.messages
        self._runs["size_bytes"][run] += found.size_bytes
        self._newest[found.queues] = run  # of several runs of a queue the last one is kept
        self.messages += int(found.messages.sum())
        self._add_keys(found, run, table)

    def _add_keys(self, found: TableRuns, run: Ints, table: FrameTable) -> None:
        has = (table.property_flags[found.rows] & int(PropertyFlag.KEYS)) != 0
        if not has.any():
            return
        wants = np.logical_or.reduceat(has, found.starts) & ~self._runs["has_keys"][run]
        for place in np.flatnonzero(wants).tolist():
            rows_of_run = slice(int(found.starts[place]), int(found.starts[place] + found.counts[place]))
            keys = self._keys.setdefault(int(run[place]), [])
            for row in found.rows[rows_of_run][has[rows_of_run]][:_MOST_LOOKED_AT].tolist():
                record_keys = split_keys(parse_properties(table.properties(row)).get(KEYS))
                keys += [key for key in dict.fromkeys(record_keys) if key not in keys]
            self._runs["has_keys"][run[place]] = len(keys) >= MOST_KEYS_PER_RUN

    def runs(self) -> tuple[LostRun, ...]:
        """Return all runs by queue, those of a queue in the order in which they were found."""
        names = list(self._numbers)
        found = self._runs[: self._count].tolist()
        order = sorted(range(self._count), key=lambda number: names[found[number][0]])
        return tuple(self._run(names, number, *found[number][:-1]) for number in order)

    def _run(
        self, names: list[QueueKey], number: int, queue: int, first: int, messages: int, size_bytes: int
    ) -> LostRun:
        keys = tuple(self._keys.get(number, ())[:MOST_KEYS_PER_RUN])
        return LostRun(*names[queue], first, first + messages - 1, messages, size_bytes, keys)


@dataclass(frozen=True, slots=True)
class TableRuns:
    """Rows of a table by queue, in runs of consecutive queue offsets.

    All columns but ``rows`` have one item for each run: ``starts``: its first index in ``rows``; ``counts``: its rows;
    ``firsts``: its first queue offset; ``messages``: those in its records, a batch counted in full.
    """

    rows: Ints
    starts: Ints
    counts: Ints
    queues: Ints
    firsts: Ints
    messages: Ints
    size_bytes: Ints


def runs_of(table: FrameTable, rows: Ints, queues: Ints) -> TableRuns:
    """Sort rows of a table, with the numbers of their queues, into runs."""
    order = np.argsort(queues, kind="stable")
    rows, queues = rows[order], queues[order]
    counts, queue_offsets = _messages_in(table, rows), table.queue_offset[rows]
    is_start = np.ones(len(rows), np.bool_)
    is_start[1:] = (queues[1:] != queues[:-1]) | (np.diff(queue_offsets) != counts[:-1])
    starts = np.flatnonzero(is_start)
    sums = (
        np.add.reduceat(column, starts) if len(starts) else starts
        for column in (np.ones(len(rows), np.int64), counts, table.size_bytes[rows].astype(np.int64))
    )
    lengths, messages, size_bytes = sums
    return TableRuns(rows, starts, lengths, queues[starts], queue_offsets[starts], messages, size_bytes)


def _messages_in(table: FrameTable, rows: Ints) -> Ints:
    """Count the messages that each record holds."""
    counts = np.ones(len(rows), np.int64)
    for place in np.flatnonzero(table.with_property(PropertyFlag.INNER_NUM)[rows]).tolist():
        counts[place] = inner_batch_size(parse_properties(table.properties(int(rows[place]))))
    return counts


def with_room(column: NDArray[Any], count: int, filler: int = 0) -> NDArray[Any]:
    """Return a column with room for ``count`` items: itself, or a copy of at least twice the size."""
    if count <= len(column):
        return column
    grown = np.full(max(count, 2 * len(column)), filler, column.dtype)
    grown[: len(column)] = column
    return grown
