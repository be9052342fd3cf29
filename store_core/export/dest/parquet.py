"""Parquet files of a result: written row group by row group at a place, described for the manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from store_core.errors import FailedError
from store_core.export.dest.task_destination import Place

_BUFFER_SIZE_BYTES: Final = 256 << 10


@dataclass(frozen=True, slots=True)
class WrittenFile:
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


def refuse_missing(parts: Sequence[WrittenFile], found: Mapping[str, int], address: str) -> None:
    """Raise FailedError unless all parts are there, whole; ``found``: lengths by path."""
    for part in parts:
        if found.get(part.path) != part.size_bytes:
            raise FailedError(
                f"a file that a task has written is not there, or not whole: {part.path}",
                path=address,
                to_do="see that every machine that does tasks writes to this very folder, or name an address in an object store",
            )


class ParquetFile:
    """A new file NAME at a place; ``abort`` removes it. Raises FailedError where it cannot be written; then none is left."""

    def __init__(self, place: Place, name: str, schema: pa.Schema, **options: Any) -> None:
        """``options`` are more of pyarrow's."""
        self._file, self.staged, self.path = place.create(name)
        try:
            # The library writes page by page, and each time asks Python to.
            self._stream = pa.BufferedOutputStream(pa.PythonFile(self._file, "w"), _BUFFER_SIZE_BYTES)
            self._writer = pq.ParquetWriter(self._stream, schema, compression="zstd", compression_level=1, **options)
        except BaseException:
            self._file.discard()
            raise

    @property
    def size_bytes(self) -> int:
        """Of the whole file, once it is closed."""
        return self._file.size_bytes

    @property
    def crc32c(self) -> int:
        """Of the whole file, once it is closed."""
        return self._file.crc32c

    def write_group(self, rows: pa.Table) -> None:
        """Rows as a row group."""
        self._writer.write_table(rows, row_group_size=len(rows))

    def close(self) -> None:
        """Finish the file."""
        try:
            self._writer.close()
            self._stream.flush()
            self._file.close()
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        self._file.drop()
        with suppress(Exception):  # an unfinished writer would finish, and complain, whenever it is collected
            self._writer.close()
        self._writer.is_open = False  # one whose end cannot be written would try again when it is collected
        with suppress(Exception):
            self._stream.close()
        self._file.discard()
