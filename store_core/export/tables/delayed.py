"""Read the table of messages that wait for delivery, by delay level or timer (store format 10.4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from store_core.codec.properties import REAL_QID, REAL_TOPIC, TIMER_DEL_UNIQKEY
from store_core.codec.record import Message
from store_core.export.rows.schema import TIME, Column
from store_core.export.tables.queues import QueuesTable, places_of
from store_core.export.tables.table import Batches, Where, microseconds, schema_of, wanted_rows
from store_core.layout import paths
from store_core.layout.timer import TIMER_TOPIC
from store_core.read.delayed import DeliveryProgress, delivery_progress, timer_due_ms
from store_core.read.dump import QueueDump, all_queues
from store_core.read.records import read_message
from store_core.storage.config_files import read_config
from store_core.storage.store import Store

DELAYED_COLUMNS: Final = (
    Column("store", pa.string(), "name of the store", repeats=True),
    Column("topic", pa.string(), f"where it waits: {paths.SCHEDULE_TOPIC} or {TIMER_TOPIC}", repeats=True),
    Column("queue_id", pa.int32(), "queue number there: of a delay level, the level less 1"),
    Column("queue_offset", pa.int64(), "entry number there"),
    Column("phy_offset", pa.int64(), "byte offset of the record in the log"),
    Column("level", pa.int32(), "delay level, from 1; null for the timer's", nullable=True),
    Column("deliver_time", TIME, "when it is due; null for one that does not say", nullable=True),
    Column("real_topic", pa.string(), "topic that it goes to; null where its record cannot be read", nullable=True),
    Column("real_queue_id", pa.int32(), "queue that it goes to; null likewise", nullable=True),
    Column("unique_key", pa.string(), "property UNIQ_KEY; null without one", nullable=True),
    Column("keys", pa.list_(pa.string()), "the keys in property KEYS; empty without any"),
    Column("tags", pa.string(), "property TAGS; null without one", nullable=True),
    Column("store_time", TIME, "when it came; null where its record cannot be read", nullable=True),
    Column("cancels", pa.string(), "of a request to the timer, which message it is to drop; else null", nullable=True),
)
_OF_ENTRY: Final = ["queue_offset", "phy_offset", "size_bytes", "state", "deliver_time"]
_LARGEST_QUEUE_ID: Final = str(paths.LARGEST_QUEUE_ID)


class DelayedTable(QueuesTable):
    """Waiting messages of some stores, by the progress in delayOffset.json and timercheck.

    Raises FailedError where queues are in RocksDB.
    """

    columns: Sequence[Column] = DELAYED_COLUMNS

    def batches(self, columns: Sequence[str], where: Where | None = None) -> Batches:
        for name, store in self._stores:
            queues = [queue for queue in all_queues(store) if queue.topic in (paths.SCHEDULE_TOPIC, TIMER_TOPIC)]
            config = read_config(store.root)
            self.tell(name, config.delay_offsets.findings)
            progress = delivery_progress(store, config)
            for queue in queues:
                for rows in self._waiting(name, store, queue, progress):
                    yield wanted_rows(pa.RecordBatch.from_pylist(rows, schema_of(DELAYED_COLUMNS)), columns, where)

    def _waiting(
        self, name: str, store: Store, queue: QueueDump, progress: DeliveryProgress
    ) -> Iterator[list[dict[str, Any]]]:
        places = places_of(queue.queue)
        if queue.topic == paths.SCHEDULE_TOPIC:
            start = max(places.start, progress.levels.get(queue.queue_id + 1, 0))
            places = range(min(start, places.stop), places.stop)
        for batch in self.of_queue(name, queue, _OF_ENTRY, places=places):
            rows = (self._row(name, store, queue, entry, progress) for entry in batch.to_pylist())
            yield [row for row in rows if row is not None]

    def _row(
        self, name: str, store: Store, queue: QueueDump, entry: dict[str, Any], progress: DeliveryProgress
    ) -> dict[str, Any] | None:
        if entry["state"] != "message":
            return None
        message = read_message(store.log, entry["phy_offset"], entry["size_bytes"])
        if message is not None and message.is_tombstone:
            return None
        is_level = queue.topic == paths.SCHEDULE_TOPIC
        due_ms = None if is_level or message is None else timer_due_ms(message)
        if not is_level and not progress.timer_waits(entry["queue_offset"], entry["phy_offset"], due_ms):
            return None
        return {
            "store": name,
            "topic": queue.topic,
            "queue_id": queue.queue_id,
            "queue_offset": entry["queue_offset"],
            "phy_offset": entry["phy_offset"],
            "level": queue.queue_id + 1 if is_level and queue.queue_id < paths.LARGEST_QUEUE_ID else None,
            "deliver_time": entry["deliver_time"] if is_level else microseconds(due_ms),
            **_columns_of_record(message),
        }


def _columns_of_record(message: Message | None) -> dict[str, Any]:
    """Return the columns that the record itself has."""
    if message is None:
        return {"keys": []}
    queue_id = message.properties.get(REAL_QID, "")
    is_number = queue_id.isascii() and queue_id.isdigit() and len(queue_id) < len(_LARGEST_QUEUE_ID)
    return {
        "real_topic": message.properties.get(REAL_TOPIC),
        "real_queue_id": int(queue_id) if is_number else None,
        "unique_key": message.unique_key,
        "keys": list(message.keys),
        "tags": message.tags,
        "store_time": microseconds(message.store_timestamp_ms),
        "cancels": message.properties.get(TIMER_DEL_UNIQKEY),
    }
