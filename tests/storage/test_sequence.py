"""Where what was written to a file ends, however large the file and its holes are."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from store_core.storage import sequence
from store_core.storage.files import FileCache
from store_core.storage.sequence import Segment, SegmentSequence, list_folder

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


def _counted_checks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of files, each time all of a sequence are checked against each other."""
    counts: list[int] = []
    real = sequence.proven_file_sizes

    def counted(groups: Iterable[list[Segment]], unit_bytes: int = 1) -> list[int]:
        listed = list(groups)
        counts.append(sum(map(len, listed)))
        return real(listed, unit_bytes)

    monkeypatch.setattr(sequence, "proven_file_sizes", counted)
    return counts


def test_what_is_known_of_the_files_is_shared_with_other_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        (tmp_path / f"{number * 100:020d}").write_bytes(bytes([number + 1]) * 50 + bytes(50))
    counts = _counted_checks(monkeypatch)
    with closing(FileCache()) as cache:
        files = SegmentSequence([tmp_path], cache)
        others = [files.apart() for _ in range(5)]
        assert counts == [6]
        assert files.used_end(100) == 150
        for other in others:
            assert other.cache is not cache
            assert other.segments is files.segments
            assert other.read(230, 10) == b"\3" * 10
            assert other.relisted() is other
            with open(tmp_path / f"{100:020d}", "r+b") as file:  # what one remembers is its own
                file.write(b"\1" * 60)
            assert (other.used_end(100), files.used_end(100)) == (160, 150)
            other.cache.close()


def test_a_file_that_joined_one_that_does_not_count_is_seen_by_other_threads_too(tmp_path: Path) -> None:
    for start, size in ((0, 100), (100, 100), (250, 100), (350, 40), (500, 100)):
        (tmp_path / f"{start:020d}").write_bytes(b"\1" * size)
    with closing(FileCache()) as cache:
        files = SegmentSequence([tmp_path], cache, 100)
        assert files.apart().segments == files.segments


@pytest.mark.parametrize("number", range(4))
def test_the_file_in_front_of_another(number: int, tmp_path: Path) -> None:
    for start in (100, 200, 400, 500):
        (tmp_path / f"{start:020d}").write_bytes(b"\1" * 100)
    with closing(FileCache()) as cache:
        files = SegmentSequence([tmp_path], cache)
        expected = files.segments[number - 1] if number else None
        assert files.preceding(files.segments[number]) == expected
