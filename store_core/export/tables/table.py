"""Define a readable table: columns by name, and batches of the requested columns and rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Generator, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from numpy.typing import NDArray
from pyarrow.fs import LocalFileSystem

from store_core.check.report import MOST_FINDINGS_PER_CODE
from store_core.errors import FailedError
from store_core.export.dest.parquet import ParquetFile, WrittenFile
from store_core.export.dest.task_destination import Place
from store_core.export.rows.schema import LARGEST_TIME_MS, LEAST_TIME_MS, TIME, Column
from store_core.findings import KINDS, Finding, finding
from store_core.kernel.codes import FrameKind, HoleCode
from store_core.scan.frames import FrameTable
from store_core.storage.remote_path import RemotePath, is_there
from store_core.storage.sequence import Segment
from store_core.storage.store import Store


def refuse_gone(path: Path) -> None:
    """Raise FailedError if a listed file is gone: its content would be missing without any message.

    Call it where bytes are missing, since a read of a missing file returns none.
    """
    if isinstance(path, RemotePath):
        path.parent.forget()
    if not is_there(path):
        raise _gone(path, "went away")


def refuse_cut(segment: Segment, table: FrameTable) -> None:
    """Raise FailedError if a table of a segment's scan ends with bytes that were stored when the segment was listed."""
    if not len(table) or table.phy_offset[-1] >= segment.end_phy_offset:
        return
    if table.kind[-1] == FrameKind.HOLE and table.code[-1] == HoleCode.NO_FILE:
        raise _gone(segment.path, "was cut" if is_there(segment.path) else "went away")


def _gone(path: Path, what: str) -> FailedError:
    return FailedError(
        f"a file of the store {what} while it was read",
        path=str(path),
        to_do="run the command again; a broker removes what has expired",
    )


_ROW_GROUP_SIZE_BYTES: Final = 16 << 20
_MOST_BATCHES: Final = 256  # held unjoined: each takes kilobytes, however few rows it has


def write_table(
    place: Place, table: str, store: str, name: str, columns: Sequence[Column], batches: Iterable[pa.RecordBatch]
) -> WrittenFile:
    """Write batches with these columns as TABLE/NAME. Raises FailedError, and then leaves no file."""
    schema = schema_of(columns)
    repeated = [column.name for column in columns if column.repeats]
    file = ParquetFile(place, f"{table}/{name}", schema, use_dictionary=repeated)
    rows = 0
    try:
        for group in row_groups(batches, schema):
            file.write_group(group)
            rows += len(group)
    except BaseException:
        file.abort()
        raise
    file.close()
    return WrittenFile(table, store, file.staged, file.path, rows, file.size_bytes, file.crc32c)


def row_groups(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterable[pa.Table]:
    """Join batches to tables of some megabytes, each a row group of a file."""
    joined: list[pa.RecordBatch] = []
    pending: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in filter(len, batches):
        pending.append(batch)
        size_bytes += batch.nbytes
        if size_bytes >= _ROW_GROUP_SIZE_BYTES:
            yield pa.Table.from_batches([*joined, *pending], schema)
            joined, pending, size_bytes = [], [], 0
        elif len(pending) == _MOST_BATCHES:
            joined += pa.Table.from_batches(pending, schema).combine_chunks().to_batches()
            pending = []
    if joined or pending:
        yield pa.Table.from_batches([*joined, *pending], schema)


_MICROSECONDS = 1000


def times(timestamp_ms: NDArray[Any], missing: NDArray[np.bool_] | None = None) -> pa.TimestampArray:
    """Convert milliseconds to a column of times; null for missing values and numbers that are no time."""
    values = timestamp_ms.astype(np.int64)
    beyond = (values > LARGEST_TIME_MS) | (values < LEAST_TIME_MS)
    if missing is not None:
        beyond |= missing
    return pa.array(np.where(beyond, 0, values) * _MICROSECONDS, mask=beyond).cast(TIME)


def microseconds(timestamp_ms: int | None) -> int | None:
    """Convert milliseconds to one value of a column of times; None for a number that is no time."""
    if timestamp_ms is None or not LEAST_TIME_MS <= timestamp_ms <= LARGEST_TIME_MS:
        return None
    return timestamp_ms * _MICROSECONDS


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
