"""What comes out does not depend on where windows are cut, and no bytes upset a kernel."""

from __future__ import annotations

import mmap
import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store_core.kernel.codes import FrameCode, FrameKind, ScanState
from store_core.layout import record
from tests.kernel.driver import ALL, FASTEST, KERNELS, Segment, assert_same, both, scan, segments

quick = settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def segment(golden: Callable[[str], Path]) -> Segment:
    """Some 64 KiB of a real log, zeros behind."""
    whole = segments(golden("load-533"))[2]
    return Segment(whole.phy_offset, whole.data[: 60 << 10] + bytes(5000))


def harm(segment: Segment, kind: str, at: int, length: int, seed: int) -> Segment:
    at %= len(segment.data)
    rng = random.Random(seed)
    source = rng.randrange(len(segment.data))
    new = {
        "flip": bytes([segment.data[at] ^ (1 << seed % 8)]),
        "zeros": bytes(length),
        "noise": rng.randbytes(length),
        "copy": segment.data[source : source + length],
        "magic": record.PREFIX.struct.pack(rng.choice((-1, 0, 91, 600, 1 << 20)), rng.choice(list(record.MAGICS))),
    }[kind]
    return segment.changed(at, new)


HARMS = st.lists(
    st.tuples(
        st.sampled_from(["flip", "zeros", "noise", "copy", "magic"]),
        st.integers(0, 1 << 20),
        st.sampled_from([1, 2, 8, 60, 511, 512, 513, 700, 3000, 9000]),
        st.integers(0, 1 << 16),
    ),
    min_size=1,
    max_size=12,
)


@quick
@given(harms=HARMS, sizes=st.lists(st.integers(1, 9000), max_size=40), cut=st.integers(0, 66000))
def test_cuts_do_not_matter(segment: Segment, harms: list[Any], sizes: list[int], cut: int) -> None:
    for one in harms:
        segment = harm(segment, *one)
    segment = Segment(segment.phy_offset, segment.data[: len(segment.data) - cut])
    whole = scan(segment)
    for window_bytes in (300, 4096, 1 << 16):
        assert scan(segment, FASTEST, window_bytes=window_bytes) == whole
    assert scan(segment, window_bytes=sizes) == whole


@quick
@given(harms=HARMS)
def test_what_is_no_good_message_is_counted(segment: Segment, harms: list[Any]) -> None:
    for one in harms:
        segment = harm(segment, *one)
    columns = both(segment.data, segment.phy_offset, 0, segment.end_phy_offset, ScanState.CHAINED, ALL)
    good = (columns.kind == FrameKind.MESSAGE) & (columns.code == FrameCode.OK)
    assert columns.odd_count == int(np.count_nonzero(~good))


@quick
@given(data=st.binary(max_size=3000), state=st.sampled_from(list(ScanState)), more=st.integers(0, 2000))
def test_random_bytes(data: bytes, state: ScanState, more: int) -> None:
    both(data, 1 << 40, 0, (1 << 40) + len(data) + more, state, ALL)


PIECES = st.one_of(
    st.sampled_from([struct.pack(">i", magic) for magic in record.MAGICS]),
    st.sampled_from([struct.pack(">i", size) for size in (0, 8, 91, 120, 0x7FFFFFFF, -1)]),
    st.sampled_from([bytes(1), bytes(7), bytes(8), bytes(511), bytes(512), bytes(600)]),
    st.sampled_from([struct.pack(">q", own) for own in (0, 1, -1, 1 << 62)]),
    st.binary(max_size=40),
)


@quick
@given(pieces=st.lists(PIECES, max_size=30), window_bytes=st.integers(1, 2000))
def test_bytes_that_look_like_frames(pieces: list[bytes], window_bytes: int) -> None:
    segment = Segment(1000, b"".join(pieces))
    assert scan(segment, window_bytes=window_bytes) == scan(segment)


def with_parts(segment: Segment, *, body: bytes | None = None, properties: bytes | None = None) -> bytes:
    """The segment's first record with another body or other properties, and the lengths and checksum to fit."""
    row = next(iter(scan(segment).messages().values()))
    start = segment.phy_offset
    if body is None:
        body = segment.data[row.body_at - start :][: row.body_length]
    if properties is None:
        properties = segment.data[row.properties_at - start :][: row.properties_length]
    head = bytearray(segment.data[: row.body_at - start - 4]) + struct.pack(">i", len(body))
    topic = segment.data[row.body_at - start + row.body_length : row.properties_at - start - 2]
    made = head + body + topic + struct.pack(">H", len(properties)) + properties
    record.HEAD.field_struct("size_bytes").pack_into(made, record.HEAD.offset_of("size_bytes"), len(made))
    crc = zlib.crc32(body) & record.CRC_MASK
    record.HEAD.field_struct("body_crc").pack_into(made, record.HEAD.offset_of("body_crc"), crc)
    return bytes(made)


TEXT = st.one_of(
    st.sampled_from(
        [b"KEYS", b"UNIQ_KEY", b"TAGS", b"DELAY", b"INNER_NUM", b"INNER_MULTI_DISPATCH", b"DUP_INFO", b"TRAN_MSG"]
    ),
    st.sampled_from(
        [b"__CRC32#", b"", b"K", b"TAG", b"a b  c ", b"\xed\xa0\x80", b"\xed\xa0", b"\xe4\xb8", b"\xf0\x9f\x98"]
    ),
    st.text(max_size=6).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.binary(max_size=12),
)
PROPERTIES = st.lists(st.tuples(TEXT, st.sampled_from([b"\1", b"\2", b"", b"\1\1"])), max_size=12)


@quick
@given(parts=PROPERTIES)
def test_any_property_string(segment: Segment, parts: list[tuple[bytes, bytes]]) -> None:
    made = with_parts(segment, properties=b"".join(text + separator for text, separator in parts))
    assert len(scan(Segment(segment.phy_offset, made)).messages()) == 1


@pytest.mark.parametrize(
    "value", [b"3", b"+3", b"-3", b"0", b"", b"007", b"2147483647", b"2147483648", b"9" * 9999, b"3 "]
)
def test_delay_levels(golden: Callable[[str], Path], value: bytes) -> None:
    """Only a positive int is one; whatever else stands there upsets nobody."""
    log = segments(golden("load-533"))
    segment, row = next((s, f.row) for s in log for f in scan(s).frames if f.row.delay_level)
    first = Segment(row.phy_offset, segment.data[row.phy_offset - segment.phy_offset :])
    made = Segment(first.phy_offset, with_parts(first, properties=b"DELAY\1" + value + b"\2"))
    (found,) = scan(made).messages().values()
    is_level = value in (b"3", b"+3", b"007", b"2147483647")
    assert found.delay_level == (int(value) if is_level else 0)


@pytest.mark.parametrize("body_length", [70_000, 3 << 20])
def test_large_records_behind_damage(segment: Segment, body_length: int) -> None:
    """Larger than the window: the kernel asks for what it needs; its checksum is looked at, its neighbours are no help."""
    body = random.Random(body_length).randbytes(body_length)
    large = with_parts(segment, body=body)
    offset = segment.phy_offset + 100
    at = record.HEAD.offset_of("own_phy_offset")
    large = large[:at] + struct.pack(">q", offset) + large[at + 8 :]
    made = Segment(segment.phy_offset, bytes(range(1, 101)) + large + b"junk" * 40)
    for window_bytes in (300, 1 << 16):
        shape = scan(made, window_bytes=window_bytes).shape()
        assert [s[:3] for s in shape] == [
            (FrameKind.DAMAGE, FrameCode.MAGIC, segment.phy_offset),
            (FrameKind.MESSAGE, FrameCode.OK, offset),
            (FrameKind.DAMAGE, FrameCode.MAGIC, offset + len(large)),
        ]
    spoiled = made.changed(5000, b"XXXX")
    assert len(scan(spoiled, window_bytes=1 << 16).shape()) == 1


def test_a_claim_beyond_any_record_is_not_believed(segment: Segment) -> None:
    """A size that fits the segment but no record must not make anyone read that much."""
    claim = record.PREFIX.struct.pack(record.MAX_RECORD_SIZE_BYTES + 1, record.MAGIC_V1)
    columns = both(claim + segment.data[8:], 0, 0, 1 << 30, ScanState.CHAINED, ALL)
    assert columns.code[0] == FrameCode.SIZE
    assert columns.need_bytes <= 4096


def test_a_blank_ends_the_walk_wherever_the_window_ends() -> None:
    blank = record.PREFIX.struct.pack(1 << 20, record.MAGIC_BLANK)
    columns = both(blank, 0, 0, 1 << 20, ScanState.CHAINED, ALL)
    assert (columns.next_at, columns.next_state, columns.size_bytes.tolist()) == (1 << 20, ScanState.CHAINED, [1 << 20])


def test_any_buffer_will_do_and_none_is_kept(segment: Segment, tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(segment.data)
    reused = bytearray(segment.data)
    call = (segment.phy_offset, 0, segment.end_phy_offset, ScanState.CHAINED, ALL)
    expected = both(segment.data, *call)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        for kernel in KERNELS.values():
            for window in (reused, memoryview(reused), memoryview(segment.data), mapped):
                assert_same(kernel(window, *call), expected)
    reused.clear()  # raises where somebody still holds it


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    "call", [(-1, 0, 10, 0), (0, -1, 10, 0), (100, 0, 10, 0), (0, 0, 10, 9), (0, 0, 10, -1)], ids=str
)
def test_numbers_that_make_no_sense(kernel: str, call: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="makes no sense"):
        KERNELS[kernel](bytes(10), *call, ALL)


def test_walking_begins_where_it_is_told(segment: Segment) -> None:
    second = scan(segment).frames[1].phy_offset - segment.phy_offset
    columns = both(segment.data, segment.phy_offset, second, segment.end_phy_offset, ScanState.CHAINED, ALL)
    assert columns.phy_offset[0] == segment.phy_offset + second
    assert columns.code[0] == FrameCode.OK


def test_very_many_hostile_heads_take_no_longer_than_good_ones() -> None:
    """Each head claims a large body with a wrong checksum; looking at each body whole would take minutes."""
    size, step, base = 8 << 20, 100, 1 << 30
    data = bytearray(b"x" * size)
    for at in range(8, size // 2, step):
        record.HEAD.struct.pack_into(data, at, size // 2 - 200, record.MAGIC_V1, 1, 0, 0, 0, base + at, 0, 0)
        length = record.body_at(0) - 4
        struct.pack_into(">i", data, at + length, size // 2 - 200 - record.MIN_RECORD_SIZE_BYTES)
        end = at + size // 2 - 200
        data[end - 3 : end] = bytes(3)
    native = pytest.importorskip(
        "store_core.kernel.native", reason="the twin has no such defence", exc_type=ImportError
    )
    columns = native.scan_window(bytes(data), base, 0, base + size, ScanState.CHAINED, ALL)
    assert columns.kind.tolist() == [FrameKind.DAMAGE]
