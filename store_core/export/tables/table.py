"""What a table is to whoever reads it: columns by name, and batches of those columns and rows that are asked for."""

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
_NUMBER: Final = "row number"  # no column of ours has a blank in its name


class Where:
    """A condition over the columns of a table, as an Arrow expression: rows for which it is true are wanted."""

    def __init__(self, expression: Any, schema: pa.Schema) -> None:
        self._expression = expression
        self._schema = schema

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns that the condition looks at, in the order of the schema.

        Arrow does not tell, but refuses to apply an expression where one of its columns is missing.
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
        """The rows of a batch for which the condition is true; the batch has at least ``columns``."""
        numbered = batch.select(self.columns).append_column(_NUMBER, pa.array(np.arange(len(batch))))
        mask = np.zeros(len(batch), np.bool_)
        mask[numbered.filter(self._expression).column(_NUMBER).to_numpy()] = True
        return mask

    def possible(self, promises: Sequence[Any]) -> list[int]:
        """Of some stretches of the table, each with an expression that is true for all its rows, those that may hold
        wanted rows: their numbers. Arrow's own rule for leaving out files decides; nothing is read."""
        if not promises:
            return []
        stretches = ds.FileSystemDataset.from_paths(
            [str(number) for number in range(len(promises))],
            schema=self._schema,
            format=ds.IpcFileFormat(),
            filesystem=LocalFileSystem(),
            partitions=list(promises),
        )
        return sorted(int(stretch.path) for stretch in stretches.get_fragments(filter=self._expression))


class Table(Protocol):
    """A table of one or several stores, read anew by every call of ``batches``."""

    @property
    def columns(self) -> Sequence[Column]: ...

    def batches(self, columns: Sequence[str], where: Where | None = None) -> Batches:
        """Batches with these columns, in their order, of the rows that the condition wants; bounded in size.

        Raises StoreError.
        """
        ...

    @property
    def found(self) -> list[tuple[str, Finding]]:
        """What was met while reading, so far, each with its store's name."""
        ...


class StoresTable:
    """What tables share: some stores, each with its name, and what was met in them. Each finding counts once, however
    often the table is read; of each code a store has a thousand, and a last one that says that there are more."""

    def __init__(self, stores: Sequence[tuple[str, Store]]) -> None:
        self._stores = stores
        self._found: dict[tuple[str, Finding], None] = {}
        self._counts: Counter[tuple[str, str]] = Counter()

    @property
    def found(self) -> list[tuple[str, Finding]]:
        """As ``Table.found``."""
        return list(self._found)

    @property
    def findings(self) -> list[Finding]:
        """What was met, of whatever store."""
        return [found for _, found in self._found]

    def tell(self, store: str, findings: Iterable[Finding]) -> None:
        """Something was met in a store."""
        for found in findings:
            if (store, found) not in self._found:
                count = self._counts[store, found.code]
                if count > MOST_FINDINGS_PER_CODE:  # one more than listed: who counts tells how many more there are
                    found = finding(found.code, f"and more: {KINDS[found.code].title}")
                else:
                    self._counts[store, found.code] += 1
                self._found[store, found] = None


def schema_of(columns: Sequence[Column]) -> pa.Schema:
    """The Arrow schema of these columns."""
    return pa.schema([column.field for column in columns])


def only(columns: Sequence[Column], names: Container[str]) -> pa.Schema:
    """The Arrow schema of those columns that have one of the names."""
    return schema_of([column for column in columns if column.name in names])


def wanted_rows(batch: pa.RecordBatch, columns: Sequence[str], where: Where | None) -> pa.RecordBatch:
    """The wanted rows of a batch that has the wanted columns and those of the condition."""
    if where is not None:
        batch = batch.filter(pa.array(where.mask(batch)))
    return batch.select(list(columns))


def needed(columns: Sequence[str], where: Where | None) -> frozenset[str]:
    """The columns that have to be there to give these under a condition."""
    return frozenset(columns) | frozenset(where.columns if where is not None else ())
