"""Find lost records after the log's end by entries and the index, without those whose number the log still has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from store_core.derive.queues import QueueBuilder
from store_core.read.index_sizes import IndexSizes
from store_core.recovery.damage_scan import LogSurvey, Region
from store_core.recovery.lost_details import MOST_TRACES, index_traces
from store_core.recovery.lost_record import LostRecord
from store_core.recovery.lost_table import Lost, LostRows, LostTable, Rows
from store_core.storage.store import QueueKey, Store

_MOST_MISSING_SEGMENTS: Final = 64  # entries that point further after the log are ignored as wrong


class QueuesOfLog:
    """The messages of the log by queue and number."""

    def __init__(self, builder: QueueBuilder, table: LostTable) -> None:
        self._builder = builder
        self._table = table
        self._ends: dict[QueueKey, int] = {}

    def lacking(self, lost: Lost) -> Iterator[Lost]:
        """Yield lost records, except those whose number a message has: the entry that named them is wrong."""
        if isinstance(lost, LostRecord):
            key, number = QueueKey(lost.topic, lost.queue_id), lost.queue_offset
            is_beyond = lost.batch_size > 1 or number >= self._end(key)
            if is_beyond or self._builder.phy_offset_of(key, number) is None:
                yield lost
            return
        at = lost.first
        for rows in lost.chunks():
            is_lost = self._are_lacking(rows)
            if is_lost.all():
                yield self._table.rows(at, at + len(rows))
            elif is_lost.any():
                yield self._table.append(rows[is_lost])
            at += len(rows)

    def _are_lacking(self, rows: Rows) -> NDArray[np.bool_]:
        keys = self._table.queues
        ends = np.zeros(len(keys), np.int64)
        for number in np.unique(rows["queue"]).tolist():
            ends[number] = self._end(keys[number])
        is_lost: NDArray[np.bool_] = (rows["batch_size"] > 1) | (rows["queue_offset"] >= ends[rows["queue"]])
        # Few as a rule: most lost numbers are at or after the ends of their queues.
        for number in np.unique(rows["queue"][~is_lost]).tolist():
            in_queue = ~is_lost & (rows["queue"] == number)
            is_lost[in_queue] = ~self._builder.has(keys[number], rows["queue_offset"][in_queue])
        return is_lost

    def _end(self, key: QueueKey) -> int:
        if key not in self._ends:
            self._ends[key] = self._builder.summary(key).end_queue_offset
        return self._ends[key]


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
