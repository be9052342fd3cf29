"""Local files that say how much is read of them, for DuckDB: which part of an export a query looks at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import fsspec
from fsspec.implementations.local import LocalFileOpener, LocalFileSystem


class _CountingFile(LocalFileOpener):  # type: ignore[misc]  # fsspec has no types
    """Adds up what is read of it."""

    def read(self, *args: int) -> bytes:
        data: bytes = super().read(*args)
        CountingFiles.read_bytes += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        size = int(self.f.readinto(buffer))
        CountingFiles.read_bytes += size
        return size


class CountingFiles(LocalFileSystem):  # type: ignore[misc]  # fsspec has no types
    """As ``counting://``."""

    protocol = "counting"
    cachable = False
    read_bytes = 0

    def _open(self, path: str, mode: str = "rb", block_size: int | None = None, **options: Any) -> Any:
        return _CountingFile(path, mode, fs=self, compression=None)


def duckdb_reads(data: Path, query: str) -> tuple[Any, int]:
    """What a query says, with ``{}`` for a folder's Parquet files, and how many bytes of them it reads."""
    fsspec.register_implementation(CountingFiles.protocol, CountingFiles, clobber=True)
    with duckdb.connect() as connection:
        connection.register_filesystem(CountingFiles())
        CountingFiles.read_bytes = 0
        table = connection.execute(query.format(f"'{CountingFiles.protocol}://{data}/*.parquet'")).to_arrow_table()
    return table, CountingFiles.read_bytes
