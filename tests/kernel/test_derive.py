"""The compiled kernel makes of columns what its twin makes of them, and refuses what does not fit."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import numpy as np
import pytest

from store_core.kernel.codes import FrameCode, FrameKind
from store_core.kernel.derive import ROW, STRETCH
from store_core.kernel.reference import derive as twin_derive
from store_core.layout import index, queue

native = pytest.importorskip("store_core.kernel._native", reason="not built: no cargo", exc_type=ImportError)
SLOTS = 97
ROWS = 500


@pytest.mark.parametrize("begin_ms", [0, 1_700_000_000_000])
def test_index_entries(begin_ms: int) -> None:
    draw = random.Random(7)
    key_row = np.array(sorted(draw.choices(range(ROWS), k=3 * ROWS)), np.uint32)
    key_hash = np.array(draw.choices([*range(300), (1 << 31) - 1], k=len(key_row)), np.int32)
    phy_offset = np.arange(ROWS, dtype=np.int64) * 533 + (1 << 40)
    # Before the begin, some seconds behind it, and further behind than an entry can say.
    stored = np.array([begin_ms + draw.choice((-5, 0, 999, 1000, 86_400_001, 1 << 45)) for _ in range(ROWS)], np.int64)
    made = []
    for kernel in (native, twin_derive):
        slots = np.zeros(SLOTS, np.int32)
        first = kernel.index_entries(slots, key_row[:400], key_hash[:400], phy_offset, stored, 1, begin_ms)
        rest = kernel.index_entries(slots, key_row[400:], key_hash[400:], phy_offset, stored, 401, begin_ms)
        made.append((bytes(first[0]), first[1], bytes(rest[0]), rest[1], slots.tolist()))
    assert made[0] == made[1]
    entries = np.frombuffer(made[0][0] + made[0][2], index.ENTRY.dtype)
    assert (entries["key_hash"] == key_hash).all()
    assert (entries["phy_offset"] == phy_offset[key_row]).all()
    assert (
        made[0][1] + made[0][3] == np.count_nonzero(entries["previous"] == 0) == len(set((key_hash % SLOTS).tolist()))
    )


def test_chains() -> None:
    draw = random.Random(8)
    slot = np.array(draw.choices(range(SLOTS), k=300), np.int64)
    made = []
    for kernel in (native, twin_derive):
        slots = np.zeros(SLOTS, np.int32)
        previous, empty = kernel.chain_entries(slots, slot, 5)
        made.append((previous.tolist(), empty, slots.tolist()))
    assert made[0] == made[1]


@pytest.mark.parametrize("include_bad_crc", [False, True])
def test_dispatched_rows(include_bad_crc: bool) -> None:
    draw = random.Random(9)
    wide = (-(1 << 63), -1, 0, 1, (1 << 63) - 1)
    columns = [
        np.array(draw.choices((FrameKind.MESSAGE, FrameKind.DAMAGE, FrameKind.BLANK), k=9000), np.uint8),
        np.array(draw.choices((FrameCode.OK, FrameCode.BAD_CRC, FrameCode.OWN_OFFSET), k=9000), np.uint8),
        np.array(draw.choices((0, 1, 4, 8, 9, 12, 16, -1), k=9000), np.int32),
        np.array(draw.choices(range(3000), k=9000), np.int32),
        np.array(draw.choices((-1, 0, 7, (1 << 31) - 1), k=9000), np.int32),
        *(np.array(draw.choices(wide, k=9000), np.int64) for _ in range(4)),
        np.array(draw.choices((91, 1000, 32 << 20), k=9000), np.int64),
    ]
    picked, numbers, pairs, rows = native.dispatch_rows(*columns, include_bad_crc)
    expected = twin_derive.dispatch_rows(*columns, include_bad_crc)
    assert (picked.tolist(), numbers.tolist(), pairs, bytes(rows)) == (
        expected[0].tolist(),
        expected[1].tolist(),
        expected[2],
        bytes(expected[3]),
    )
    kind, code, sys_flag, topic_id, queue_id = (column[picked] for column in columns[:5])
    assert {(int(k), int(s) & 12) for k, s in zip(kind, sys_flag, strict=True)} == {
        (FrameKind.MESSAGE, 0),
        (FrameKind.MESSAGE, 8),
    }
    assert (FrameCode.BAD_CRC in code) == include_bad_crc
    assert [pairs[number] for number in numbers.tolist()] == list(
        zip(topic_id.tolist(), queue_id.tolist(), strict=True)
    )
    assert (rows.view(ROW)["phy_offset"] == columns[6][picked]).all()


def test_packed_rows() -> None:
    draw = random.Random(10)
    key_ids = [np.array(draw.choices(range(5), k=count), np.int32) for count in (300, 1, 70)]
    rows = np.frombuffer(draw.randbytes(ROW.itemsize * 371), ROW).copy()
    rows[100:200] = rows[100]  # neighbours that are alike, but for their numbers
    rows["queue_offset"][100:200] = np.arange(100)
    parts = [part.view(np.uint8) for part in np.split(rows, [300, 301])]
    packed = [kernel.pack_rows(parts, key_ids, 9) for kernel in (native, twin_derive)]
    assert [column.tolist() for column in packed[0]] == [column.tolist() for column in packed[1]]
    data, ids, counts, sizes = packed[0]
    assert ids.tolist() == list(range(5))
    assert sizes.sum() == len(data)
    expected = rows[np.argsort(np.concatenate(key_ids), kind="stable")]
    for kernel in (native, twin_derive):
        assert bytes(kernel.unpack_rows(data, counts)) == expected.tobytes()
        begin = int(sizes[0])
        one = kernel.unpack_rows(data[begin : begin + int(sizes[1])], counts[1:2])  # a key's can be read alone
        assert bytes(one) == expected[int(counts[0]) : int(counts[0] + counts[1])].tobytes()
        for wrong in (data[:-1], np.append(data, np.uint8(0))):
            with pytest.raises(ValueError, match="do not fit"):
                kernel.unpack_rows(wrong, counts)
        with pytest.raises(ValueError, match="do not fit"):
            kernel.unpack_rows(np.append(np.uint8(64), np.zeros(370, np.uint8)), counts)  # there are six fields


def test_packed_rows_as_queue_entries() -> None:
    rows = np.frombuffer(random.Random(11).randbytes(ROW.itemsize * 50), ROW).copy()
    data, _, counts, _ = native.pack_rows([rows.view(np.uint8)], [np.repeat(np.int32([0, 1]), 25)], 2)
    entries = bytes(native.unpack_entries(data, counts))
    assert entries == bytes(twin_derive.unpack_entries(data, counts))
    for number, row in enumerate(rows):
        expected = {name: int(row[name]) for name in queue.ENTRY.names}
        assert queue.ENTRY.read(entries, number * queue.ENTRY.size_bytes) == expected


@pytest.mark.parametrize(
    "numbers",
    [[], [7], [0, 1, 2, 3], [5, 6, 0, 1, 1, 2, -4, -3], [(1 << 63) - 1, -(1 << 63), 9], [3, 2, 1]],
)
def test_packed_rows_as_stretches(numbers: list[int]) -> None:
    rows = np.zeros(len(numbers), ROW)
    rows["queue_offset"], rows["phy_offset"] = numbers, np.arange(len(numbers)) * 300
    data, _, counts, _ = native.pack_rows([rows.view(np.uint8)], [np.zeros(len(rows), np.int32)], 1)
    found = native.unpack_stretches(data, counts).view(STRETCH)
    assert found.tolist() == twin_derive.unpack_stretches(data, counts).view(STRETCH).tolist()
    told = [
        (wrapped(int(s["queue_offset"]) + i), int(s["phy_offset"]) + 300 * i) for s in found for i in range(s["rows"])
    ]
    assert told == [(number, at * 300) for at, number in enumerate(numbers)]
    assert [s["last_phy_offset"] - s["phy_offset"] for s in found] == [300 * (s["rows"] - 1) for s in found]
    follows = [number == wrapped(before + 1) for before, number in itertools.pairwise(numbers)]
    assert len(found) == bool(numbers) + follows.count(False)


def wrapped(number: int) -> int:
    """As a column of 64 bits holds it."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def test_stretches_go_on_from_group_to_group() -> None:
    rows = np.zeros(6, ROW)
    rows["queue_offset"] = [4, 5, 6, 7, 9, 10]
    parts = [
        native.pack_rows([part.view(np.uint8)], [np.zeros(len(part), np.int32)], 1) for part in np.split(rows, [3])
    ]
    data, counts = np.concatenate([part[0] for part in parts]), np.concatenate([part[2] for part in parts])
    for kernel in (native, twin_derive):
        found = kernel.unpack_stretches(data, counts).view(STRETCH)
        assert found[["queue_offset", "rows"]].tolist() == [(4, 4), (9, 2)]


def test_rows_as_they_mostly_are_take_few_bytes() -> None:
    rows = np.zeros(1000, ROW)
    rows["queue_offset"] = np.arange(7, 1007)
    rows["phy_offset"] = np.arange(1000) * 34_000
    rows["size_bytes"], rows["batch_size"], rows["tags_code"] = 533, 1, 2_598_919
    packed, *_ = native.pack_rows([rows.view(np.uint8)], [np.zeros(1000, np.int32)], 1)
    assert len(packed) < 5000


def test_what_does_not_fit_is_refused() -> None:
    slots, one, wide = np.zeros(4, np.int32), np.zeros(1, np.int32), np.zeros(1, np.int64)
    rows, byte = np.zeros(1, np.uint32), np.zeros(1, np.uint8)
    columns = (byte, byte, one, one, one, wide, wide, wide, wide)
    wrongs: tuple[Callable[[], object], ...] = (
        lambda: native.chain_entries(slots, np.array([4]), 1),
        lambda: native.chain_entries(slots, np.array([-1]), 1),
        lambda: native.index_entries(slots, rows + 1, one, wide, wide, 1, 0),
        lambda: native.index_entries(slots, rows, one - 1, wide, wide, 1, 0),
        lambda: native.index_entries(slots[:0], rows, one, wide, wide, 1, 0),
        lambda: native.dispatch_rows(*columns, wide[:0], False),
        lambda: native.unpack_entries(np.zeros(3, np.uint8), one + 4),
        lambda: native.unpack_stretches(np.zeros(3, np.uint8), one + 2),
        lambda: native.pack_rows([np.zeros(37, np.uint8)], [one], 1),
        lambda: native.pack_rows([np.zeros(38, np.uint8)], [one + 1], 1),
        lambda: native.unpack_rows(np.zeros(3, np.uint8), one - 1),
        lambda: native.unpack_rows(np.zeros(3, np.uint8), one + 4),
        lambda: native.unpack_rows(np.full(30, 255, np.uint8), one + 1),
    )
    for wrong in wrongs:
        with pytest.raises(ValueError, match="do not fit"):
            wrong()
