"""Records against what the real decoder said of them, in every golden store."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from store_core.codec.compression import decompress
from store_core.codec.message_id import parse_offset_message_id
from store_core.codec.record import (
    Message,
    body_crc_ok,
    decode_blank,
    decode_record,
    encode_record,
    property_crc_ok,
)
from store_core.codec.tags import tags_code
from store_core.layout import paths, record
from tests import stores

# 4.3.0's own reader drops a value with a 0x01 in it; ours reads as 5.x does.
READ_OTHERWISE_BY_4_3 = {("clean-430", 276607): {"ctl1": "before\x01after"}}


def records(root: Path, name: str) -> Iterator[tuple[dict[str, Any], bytes, int]]:
    """(truth, segment, position in it) of every record."""
    size = int(stores.truth(name)["properties"]["mappedFileSizeCommitLog"])
    segments: dict[int, bytes] = {}
    for told in stores.truth(name)["messages"]:
        base = told["phyOffset"] // size * size
        if base not in segments:
            segments[base] = (root / paths.COMMITLOG / paths.segment_name(base)).read_bytes()
        yield told, segments[base], told["phyOffset"] - base


def as_told(message: Message) -> dict[str, Any]:
    """A message under the names of the truth."""
    return {
        "storeSize": message.size_bytes,
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "flag": message.flag,
        "sysFlag": message.sys_flag,
        "bornTimestamp": message.born_timestamp_ms,
        "storeTimestamp": message.store_timestamp_ms,
        "bodyCRC": message.body_crc,
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "bodyLength": len(message.body),
        "bodySha256": hashlib.sha256(message.body).hexdigest(),
        "msgId": message.offset_msg_id,
        "magic": message.magic,
        "phyOffset": message.own_phy_offset,
    }


def java_host(host: str) -> str:
    """A host as the truth writes it."""
    address, _, port = host.rpartition(":")
    if address.startswith("["):
        address = {"[::1]": "0:0:0:0:0:0:0:1"}[address]
    return f"{address}|{port}"


@pytest.mark.parametrize("name", stores.GOLDEN)
def test_every_record_of_every_golden_store_is_decoded_as_by_the_real_decoder(
    golden: Callable[[str], Path], name: str
) -> None:
    for told, segment, at in records(golden(name), name):
        message = decode_record(segment, at, told["phyOffset"])
        found = as_told(message)
        assert found == {field: told[field] for field in found}
        assert (java_host(message.born_host), java_host(message.store_host)) == (told["bornHost"], told["storeHost"])
        extra = READ_OTHERWISE_BY_4_3.get((name, told["phyOffset"]), {})
        assert message.properties == told["properties"] | extra
        assert message.unique_key == told["properties"].get("UNIQ_KEY")
        assert message.keys == told["properties"].get("KEYS", "").split()
        assert message.tags == told["properties"].get("TAGS")
        assert body_crc_ok(message)
        if message.topic != paths.SCHEDULE_TOPIC:
            assert tags_code(message.tags) == told["tagsCode"]
        plain = decompress(message.body, message.sys_flag)
        assert hashlib.sha256(plain).hexdigest() == told.get("plainSha256", told["bodySha256"])
        assert len(plain) == told.get("plainLength", told["bodyLength"])
        parsed = parse_offset_message_id(told["msgId"])
        assert parsed is not None
        assert (parsed.store_host, parsed.phy_offset) == (message.store_host, told["phyOffset"])


@pytest.mark.parametrize("name", stores.GOLDEN)
def test_every_record_encodes_to_the_brokers_own_bytes(golden: Callable[[str], Path], name: str) -> None:
    tails = 0
    for told, segment, at in records(golden(name), name):
        raw = segment[at : at + told["storeSize"]]
        message = decode_record(raw, 0, told["phyOffset"])
        has_tail = property_crc_ok(raw)
        assert has_tail is not False
        tails += has_tail is True
        assert encode_again(message, bool(has_tail)) == raw
    assert (tails > 0) == (name == "propcrc-533")


def encode_again(message: Message, property_crc: bool) -> bytes:
    tail = record.PROPERTY_CRC.size_bytes if property_crc else 0
    return encode_record(
        topic=message.topic,
        body=message.body,
        properties=message.raw_properties[: len(message.raw_properties) - tail],
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        phy_offset=message.own_phy_offset,
        born_timestamp_ms=message.born_timestamp_ms,
        born_host=message.raw_born_host,
        store_timestamp_ms=message.store_timestamp_ms,
        store_host=message.raw_store_host,
        flag=message.flag,
        sys_flag=message.sys_flag,
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
        property_crc=property_crc,
    )


@pytest.mark.parametrize("name", stores.GOLDEN)
def test_every_blank_says_what_the_real_check_says(golden: Callable[[str], Path], name: str) -> None:
    size = int(stores.truth(name)["properties"]["mappedFileSizeCommitLog"])
    blanks = [segment["blank"] for segment in stores.truth(name)["log"]["files"] if "blank" in segment]
    assert blanks
    for blank in blanks:
        base = blank["at"] // size * size
        segment = (golden(name) / paths.COMMITLOG / paths.segment_name(base)).read_bytes()
        assert decode_blank(segment, blank["at"] - base) == blank["size"]


def test_the_golden_stores_hold_every_kind_of_record() -> None:
    told = [m for name in stores.GOLDEN for m in stores.truth(name)["messages"]]
    assert {m["magic"] for m in told} == {record.MAGIC_V1, record.MAGIC_V2}
    flags = {m["sysFlag"] & record.COMPRESSION_MASK for m in told if m["sysFlag"] & record.FLAG_COMPRESSED}
    assert flags >= {record.COMPRESSION_LZ4, record.COMPRESSION_ZSTD, record.COMPRESSION_ZLIB}
    assert any(m["sysFlag"] & record.FLAG_STORE_HOST_V6 for m in told)
    assert any(m["sysFlag"] & record.FLAG_INNER_BATCH for m in told)
    assert any(m["sysFlag"] & record.TRANSACTION_MASK == record.TRANSACTION_COMMIT for m in told)
