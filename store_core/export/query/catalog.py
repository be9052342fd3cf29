"""List the tables of a query with names, columns and types, and read them from stores."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from threading import Event
from typing import Any, Final

import pyarrow as pa

from store_core.errors import FailedError
from store_core.export.rows.schema import TIME, Column
from store_core.export.tables.table import Table
from store_core.findings import Finding
from store_core.storage.store import Store

_CLASSES: Final = {  # by the table's name, in store_core.export.tables: imported when a query names the table
    "messages": "messages.MessagesTable",
    "quarantine": "quarantine.QuarantineTable",
    "compaction": "compaction.CompactionTable",
    "queues": "queues.QueuesTable",
    "index": "index.IndexTable",
    "offsets": "offsets.OffsetsTable",
    "topics": "config.TopicsTable",
    "groups": "config.GroupsTable",
    "transactions": "transactions.TransactionsTable",
    "delayed": "delayed.DelayedTable",
    "findings": "findings.FindingsTable",
}
NAMES: Final = tuple(_CLASSES)
# Ways to see or reach a table without its name in the query.
_UNNAMED: Final = re.compile(
    r"\bshow\b|information_schema|duckdb_|pg_|sqlite_|\bquery\b|pragma|query_table|\bU&", re.IGNORECASE
)
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
    """The tables of some stores, each with its name, for a query.

    ``on_progress`` gets the bytes of logs that the table of messages has walked.
    """

    def __init__(
        self, stores: Sequence[tuple[str, Store]], on_progress: Callable[[int], None] = lambda walked_bytes: None
    ) -> None:
        is_one = len(stores) == 1 and not stores[0][1].settings.copies
        self._roots = {} if is_one else {name: store.root for name, store in stores}
        self._stopped = Event()
        self._on_progress = on_progress
        self._stores = stores
        self.by_name: dict[str, Table] = _LazyTables(self._make_table)

    @property
    def findings(self) -> list[Finding]:
        """The findings of the tables that were read, each once; with several stores their files have full paths."""
        found = [pair for table in self.by_name.values() for pair in table.found]
        if self._roots:
            from store_core.export.tables.findings import in_full

            found = [(store, in_full(self._roots[store], item)) for store, item in found]
        return [item for _, item in dict.fromkeys(found)]

    def named_in(self, query: str) -> Iterator[tuple[str, Table]]:
        """Yield the tables that a query may use, with names: those it names, or all if it can reach tables in another way."""
        lower_query = query.lower()
        wanted = [name for name in NAMES if name in lower_query]
        for name in NAMES if not wanted or _UNNAMED.search(query) else wanted:
            yield name, self.by_name[name]

    def stop(self) -> None:
        """Make every reader of a table of messages or findings raise FailedError soon."""
        self._stopped.set()

    def _make_table(self, name: str) -> Table:
        callbacks: dict[str, Callable[..., None]] = {
            "messages": self._report_walked,
            "compaction": self._check_stopped,
            "transactions": lambda _: self._check_stopped(),
            "findings": lambda _: self._check_stopped(),
        }
        made: Table = _class_of(name)(self._stores, *([callbacks[name]] if name in callbacks else []))
        return made

    def _report_walked(self, walked_bytes: int) -> None:
        self._check_stopped()
        self._on_progress(walked_bytes)

    def _check_stopped(self) -> None:
        if self._stopped.is_set():
            raise FailedError("the query was stopped")


class _LazyTables(dict[str, Table]):
    """Tables by name, each made on first access."""

    def __init__(self, make: Callable[[str], Table]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, name: str) -> Table:
        self[name] = made = self._make(name)
        return made


def _class_of(table: str) -> Any:
    module, _, name = _CLASSES[table].partition(".")
    return getattr(import_module(f"store_core.export.tables.{module}"), name)


def columns_of(table: str) -> Sequence[Column]:
    """Return the columns of a table, in their order."""
    columns: Sequence[Column] = _class_of(table).columns
    return columns


def described() -> Iterator[dict[str, Any]]:
    """Yield a row for each column of each table, with its SQL type."""
    for table in NAMES:
        for column in columns_of(table):
            yield {
                "table": table,
                "column": column.name,
                "type": _SQL_TYPES[column.type],
                "null": column.nullable,
                "meaning": column.meaning,
            }
