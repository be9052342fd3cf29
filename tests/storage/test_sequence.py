"""Where what was written to a file ends, however large the file and its holes are."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from store_core.storage import sequence
from store_core.storage.files import FileCache
from store_core.storage.sequence import SegmentSequence, list_folder

_BLOCK = 64 << 10
_NAME = "0" * 20


def _used_end(folder: Path) -> int:
    with closing(FileCache()) as cache:
        return SegmentSequence([folder], cache).used_end(0)


@pytest.mark.parametrize("seed", range(20))
def test_used_end_among_data_zeros_and_holes(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    expected = end = 0
    with open(tmp_path / _NAME, "wb") as file:
        for _ in range(draw.randint(0, 12)):
            size = draw.randint(1, 12) * _BLOCK
            kind = draw.choice(["data", "zeros", "hole"])
            if kind == "data":
                file.seek(end)
                file.write(b"\1" * (size - 5) + bytes(5))
                expected = end + size - 5
            elif kind == "zeros":
                file.seek(end)
                file.write(bytes(size))
            end += size
        file.truncate(end + draw.choice([1, 20, _BLOCK * 100]))
    assert _used_end(tmp_path) == expected


def test_a_file_stretched_to_terabytes_takes_few_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / _NAME
    with open(path, "wb") as file:
        file.write(b"\1" * 100)
        file.truncate(4 << 40)
        file.seek(3 << 40)
        file.write(bytes(_BLOCK))
    looks = 0
    real = os.lseek

    def counted(descriptor: int, at: int, how: int) -> int:
        nonlocal looks
        looks += 1
        return real(descriptor, at, how)

    monkeypatch.setattr(os, "lseek", counted)
    assert _used_end(tmp_path) == 100
    assert looks < 200


def test_what_vanishes_while_a_folder_is_listed_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (0, 100, 200):
        (tmp_path / f"{number:020d}").write_bytes(bytes(100))
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")

    @contextmanager
    def scan_folder(folder: Path) -> Iterator[list[os.DirEntry[str]]]:
        with os.scandir(folder) as entries:
            found = list(entries)
        (folder / f"{0:020d}").unlink()
        yield found

    monkeypatch.setattr(sequence, "scan_folder", scan_folder)
    segments, strays = list_folder(tmp_path)
    assert [segment.phy_offset for segment in segments] == [100, 200]
    assert [stray.path.name for stray in strays] == ["link"]
