"""Compute the CRC-32C of files and ranges of files in bounded memory, for plans and journals."""

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
    """Return the CRC-32C of ``data`` after bytes whose CRC-32C is ``crc``."""
    from crc32c import crc32c as checksum  # slow to import, and many commands need none

    return checksum(data, crc)


@dataclass(frozen=True, slots=True)
class Digest:
    """The CRC-32C of some bytes, and their number."""

    crc32c: int
    size_bytes: int


def windows(path: Path, offset: int = 0, size_bytes: int | None = None) -> Iterator[bytes]:
    """Yield the bytes of a range, a window at a time, up to the file's end. Raises OSError."""
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
    """A range of a sparse file that was never written: zeros that need not be read."""

    size_bytes: int

    def __len__(self) -> int:
        return self.size_bytes


def runs(path: Path, offset: int, size_bytes: int) -> Iterator[bytes | Hole]:
    """Yield the windows of a range, and a ``Hole`` for each hole, however long. Raises OSError."""
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
    """Return the digest of some bytes, without a look at those of a hole."""
    crc, done = 0, 0
    for run in chunks:
        if isinstance(run, Hole):
            crc, done = crc32c_after_zeros(crc, run.size_bytes), done + run.size_bytes
        else:
            crc, done = crc32c(run, crc), done + len(run)
    return Digest(crc, done)


def data_bytes(path: Path, offset: int, size_bytes: int) -> int:
    """Return how many bytes of a range are in the file and in no hole. Raises OSError.

    Holes count where the file system does not report them.
    """
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
    """Return the digest of a range of a file, up to the file's end. Raises OSError.

    Holes are not read: a file may have been extended to any length.
    """
    return digest_of(runs(path, offset, max(path.stat().st_size - offset, 0) if size_bytes is None else size_bytes))


def digest_file(path: Path) -> Digest:
    """Return the digest of a whole file. Raises OSError."""
    return digest_range(path, 0)


def crc32c_after_zeros(crc: int, count: int) -> int:
    """Return the CRC-32C of bytes followed by ``count`` zeros, by a multiplication with x^(8 count)."""
    if count <= len(_ZEROS):
        return crc32c(_ZEROS[:count], crc)
    return _product(crc ^ _ALL_ONES, _power(count)) ^ _ALL_ONES


@lru_cache(maxsize=64)  # the holes of queue files have few lengths
def _power(count: int) -> int:
    """Return x^(8 count)."""
    factor, square = _ONE, _X_8
    while count:
        if count & 1:
            factor = _product(factor, square)
        square, count = _product(square, square), count >> 1
    return factor


def _product(a: int, b: int) -> int:
    """Return the product of two polynomials modulo CRC-32C's, bits reflected as in the checksum."""
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = (a << 1) & _ALL_ONES
        b = (b >> 1) ^ (_POLYNOMIAL if b & 1 else 0)
    return product


def _next_data(fd: int, at: int, end: int) -> int:
    """Return the first position >= ``at`` in no hole, ``at`` where the file system does not report holes."""
    try:
        return min(os.lseek(fd, at, os.SEEK_DATA), end)
    except OSError as error:
        return end if error.errno == errno.ENXIO else at


def _next_hole(fd: int, at: int, end: int) -> int:
    """Return where the data at ``at`` ends; ``end`` where the file system does not report holes."""
    try:
        return min(os.lseek(fd, at, os.SEEK_HOLE), end)
    except OSError:
        return end
