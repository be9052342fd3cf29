"""Rows of a table as a Parquet file below a destination."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from store_core.export.dest.place import Place
from store_core.export.rows.schema import Column
from store_core.export.tables.table import schema_of

_ROW_GROUP_SIZE_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class TableFile:
    """A written file. ``path`` is where it is to stand below the destination, ``staged`` its name until then."""

    table: str
    store: str
    staged: str
    path: str
    rows: int
    size_bytes: int
    crc32c: int

    def as_json(self) -> dict[str, Any]:
        """A member of ``files`` in the manifest and in the command's result."""
        return {
            "path": self.path,
            "table": self.table,
            "store": self.store,
            "rows": self.rows,
            "size_bytes": self.size_bytes,
            "crc32c": f"{self.crc32c:08x}",
        }


def write_table(
    place: Place, table: str, store: str, name: str, columns: Sequence[Column], batches: Iterable[pa.RecordBatch]
) -> TableFile:
    """Write batches with these columns as TABLE/NAME. Raises FailedError; then no file is left."""
    schema = schema_of(columns)
    file, staged, path = place.create(f"{table}/{name}")
    rows = 0
    writer: pq.ParquetWriter | None = None
    try:
        writer = pq.ParquetWriter(
            file,
            schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=[column.name for column in columns if column.repeats],
        )
        for group in _groups(batches, schema):
            writer.write_table(group, row_group_size=len(group))
            rows += len(group)
        writer.close()
        file.close()
    except BaseException:
        file.drop()
        if writer is not None:
            with suppress(Exception):  # an unfinished writer would finish, and complain, whenever it is collected
                writer.close()
            writer.is_open = False
        file.discard()
        raise
    return TableFile(table, store, staged, path, rows, file.size_bytes, file.crc32c)


def _groups(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterable[pa.Table]:
    pending: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        pending.append(batch)
        size_bytes += batch.nbytes
        if size_bytes >= _ROW_GROUP_SIZE_BYTES:
            yield pa.Table.from_batches(pending, schema)
            pending, size_bytes = [], 0
    if pending:
        yield pa.Table.from_batches(pending, schema)
