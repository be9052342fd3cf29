"""Bytes that would be put into a file are read as they would be, wherever a read begins and ends."""

from __future__ import annotations

import random

import pytest

from store_core.mend.salvage.holes.fence import Piece
from store_core.mend.salvage.holes.mended import _MOST_JOINED_BYTES, _as_patches
from store_core.storage.overlay import Patch


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
