"""Collect what head, queue entry and index entries still show of each lost record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from store_core.check.index_files import open_view
from store_core.read.index_sizes import IndexSizes
from store_core.recovery.damage_scan import Region
from store_core.recovery.lost_record import LostRecord
from store_core.storage.store import Store

_CHUNK_ENTRIES: Final = 1 << 16
MOST_TRACES: Final = 10_000
MOST_RECORDS: Final = 1000
_MS_PER_SECOND: Final = 1000


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
