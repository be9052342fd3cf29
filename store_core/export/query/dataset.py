"""Give a table to DuckDB as an object of pyarrow's data set class, which DuckDB asks for scans.

DuckDB asks for a scanner with the columns and rows it wants, once for each reference of the table in a query. So only columns that a query uses are
decoded, and a query may read a table twice.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from store_core.export.tables.table import Table, Where, schema_of

OnError = Callable[[BaseException], None]
Reads = Callable[["Scanner"], bool]


class TableDataset(ds.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """A table as a data set.

    ``reads`` gets each reading that DuckDB asks for, and returns whether it has rows. ``on_error`` gets an error of a reading, which DuckDB would
    only pass on as text.

    DuckDB's threads may read several tables at a time; ``turns`` admits one of them to the stores, whose descriptors are not shared.
    """

    def __init__(self, table: Table, turns: Lock, on_error: OnError, reads: Reads) -> None:
        # Dataset.__init__ is not called, because it is for data sets that Arrow's own code reads.
        self._table, self._turns, self._on_error, self._reads = table, turns, on_error, reads
        self._schema = schema_of(table.columns)

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None, **_: Any) -> Scanner:
        """Return a reading of these columns, of rows for which the filter is true. DuckDB calls this for each reference."""
        names = list(self._schema.names if columns is None else columns)
        where = None if filter is None else Where(filter, self._schema)
        wanted = pa.schema([self._schema.field(name) for name in names])
        scanner = Scanner(self._table, wanted, where, self._turns, self._on_error)
        return scanner if self._reads(scanner) else replace(scanner, has_rows=False)


@dataclass(frozen=True, slots=True)
class Scanner:
    """A reading of a table, which can be repeated."""

    table: Table
    projected_schema: pa.Schema
    where: Where | None
    turns: Lock
    on_error: OnError
    has_rows: bool = True

    def to_reader(self, schema: pa.Schema | None = None) -> pa.RecordBatchReader:
        """Return a reader of the batches. ``schema``: the same columns with the names and types that the caller wants."""
        if schema is None:
            return pa.RecordBatchReader.from_batches(
                self.projected_schema, self._batches() if self.has_rows else iter(())
            )
        return pa.RecordBatchReader.from_batches(schema, (_as_in(schema, batch) for batch in self._batches()))

    def _batches(self) -> Iterator[pa.RecordBatch]:
        batches = self.table.batches(self.projected_schema.names, self.where)
        try:
            while (batch := self._next(batches)) is not None:
                yield batch
        finally:  # also if a query stops early
            with self.turns:
                batches.close()

    def _next(self, batches: Generator[pa.RecordBatch, None, None]) -> pa.RecordBatch | None:
        try:
            with self.turns:
                return next(batches, None)
        except BaseException as error:
            self.on_error(error)
            raise


def _as_in(schema: pa.Schema, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with a schema that differs only in field names and time zones."""
    arrays = [array.cast(field.type) for array, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
