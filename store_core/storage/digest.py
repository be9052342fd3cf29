"""Checksums of files and ranges of files in bounded memory: the CRC-32C of plans and journals."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from store_core.storage.files import open_read_only

WINDOW_SIZE_BYTES: Final = 1 << 20  # stays in the processor's cache from the reading to the checksum

_ZEROS: Final = memoryview(bytes(64 << 10))
_ALL_ONES: Final = 0xFFFFFFFF
_POLYNOMIAL: Final = 0x82F63B78
_ONE: Final = 1 << 31  # reflected: x^0 is the highest bit
_X_8: Final = 1 << 23


def crc32c(data: bytes | memoryview, crc: int = 0) -> int:
    """The CRC-32C of some bytes, behind others whose is ``crc``. The package takes 18 ms to import: only who asks waits."""
    from crc32c import crc32c as checksum

    return checksum(data, crc)


@dataclass(frozen=True, slots=True)
class Digest:
    """CRC-32C of some bytes and how many there were."""

    crc32c: int
    size_bytes: int


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


@dataclass(frozen=True, slots=True)
class Hole:
    """A stretch of a sparse file that was never written: zeros that nobody has to read."""

    size_bytes: int

    def __len__(self) -> int:
        return self.size_bytes


def runs(path: Path, offset: int, size_bytes: int) -> Iterator[bytes | Hole]:
    """As ``windows``, but a hole comes as one, however long it is. Raises OSError."""
    fd = open_read_only(path)
    try:
        at, end = offset, min(os.fstat(fd).st_size, offset + size_bytes)
        while at < end:
            if (data := _next_data(fd, at, end)) > at:
                yield Hole(data - at)
                at = data
                continue
            hole = _next_hole(fd, at, end)
            while at < hole:
                window = os.pread(fd, min(WINDOW_SIZE_BYTES, hole - at), at)
                if not window:
                    return
                yield window
                at += len(window)
    finally:
        os.close(fd)


def digest_of(chunks: Iterable[bytes | memoryview | Hole]) -> Digest:
    """Digest of some bytes; those of a hole are not looked at."""
    crc, done = 0, 0
    for run in chunks:
        if isinstance(run, Hole):
            crc, done = crc32c_after_zeros(crc, run.size_bytes), done + run.size_bytes
        else:
            crc, done = crc32c(run, crc), done + len(run)
    return Digest(crc, done)


def data_bytes(path: Path, offset: int, size_bytes: int) -> int:
    """How many bytes of a range lie in no hole and not behind the file's end; all in front of it where the file system does not tell of holes. Raises OSError."""
    fd = open_read_only(path)
    try:
        at, end, found = offset, min(os.fstat(fd).st_size, offset + size_bytes), 0
        while (at := _next_data(fd, at, end)) < end:
            hole = _next_hole(fd, at, end)
            found += hole - at
            at = hole
        return found
    finally:
        os.close(fd)


def digest_range(path: Path, offset: int, size_bytes: int | None = None) -> Digest:
    """Digest of the bytes that a file has in a range; fewer than asked for where it ends before. Raises OSError.

    Holes are not read: a file may have been stretched to any length.
    """
    return digest_of(runs(path, offset, max(path.stat().st_size - offset, 0) if size_bytes is None else size_bytes))


def digest_file(path: Path) -> Digest:
    """Digest of a whole file. Raises OSError."""
    return digest_range(path, 0)


def crc32c_after_zeros(crc: int, count: int) -> int:
    """CRC-32C of bytes with so many zeros behind them: a multiplication with x^(8 count), not a look at each of them."""
    if count <= len(_ZEROS):
        return crc32c(_ZEROS[:count], crc)
    return _product(crc ^ _ALL_ONES, _power(count)) ^ _ALL_ONES


@lru_cache(maxsize=64)  # the holes of queue files have few lengths
def _power(count: int) -> int:
    """x^(8 count)."""
    factor, square = _ONE, _X_8
    while count:
        if count & 1:
            factor = _product(factor, square)
        square, count = _product(square, square), count >> 1
    return factor


def _product(a: int, b: int) -> int:
    """Of two polynomials modulo CRC-32C's, bits reflected as in the checksum."""
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = (a << 1) & _ALL_ONES
        b = (b >> 1) ^ (_POLYNOMIAL if b & 1 else 0)
    return product


def _next_data(fd: int, at: int, end: int) -> int:
    """Where the next bytes lie that are no hole; ``at`` where the file system does not tell."""
    try:
        return min(os.lseek(fd, at, os.SEEK_DATA), end)
    except OSError as error:
        return end if error.errno == errno.ENXIO else at


def _next_hole(fd: int, at: int, end: int) -> int:
    """Where the data at ``at`` ends; ``end`` where the file system does not tell."""
    try:
        return min(os.lseek(fd, at, os.SEEK_HOLE), end)
    except OSError:
        return end
