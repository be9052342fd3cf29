"""Mapped files: what is mapped at once, and what is left alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from store_core.read import maps
from store_core.read.maps import map_file

PART_BYTES = 2 << 20
SIZE_BYTES = 3 * PART_BYTES + 5000


@pytest.fixture
def file() -> Iterator[Path]:
    """On the disk: of files that are nothing but memory, the system does not tell what it holds."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "some"
        path.write_bytes(bytes(range(1, 251)) * (SIZE_BYTES // 250 + 1))
        os.truncate(path, SIZE_BYTES)
        yield path


def resident_bytes(path: Path) -> int:
    """How much of a file this process has in its page tables."""
    own = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0]:
            own = line.endswith(str(path))
        elif own and line.startswith("Rss:"):
            return int(line.split()[1]) << 10
    raise LookupError(path)


def test_what_is_held_is_mapped_at_once(file: Path) -> None:
    later = map_file(file)
    assert resident_bytes(file) == 0
    del later
    mapped = map_file(file, at_once=True, at_random=True)
    assert resident_bytes(file) >= SIZE_BYTES
    assert mapped.tobytes() == file.read_bytes()


def test_what_would_have_to_be_read_is_left_alone(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., int] = os.preadv

    def only_the_second_part(descriptor: int, buffers: list[bytearray], at: int, flags: int) -> int:
        if at // PART_BYTES != 1:
            raise BlockingIOError
        return real(descriptor, buffers, at, flags)

    monkeypatch.setattr(os, "preadv", only_the_second_part)
    mapped = map_file(file, at_once=True)
    assert PART_BYTES <= resident_bytes(file) < PART_BYTES * 5 // 4  # a fault maps a few pages beside its own
    assert mapped.tobytes() == file.read_bytes()


def test_an_older_system_maps_page_by_page(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maps, "_NOWAIT", None)
    mapped = map_file(file, at_once=True)
    assert resident_bytes(file) == 0
    assert mapped.tobytes() == file.read_bytes()


@pytest.mark.parametrize("at_once", [False, True])
def test_no_file_or_one_that_is_shorter_gives_nothing(file: Path, at_once: bool) -> None:
    assert len(map_file(file, SIZE_BYTES + 1, at_once=at_once)) == 0
    assert len(map_file(file, SIZE_BYTES - 1, at_once=at_once)) == SIZE_BYTES - 1
    file.unlink()
    assert len(map_file(file, at_once=at_once)) == 0
