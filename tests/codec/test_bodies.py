"""Bodies: every compression, torn and broken data, bombs; inner batches."""

from __future__ import annotations

import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from store_core.codec.batch import BatchItem, split_inner_batch
from store_core.codec.compression import BodyError, compress, compression_kind, decompress, inflated
from store_core.codec.properties import parse_properties
from store_core.codec.record import decode_record
from store_core.layout import paths, record
from tests import stores

KINDS = ("zlib", "lz4", "zstd")
BODY = b"some text, " * 1000
LZ4 = record.FLAG_COMPRESSED | record.COMPRESSION_LZ4
ZSTD = record.FLAG_COMPRESSED | record.COMPRESSION_ZSTD


@given(st.binary(max_size=2000), st.sampled_from(KINDS))
def test_round_trip(body: bytes, kind: str) -> None:
    stored, flags = compress(body, kind)
    assert compression_kind(flags) == kind
    assert decompress(stored, flags) == body


def test_what_is_not_compressed_comes_as_it_is() -> None:
    assert decompress(b"abc", record.COMPRESSION_LZ4) == b"abc"  # the client clears bit 0 and leaves the type
    assert compression_kind(record.COMPRESSION_LZ4) == "none"


def test_old_zlib_has_no_type() -> None:
    assert decompress(zlib.compress(BODY), record.FLAG_COMPRESSED) == BODY


def test_several_frames() -> None:
    frame = zstandard.ZstdCompressor().compress
    assert decompress(frame(b"ab") + frame(b"") + frame(b"cd"), ZSTD) == b"abcd"
    assert decompress(lz4.frame.compress(b"ab") + lz4.frame.compress(b"cd"), LZ4) == b"abcd"


@pytest.mark.parametrize("kind", KINDS)
def test_every_torn_body_is_told(kind: str) -> None:
    stored, flags = compress(bytes(range(256)) * 3, kind)
    for length in range(len(stored)):
        with pytest.raises(BodyError):
            decompress(stored[:length], flags)


@pytest.mark.parametrize("kind", KINDS)
def test_every_flipped_byte_gives_a_body_or_is_told(kind: str) -> None:
    stored, flags = compress(BODY, kind)
    told = 0
    for at in range(len(stored)):
        raw = bytearray(stored)
        raw[at] ^= 0x55
        try:
            decompress(bytes(raw), flags, 1 << 20)
        except BodyError:
            told += 1
    assert told > 10


@given(st.binary(max_size=200), st.sampled_from([1, 0x101, 0x201, 0x301, 0x401, 0x701]))
def test_any_bytes_are_a_body_or_told(body: bytes, flags: int) -> None:
    try:
        decompress(body, flags, 1 << 20)
    except BodyError:
        return
    assert flags < record.FLAG_COMPRESSED | record.COMPRESSION_ZLIB + 0x100


@pytest.mark.parametrize("flags", [0x401, 0x501, 0x601, 0x701])
def test_types_that_no_release_defines(flags: int) -> None:
    assert compression_kind(flags) == "unknown"
    with pytest.raises(BodyError, match="not defined"):
        decompress(b"", flags)


@pytest.mark.parametrize("kind", KINDS)
def test_bombs_stop_at_the_limit(kind: str) -> None:
    limit = 1 << 20
    bomb, flags = compress(bytes(64 << 20), kind)
    assert len(decompress(compress(bytes(limit), kind)[0], flags, limit)) == limit
    tracemalloc.start()
    try:
        with pytest.raises(BodyError, match="larger than"):
            decompress(bomb, flags, limit)
        assert tracemalloc.get_traced_memory()[1] < 12 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(1 << 18) - 1, 1 << 18, (1 << 18) + 1, 3 << 18, (5 << 18) + 7])
def test_pieces_are_the_body_wherever_they_end(kind: str, size: int) -> None:
    body = (b"abcdefghi" * (size // 9 + 1))[:size]
    stored, flags = compress(body, kind)
    pieces = [bytes(piece) for piece in inflated(stored, flags)]
    assert b"".join(pieces) == body
    assert max(map(len, pieces)) <= 1 << 18
    with pytest.raises(BodyError):
        list(inflated(stored[:-1], flags))


def test_a_bomb_of_many_frames() -> None:
    frame = zstandard.ZstdCompressor().compress(bytes(1 << 20))
    for stored, flags in ((frame * 50, ZSTD), (lz4.frame.compress(bytes(1 << 20)) * 50, LZ4)):
        with pytest.raises(BodyError, match="larger than"):
            decompress(stored, flags, 4 << 20)


def test_a_frame_that_asks_for_a_huge_window_is_refused() -> None:
    magic, no_flags, window_of_terabytes = bytes.fromhex("28B52FFD"), b"\0", b"\xf8"
    with pytest.raises(BodyError, match="memory"):
        decompress(magic + no_flags + window_of_terabytes + bytes(100), ZSTD)


def test_more_than_a_frame_is_looked_at() -> None:
    frame = zstandard.ZstdCompressor().compress(BODY)
    with pytest.raises(BodyError):
        decompress(frame + b"junk behind", ZSTD)
    large = bytes(range(256)) * 4096  # many steps
    stored = b"".join(
        zstandard.ZstdCompressor(level=-5).compress(large[at : at + 5000]) for at in range(0, len(large), 5000)
    )
    assert decompress(stored, ZSTD) == large


def join_batch(items: list[BatchItem]) -> bytes:
    parts = []
    for item in items:
        size_bytes = record.BATCH_ITEM_HEAD.size_bytes + len(item.body) + 2 + len(item.raw_properties)
        parts += [
            record.BATCH_ITEM_HEAD.struct.pack(size_bytes, 0, 0, item.flag, len(item.body)),
            item.body,
            record.BATCH_ITEM_PROPERTIES_LENGTH.struct.pack(len(item.raw_properties)),
            item.raw_properties,
        ]
    return b"".join(parts)


def test_real_inner_batches(golden: Callable[[str], Path]) -> None:
    told = [m for m in stores.truth("bcq-533")["messages"] if m["sysFlag"] & record.FLAG_INNER_BATCH]
    size = int(stores.truth("bcq-533")["properties"]["mappedFileSizeCommitLog"])
    assert told
    for message in told:
        base = message["phyOffset"] // size * size
        segment = (golden("bcq-533") / paths.COMMITLOG / paths.segment_name(base)).read_bytes()
        stored = decode_record(segment, message["phyOffset"] - base, message["phyOffset"])
        body = decompress(stored.body, stored.sys_flag)
        items = split_inner_batch(body)
        assert len(items) == int(message["properties"]["INNER_NUM"])
        assert all("UNIQ_KEY" in parse_properties(item.raw_properties) for item in items)
        assert join_batch(items) == body


ITEMS = st.lists(
    st.builds(BatchItem, st.integers(-(1 << 31), (1 << 31) - 1), st.binary(max_size=50), st.binary(max_size=50)),
    max_size=5,
)


@given(ITEMS)
def test_batches_round_trip(items: list[BatchItem]) -> None:
    assert split_inner_batch(join_batch(items)) == items


def test_a_batch_has_no_more_items_than_its_entry_can_count() -> None:
    most = [BatchItem(0, b"", b"")] * ((1 << 15) - 1)
    assert len(split_inner_batch(join_batch(most))) == len(most)
    with pytest.raises(BodyError, match="32767"):
        split_inner_batch(join_batch([*most, most[0]]))


def test_every_torn_or_lying_batch_is_told_or_split() -> None:
    whole = join_batch([BatchItem(1, b"one", b"a\x01b"), BatchItem(2, b"", b"")])
    ends = {0, len(join_batch([BatchItem(1, b"one", b"a\x01b")]))}
    for length in range(len(whole)):
        if length not in ends:
            with pytest.raises(BodyError, match="batch item"):
                split_inner_batch(whole[:length])
    for at in range(len(whole)):
        raw = bytearray(whole)
        raw[at] ^= 0x80
        try:
            items = split_inner_batch(bytes(raw))
        except BodyError:
            continue
        assert sum(len(item.body) + len(item.raw_properties) for item in items) <= len(whole)
