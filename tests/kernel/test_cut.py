"""Records at known places: compiled and in Python what the scan gives, and nothing whatever else the places say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from random import Random

import numpy as np
import pytest

from store_core.kernel import twin
from store_core.kernel.codes import FrameKind
from store_core.kernel.records import RecordColumns, cut_records, twin_cut_records
from tests import stores
from tests.conftest import GoldenStore
from tests.kernel.driver import ALL, segments

pytest.importorskip("store_core.kernel._native", reason="not built: no cargo", exc_type=ImportError)
NAMES = [field.name for field in fields(RecordColumns)]
Places = list[tuple[int, int]]


def both(data: bytes, places: Places) -> RecordColumns:
    at, size = np.array(places, np.int64).reshape(-1, 2).T
    one, other = cut_records(data, at, size), twin_cut_records(data, at, size)
    for name in NAMES:
        mine, its = getattr(one, name), getattr(other, name)
        assert (mine.dtype, mine.tolist()) == (its.dtype, its.tolist()), name
    assert len(one.good) == len(places)
    return one


def hostile(places: Places, length: int, random: Random) -> Iterator[tuple[int, int]]:
    for at, size in places:
        yield at, size
        yield at + random.choice([-1, 1, 4, length, -(1 << 62)]), size
        yield at, random.choice([0, -1, 8, size - 1, size + 1, 1 << 31, (1 << 63) - 1])


@pytest.mark.parametrize("name", stores.GOLDEN)
def test_rows_are_the_scans(golden: GoldenStore, name: str) -> None:
    for segment in segments(golden(name)):
        scanned = twin.scan_window(segment.data, segment.phy_offset, 0, segment.end_phy_offset, 0, ALL)
        messages = scanned.kind == FrameKind.MESSAGE
        places = zip(scanned.phy_offset[messages] - segment.phy_offset, scanned.size_bytes[messages], strict=True)
        cut = both(segment.data, list(places))
        assert cut.good.all()
        for column in NAMES[1:]:
            assert getattr(cut, column).tolist() == getattr(scanned, column)[messages].tolist(), column


def test_hostile_places_and_bytes(golden: GoldenStore) -> None:
    random = Random(5)
    segment = segments(golden("load-533"))[0]
    scanned = twin.scan_window(segment.data, 0, 0, len(segment.data), 0, ALL)
    messages = np.flatnonzero(scanned.kind == FrameKind.MESSAGE)[:40]
    places = [(int(scanned.phy_offset[row]), int(scanned.size_bytes[row])) for row in messages]
    end = sum(places[-1])
    tried = list(hostile(places, end, random))
    good = [both(segment.data, tried).good.sum()]
    for number in range(60):
        data = bytearray(segment.data[:end])
        for _ in range(number):
            data[random.randrange(end)] ^= 1 << random.randrange(8)
        cut = both(bytes(data), tried)
        good.append(cut.good.sum())
        for name in NAMES[1:]:
            assert not getattr(cut, name)[~cut.good].any()
    assert good[0] == good[1] == len(places) > good[-1]


def test_nothing_to_cut() -> None:
    both(b"", [])
    both(b"", [(0, 0), (0, 91)])


def test_columns_of_different_length_are_refused() -> None:
    for cut in (cut_records, twin_cut_records):
        with pytest.raises(ValueError, match=r"length|zip"):
            cut(b"", np.zeros(1, np.int64), np.zeros(2, np.int64))
