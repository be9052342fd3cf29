"""Group lost messages into runs by queue, and collect what head, queue entry and index entries show of each.

Beyond the log's end, entries and the index show lost records; one whose number the log still has is not lost. What a
sibling has before this store's first byte may have expired here, so it is taken only if the operator requests it (store
behaviour 11).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from store_core.check.index_files import open_view
from store_core.check.log_begin import LogBegin, log_begin
from store_core.derive.queues import QueueBuilder
from store_core.read.index_sizes import IndexSizes
from store_core.recovery.damage_scan import LogSurvey, Region
from store_core.recovery.lost_record import MOST_KEYS_PER_RUN, LostRecord, LostRun
from store_core.recovery.lost_table import (
    ROW,
    Lost,
    LostRows,
    LostTable,
    Rows,
    Source,
    head_of,
    records_of_rows,
)
from store_core.recovery.replica import Earlier
from store_core.storage.store import QueueKey, Store

_MOST_KEYS_TRIED: Final = 1000  # for the keys of a run
_MOST_HEADS_PER_PART: Final = 64  # that are read for keys
_CHUNK_ENTRIES: Final = 1 << 16
MOST_TRACES: Final = 10_000
MOST_RECORDS: Final = 1000
_MS_PER_SECOND: Final = 1000
_MOST_MISSING_SEGMENTS: Final = 64  # entries that point further after the log are ignored as wrong


class LostMessages:
    """Lost records, each once, and numbers of queues of which nothing else is known, as ranges of queue offsets by queue.

    Of rows only the ranges are kept, and the first ``MOST_RECORDS`` in log order. Numbers of known records count once, and
    records ``beyond_end`` of the log if no message of its ``queues`` has their number: else the entry that named them is wrong.
    """

    def __init__(
        self,
        lost: Iterable[Lost] = (),
        missing: Iterable[tuple[QueueKey, int, int]] = (),
        *,
        beyond_end: Iterable[Lost] = (),
        queues: QueueBuilder | None = None,
    ) -> None:
        self._records: set[LostRecord] = set()
        self._first: Rows = np.zeros(0, ROW)
        self._table: LostTable | None = None
        self._numbers: list[tuple[QueueKey, int, int]] = []  # the first ranges of numbers alone
        parts: list[_Part] = []
        for item, builder in chain(((item, None) for item in lost), ((item, queues) for item in beyond_end)):
            if isinstance(item, LostRows):
                self._table = table = item.table
                for rows in item.chunks():
                    parts += self._parts_of(
                        table, rows if builder is None else rows[_are_lacking(builder, table, rows)]
                    )
            elif builder is None or _is_lacking(builder, item):
                self._records.add(item)
        parts += map(_part, self._records)
        unknown = list(_unknown_parts(_joined(parts), sorted(missing)))
        self._add_numbers(unknown)
        self._runs = _joined([*parts, *unknown])

    def first(self) -> list[LostRecord]:
        """Return the first ``MOST_RECORDS`` records in log order; those of unknown place come last."""
        placed = records_of_rows(self._table, self._first) if self._table is not None else ()
        numbers = (LostRecord(*key, number) for key, first, last in self._numbers for number in range(first, last + 1))
        records = [*self._records, *placed, *islice(numbers, MOST_RECORDS)]
        records.sort(key=lambda r: (r.phy_offset is None, r.phy_offset or 0, r.topic, r.queue_id, r.queue_offset))
        return records[:MOST_RECORDS]

    def runs(self, unknown: Iterable[Region] = ()) -> list[LostRun]:
        """Return runs of consecutive numbers by queue, and a run without a queue for each ``unknown`` region."""
        return [
            *(_run(run) for run in self._runs),
            *(LostRun(None, None, None, None, None, region.size_bytes) for region in unknown),
        ]

    def _parts_of(self, table: LostTable, rows: Rows) -> Iterator[_Part]:
        """Yield the parts of runs within some rows, and keep the first rows with a place and the first numbers alone."""
        is_placed = table.told_by(rows, Source.PLACE)
        placed = np.concatenate([self._first, rows[is_placed]])
        self._first = placed[np.argsort(placed["phy_offset"], kind="stable")[:MOST_RECORDS]]
        self._add_numbers(_parts_of(table, rows[~is_placed]))
        rows = rows.copy()
        rows["size_bytes"][~is_placed] = 0
        return _parts_of(table, rows)

    def _add_numbers(self, parts: Iterable[_Part]) -> None:
        ranges = ((part.key, part.first, part.last) for part in parts)
        self._numbers = sorted([*self._numbers, *ranges])[:MOST_RECORDS]


def _joined(parts: Iterable[_Part]) -> list[list[_Part]]:
    """Return the parts by queue and number, in runs of consecutive numbers."""
    runs: list[list[_Part]] = []
    for part in sorted(parts, key=lambda part: (*part.key, part.first, part.last, part.phy_offset)):
        if runs and (*runs[-1][-1].key, runs[-1][-1].last + 1) == (*part.key, part.first):
            runs[-1].append(part)
        else:
            runs.append([part])
    return runs


def _unknown_parts(runs: Iterable[Sequence[_Part]], missing: Iterable[tuple[QueueKey, int, int]]) -> Iterator[_Part]:
    """Yield the parts of missing numbers (queue, first, count) outside known runs, which rise."""
    known: dict[QueueKey, list[tuple[int, int]]] = {}
    for run in runs:
        known.setdefault(run[0].key, []).append((run[0].first, run[-1].last))
    for key, first, count in missing:
        stop = first + count
        for run_first, run_last in known.get(key, ()):
            if first < min(run_first, stop):
                yield _Part(key, first, min(run_first, stop) - 1)
            first = max(first, run_last + 1)
        if first < stop:
            yield _Part(key, first, stop - 1)


class _Part(NamedTuple):
    """A part of a run: queue offsets [first, last]. ``heads``: the first few rows whose heads have keys besides ``keys``."""

    key: QueueKey
    first: int
    last: int
    size_bytes: int = 0
    phy_offset: int = -1
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
    if not len(rows):
        return
    numbers, which = np.unique(rows["queue"], return_inverse=True)
    own = np.array([table.queue_number(table.queues[number]) for number in numbers.tolist()])  # one for all sources
    order = np.lexsort((rows["phy_offset"], rows["queue_offset"], own[which]))
    rows, queue = rows[order], own[which][order]
    starts = (np.diff(queue) != 0) | (np.diff(rows["queue_offset"]) != rows["batch_size"][:-1])
    for part in np.split(rows, np.flatnonzero(starts) + 1):
        yield _Part(
            table.queues[int(part["queue"][0])],
            int(part["queue_offset"][0]),
            int(part["queue_offset"][-1] + part["batch_size"][-1]) - 1,
            int(part["size_bytes"].sum(dtype=np.int64)),
            int(part["phy_offset"][0]),
            heads=heads.copy() if len(heads := part[table.told_by(part, Source.KEYS)][:_MOST_HEADS_PER_PART]) else None,
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


class IndexTrace(NamedTuple):
    """An index entry for a lost record. Its time is whole seconds after its file's start time."""

    phy_offset: int
    key_hash: int
    store_timestamp_ms: int


def index_traces(
    store: Store, sizes: IndexSizes | None, regions: Iterable[Region], *, from_phy_offset: int = 0
) -> list[IndexTrace]:
    """Return the first ``MOST_TRACES`` index entries that point into regions, in the index's order.

    Files whose header ends before ``from_phy_offset`` are not read, and none if their sizes are unknown.
    """
    spans = sorted((region.phy_offset, region.end_phy_offset) for region in regions if region.size_bytes)
    if not spans or sizes is None:
        return []
    starts, ends = (np.array(column, np.int64) for column in zip(*spans, strict=True))
    found: list[IndexTrace] = []
    for path in store.index_files:
        view = open_view(store, path, sizes)
        if view.header.end_phy_offset < from_phy_offset:
            continue
        for first in range(1, view.entries + 1, _CHUNK_ENTRIES):
            part = view.read(store, first, min(_CHUNK_ENTRIES, view.entries + 1 - first))
            phy_offset = part["phy_offset"].astype(np.int64)
            number = np.searchsorted(starts, phy_offset, "right") - 1
            for row in np.flatnonzero((number >= 0) & (phy_offset < ends[number])).tolist():
                time = view.header.begin_timestamp_ms + int(part["seconds"][row]) * _MS_PER_SECOND
                found.append(IndexTrace(int(phy_offset[row]), int(part["key_hash"][row]), time))
            if len(found) >= MOST_TRACES:
                return found[:MOST_TRACES]
    return found


def traced(known: Iterable[LostRecord], traces: Sequence[IndexTrace]) -> list[dict[str, Any]]:
    """Return one object for each of the first ``MOST_RECORDS`` lost records; records known only from the index have no queue.

    ``known``: the other lost records in log order, at least the first ``MOST_RECORDS``.
    """
    by_place: dict[int, list[IndexTrace]] = {}
    for trace in traces:
        by_place.setdefault(trace.phy_offset, []).append(trace)
    rows = [
        _row(record, by_place.pop(record.phy_offset, []) if record.phy_offset is not None else []) for record in known
    ]
    rows += [_row(None, by_place[place]) for place in sorted(by_place)]
    return rows[:MOST_RECORDS]


def _row(record: LostRecord | None, traces: Sequence[IndexTrace]) -> dict[str, Any]:
    return {
        "topic": record.topic if record else None,
        "queue_id": record.queue_id if record else None,
        "queue_offset": record.queue_offset if record else None,
        "phy_offset": record.phy_offset if record else traces[0].phy_offset,
        "size_bytes": (record.size_bytes or None) if record else None,
        "tags_code": record.tags_code if record else None,
        "unique_key": record.unique_key if record else None,
        "keys": list(record.keys) if record else [],
        "born_timestamp_ms": record.born_timestamp_ms if record else None,
        "store_timestamp_ms": record.store_timestamp_ms if record else None,
        "index": [{"key_hash": t.key_hash, "store_timestamp_ms": t.store_timestamp_ms} for t in traces],
    }


def _is_lacking(queues: QueueBuilder, lost: LostRecord) -> bool:
    """Return True if no message of the queues has the number of a lost record."""
    return lost.batch_size > 1 or queues.phy_offset_of(QueueKey(lost.topic, lost.queue_id), lost.queue_offset) is None


def _are_lacking(queues: QueueBuilder, table: LostTable, rows: Rows) -> NDArray[np.bool_]:
    """Return the mask of the rows whose number no message of the queues has."""
    is_lost: NDArray[np.bool_] = rows["batch_size"] > 1
    for number in np.unique(rows["queue"]).tolist():
        in_queue = rows["queue"] == number
        is_lost[in_queue] |= ~queues.has(table.queues[number], rows["queue_offset"][in_queue])
    return is_lost


def beyond_log_end(store: Store, survey: LogSurvey) -> Region:
    """Return the range after the log where missing last segments were: they leave no region, only entries that point there."""
    end = max(store.log.max_phy_offset, survey.end_phy_offset)
    return Region(end, end + _MOST_MISSING_SEGMENTS * store.log.file_size_bytes, end, end)


def only_indexed(
    store: Store, sizes: IndexSizes | None, survey: LogSurvey, regions: Iterable[Region], known: Iterable[Lost]
) -> int | None:
    """Return how many messages in regions after the log's last record only the index knows.

    None for too many to count. ``known``: lost records with another source.
    """
    traces = index_traces(store, sizes, regions, from_phy_offset=survey.end_phy_offset)
    places = np.unique(np.array([trace.phy_offset for trace in traces], np.int64))
    for lost in known if len(places) else ():
        if isinstance(lost, LostRows):
            for rows in lost.chunks():
                places = places[~np.isin(places, rows["phy_offset"])]
        else:
            places = places[places != lost.phy_offset]
    return None if len(places) and len(traces) >= MOST_TRACES else len(places)


@dataclass(frozen=True, slots=True)
class SkippedEarlier:
    """The log of sibling number ``sibling`` before this store's first byte. ``begin``: traces of it in this store."""

    sibling: int
    phy_offset: int
    begin: LogBegin

    @property
    def size_bytes(self) -> int:
        return self.begin.phy_offset - self.phy_offset

    def as_json(self) -> dict[str, Any]:
        return {
            "phy_offset": self.phy_offset,
            "size_bytes": self.size_bytes,
            "queue_entries": self.begin.messages,
            "groups": list(self.begin.groups),
            "is_young": self.begin.is_young,
        }


def weighed(
    store: Store, earlier: Iterable[Earlier], begin_phy_offset: int, last_store_timestamp_ms: int
) -> list[SkippedEarlier]:
    """Return what is not taken of each sibling's log if this store's log will start at ``begin_phy_offset``."""
    found = [item for item in earlier if item.phy_offset < begin_phy_offset]
    if not found:
        return []
    begin = log_begin(store, begin_phy_offset=begin_phy_offset, last_timestamp_ms=last_store_timestamp_ms)
    return [SkippedEarlier(item.sibling, item.phy_offset, begin) for item in found]
