"""Checksums of files and ranges of files in bounded memory: the CRC-32C of plans and journals."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from crc32c import crc32c

from store_core.storage.files import open_read_only

WINDOW_SIZE_BYTES: Final = 1 << 20  # stays in the processor's cache from the reading to the checksum


@dataclass(frozen=True, slots=True)
class Digest:
    """CRC-32C of some bytes and how many there were."""

    crc32c: int
    size_bytes: int


def digest_of(chunks: Iterable[bytes | memoryview]) -> Digest:
    crc, size_bytes = 0, 0
    for chunk in chunks:
        crc = crc32c(chunk, crc)
        size_bytes += len(chunk)
    return Digest(crc, size_bytes)


def windows(path: Path, offset: int = 0, size_bytes: int | None = None) -> Iterator[bytes]:
    """The bytes of a range, a window at a time; they end with the file. Raises OSError."""
    fd = open_read_only(path)
    try:
        end = os.fstat(fd).st_size
        if size_bytes is not None:
            end = min(end, offset + size_bytes)
        while offset < end and (window := os.pread(fd, min(WINDOW_SIZE_BYTES, end - offset), offset)):
            yield window
            offset += len(window)
    finally:
        os.close(fd)


def digest_range(path: Path, offset: int, size_bytes: int) -> Digest:
    """Digest of the bytes that a file has in a range; fewer than asked for where it ends before. Raises OSError."""
    return digest_of(windows(path, offset, size_bytes))


def digest_file(path: Path) -> Digest:
    """Digest of a whole file. Raises OSError."""
    return digest_of(windows(path))
