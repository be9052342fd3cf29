"""Many new files at once: what they hold, and what happens where one of them cannot be made."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from store_core.storage.digest import Hole
from store_core.storage.scratch import create_files

BLOCK = 4096


def test_every_file_holds_its_chunks(tmp_path: Path) -> None:
    parts = [[bytes([n]) * (n * 1000 + at) for at in range(n % 5)] for n in range(1, 40)]
    files = {f"a/{n % 3}/{n}": partial_read(chunks) for n, chunks in enumerate(parts)}
    create_files(tmp_path, files)
    assert {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()} == set(files)
    assert all((tmp_path / f"a/{n % 3}/{n}").read_bytes() == b"".join(chunks) for n, chunks in enumerate(parts))


def test_blocks_of_zeros_are_holes(tmp_path: Path) -> None:
    chunks = [bytes(64 * BLOCK), b"x" * BLOCK, bytes(300 * BLOCK)]
    create_files(tmp_path, {"file": partial_read(chunks)})
    assert (tmp_path / "file").read_bytes() == b"".join(chunks)
    assert (tmp_path / "file").stat().st_blocks * 512 <= 16 * BLOCK


def test_one_chunk_at_a_time_is_made(tmp_path: Path) -> None:
    making = threading.Lock()

    def read() -> Iterator[bytes]:
        for _ in range(200):
            assert making.acquire(blocking=False)
            made = b"y" * 5000
            making.release()
            yield made

    create_files(tmp_path, {str(n): read for n in range(6)})
    assert all((tmp_path / str(n)).stat().st_size == 200 * 5000 for n in range(6))


def test_many_files_take_little_memory(tmp_path: Path) -> None:
    read = partial_read([b"data", Hole(6_000_000 - 4)])
    files = {f"{n % 10}/{n}": read for n in range(2000)}
    tracemalloc.start()
    create_files(tmp_path, files)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 500_000  # 250 bytes a file
    made = list(tmp_path.glob("*/*"))
    assert len(made) == 2000
    assert {path.stat().st_size for path in made} == {6_000_000}
    assert {path.stat().st_blocks for path in made} <= {8}


def test_a_file_that_stands_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        create_files(tmp_path, {name: partial_read([b"new"]) for name in "abc"})
    assert (tmp_path / "b").read_bytes() == b"mine"


def test_a_failure_ends_all_soon(tmp_path: Path) -> None:
    made = []

    def fail() -> Iterator[bytes]:
        yield b"some"
        raise OSError(28, "no space")

    def go_on() -> Iterator[bytes]:
        while True:
            made.append(None)
            yield b"z"

    with pytest.raises(OSError, match="no space"):
        create_files(tmp_path, {"endless": go_on, "full": fail, **{str(n): go_on for n in range(50)}})
    count = len(made)
    assert not (tmp_path / "9").exists()
    assert len(made) == count  # nobody goes on


def partial_read(chunks: Sequence[bytes | Hole]) -> Callable[[], Iterator[bytes | Hole]]:
    return lambda: iter(chunks)
