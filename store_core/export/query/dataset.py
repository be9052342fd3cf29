"""A table as DuckDB takes it: something of the class that pyarrow's data sets have, which is asked to scan itself.

DuckDB asks a data set for a scanner with the columns and the rows it wants, once for every reference of the table in a query. So
nothing is decoded that a query does not look at, and a query may look at a table twice.
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
    """``reads`` is given each reading that DuckDB asks for, and tells whether there are any rows for it; ``on_error`` is told what one
    raises, which DuckDB would only pass on as text.

    DuckDB's threads may read several tables at a time; ``turns`` lets one of them at the stores, whose descriptors are not shared.
    """

    def __init__(self, table: Table, turns: Lock, on_error: OnError, reads: Reads) -> None:
        # Not Dataset.__init__: it is for data sets that Arrow's own code reads.
        self._table, self._turns, self._on_error, self._reads = table, turns, on_error, reads
        self._schema = schema_of(table.columns)

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None, **_: Any) -> Scanner:
        """What DuckDB calls for each reference: a reading of these columns, of rows for which an expression is true."""
        names = list(self._schema.names if columns is None else columns)
        where = None if filter is None else Where(filter, self._schema)
        wanted = pa.schema([self._schema.field(name) for name in names])
        scanner = Scanner(self._table, wanted, where, self._turns, self._on_error)
        return scanner if self._reads(scanner) else replace(scanner, has_rows=False)


@dataclass(frozen=True, slots=True)
class Scanner:
    """One reading of a table, as often as it is asked for."""

    table: Table
    projected_schema: pa.Schema
    where: Where | None
    turns: Lock
    on_error: OnError
    has_rows: bool = True

    def to_reader(self, schema: pa.Schema | None = None) -> pa.RecordBatchReader:
        """``schema``: of the same columns, with names and types as who asks would have them."""
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
        finally:  # also where a query has seen enough
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
    """A batch whose types differ from a schema's in names of fields and zones of times only."""
    arrays = [array.cast(field.type) for array, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
