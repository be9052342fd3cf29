"""Checksums of files: those of the bytes, whether they are there or a hole stands for them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest
from crc32c import crc32c

from store_core.storage.digest import Digest, crc32c_after_zeros, digest_file, digest_range

MIB: Final = 1 << 20
TIB: Final = 1 << 40


@pytest.mark.parametrize("count", [0, 1, 7, 8, 4095, 4096, 123_457])
@pytest.mark.parametrize("data", [b"", b"abc"])
def test_zeros_need_not_be_looked_at(data: bytes, count: int) -> None:
    assert crc32c_after_zeros(crc32c(data), count) == crc32c(data + bytes(count))


def test_a_file_with_holes_has_the_digest_of_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        for at in (0, 5 * MIB + 3, 9 * MIB):
            file.seek(at)
            file.write(os.urandom(70_001))
        file.truncate(12 * MIB + 1)
    data = path.read_bytes()
    assert digest_file(path) == Digest(crc32c(data), len(data))
    for start, size_bytes in ((0, 10), (70_001, 3 * MIB), (MIB, MIB), (9 * MIB - 1, TIB), (len(data), 5), (TIB, 1)):
        part = data[start : start + size_bytes]
        assert digest_range(path, start, size_bytes) == Digest(crc32c(part), len(part))


def test_a_file_stretched_to_a_tebibyte_is_none_to_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    os.truncate(path, TIB)
    assert digest_file(path) == Digest(crc32c_after_zeros(crc32c(b"abc"), TIB - 3), TIB)
