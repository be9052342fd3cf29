"""Records: the worked example, round trips, and every byte of one damaged in turn."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_core.codec.hosts import host_bytes
from store_core.codec.record import (
    RecordError,
    body_crc_ok,
    decode_blank,
    decode_record,
    encode_blank,
    encode_record,
    property_crc_ok,
)
from store_core.layout import record

# Section 13 of the format: encoded by a real broker's encoder.
WORKED = bytes.fromhex(
    "00000070 DAA320A7 3610A686 00000003 00000000 0000000000000007 0000000000001000 00000000 0000018BCFE56800"
    "0A01020300009C40 0000018BCFE5687B 0A01020400002A9F 00000000 0000000000000000 00000005 68656C6C6F 02 5431"
    "000E 7801790254414753015461674102"
)
MESSAGE = decode_record(WORKED, 0, 4096)


def encoded(**changes: Any) -> bytes:
    """The worked record with some of its parts changed."""
    parts: dict[str, Any] = {
        "topic": "T1",
        "body": b"hello",
        "properties": {"x": "y", "TAGS": "TagA"},
        "queue_id": 3,
        "queue_offset": 7,
        "phy_offset": 4096,
        "born_timestamp_ms": 0x18BCFE56800,
        "born_host": host_bytes("10.1.2.3:40000"),
        "store_timestamp_ms": 0x18BCFE5687B,
        "store_host": host_bytes("10.1.2.4:10911"),
    }
    return encode_record(**(parts | changes))


def test_worked_record() -> None:
    assert encoded() == WORKED
    told = {
        "phy_offset": 4096,
        "size_bytes": 112,
        "magic": record.MAGIC_V1,
        "body_crc": 907060870,
        "queue_id": 3,
        "flag": 0,
        "queue_offset": 7,
        "own_phy_offset": 4096,
        "sys_flag": 0,
        "born_timestamp_ms": 1700000000000,
        "raw_born_host": bytes.fromhex("0A01020300009C40"),
        "store_timestamp_ms": 1700000000123,
        "raw_store_host": bytes.fromhex("0A01020400002A9F"),
        "reconsume_times": 0,
        "prepared_transaction_offset": 0,
        "body": b"hello",
        "topic": "T1",
        "raw_properties": b"x\x01y\x02TAGS\x01TagA\x02",
    }
    assert {name: getattr(MESSAGE, name) for name in told} == told
    assert MESSAGE.offset_msg_id == "0A01020400002A9F0000000000001000"
    assert (MESSAGE.born_host, MESSAGE.store_host) == ("10.1.2.3:40000", "10.1.2.4:10911")
    assert (MESSAGE.tags, MESSAGE.keys, MESSAGE.unique_key) == ("TagA", [], None)
    assert (MESSAGE.transaction, MESSAGE.compression) == ("none", "none")
    assert body_crc_ok(MESSAGE)
    assert property_crc_ok(WORKED) is None


def test_another_body_and_other_numbers() -> None:
    other = MESSAGE.with_parts(b"more", b"a\x01b", flag=-1, queue_offset=-(1 << 63))
    assert (other.body, other.properties, other.flag, other.queue_offset) == (b"more", {"a": "b"}, -1, -(1 << 63))
    assert other.with_parts(MESSAGE.body, MESSAGE.raw_properties, flag=0, queue_offset=7) == MESSAGE
    with pytest.raises(ValueError, match="int"):
        MESSAGE.with_parts(b"", b"", queue_offset=1 << 63)


def test_blank() -> None:
    assert encode_blank(256) == bytes.fromhex("00000100 CBD43194")
    assert decode_blank(b"??" + encode_blank(256), 2) == 256
    assert decode_blank(WORKED, 0) is None
    assert decode_blank(encode_blank(9)[:7], 0) is None
    assert decode_blank(encode_blank(9), 0, size_left=7) is None


def reason(raw: bytes, at: int = 0, size_left: int | None = None) -> tuple[str, int]:
    with pytest.raises(RecordError) as caught:
        decode_record(raw, at, 0, size_left)
    return caught.value.reason, caught.value.size_bytes


def with_field(name: str, value: int) -> bytes:
    raw = bytearray(WORKED)
    record.HEAD.field_struct(name).pack_into(raw, record.HEAD.offset_of(name), value)
    return bytes(raw)


def test_each_check_has_its_reason() -> None:
    assert reason(b"") == ("short", 0)
    assert reason(WORKED[:7]) == ("short", 0)
    assert reason(WORKED, at=-1) == ("short", 0)
    assert reason(WORKED, at=500) == ("short", 0)
    assert reason(WORKED[:-1]) == ("beyond", 112)
    assert reason(WORKED, size_left=111) == ("beyond", 112)
    assert reason(encode_blank(8)) == ("blank", 8)
    assert reason(encode_blank(100)) == ("beyond", 100)
    assert reason(bytes(200)) == ("magic", 0)
    assert reason(with_field("magic", 0)) == ("magic", 112)
    assert reason(with_field("size_bytes", -5)) == ("bounds", -5)
    assert reason(with_field("size_bytes", 111)) == ("mismatch", 111)
    assert reason(WORKED[:4] + with_field("size_bytes", 8)[4:8]) == ("beyond", 112)
    assert reason(with_field("size_bytes", 8)[:8]) == ("bounds", 8)
    assert reason(with_field("sys_flag", record.FLAG_BORN_HOST_V6)) == ("bounds", 112)


def test_a_record_inside_a_larger_buffer_and_a_memoryview() -> None:
    assert decode_record(memoryview(b"abc" + WORKED + b"def"), 3, 4096) == MESSAGE
    with pytest.raises(RecordError):
        decode_record(WORKED + b"more", 1, 0)


def test_every_bit_of_a_record_flipped() -> None:
    changed_nothing_structural = 0
    for at in range(len(WORKED)):
        for bit in range(8):
            raw = bytearray(WORKED)
            raw[at] ^= 1 << bit
            try:
                message = decode_record(bytes(raw), 0, 4096)
            except RecordError:
                continue
            changed_nothing_structural += 1
            assert message != MESSAGE or raw[at] == WORKED[at]
            assert body_crc_ok(message) == (message.body == b"hello" and message.body_crc == MESSAGE.body_crc)
            assert message.properties is not None
            assert message.transaction in ("none", "prepared", "commit", "rollback")
            assert message.offset_msg_id
            assert message.born_host
    assert changed_nothing_structural > 400  # most bits are no part of the structure


@pytest.mark.parametrize("changes", [{}, {"topic": "t" * 128}, {"born_host": host_bytes("[::1]:1")}])
def test_every_prefix_of_a_record_is_refused(changes: dict[str, object]) -> None:
    whole = encoded(**changes)
    for length in range(len(whole)):
        with pytest.raises(RecordError):
            decode_record(whole[:length], 0, 0)
    for length in range(len(whole)):
        with pytest.raises(RecordError):
            decode_record(whole, 0, 0, size_left=length)


def test_topic_lengths_choose_the_version() -> None:
    assert decode_record(encoded(topic="t" * 127), 0, 0).magic == record.MAGIC_V1
    assert decode_record(encoded(topic="t" * 128), 0, 0).magic == record.MAGIC_V2
    long = decode_record(encoded(topic="😀" * 64), 0, 0)  # 128 Java characters
    assert (long.magic, long.topic) == (record.MAGIC_V2, "😀" * 64)
    with pytest.raises(ValueError, match="does not fit"):
        encoded(topic="ü" * 127)  # few characters, but too many bytes for the one-byte length


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        encoded(properties={"a": "b" * 40_000})
    with pytest.raises(ValueError, match="a host of"):
        encoded(born_host=b"abc")
    with pytest.raises(ValueError, match="separator"):
        encoded(properties={"a\x01": "b"})


def test_property_crc_covers_every_byte_in_front_of_it() -> None:
    whole = encoded(property_crc=True, final_separator=False)
    assert len(whole) == len(WORKED) + record.PROPERTY_CRC.size_bytes
    assert property_crc_ok(whole) is True
    assert decode_record(whole, 0, 0).properties.keys() == {"x", "TAGS", "__CRC32#"}
    tail_at = len(whole) - record.PROPERTY_CRC.size_bytes
    for at in [*range(tail_at), *range(tail_at + 9, len(whole))]:
        raw = bytearray(whole)
        raw[at] ^= 4
        assert property_crc_ok(bytes(raw)) is False
    assert property_crc_ok(b"") is None


def test_an_empty_body_has_no_checksum() -> None:
    empty = decode_record(encoded(body=b""), 0, 0)
    assert (empty.body, empty.body_crc) == (b"", 0)
    assert body_crc_ok(empty.with_parts(b"", empty.raw_properties, body_crc=5))


HOSTS = st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=20, max_size=20))
LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
INTS = st.integers(-(1 << 31), (1 << 31) - 1)


@given(
    topic=st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    body=st.binary(max_size=300),
    properties=st.binary(max_size=300),
    numbers=st.tuples(INTS, INTS, LONGS, INTS, LONGS, LONGS, LONGS, INTS, LONGS),
    hosts=st.tuples(HOSTS, HOSTS),
    property_crc=st.booleans(),
)
def test_round_trip(
    topic: str,
    body: bytes,
    properties: bytes,
    numbers: tuple[int, ...],
    hosts: tuple[bytes, bytes],
    property_crc: bool,
) -> None:
    queue_id, flag, queue_offset, sys_flag, phy_offset, born, stored, reconsumed, prepared = numbers
    raw = encode_record(
        topic=topic,
        body=body,
        properties=properties,
        queue_id=queue_id,
        queue_offset=queue_offset,
        phy_offset=phy_offset,
        born_timestamp_ms=born,
        born_host=hosts[0],
        store_timestamp_ms=stored,
        store_host=hosts[1],
        flag=flag,
        sys_flag=sys_flag,
        reconsume_times=reconsumed,
        prepared_transaction_offset=prepared,
        property_crc=property_crc,
    )
    message = decode_record(b"\0" + raw + b"\0", 1, 99)
    assert message.size_bytes == len(raw)
    assert (message.topic, message.body, message.phy_offset) == (topic, body, 99)
    assert message.raw_properties.startswith(properties)
    assert (message.raw_born_host, message.raw_store_host) == hosts
    hosts_v6 = record.FLAG_BORN_HOST_V6 | record.FLAG_STORE_HOST_V6
    assert message.sys_flag & ~hosts_v6 == sys_flag & ~hosts_v6
    assert (message.queue_id, message.flag, message.queue_offset) == (queue_id, flag, queue_offset)
    assert (message.own_phy_offset, message.born_timestamp_ms, message.store_timestamp_ms) == (phy_offset, born, stored)
    assert (message.reconsume_times, message.prepared_transaction_offset) == (reconsumed, prepared)
    assert body_crc_ok(message)
    assert property_crc_ok(raw) is (True if property_crc else property_crc_ok(raw))


@given(raw=st.binary(max_size=400), at=st.integers(-5, 400))
def test_any_bytes_are_a_message_or_a_record_error(raw: bytes, at: int) -> None:
    with pytest.raises(RecordError):
        decode_record(raw, at, 0)


@given(data=st.data())
def test_any_damage_is_a_message_or_a_record_error(data: st.DataObject) -> None:
    raw = bytearray(WORKED)
    for at in data.draw(st.lists(st.integers(0, len(raw) - 1), max_size=8)):
        raw[at] = data.draw(st.integers(0, 255))
    try:
        message = decode_record(bytes(raw), 0, 0)
    except RecordError:
        return
    assert message.size_bytes == len(WORKED)
