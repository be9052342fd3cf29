"""Records at known places: both kernels give what the scan gives, and refuse whatever else the places say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from random import Random

import numpy as np
import pytest

from store_core.kernel import WindowColumns, twin
from store_core.kernel.codes import FrameKind, ScanFlag
from store_core.kernel.columns import Row
from tests import stores
from tests.conftest import GoldenStore
from tests.kernel.driver import ALL, segments

try:
    from store_core.kernel import native
except ImportError:
    CUTTERS = [twin.cut_records]
else:
    CUTTERS = [twin.cut_records, native.cut_records]


def rows(columns: WindowColumns) -> list[Row]:
    return [Row(*row) for row in zip(*(getattr(columns, name).tolist() for name in Row._fields), strict=True)]


def same(one: WindowColumns, other: WindowColumns) -> bool:
    return all(np.array_equal(getattr(one, f.name), getattr(other, f.name)) for f in fields(WindowColumns))


def hostile(places: list[tuple[int, int]], length: int, random: Random) -> Iterator[tuple[int, int]]:
    for at, size in places:
        yield at, size
        yield at + random.choice([-1, 1, 4, length, -(1 << 62)]), size
        yield at, random.choice([0, -1, 8, size - 1, size + 1, 1 << 31, (1 << 63) - 1])


@pytest.mark.parametrize("name", stores.GOLDEN)
def test_rows_are_the_scans(golden: GoldenStore, name: str) -> None:
    for segment in segments(golden(name)):
        scanned = twin.scan_window(segment.data, segment.phy_offset, 0, segment.end_phy_offset, 0, ALL)
        messages = [row for row in rows(scanned) if row.kind == FrameKind.MESSAGE]
        at = np.array([row.phy_offset - segment.phy_offset for row in messages], np.int64)
        size = np.array([row.size_bytes for row in messages], np.int64)
        for cut in CUTTERS:
            assert rows(cut(segment.data, at, at + segment.phy_offset, size, ALL)) == messages


def test_hostile_places_and_bytes(golden: GoldenStore) -> None:
    random = Random(5)
    segment = segments(golden("load-533"))[0]
    scanned = rows(twin.scan_window(segment.data, 0, 0, len(segment.data), 0, ALL))
    places = [(row.phy_offset, row.size_bytes) for row in scanned if row.kind == FrameKind.MESSAGE][:40]
    end = sum(places[-1])
    tried = list(hostile(places, end, random))
    at, size = (np.array(column, np.int64) for column in zip(*tried, strict=True))
    for number in range(60):
        data = bytearray(segment.data[:end])
        for _ in range(number):
            data[random.randrange(end)] ^= 1 << random.randrange(8)
        one, *others = (cut(bytes(data), at, at, size, ALL) for cut in CUTTERS)
        assert all(same(one, other) for other in others)
        assert len(one.kind) == len(tried)


def test_columns_of_different_length_are_refused() -> None:
    for cut in CUTTERS:
        with pytest.raises(ValueError, match=r"length|zip"):
            cut(b"", np.zeros(1, np.int64), np.zeros(2, np.int64), np.zeros(1, np.int64), ScanFlag.NO_PROPERTIES)
