"""The tables of a query: their names, columns and types, and how they are read from stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Event
from typing import Any, Final

import pyarrow as pa

from store_core.errors import FailedError
from store_core.export.rows.schema import QUARANTINE_COLUMNS, TIME, Column
from store_core.export.tables.compaction import COMPACTION_COLUMNS, CompactionTable
from store_core.export.tables.config import GROUP_COLUMNS, TOPIC_COLUMNS, GroupsTable, TopicsTable
from store_core.export.tables.delayed import DELAYED_COLUMNS, DelayedTable
from store_core.export.tables.findings import FINDING_COLUMNS, FindingsTable, in_full
from store_core.export.tables.index import INDEX_COLUMNS, IndexTable
from store_core.export.tables.messages import MESSAGE_COLUMNS, MessagesTable
from store_core.export.tables.offsets import OFFSET_COLUMNS, OffsetsTable
from store_core.export.tables.quarantine import QuarantineTable
from store_core.export.tables.queues import QUEUE_COLUMNS, QueuesTable
from store_core.export.tables.table import Table
from store_core.export.tables.transactions import TRANSACTION_COLUMNS, TransactionsTable
from store_core.findings import Finding
from store_core.storage.store import Store

COLUMNS: Final[Mapping[str, Sequence[Column]]] = {
    "messages": MESSAGE_COLUMNS,
    "quarantine": QUARANTINE_COLUMNS,
    "compaction": COMPACTION_COLUMNS,
    "queues": QUEUE_COLUMNS,
    "index": INDEX_COLUMNS,
    "offsets": OFFSET_COLUMNS,
    "topics": TOPIC_COLUMNS,
    "groups": GROUP_COLUMNS,
    "transactions": TRANSACTION_COLUMNS,
    "delayed": DELAYED_COLUMNS,
    "findings": FINDING_COLUMNS,
}
_SQL_TYPES: Final = {
    pa.string(): "VARCHAR",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.bool_(): "BOOLEAN",
    pa.binary(): "BLOB",
    TIME: "TIMESTAMP WITH TIME ZONE",
    pa.list_(pa.string()): "VARCHAR[]",
    pa.map_(pa.string(), pa.string()): "MAP(VARCHAR, VARCHAR)",
}


class Tables:
    """The tables of some stores, each with its name, for one query.

    ``on_progress`` is told the bytes of logs that the table of messages has walked.
    """

    def __init__(
        self, stores: Sequence[tuple[str, Store]], on_progress: Callable[[int], None] = lambda walked_bytes: None
    ) -> None:
        is_one = len(stores) == 1 and not stores[0][1].settings.copies
        self._roots = {} if is_one else {name: store.root for name, store in stores}
        self._stopped = Event()
        self._on_progress = on_progress
        self.by_name: dict[str, Table] = {
            "messages": MessagesTable(stores, self._tell),
            "quarantine": QuarantineTable(stores),
            "compaction": CompactionTable(stores, self._go_on),
            "queues": QueuesTable(stores),
            "index": IndexTable(stores),
            "offsets": OffsetsTable(stores),
            "topics": TopicsTable(stores),
            "groups": GroupsTable(stores),
            "transactions": TransactionsTable(stores, lambda _: self._go_on()),
            "delayed": DelayedTable(stores),
            "findings": FindingsTable(stores, lambda _: self._go_on()),
        }

    @property
    def findings(self) -> list[Finding]:
        """What the tables that were read have met, each finding once; of several stores with their files in full."""
        found = [told for table in self.by_name.values() for told in table.found]
        if self._roots:
            found = [(store, in_full(self._roots[store], each)) for store, each in found]
        return [each for _, each in dict.fromkeys(found)]

    def stop(self) -> None:
        """Have whoever reads a table of messages or findings raise FailedError soon."""
        self._stopped.set()

    def _tell(self, walked_bytes: int) -> None:
        self._go_on()
        self._on_progress(walked_bytes)

    def _go_on(self) -> None:
        if self._stopped.is_set():
            raise FailedError("the query was stopped")


def described() -> Iterator[dict[str, Any]]:
    """A row for each column of each table, with the type it has in SQL."""
    for table, columns in COLUMNS.items():
        for column in columns:
            yield {
                "table": table,
                "column": column.name,
                "type": _SQL_TYPES[column.type],
                "null": column.nullable,
                "meaning": column.meaning,
            }
