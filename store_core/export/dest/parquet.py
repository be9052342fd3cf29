"""Write Parquet files of a result row group by row group, and describe them for the manifest."""

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
    """A written file. ``path`` is its final place below the destination, ``staged`` its name until the publication."""

    table: str
    store: str
    staged: str
    path: str
    rows: int
    size_bytes: int
    crc32c: int

    def as_json(self) -> dict[str, Any]:
        """Return a member of ``files`` in the manifest and in the command's result."""
        return {
            "path": self.path,
            "table": self.table,
            "store": self.store,
            "rows": self.rows,
            "size_bytes": self.size_bytes,
            "crc32c": f"{self.crc32c:08x}",
        }


def refuse_missing(parts: Sequence[WrittenFile], found: Mapping[str, int], address: str) -> None:
    """Raise FailedError unless all parts are stored with their full length; ``found``: lengths by path."""
    for part in parts:
        if found.get(part.path) != part.size_bytes:
            raise FailedError(
                f"a file that a task has written is not there, or not whole: {part.path}",
                path=address,
                to_do="see that every machine that does tasks writes to this very folder, or name an address in an object store",
            )


class ParquetFile:
    """A new file at a place; ``abort`` removes it. Raises FailedError where it cannot be written, and then leaves no
    file.
    """

    def __init__(self, place: Place, name: str, schema: pa.Schema, **options: Any) -> None:
        """``options``: more options of pyarrow's writer."""
        self._file, self.staged, self.path = place.create(name)
        try:
            # Without the buffer the library would call Python for each page.
            self._stream = pa.BufferedOutputStream(pa.PythonFile(self._file, "w"), _BUFFER_SIZE_BYTES)
            self._writer = pq.ParquetWriter(self._stream, schema, compression="zstd", compression_level=1, **options)
        except BaseException:
            self._file.discard()
            raise

    @property
    def size_bytes(self) -> int:
        """The length of the whole file, once it is closed."""
        return self._file.size_bytes

    @property
    def crc32c(self) -> int:
        """The checksum of the whole file, once it is closed."""
        return self._file.crc32c

    def write_group(self, rows: pa.Table) -> None:
        """Write rows as a row group."""
        self._writer.write_table(rows, row_group_size=len(rows))

    def close(self) -> None:
        try:
            self._writer.close()
            self._stream.flush()
            self._file.close()
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        self._file.drop()
        with suppress(Exception):  # the garbage collector would finish an open writer and raise
            self._writer.close()
        self._writer.is_open = False  # else the garbage collector would try to write the end again
        with suppress(Exception):
            self._stream.close()
        self._file.discard()
