"""Variable parts as Arrow columns: both kernels give the same buffers, and these hold what ``codec.record`` reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from ipaddress import IPv6Address
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_core.codec.properties import parse_properties
from store_core.codec.record import Message, decode_record, encode_record
from store_core.kernel.arrow import ArrowColumns, Texts, Words
from store_core.kernel.codes import ArrowPart, FrameKind
from store_core.kernel.reference import arrow as twin_arrow
from tests import stores
from tests.kernel.driver import FASTEST, Segment, segments
from tests.kernel.test_damage import CASES

Ints = Any
Decoder = Callable[[Any, Ints, Ints, int], ArrowColumns]
DECODERS: dict[str, Decoder] = {"twin": twin_arrow.arrow_columns}
try:
    from store_core.kernel import native
except ImportError:
    pass
else:
    DECODERS["native"] = native.arrow_columns
EVERY = sum(ArrowPart)


def both(window: Any, at: Ints, size_bytes: Ints, wanted: int = EVERY) -> ArrowColumns:
    """What the decoders return for a call, which is the same, bit by bit."""
    first, *others = (decode(window, at, size_bytes, wanted) for decode in DECODERS.values())
    for other in others:
        for field in fields(ArrowColumns):
            assert_same(getattr(first, field.name), getattr(other, field.name), field.name)
    return first


def assert_same(mine: Any, other: Any, name: str) -> None:
    assert type(mine) is type(other), name
    if isinstance(mine, Texts):
        for a, b in zip(mine, other, strict=True):
            assert_same(a, b, name)
    elif mine is not None:
        assert mine.dtype == other.dtype, name
        assert np.array_equal(mine, other), name


def messages_of(segment: Segment) -> tuple[bytes, Ints, Ints]:
    """The segment's bytes, and of each message in it the index and the size."""
    columns = FASTEST(segment.data, segment.phy_offset, 0, segment.end_phy_offset, 0, 0)
    messages = columns.kind == FrameKind.MESSAGE
    return segment.data, columns.phy_offset[messages] - segment.phy_offset, columns.size_bytes[messages]


def assert_read(found: ArrowColumns, messages: list[Message]) -> None:
    """The columns hold what the messages say."""
    assert listed(found.offset_msg_id) == [message.offset_msg_id.encode() for message in messages]
    assert listed(found.born_host) == [message.born_host.encode() for message in messages]
    assert listed(found.store_host) == [message.store_host.encode() for message in messages]
    assert listed(found.unique_key) == [encoded(message.unique_key) for message in messages]
    assert listed(found.tags) == [encoded(message.tags) for message in messages]
    assert grouped(found.key_bounds, listed(found.keys)) == [list(map(str.encode, m.keys)) for m in messages]
    pairs = list(zip(listed(found.names), listed(found.values), strict=True))
    properties = [[(name.encode(), value.encode()) for name, value in m.properties.items()] for m in messages]
    assert grouped(found.pair_bounds, pairs) == properties
    assert listed(found.body) == [message.body for message in messages]


def assert_read_as_messages(window: bytes, at: Ints, size_bytes: Ints) -> None:
    places = zip(at.tolist(), size_bytes.tolist(), strict=True)
    assert_read(both(window, at, size_bytes), [decode_record(window, start, start, size) for start, size in places])


def encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def listed(texts: Texts | Words | None) -> list[bytes | None]:
    assert isinstance(texts, Texts)
    bounds, data = texts.offsets.tolist(), texts.data.tobytes()
    assert bounds[-1] == len(data)
    valid = [True] * (len(bounds) - 1)
    if texts.valid is not None:
        assert len(texts.valid) == (len(valid) + 7) // 8
        valid = [bool(bit) for bit in np.unpackbits(texts.valid, bitorder="little")[: len(valid)]]
    return [data[bounds[i] : bounds[i + 1]] if valid[i] else None for i in range(len(valid))]


def grouped(bounds: Ints, items: list[Any]) -> list[list[Any]]:
    assert bounds[-1] == len(items)
    return [items[bounds[i] : bounds[i + 1]] for i in range(len(bounds) - 1)]


@pytest.mark.parametrize("name", stores.GOLDEN)
def test_every_record_of_the_golden_stores(golden: Callable[[str], Path], name: str) -> None:
    for segment in segments(golden(name)):
        assert_read_as_messages(*messages_of(segment))


@pytest.mark.product(20)
@pytest.mark.parametrize(("base", "case"), CASES)
def test_every_record_of_the_surgery_cases(damaged: Callable[..., Path], base: str, case: str) -> None:
    for segment in segments(damaged(base, case)):
        both(*messages_of(segment))


def test_flipped_bits(golden: Callable[[str], Path]) -> None:
    """Whatever still is a record reads the same."""
    random = Random(3)
    segment = segments(golden("load-533"))[0]
    _, at, size = messages_of(segment)
    end = int(at[60] + size[60])
    for _ in range(60):
        data = bytearray(segment.data[:end])
        for _ in range(200):
            data[random.randrange(end)] ^= 1 << random.randrange(8)
        assert_read_as_messages(*messages_of(Segment(0, bytes(data))))


PIECES = [
    *(bytes([byte]) for byte in b"ab\x01\x02\x01\x02 \x00"),
    b"KEYS",
    b"TAGS",
    b"UNIQ_KEY",
    b"KEYS\x01k1  k2 \x02",
    b"a\x01b\x02",
    "标签".encode(),
    *(bytes([byte]) for byte in b"\xe6\xa0\xed\xbf\xf0\x9f\xc0\xff"),
    b"\xed\xa0\x80",
]
STRINGS = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=14).map(b"".join),
    st.binary(max_size=30),
    st.lists(st.sampled_from(["a", "KEYS", "b\ufffd"]), max_size=9).map(
        lambda names: b"".join(b"%s\x01%d\x02" % (name.encode(), i) for i, name in enumerate(names))
    ),
)


def with_properties(strings: list[bytes]) -> tuple[bytes, Ints, Ints]:
    records = [record_of(properties=text) for text in strings]
    sizes = np.array([len(record) for record in records], np.int64)
    return b"".join(records), np.cumsum(sizes) - sizes, sizes


def record_of(**changes: Any) -> bytes:
    host = bytes((10, 1, 2, 3, 0, 0, 0x2A, 0x9F))
    values: dict[str, Any] = {
        "topic": "t",
        "body": b"body",
        "properties": b"",
        "queue_id": 0,
        "queue_offset": 0,
        "phy_offset": 0,
        "born_timestamp_ms": 0,
        "born_host": host,
        "store_timestamp_ms": 0,
        "store_host": host,
    }
    return encode_record(**values | changes)


def assert_properties_read(strings: list[bytes]) -> None:
    found = both(*with_properties(strings))
    parsed = [parse_properties(text) for text in strings]
    pairs = list(zip(listed(found.names), listed(found.values), strict=True))
    expected = [[(name.encode(), value.encode()) for name, value in row.items()] for row in parsed]
    assert grouped(found.pair_bounds, pairs) == expected


@given(st.lists(STRINGS, min_size=1, max_size=8))
def test_any_property_string(strings: list[bytes]) -> None:
    assert_properties_read(strings)


@pytest.mark.parametrize(
    "strings",
    [
        [b"a\x01b\x02c\x01d\x02", b"a\x01b"],
        [b"a\x01b", b"\x02c\x01d"],  # an empty pair right behind an open end
        [b"a\x01b\x02x\x01y\x02a\x01c"],  # the last of a name, in the first one's place
        [b"a\x01\xe6", b"\xa0\x87\x01b"],  # a character cut in two by the rows
        [b"\xe6\x01b\x02\xe7\x01c"],  # two names that become one when they are decoded
        [b"a\x01b\x01c\x02"],
        [b"\x01b\x02a\x01\x02a", b"", b"\x02\x02", b"\x01"],
        [b"KEYS\x01 k1  k2 \x02", b"KEYS\x01 \x02", b"KEYS\x01k\x02KEYS\x01\x02"],
        [b"KEY\x01k\x02KEYSS\x01k\x02TAG\x01t\x02UNIQ_KEYS\x01u"],
    ],
)
def test_irregular_property_strings(strings: list[bytes]) -> None:
    assert_properties_read(strings)


@pytest.mark.parametrize("names", [63, 64, 65, 66, 700])
def test_many_properties_some_of_one_name(names: int) -> None:
    """From a number on the kernel looks names up in another way."""
    random = Random(names)
    few = [b"n%d\x01%d\x02" % (random.randrange(names), i) for i in range(names)]
    distinct = [b"n%d\x01v\x02" % i for i in range(names)]
    assert_properties_read([b"".join(few), b"".join(distinct), b"".join([*distinct, *few])])


V6 = (
    "::", "::1", "::1:2", "::1:0", "::ffff:1.2.3.4", "::ffff:0:1.2.3.4", "::fffe:1.2.3.4", "1::", "1::2", "1:0:0:2::",
    "1:0:0:2:0:0:0:3", "0:1:0:2:0:3:0:4", "fe80::1", "2001:db8::a:b:c:d", "64:ff9b::1.2.3.4", "ffff:" * 7 + "ffff",
)  # fmt: skip


def test_hosts() -> None:
    random = Random(9)
    v6 = [IPv6Address(text).packed for text in V6]
    v6 += [bytes(random.choice((0, 0, 0, 1, 255)) for _ in range(16)) for _ in range(300)]
    hosts = [address + random.randbytes(4) for address in v6] + [random.randbytes(8) for _ in range(300)]
    random.shuffle(hosts)
    records = [
        record_of(born_host=born, store_host=store, phy_offset=random.randrange(-(1 << 63), 1 << 63))
        for born, store in pairwise(hosts)
    ]
    size = np.array([len(record) for record in records], np.int64)
    at = np.cumsum(size) - size
    assert_read_as_messages(b"".join(records), at, size)


@pytest.mark.parametrize("part", ArrowPart)
def test_only_what_is_asked_for(part: ArrowPart) -> None:
    data = with_properties([b"KEYS\x01a b\x02TAGS\x01t", b"UNIQ_KEY\x01u"])
    every, one = both(*data), both(*data, part)
    given_parts = {field.name for field in fields(ArrowColumns) if getattr(one, field.name) is not None}
    expected = {
        ArrowPart.IDS: {"offset_msg_id"},
        ArrowPart.HOSTS: {"born_host", "store_host"},
        ArrowPart.KEYS: {"unique_key", "tags", "key_bounds", "keys"},
        ArrowPart.PROPERTIES: {"pair_bounds", "names", "values"},
        ArrowPart.BODIES: {"body"},
        ArrowPart.MARKS: {"tags_code", "tombstone"},
    }
    assert given_parts == expected[part]
    for name in given_parts:
        assert_same(getattr(every, name), getattr(one, name), name)


def test_no_rows() -> None:
    none = np.zeros(0, np.int64)
    found = both(b"", none, none)
    assert listed(found.body) == listed(found.unique_key) == []


@pytest.mark.parametrize("decoder", DECODERS)
class TestRefused:
    """Places where no record of that length lies."""

    @pytest.mark.parametrize(
        ("at", "size"),
        [(0, 0), (1, 98), (0, 97), (0, 99), (-1, 98), (98, 98), (0, -1), (1 << 62, 98), (0, (1 << 63) - 1)],
    )
    def test_places(self, decoder: str, at: int, size: int) -> None:
        record = record_of(body=b"123456")
        assert len(record) == 98
        with pytest.raises(ValueError, match=r"record|place"):
            DECODERS[decoder](record + bytes(10), np.array([at], np.int64), np.array([size], np.int64), 0)

    def test_lengths(self, decoder: str) -> None:
        with pytest.raises(ValueError, match="length"):
            DECODERS[decoder](b"", np.zeros(1, np.int64), np.zeros(2, np.int64), EVERY)
