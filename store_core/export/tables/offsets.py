"""Read the table of consumer progress: each group's next offset in each queue, with the queue's ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from store_core.export.rows.batches import topic_kind
from store_core.export.rows.schema import Column
from store_core.export.tables.table import Batches, StoresTable, Where, schema_of, wanted_rows
from store_core.read.progress import lags, read_progress
from store_core.read.pull import require_queue_files
from store_core.read.rules import rules_of

_LIMIT: Final = 1 << 63
OFFSET_COLUMNS: Final = (
    Column("store", pa.string(), "name of the store", repeats=True),
    Column("consumer_group", pa.string(), "the consumer group", repeats=True),
    Column("topic", pa.string(), "topic of the queue", repeats=True),
    Column(
        "kind", pa.string(), "user, half, op, delayed, retry, dlq or system: what the topic makes of it", repeats=True
    ),
    Column("queue_id", pa.int32(), "queue number, from 0"),
    Column("queue_offset", pa.int64(), "entry number of the next message the group consumes"),
    Column(
        "min_queue_offset", pa.int64(), "first entry number a consumer can have; null without a queue", nullable=True
    ),
    Column("max_queue_offset", pa.int64(), "entry number of the next message; null without a queue", nullable=True),
    Column(
        "lag",
        pa.int64(),
        "messages the group has not consumed; below 0 beyond the end; null without a queue, or if no BIGINT",
        nullable=True,
    ),
)


class OffsetsTable(StoresTable):
    """Progress of all consumer groups of some stores, as ``lag`` shows it.

    Raises FailedError where a store keeps its queues, and so its progress, in RocksDB.
    """

    columns: Sequence[Column] = OFFSET_COLUMNS

    def batches(self, columns: Sequence[str], where: Where | None = None) -> Batches:
        for name, store in self._stores:
            require_queue_files(store)
            progress = read_progress(store.root)
            self.tell(name, progress.findings)
            rows = [
                {
                    "store": name,
                    "consumer_group": lag.group,
                    "topic": lag.topic,
                    "kind": topic_kind(lag.topic),
                    "queue_id": lag.queue_id,
                    "queue_offset": lag.offset,
                    "min_queue_offset": lag.min_offset,
                    "max_queue_offset": lag.max_offset,
                    "lag": lag.lag if lag.lag is not None and -_LIMIT <= lag.lag < _LIMIT else None,
                }
                for lag in lags(store, progress, rules_of(store))
            ]
            yield wanted_rows(pa.RecordBatch.from_pylist(rows, schema_of(OFFSET_COLUMNS)), columns, where)
