"""Damaged segments: both kernels say the same, lose no undamaged record, and say exactly what is damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from store_core.kernel.codes import FrameCode, FrameKind
from store_core.layout import record
from tests import stores
from tests.kernel.driver import Frame, Scanned, Segment, scan, segments

M, BLANK, DAMAGE, ZEROS, STALE = (
    FrameKind.MESSAGE,
    FrameKind.BLANK,
    FrameKind.DAMAGE,
    FrameKind.ZEROS,
    FrameKind.STALE,
)
BASES = (*stores.BASES, "crash-533")


def _touches_log(case: dict[str, Any]) -> bool:
    return any(str(op.get("path", op.get("to", ""))).startswith("commitlog/") for op in case["ops"])


CASES = [(base, name) for base in BASES for name, case in stores.cases(base).items() if _touches_log(case)]


@pytest.mark.product
@pytest.mark.parametrize(("base", "case"), CASES)
def test_surgery_cases(golden: Callable[[str], Path], damaged: Callable[..., Path], base: str, case: str) -> None:
    before = {segment.phy_offset: segment.data for segment in segments(golden(base))}
    for segment in segments(damaged(base, case)):
        scanned = scan(segment)
        undamaged = _undamaged(base, segment, before.get(segment.phy_offset, b""))
        found = {phy_offset for phy_offset, row in scanned.messages().items() if row.code == FrameCode.OK}
        blanks = [f for f in scanned.frames if f.kind == BLANK]
        under_a_blank = {p for p in undamaged if any(f.phy_offset < p < f.end for f in blanks)}
        assert undamaged - found == under_a_blank
        assert not under_a_blank or case == "end-blank-early"
        assert not [f for f in scanned.frames if f.kind == STALE]


def _undamaged(base: str, segment: Segment, before: bytes) -> set[int]:
    """Offsets of the records whose bytes are all as they were."""
    found = set()
    for message in stores.truth(base)["messages"]:
        at = message["phyOffset"] - segment.phy_offset
        end = at + message["storeSize"]
        if at >= 0 and end <= len(segment.data) and segment.data[at:end] == before[at:end]:
            found.add(message["phyOffset"])
    return found


@pytest.fixture(scope="module")
def small(golden: Callable[[str], Path]) -> Segment:
    """Some ten records as a segment of its own, which ends with a blank and does not begin at 0."""
    segment = segments(golden("load-497"))[3]
    rows = list(scan(segment).messages().values())[40:50]
    start, end = rows[0].phy_offset, rows[-1].phy_offset + rows[-1].size_bytes
    blank = record.PREFIX.struct.pack(60, record.MAGIC_BLANK).ljust(60, b"\0")
    return Segment(start, segment.data[start - segment.phy_offset : end - segment.phy_offset] + blank)


@pytest.mark.product(1)
@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_every_byte_flipped_in_turn(small: Segment, mask: int) -> None:
    whole = scan(small)
    assert [f.kind for f in whole.frames] == [M] * 10 + [BLANK]
    for victim in whole.frames:
        good = [f for f in whole.frames if f is not victim]
        for phy_offset in range(victim.phy_offset, min(victim.end, victim.phy_offset + 3000)):
            at = phy_offset - small.phy_offset
            found = scan(small.changed(at, bytes([small.data[at] ^ mask])))
            assert [f for f in found.frames if f in good] == good
            assert _is_confined(victim, [f for f in found.frames if f not in good])


def _is_confined(victim: Frame, found: list[Frame]) -> bool:
    """Whether the damaged frame is one row of the same place, or none if the harm does not show."""
    return all(f.kind in (victim.kind, DAMAGE, ZEROS) and victim.phy_offset <= f.phy_offset for f in found) and (
        sum(f.row.size_bytes for f in found) in (0, victim.row.size_bytes)
    )


class TestShapes:
    """One kind of damage each, with the whole outcome."""

    @pytest.fixture
    def rows(self, small: Segment) -> list[Frame]:
        return scan(small).frames

    @staticmethod
    def harm(small: Segment, frame: Frame, field: str, value: int) -> Segment:
        at = frame.phy_offset - small.phy_offset + record.HEAD.offset_of(field)
        return small.changed(at, record.HEAD.field_struct(field).pack(value))

    @staticmethod
    def outcome(segment: Segment, frame: Frame) -> list[tuple[int, int]]:
        """Kind and code of what lies at a frame's place; all other frames must be as they should."""
        scanned = scan(segment)
        here = [f for f in scanned.frames if frame.phy_offset <= f.phy_offset < frame.end]
        assert here[0].phy_offset == frame.phy_offset
        assert here[-1].end == frame.end
        assert all(f.kind in (M, BLANK) and not f.row.code for f in scanned.frames if f not in here)
        return [(f.row.kind, f.row.code) for f in here]

    @pytest.mark.parametrize(
        ("field", "value", "kind", "code"),
        [
            ("size_bytes", 90, DAMAGE, FrameCode.SIZE),
            ("size_bytes", -5, DAMAGE, FrameCode.SIZE),
            ("size_bytes", 0x7FFFFFFF, DAMAGE, FrameCode.SIZE),
            ("size_bytes", 200, DAMAGE, FrameCode.LENGTH_MISMATCH),
            ("magic", 0, DAMAGE, FrameCode.MAGIC),
            ("magic", record.MAGIC_BLANK, DAMAGE, FrameCode.BLANK_SIZE),
            ("body_crc", 1, M, FrameCode.BAD_CRC),
            ("own_phy_offset", 0, M, FrameCode.OWN_OFFSET),
            ("own_phy_offset", -1, M, FrameCode.OWN_OFFSET),
            ("queue_id", -1, M, FrameCode.OK),
            ("sys_flag", record.FLAG_BORN_HOST_V6, DAMAGE, FrameCode.LENGTH_MISMATCH),
        ],
    )
    def test_a_field_of_a_record(
        self, small: Segment, rows: list[Frame], field: str, value: int, kind: FrameKind, code: FrameCode
    ) -> None:
        assert self.outcome(self.harm(small, rows[4], field, value), rows[4]) == [(kind, code)]

    def test_neither_checksum_nor_own_offset_right(self, small: Segment, rows: list[Frame]) -> None:
        harmed = self.harm(self.harm(small, rows[4], "own_phy_offset", 7), rows[4], "body_crc", 1)
        assert self.outcome(harmed, rows[4]) == [(DAMAGE, FrameCode.RECORD_IMPLAUSIBLE)]

    @pytest.mark.parametrize(("size_bytes", "code"), [(59, FrameCode.BLANK_SIZE), (61, FrameCode.BLANK_SIZE)])
    def test_a_blank_that_does_not_end_with_the_segment(
        self, small: Segment, rows: list[Frame], size_bytes: int, code: FrameCode
    ) -> None:
        assert self.outcome(self.harm(small, rows[-1], "size_bytes", size_bytes), rows[-1]) == [(DAMAGE, code)]

    def test_a_record_with_a_bad_checksum_behind_damage(self, small: Segment, rows: list[Frame]) -> None:
        """The frame right behind it vouches for it; without one it is damage."""
        harmed = self.harm(self.harm(small, rows[4], "magic", 1), rows[5], "body_crc", 1)
        expected = [(M, 0)] * 4 + [(DAMAGE, FrameCode.MAGIC), (M, FrameCode.BAD_CRC)] + [(M, 0)] * 4 + [(BLANK, 0)]
        assert [shape[:2] for shape in scan(harmed).shape()] == expected
        harmed = self.harm(harmed, rows[6], "magic", 1)
        expected = [(M, 0)] * 4 + [(DAMAGE, FrameCode.MAGIC)] + [(M, 0)] * 3 + [(BLANK, 0)]
        assert [shape[:2] for shape in scan(harmed).shape()] == expected

    def test_zeros_over_records(self, small: Segment, rows: list[Frame]) -> None:
        """A wiped stretch is ZEROS, what is left of the record it ends in is RESIDUE."""
        start, end = rows[3].phy_offset - small.phy_offset, rows[5].phy_offset - small.phy_offset + 30
        scanned = scan(small.changed(start, bytes(end - start)))
        assert [shape[:2] for shape in scanned.shape()] == [
            *[(M, 0)] * 3,
            (ZEROS, 0),
            (DAMAGE, FrameCode.RESIDUE),
            *[(M, 0)] * 4,
            (BLANK, 0),
        ]
        assert scanned.frames[3].phy_offset == rows[3].phy_offset
        assert scanned.frames[4].end == rows[6].phy_offset

    def test_left_over_records_of_an_earlier_place(self, small: Segment, rows: list[Frame]) -> None:
        """Whole records that say they lie further in front, behind zeros: one STALE row, then what follows."""
        old = small.data[: rows[3].phy_offset - small.phy_offset]
        tail = bytes(20) + old + b"junk" + bytes(700)
        scanned = scan(Segment(small.phy_offset, small.data[:-60] + tail))
        assert [shape[:2] for shape in scanned.shape()[10:]] == [
            (ZEROS, 0),
            (STALE, 0),
            (DAMAGE, FrameCode.RESIDUE),
            (ZEROS, 0),
        ]
        assert [f.row.size_bytes for f in scanned.frames[10:]] == [20, len(old), 4, 700]

    def test_an_old_record_right_behind_the_last_is_a_message(self, small: Segment, rows: list[Frame]) -> None:
        """As a broker takes it for one."""
        old = small.data[: rows[0].row.size_bytes]
        scanned = scan(Segment(small.phy_offset, small.data[:-60] + old + bytes(100)))
        assert [shape[:2] for shape in scanned.shape()[10:]] == [(M, FrameCode.OWN_OFFSET), (ZEROS, 0)]

    @pytest.mark.parametrize(
        ("tail", "kinds"),
        [
            (b"", []),
            (bytes(7), [(ZEROS, 0)]),
            (b"\0\0\1\0", [(DAMAGE, FrameCode.SIZE)]),
            (bytes(8), [(ZEROS, 0)]),
            (b"\1" + bytes(20), [(DAMAGE, FrameCode.MAGIC), (ZEROS, 0)]),
        ],
    )
    def test_the_end_of_a_segment(self, small: Segment, tail: bytes, kinds: list[tuple[int, int]]) -> None:
        scanned = scan(Segment(small.phy_offset, small.data[:-60] + tail))
        assert [shape[:2] for shape in scanned.shape()] == [(M, 0)] * 10 + kinds


def test_an_empty_segment() -> None:
    assert scan(Segment(4096, b"")) == Scanned([], [])
