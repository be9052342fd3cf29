"""Write rows of a table to a Parquet file below a destination."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa

from store_core.export.dest.parquet import ParquetFile, WrittenFile
from store_core.export.dest.task_destination import Place
from store_core.export.rows.schema import Column
from store_core.export.tables.table import schema_of

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
