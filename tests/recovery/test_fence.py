"""Closing a region, whatever it looks like: covered to the byte by what a broker's recovery walks over."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store_core.broker.record_check import CheckRules, Verdict, check_at
from store_core.broker.versions import Version, behaviour_of
from store_core.codec.record import decode_record
from store_core.kernel import scan_window
from store_core.kernel.codes import FrameCode, FrameKind, ScanFlag, ScanState
from store_core.layout import marks, paths, record
from store_core.recovery.damage_scan import Neighbour, Region
from store_core.recovery.damaged_region import ClosedRegion, Piece, close_region
from store_core.recovery.lost_from_queues import _ENTRY, _Items, _Kinds
from store_core.recovery.lost_record import LostRecord
from store_core.recovery.lost_table import FEWEST_ROWS, LostRows, LostTable, records_of
from store_core.recovery.tombstones import smallest_tombstone_size_bytes
from store_core.storage.store import QueueKey

SEGMENT = 1 << 17
START = 3 * SEGMENT
END = START + SEGMENT


def neighbour(phy_offset: int, size_bytes: int, number: int, *, in_queue: bool = True) -> Neighbour:
    return Neighbour(phy_offset, size_bytes, 1_700_000_000_000 + number, "Beside", 1, number, in_queue)


@st.composite
def regions(draw: st.DrawFn) -> Region:
    """A region of a segment with what lies beside it, as a survey gives it."""
    start = draw(st.one_of(st.just(START), st.integers(START + 91, END - 1)))
    size = draw(st.one_of(st.integers(1, 300), st.integers(1, SEGMENT)))
    end = min(start + size, END)
    before_size = draw(st.integers(91, min(start - START, 4000))) if start > START + 91 else start - START
    before = neighbour(start - before_size, before_size, 5, in_queue=draw(st.booleans())) if start > START else None
    if before is None and draw(st.booleans()):
        before = neighbour(START - 500, 300, 4)  # in the segment in front
    region = Region(start, end, START, END, before=before, used_bytes=size)
    room = END - end
    if room < 8:
        return replace(region, end_phy_offset=END, reaches_segment_end=True)
    if room < 99 or draw(st.integers(0, 3)) == 0:
        return replace(region, blank_follows=True)
    return replace(region, after=neighbour(end, draw(st.integers(91, min(room - 8, 4000))), 6))


@st.composite
def lost_records(draw: st.DrawFn, region: Region) -> list[LostRecord]:
    count = draw(st.integers(0, 6))
    found = []
    for number in range(count):
        at = draw(st.integers(region.phy_offset, region.end_phy_offset - 1))
        size = draw(st.integers(91, 5000))
        topic = draw(st.sampled_from(("Orders", paths.SCHEDULE_TOPIC, "x" * 127, "Ünï", "\ufffd" * 60)))
        placed = draw(st.integers(0, 3)) > 0
        found.append(LostRecord(topic, draw(st.integers(0, 17)), 100 + number, at if placed else None, size * placed))
    return found


def bytes_of(pieces: list[Piece]) -> bytes:
    data = bytearray(pieces[-1].phy_offset + pieces[-1].size_bytes - pieces[0].phy_offset)
    for piece in pieces:
        for at, part in piece.parts:
            place = piece.phy_offset - pieces[0].phy_offset + at
            assert at + len(part) <= piece.size_bytes
            data[place : place + len(part)] = part
    return bytes(data)


def covered(closed_region: ClosedRegion) -> tuple[int, int]:
    """Where the pieces begin and end; they join."""
    for one, following in zip(closed_region.pieces, closed_region.pieces[1:], strict=False):
        assert one.phy_offset + one.size_bytes == following.phy_offset
    last = closed_region.pieces[-1]
    return closed_region.pieces[0].phy_offset, last.phy_offset + last.size_bytes


def expected_cover(region: Region, smallest: int) -> tuple[set[tuple[int, int]], bool]:
    """The ranges that may be covered, and whether they reach the segment's end."""
    start, end, before, after = region.phy_offset, region.end_phy_offset, region.before, region.after
    if region.reaches_segment_end:
        if end - start >= 8:
            return {(start, end)}, True
        assert before is not None
        return {(before.phy_offset, end)}, True
    if end - start >= smallest:
        return {(start, end)}, False
    if region.blank_follows:
        return {(start, END)}, True
    beside = [n for n in (before, after) if n is not None and n.phy_offset >= START]
    least = min(n.size_bytes for n in beside)
    return {
        (min(start, n.phy_offset), max(end, n.phy_offset + n.size_bytes)) for n in beside if n.size_bytes == least
    }, False


def _read(raw: bytes, start: int, phy_offset: int, size_bytes: int) -> bytes:
    return raw[phy_offset - start :][:size_bytes]


@settings(max_examples=400)
@given(st.data(), st.booleans())
def test_a_closed_region_is_walked_over(data: st.DataObject, property_crc: bool) -> None:
    region = data.draw(regions())
    lost = data.draw(lost_records(region))
    known = [one for one in lost if one.phy_offset is not None]
    unplaced = [one for one in lost if one.phy_offset is None]
    closed_region = close_region(region, known, unplaced, property_crc=property_crc)
    smallest = 111 if closed_region.property_crc else 91
    ranges, reaches_end = expected_cover(region, smallest)
    start, end = covered(closed_region)
    assert (start, end) in ranges

    raw = bytes_of(closed_region.pieces)
    for piece in closed_region.pieces:
        at = piece.phy_offset - start
        own = raw[at : at + piece.size_bytes]
        if piece.is_blank:
            assert reaches_end
            assert (piece, piece.phy_offset + piece.size_bytes) == (closed_region.pieces[-1], END)
            assert own == record.PREFIX.struct.pack(piece.size_bytes, record.MAGIC_BLANK) + bytes(piece.size_bytes - 8)
            continue
        assert smallest <= piece.size_bytes <= marks.MAX_FILLER_SIZE_BYTES
        message = decode_record(own, 0, piece.phy_offset)
        assert (message.own_phy_offset, message.magic) == (piece.phy_offset, record.MAGIC_V1)
        assert message.store_timestamp_ms > 0
        if piece.tombstone_of is None:
            assert message.sys_flag == record.TRANSACTION_ROLLBACK
        else:
            told = piece.tombstone_of
            assert (message.topic, message.queue_id, message.queue_offset, message.sys_flag) == (
                told.topic, told.queue_id, told.queue_offset, 0,
            )  # fmt: skip
        for version in ("4.9.7", "5.3.3"):
            rules = CheckRules.of(
                behaviour_of(Version.parse(version)), check_crc=True, verify_property_crc=closed_region.property_crc
            )
            checked = check_at(partial(_read, raw, start), piece.phy_offset, len(own), rules)
            assert checked.verdict is Verdict.RECORD
    assert reaches_end == closed_region.pieces[-1].is_blank

    flags = ScanFlag.CHECK_CRC | ScanFlag.CHECK_PROPERTY_CRC
    columns = scan_window(memoryview(raw), start, 0, END if reaches_end else end, int(ScanState.CHAINED), int(flags))
    assert columns.phy_offset.tolist() == [piece.phy_offset for piece in closed_region.pieces]
    assert columns.kind.tolist() == [FrameKind.BLANK if p.is_blank else FrameKind.MESSAGE for p in closed_region.pieces]
    assert set(columns.code.tolist()) == {FrameCode.OK}

    stand = {p.tombstone_of for p in closed_region.pieces if p.tombstone_of is not None}
    given_up = {closed_region.given_up} if closed_region.given_up is not None else set()
    assert stand | set(closed_region.unplaced) == set(lost) | given_up
    assert stand & set(closed_region.unplaced) == set()


@pytest.mark.parametrize("property_crc", [False, True])
def test_large_holes_take_several_fillers(property_crc: bool) -> None:
    size = 3 * marks.MAX_FILLER_SIZE_BYTES + 50  # what is left for the last one is less than a record
    region = Region(0, size, 0, 1 << 30, after=neighbour(size, 200, 1))
    sizes = [piece.size_bytes for piece in close_region(region, [], property_crc=property_crc).pieces]
    assert sum(sizes) == size
    assert len(sizes) == 4
    assert min(sizes) >= (111 if property_crc else 91)
    assert max(sizes) <= marks.MAX_FILLER_SIZE_BYTES


def test_lost_delayed_messages_have_somewhere_to_be_delivered() -> None:
    """Without a real topic the delay service would try for ever."""
    region = Region(START, START + 400, START, END, after=neighbour(START + 400, 200, 1))
    (piece,) = close_region(region, [LostRecord(paths.SCHEDULE_TOPIC, 2, 7, START, 400)]).pieces
    message = decode_record(bytes_of([piece]), 0, START)
    assert message.properties == {
        marks.TOMBSTONE_PROPERTY: marks.TOMBSTONE_VALUE,
        "DELAY": "3",
        "REAL_TOPIC": marks.TOMBSTONE_TOPIC,
        "REAL_QID": "0",
    }


def test_a_lost_batch_keeps_its_numbers() -> None:
    region = Region(START, START + 400, START, END, after=neighbour(START + 400, 200, 1))
    (piece,) = close_region(region, [LostRecord("Batches", 0, 40, START, 400, batch_size=5)]).pieces
    properties = decode_record(bytes_of([piece]), 0, START).properties
    assert (properties["INNER_BASE"], properties["INNER_NUM"]) == ("40", "5")


def test_light_queues_keep_their_numbers() -> None:
    region = Region(START, START + 400, START, END, after=neighbour(START + 400, 200, 1))
    lost = LostRecord("Parent", 1, 40, START, 400, light_queues=(("%LMQ%a", 7), ("%LMQ%b", 9)))
    (piece,) = close_region(region, [lost]).pieces
    properties = decode_record(bytes_of([piece]), 0, START).properties
    assert (properties["INNER_MULTI_DISPATCH"], properties["INNER_MULTI_QUEUE_OFFSET"]) == ("%LMQ%a,%LMQ%b", "7,9")


@pytest.mark.parametrize(
    ("lost", "told"),
    [
        (LostRecord("Batches", 0, 40, batch_size=5), {"INNER_BASE": "40", "INNER_NUM": "5"}),
        (
            LostRecord("Parent", 1, 40, light_queues=(("%LMQ%a", 7),)),
            {"INNER_MULTI_DISPATCH": "%LMQ%a", "INNER_MULTI_QUEUE_OFFSET": "7"},
        ),
        (LostRecord("T", 0, 7), {}),
        (
            LostRecord(paths.SCHEDULE_TOPIC, 2, 7),
            {"DELAY": "3", "REAL_TOPIC": marks.TOMBSTONE_TOPIC, "REAL_QID": "0"},
        ),
    ],
)
def test_without_room_for_the_mark_all_else_is_told(lost: LostRecord, told: dict[str, str]) -> None:
    """And where there is no room for that either, there is no tombstone that would tell other things."""
    least = smallest_tombstone_size_bytes(lost, marked=False)
    assert smallest_tombstone_size_bytes(lost) - least == len(b"RMQCTL_TOMBSTONE\x01lost\x02")
    for size, is_told in ((least + 21, True), (least, True), (least - 1, False)):
        end = START + size
        region = Region(START, end, START, END, after=neighbour(end, 200, 1))
        closed_region = close_region(region, [replace(lost, phy_offset=START, size_bytes=size)])
        (piece,) = closed_region.pieces
        assert (piece.tombstone_of is not None, len(closed_region.unplaced)) == (is_told, not is_told)
        if is_told:
            assert decode_record(bytes_of([piece]), 0, START).properties == told


@pytest.mark.parametrize("property_crc", [False, True])
def test_many_small_records_are_rows(property_crc: bool) -> None:
    """From those that have just room for their topic up to those that have room for the mark, and one that has none."""
    key = QueueKey("Small", 3)
    least = smallest_tombstone_size_bytes(LostRecord(*key, 0), marked=False, property_crc=property_crc)
    sizes = [size for extra in (0, 1, 21, 22, 23, 300) for size in [least + extra] * FEWEST_ROWS]
    sizes.insert(FEWEST_ROWS, least - 1)
    with LostTable() as table:
        rows = np.zeros(len(sizes), _ENTRY)
        rows["size_bytes"], rows["queue"], rows["batch_size"] = sizes, table.queue_number(key), 1
        rows["phy_offset"] = START + np.cumsum([0, *sizes[:-1]])
        rows["queue_offset"] = np.arange(len(sizes))
        items = _Items(table, _Kinds(table, has_heads=False, property_crc=property_crc), None)
        items.add(rows)
        first, odd, others = items.lost[0]
        assert isinstance(first, LostRows)
        assert isinstance(odd, LostRecord)
        assert isinstance(others, LostRows)
        end = START + sum(sizes)
        region = Region(START, end, START, END, after=neighbour(end, 200, 1))
        closed_region = close_region(region, items.lost[0], property_crc=property_crc)
        assert [*records_of(closed_region.unplaced)] == [odd]
        one_by_one = close_region(region, records_of(items.lost[0]), property_crc=property_crc)
        raw = b"".join(
            piece.read(piece.phy_offset, piece.phy_offset + piece.size_bytes) for piece in closed_region.pieces
        )
        assert raw == bytes_of(one_by_one.pieces)
