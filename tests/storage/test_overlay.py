"""Bytes that would be put into a file are read as they would be, wherever a read begins and ends."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from store_core.recovery.damaged_region import Piece
from store_core.recovery.log_edits import _MOST_JOINED_BYTES, _as_patches
from store_core.storage.overlay import OverlayCache, Patch
from store_core.storage.sequence import SegmentSequence


@pytest.mark.parametrize("seed", range(20))
def test_a_patch_of_many_parts_reads_as_its_bytes(seed: int) -> None:
    draw = random.Random(seed)
    size = draw.choice((0, 1, 300, 5000))
    whole, parts, at = bytearray(size), [], 0
    while (at := at + draw.choice((0, 0, 3, 50))) < size:
        part = draw.randbytes(min(draw.choice((1, 1, 20)), size - at))
        parts.append((at, part))
        whole[at : at + len(part)] = part
        at += len(part)
    patch = Patch(700, 700 + size, tuple(parts))
    for _ in range(200):
        start = draw.randint(0, size)
        end = draw.randint(start, size)
        assert patch.read(700 + start, 700 + end) == whole[start:end]


def test_pieces_back_to_back_become_one_patch_as_far_as_that_stays_handy() -> None:
    pieces = [Piece(1000, 100, ((0, b"a"), (99, b"b"))), Piece(1100, 50, ((0, b"c"),))]
    pieces += [Piece(1200, _MOST_JOINED_BYTES, ((0, b"d"),)), Piece(1200 + _MOST_JOINED_BYTES, 91, ((5, b"e"),))]
    assert list(_as_patches(pieces)) == [
        (1000, Patch(0, 150, ((0, b"a"), (99, b"b"), (100, b"c")))),
        (1200, Patch(0, _MOST_JOINED_BYTES, ((0, b"d"),))),
        (1200 + _MOST_JOINED_BYTES, Patch(0, 91, ((5, b"e"),))),
    ]
    assert not list(_as_patches([]))


def test_another_thread_gets_patches_of_the_files_that_it_reads(tmp_path: Path) -> None:
    taken: list[int] = []

    class Counted(Patch):
        def apart(self, logs: dict[int, SegmentSequence]) -> Patch:
            taken.append(self.end)
            return self

    files = [tmp_path / name for name in "abcd"]
    for file in files:
        file.write_bytes(b"x" * 100)
    patches = {file: [Counted(10, 20 + at, ((1, b"yz"),))] for at, file in enumerate(files[:3])}
    cache = OverlayCache(patches, dict.fromkeys(files, 100))
    for view in (cache.apart(), cache.apart().apart()):
        taken.clear()
        for _ in range(2):
            assert view.read(files[1], 0, 100) == cache.read(files[1], 0, 100)
            assert view.read(files[3], 0, 100) == b"x" * 100
        assert taken == [21]
        view.close()
    cache.close()
