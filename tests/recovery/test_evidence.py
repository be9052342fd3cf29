"""Lost records as queue entries tell them."""

from __future__ import annotations

import numpy as np

from store_core.recovery.lost_from_queues import _ENTRY, _Items, _Kinds
from store_core.recovery.lost_record import LostRecord
from store_core.recovery.lost_table import LostTable, Source, records_of
from store_core.storage.store import QueueKey


def test_light_queues_stay_with_a_record_beside_one_that_is_told_twice() -> None:
    """A head and an entry that differ keep rows of both; what the record behind them is listed in must not get lost with that."""
    with LostTable() as table:
        own, light, other = (table.queue_number(QueueKey(topic, 0)) for topic in ("T", "%LMQ%a", "%LMQ%b"))
        head = table.queue_number(QueueKey("T", 0), Source.HEAD)
        told = (
            (1000, 5, 200, own),
            (1000, 5, 300, head),
            (2000, 6, 95, own),  # no room for a tombstone with its lists
            (2000, 9, 95, other),
            (2000, 3, 95, light),
        )
        rows = np.zeros(len(told), _ENTRY)
        for name, column in zip(("phy_offset", "queue_offset", "size_bytes", "queue"), np.array(told).T, strict=True):
            rows[name] = column
        rows["batch_size"] = 1
        items = _Items(table, _Kinds(table, has_heads=True, property_crc=False), None)
        items.add(rows)
        assert [*records_of(items.lost[0])] == [
            LostRecord("T", 0, 5, 1000, 200, tags_code=0),
            LostRecord("T", 0, 6, 2000, 95, light_queues=(("%LMQ%a", 3), ("%LMQ%b", 9)), tags_code=0),
        ]
