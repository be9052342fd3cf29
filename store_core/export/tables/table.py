"""Define a readable table: columns by name, and batches of the requested columns and rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Generator, Iterable, Sequence
from functools import cached_property
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from numpy.typing import NDArray
from pyarrow.fs import LocalFileSystem

from store_core.check.report import MOST_FINDINGS_PER_CODE
from store_core.export.rows.schema import Column
from store_core.findings import KINDS, Finding, finding
from store_core.storage.store import Store

Mask = NDArray[np.bool_]
Batches = Generator[pa.RecordBatch, None, None]
_NUMBER: Final = "row number"  # no column of a table has a blank in its name


class Where:
    """A condition over the columns of a table, as an Arrow expression: rows for which it is true are wanted."""

    def __init__(self, expression: Any, schema: pa.Schema) -> None:
        self._expression = expression
        self._schema = schema

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns that the condition reads, in the order of the schema.

        Arrow does not list them, but refuses to apply an expression if one of its columns is missing.
        """
        every = {field.name: pa.array([], field.type) for field in self._schema}
        return tuple(name for name in every if not self._can_do_without(name, every))

    def _can_do_without(self, name: str, every: dict[str, pa.Array]) -> bool:
        try:
            pa.table({other: values for other, values in every.items() if other != name}).filter(self._expression)
        except pa.ArrowInvalid:
            return False
        return True

    def mask(self, batch: pa.RecordBatch) -> Mask:
        """Return a mask of the rows for which the condition is true; the batch has at least ``columns``."""
        numbered = batch.select(self.columns).append_column(_NUMBER, pa.array(np.arange(len(batch))))
        mask = np.zeros(len(batch), np.bool_)
        mask[numbered.filter(self._expression).column(_NUMBER).to_numpy()] = True
        return mask

    def possible(self, promises: Sequence[Any]) -> list[int]:
        """Return the numbers of the ranges of a table that may hold wanted rows.

        Each range has an expression in ``promises`` that is true for all its rows. Arrow's own rule for skipping
        files decides; nothing is read.
        """
        if not promises:
            return []
        ranges = ds.FileSystemDataset.from_paths(
            [str(number) for number in range(len(promises))],
            schema=self._schema,
            format=ds.IpcFileFormat(),
            filesystem=LocalFileSystem(),
            partitions=list(promises),
        )
        return sorted(int(range_of_table.path) for range_of_table in ranges.get_fragments(filter=self._expression))


class Table(Protocol):
    """A table of one or several stores; every call of ``batches`` reads it again."""

    @property
    def columns(self) -> Sequence[Column]: ...

    def batches(self, columns: Sequence[str], where: Where | None = None) -> Batches:
        """Yield batches of bounded size with these columns, in their order, of the rows for which the condition is
        true.

        Raises StoreError.
        """
        ...

    @property
    def found(self) -> list[tuple[str, Finding]]:
        """The findings of all reads so far, each with its store's name."""
        ...


class StoresTable:
    """Stores with their names, and the findings about them; the base of all tables.

    Each finding counts once, however often the table is read. Of each code a store lists ``MOST_FINDINGS_PER_CODE``,
    and a last one that says that there are more.
    """

    def __init__(self, stores: Sequence[tuple[str, Store]]) -> None:
        self._stores = stores
        self._found: dict[tuple[str, Finding], None] = {}
        self._counts: Counter[tuple[str, str]] = Counter()

    @property
    def found(self) -> list[tuple[str, Finding]]:
        """The findings with their stores, as ``Table.found``."""
        return list(self._found)

    @property
    def findings(self) -> list[Finding]:
        """The findings of all stores."""
        return [found for _, found in self._found]

    def tell(self, store: str, findings: Iterable[Finding]) -> None:
        """Add findings about a store."""
        for found in findings:
            if (store, found) not in self._found:
                count = self._counts[store, found.code]
                # One more than listed may come: a check has its own last finding of a code.
                if count > MOST_FINDINGS_PER_CODE:
                    found = finding(found.code, f"and more: {KINDS[found.code].title}")
                else:
                    self._counts[store, found.code] += 1
                self._found[store, found] = None


def schema_of(columns: Sequence[Column]) -> pa.Schema:
    """Return the Arrow schema of these columns."""
    return pa.schema([column.field for column in columns])


def only(columns: Sequence[Column], names: Container[str]) -> pa.Schema:
    """Return the Arrow schema of the columns with one of the names."""
    return schema_of([column for column in columns if column.name in names])


def wanted_rows(batch: pa.RecordBatch, columns: Sequence[str], where: Where | None) -> pa.RecordBatch:
    """Return the rows of a batch for which the condition is true, with the wanted columns only."""
    if where is not None:
        batch = batch.filter(pa.array(where.mask(batch)))
    return batch.select(list(columns))


def needed(columns: Sequence[str], where: Where | None) -> frozenset[str]:
    """Return the columns that are needed to make these under a condition."""
    return frozenset(columns) | frozenset(where.columns if where is not None else ())
