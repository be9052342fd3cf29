"""Entries with their records as columns: compiled and in Python what the scan gives, and nothing whatever else the entries say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from random import Random

import numpy as np
import pytest

from store_core.kernel import tables, twin
from store_core.kernel.codes import NEIGHBOUR_GAP_BYTES, FrameKind
from store_core.kernel.records import RecordColumns
from store_core.kernel.tables import EntryTable
from store_core.layout.queue import ENTRY
from tests import stores
from tests.conftest import GoldenStore
from tests.kernel.driver import ALL, segments

pytest.importorskip("store_core.kernel._native", reason="not built: no cargo", exc_type=ImportError)
NAMES = [field.name for field in fields(RecordColumns)]
Places = list[tuple[int, int]]
MIB = 1 << 20


def entries_of(places: Places) -> bytes:
    return b"".join(ENTRY.struct.pack(*place, number - 3) for number, place in enumerate(places))


def same(one: EntryTable, other: EntryTable) -> EntryTable:
    for name in ("at", "phy_offset", "size_bytes", "tags_code"):
        mine, its = getattr(one, name), getattr(other, name)
        assert (mine.dtype, mine.tolist()) == (its.dtype, its.tolist()), name
    for name in NAMES:
        mine, its = getattr(one.records, name), getattr(other.records, name)
        assert (mine.dtype, mine.tolist()) == (its.dtype, its.tolist()), name
    return one


def cut_by_both(data: bytes, places: Places, start: int = 0) -> EntryTable:
    entries = entries_of([(at + start, size) for at, size in places])
    window = np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8)
    asked = entries, 0, len(places), window, start
    found = same(tables.cut_table(*asked), tables.twin_cut_table(*asked))
    assert found.at.tolist() == [at for at, _ in places]
    assert found.tags_code.tolist() == [number - 3 for number in range(len(places))]
    return found


def read_by_both(path: Path, places: Places, room_bytes: int) -> tuple[EntryTable, bytes]:
    """The table, and the part of the buffer that is filled."""
    buffers = np.zeros(room_bytes, np.uint8), np.zeros(room_bytes, np.uint8)
    asked = entries_of([(at + 5, size) for at, size in places]), 0, len(places), path, 5
    one, filled = tables.read_table(*asked, buffers[0])
    other, its_filled = tables.twin_read_table(*asked, buffers[1])
    assert filled == its_filled
    assert buffers[0][:filled].tobytes() == buffers[1][:filled].tobytes()
    return same(one, other), buffers[0][:filled].tobytes()


def hostile(places: Places, length: int, random: Random) -> Iterator[tuple[int, int]]:
    for at, size in places:
        yield at, size
        yield at + random.choice([-1, 1, 4, length, -(1 << 62)]), size
        yield at, random.choice([0, -1, 8, size - 1, size + 1, (1 << 31) - 1, -(1 << 31)])


def record_places(golden: GoldenStore, number: int = 0) -> tuple[bytes, Places]:
    """A segment's bytes, and where its records lie."""
    segment = segments(golden("load-533"))[number]
    scanned = twin.scan_window(segment.data, 0, 0, len(segment.data), 0, ALL)
    rows = np.flatnonzero(scanned.kind == FrameKind.MESSAGE)
    return segment.data, [(int(scanned.phy_offset[row]), int(scanned.size_bytes[row])) for row in rows]


@pytest.mark.parametrize("name", stores.GOLDEN)
def test_rows_are_the_scans(golden: GoldenStore, name: str) -> None:
    for segment in segments(golden(name)):
        scanned = twin.scan_window(segment.data, segment.phy_offset, 0, segment.end_phy_offset, 0, ALL)
        messages = scanned.kind == FrameKind.MESSAGE
        places = zip(scanned.phy_offset[messages] - segment.phy_offset, scanned.size_bytes[messages], strict=True)
        cut = cut_by_both(segment.data, [(int(at), int(size)) for at, size in places], segment.phy_offset).records
        assert cut.good.all()
        for column in NAMES[1:]:
            assert getattr(cut, column).tolist() == getattr(scanned, column)[messages].tolist(), column


def test_hostile_entries_and_bytes(golden: GoldenStore) -> None:
    random = Random(5)
    whole, places = record_places(golden)
    places = places[:40]
    end = sum(places[-1])
    tried = list(hostile(places, end, random))
    good = [int(cut_by_both(whole, tried).records.good.sum())]
    for number in range(60):
        data = bytearray(whole[:end])
        for _ in range(number):
            data[random.randrange(end)] ^= 1 << random.randrange(8)
        cut = cut_by_both(bytes(data), tried).records
        good.append(int(cut.good.sum()))
        for name in NAMES[1:]:
            assert not getattr(cut, name)[~cut.good].any()
    assert good[0] == good[1] == len(places) > good[-1]


def test_a_part_of_the_entries(golden: GoldenStore) -> None:
    data, places = record_places(golden)
    window = np.frombuffer(data, np.uint8)
    for row, rows in ((0, 0), (3, 4), (len(places) - 2, 2), (len(places), 0), (len(places) - 2, 9), (9999, 3)):
        asked = entries_of(places) + b"half", row, rows, window, 0
        found = same(tables.cut_table(*asked), tables.twin_cut_table(*asked))
        assert found.at.tolist() == [at for at, _ in places[row : row + rows]]


@pytest.mark.parametrize("seed", range(40))
def test_plans_are_the_same(seed: int) -> None:
    random = Random(seed)
    starts = sorted(random.sample(range(0, 60_000, 1000), 8))
    ends = [start + random.choice((500, 1000, 7000)) for start in starts]
    at = 0
    places: Places = []
    for _ in range(300):
        size = random.choice((91, 300, 300, 300, 90, 0, -5, 1 << 30))
        at += random.choice((0, 0, 0, 0, 0, 7, -400, NEIGHBOUR_GAP_BYTES, NEIGHBOUR_GAP_BYTES + 1))
        places.append((random.choice((at, at, at, at, at, -1, (1 << 63) - 20)), size))
        at += max(size, 0) if size < 1000 else 0
    entries = entries_of(places)
    spans = np.array(starts, np.int64), np.array(ends, np.int64)
    for most_bytes in (100, 2000, 1 << 40):
        row = 0
        while row < len(places):
            plan = tables.plan_table(entries, row, *spans, most_bytes)
            assert plan == tables.twin_plan_table(entries, row, *spans, most_bytes)
            number, rows, size_bytes = plan
            assert rows > 0
            assert size_bytes <= max(most_bytes, 300) or rows == 1
            for offset, size in places[row : row + rows]:
                assert number < 0 or starts[number] <= offset <= offset + size <= ends[number]
            row += rows
    assert tables.plan_table(b"", 0, *spans, 100) == tables.twin_plan_table(b"", 0, *spans, 100) == (-1, 0, 0)


def file_of(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "00000000000000000005"
    path.write_bytes(data)
    return path


def test_reading_gives_what_cutting_gives(golden: GoldenStore, tmp_path: Path) -> None:
    random = Random(8)
    data, places = record_places(golden)
    path = file_of(tmp_path, data)
    for chosen in (places, places[::2], places[::11], places[::-1], places[:1], [places[3]] * 5, []):
        room = sum(size + NEIGHBOUR_GAP_BYTES for _, size in chosen)
        found, filled = read_by_both(path, chosen, room)
        assert found.records.good.all()
        assert [filled[at : at + size] for at, (_, size) in zip(found.at.tolist(), chosen, strict=True)] == [
            data[at : at + size] for at, size in chosen
        ]
        tried = [(at, size) for at, size in chosen for size in (size, max(size - random.randrange(9), 91))]
        read_by_both(path, tried, 2 * room)


def test_a_file_that_has_become_shorter(golden: GoldenStore, tmp_path: Path) -> None:
    data, places = record_places(golden)
    for end in (0, 1, 300, 5000, places[-1][0] + 5):
        found, filled = read_by_both(file_of(tmp_path, data[:end]), places, len(data))
        assert found.records.good.tolist() == [sum(place) <= end for place in places]
        assert filled == data[:end]
        read_by_both(tmp_path / "00000000000000000005", places[::-1], 2 * len(data))


def many(golden: GoldenStore, size_bytes: int) -> tuple[bytes, Places]:
    """So much of a log, and where its records lie: more than one thread and one block have to do."""
    data, places = record_places(golden)
    end = sum(places[-1])
    whole: list[bytes] = []
    found: Places = []
    while len(whole) * end < size_bytes:
        found += [(at + len(whole) * end, size) for at, size in places]
        whole.append(data[:end])
    return b"".join(whole), found


@pytest.mark.parametrize("is_sparse", [False, True])
def test_several_threads_read_and_cut_as_one(golden: GoldenStore, tmp_path: Path, is_sparse: bool) -> None:
    data, places = many(golden, 5 * MIB)
    window = np.frombuffer(data, np.uint8)
    chosen = [place for number, place in enumerate(places) if number % 50 < 40] if is_sparse else places
    asked = entries_of(chosen), 0, len(chosen)
    cut = same(tables.cut_table(*asked, window, 0), tables.twin_cut_table(*asked, window, 0))
    assert cut.records.good.all()
    path = file_of(tmp_path, data)
    found, _ = read_by_both(path, chosen, len(data))
    assert found.records.good.all()
    short = file_of(tmp_path, data[: 2 * MIB])
    found, filled = read_by_both(short, chosen, len(data))
    assert found.records.good.tolist() == [sum(place) <= 2 * MIB for place in chosen]
    found, _ = read_by_both(short, chosen[len(chosen) // 2 :] + chosen[: len(chosen) // 2], 2 * len(data))
    assert not found.records.good.any()  # what is missing first ends it
    assert filled


def test_what_cannot_be_opened_or_read_is_told(golden: GoldenStore, tmp_path: Path) -> None:
    data, places = record_places(golden)
    buffer = np.zeros(len(data), np.uint8)
    for read in (tables.read_table, tables.twin_read_table):
        with pytest.raises(FileNotFoundError):
            read(entries_of(places), 0, 3, tmp_path / "none", 0, buffer)
        with pytest.raises(OSError, match=r"directory|regular file"):
            read(entries_of(places), 0, 3, tmp_path, 0, buffer)
