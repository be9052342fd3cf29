"""Read the tables of topics and of consumer groups from a broker's configuration."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa

from store_core.export.rows.kinds import topic_kind
from store_core.export.rows.schema import Column
from store_core.export.tables.table import Batches, StoresTable, Where, schema_of, wanted_rows
from store_core.findings import Finding
from store_core.read.pull import require_queue_files
from store_core.storage.config_files import ConfigFiles, read_config

_ATTRIBUTES: Final = Column("attributes", pa.map_(pa.string(), pa.string()), "attributes by name, as of 5.x")
TOPIC_COLUMNS: Final = (
    Column("store", pa.string(), "name of the store", repeats=True),
    Column("topic", pa.string(), "the topic"),
    Column(
        "kind", pa.string(), "user, half, op, delayed, retry, dlq or system: what the topic makes of it", repeats=True
    ),
    Column("read_queues", pa.int32(), "queues that consumers may read"),
    Column("write_queues", pa.int32(), "queues that producers may write to"),
    Column("perm", pa.int32(), "bits: 4 reading, 2 writing, 1 inherited"),
    Column("is_ordered", pa.bool_(), "whether its messages are to be kept in order"),
    _ATTRIBUTES,
)
GROUP_COLUMNS: Final = (
    Column("store", pa.string(), "name of the store", repeats=True),
    Column("consumer_group", pa.string(), "the consumer group"),
    Column("consume_enable", pa.bool_(), "whether it may consume"),
    Column("consume_broadcast_enable", pa.bool_(), "whether it may consume as a broadcast"),
    Column("consume_message_orderly", pa.bool_(), "whether it consumes in order"),
    Column("retry_queues", pa.int32(), "queues of its retry topic"),
    Column("retry_max_times", pa.int32(), "tries until a message is a dead letter"),
    _ATTRIBUTES,
)


class _ConfigTable(StoresTable, ABC):
    """Entries of a configuration file, or of its .bak where a broker reads that.

    Raises FailedError where the configuration is in RocksDB.
    """

    columns: Sequence[Column]

    def batches(self, columns: Sequence[str], where: Where | None = None) -> Batches:
        for name, store in self._stores:
            require_queue_files(store)
            findings, found = self._read(read_config(store.root))
            self.tell(name, findings)
            rows = [{"store": name, **row} for row in found]
            yield wanted_rows(pa.RecordBatch.from_pylist(rows, schema_of(self.columns)), columns, where)

    @abstractmethod
    def _read(self, config: ConfigFiles) -> tuple[Sequence[Finding], Iterable[dict[str, Any]]]:
        """Return the findings about the file, and its entries as rows without ``store``."""


class TopicsTable(_ConfigTable):
    """The topics of topics.json."""

    columns = TOPIC_COLUMNS

    def _read(self, config: ConfigFiles) -> tuple[Sequence[Finding], Iterable[dict[str, Any]]]:
        return config.topics.findings, (
            {
                "topic": topic["topic"],
                "kind": topic_kind(topic["topic"]),
                "read_queues": topic["read_queues"],
                "write_queues": topic["write_queues"],
                "perm": topic["perm"],
                "is_ordered": topic["order"],
                "attributes": list(topic["attributes"].items()),
            }
            for topic in config.topics.value["topics"].values()
        )


class GroupsTable(_ConfigTable):
    """The groups of subscriptionGroup.json."""

    columns = GROUP_COLUMNS

    def _read(self, config: ConfigFiles) -> tuple[Sequence[Finding], Iterable[dict[str, Any]]]:
        return config.subscription_groups.findings, (
            {
                "consumer_group": group["group"],
                "consume_enable": group["consume_enable"],
                "consume_broadcast_enable": group["consume_broadcast_enable"],
                "consume_message_orderly": group["consume_message_orderly"],
                "retry_queues": group["retry_queues"],
                "retry_max_times": group["retry_max_times"],
                "attributes": list(group["attributes"].items()),
            }
            for group in config.subscription_groups.value["groups"].values()
        )
