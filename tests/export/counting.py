"""Local files that say how much is read of them, for DuckDB: which part of an export a query looks at."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any, ClassVar

import duckdb
import fsspec
from fsspec.implementations.local import LocalFileOpener, LocalFileSystem


class _CountingFile(LocalFileOpener):  # type: ignore[misc]  # fsspec has no types
    """Adds up what is read of it. Each thread has its own place in it: DuckDB seeks and reads from several at once."""

    def __init__(self, path: str, mode: str, **options: Any) -> None:
        super().__init__(path, mode, **options)
        self._place = threading.local()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self.tell(), os.SEEK_END: int(self.size)}[whence]
        self._place.offset = start + offset
        return start + offset

    def tell(self) -> int:
        return int(getattr(self._place, "offset", 0))

    def read(self, size_bytes: int = -1) -> bytes:
        data = os.pread(self.fileno(), self.size if size_bytes < 0 else size_bytes, self.tell())
        CountingFiles.reads.append((self.tell(), len(data)))
        self._place.offset = self.tell() + len(data)
        return data


class CountingFiles(LocalFileSystem):  # type: ignore[misc]  # fsspec has no types
    """As ``counting://``. What was read since ``reads`` was cleared, as offsets and sizes in bytes."""

    protocol = "counting"
    cachable = False
    reads: ClassVar[list[tuple[int, int]]] = []

    def _open(self, path: str, mode: str = "rb", block_size: int | None = None, **options: Any) -> Any:
        return _CountingFile(path, mode, fs=self, compression=None)


def duckdb_reads(data: Path, query: str) -> tuple[Any, list[tuple[int, int]]]:
    """What a query says, with ``{}`` for a folder's Parquet files, and what it reads of them (offsets and sizes)."""
    fsspec.register_implementation(CountingFiles.protocol, CountingFiles, clobber=True)
    with duckdb.connect() as connection:
        connection.register_filesystem(CountingFiles())
        CountingFiles.reads.clear()
        table = connection.execute(query.format(f"'{CountingFiles.protocol}://{data}/*.parquet'")).to_arrow_table()
    return table, list(CountingFiles.reads)
