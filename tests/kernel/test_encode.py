"""Encoded messages: compiled and in Python alike, one and many alike, and byte for byte what real brokers stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store_core.codec.properties import TAGS
from store_core.codec.record import decode_record
from store_core.codec.tags import index_text_hash, index_texts, tags_code
from store_core.kernel import encode
from store_core.kernel.codes import EncodeRefusal
from store_core.kernel.encode import EncodedRows, EncodeRules, MessageColumns, Numbers, Place, TextColumn
from store_core.kernel.reference import encode as reference
from store_core.layout import record
from store_core.read.records import read_record_bytes
from store_core.storage.store import Store
from tests import stores
from tests.conftest import GoldenStore
from tests.kernel.messages_to_encode import MESSAGES, RULES, Message, by_codec

SEPARATED = EncodeRules(final_separator=True, property_crc=False, property_map_size=0, index_tags=False)
STORE_HOST = bytes([127, 0, 0, 1, 0, 0, 42, 159])
FAR = Place(4096, 1 << 30, 1 << 30, 1_700_000_000_000, 4 << 20, 4 << 20)


@pytest.fixture(params=["compiled", "python"], autouse=True)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "python":
        monkeypatch.setattr(encode, "_kernel", lambda: reference)
    else:
        pytest.importorskip("store_core.kernel._native", reason="not built: no cargo", exc_type=ImportError)


def encoded(message: Message, rules: EncodeRules) -> encode.Encoded:
    return encode.encode_record(
        message.topic,
        message.body,
        message.properties,
        message.numbers,
        message.born_host,
        message.store_host,
        rules,
    )


def assert_like_the_codec(message: Message, rules: EncodeRules) -> None:
    try:
        wanted = by_codec(message, rules)
    except ValueError:
        with pytest.raises(ValueError, match="fit"):
            encoded(message, rules)
        return
    made = encoded(message, rules)
    assert made.data == wanted
    assert made.tags_code == tags_code(message.properties.get(TAGS))
    is_indexed = message.numbers.sys_flag & record.TRANSACTION_MASK != record.TRANSACTION_ROLLBACK
    texts = index_texts(message.topic, message.properties, rules.index_tags) if is_indexed else []
    assert made.key_hashes == [index_text_hash(text) for text in texts]


@settings(max_examples=150)
@given(MESSAGES, RULES)
def test_one_message_is_encoded_as_by_the_codec(message: Message, rules: EncodeRules) -> None:
    assert_like_the_codec(message, rules)


@pytest.mark.exhaustive
@settings(max_examples=10_000)
@given(MESSAGES, RULES)
def test_each_of_many_messages_is_encoded_as_by_the_codec(message: Message, rules: EncodeRules) -> None:
    assert_like_the_codec(message, rules)


@pytest.mark.parametrize("name", ["clean-430", "clean-497", "clean-533", "clean-540", "propcrc-533", "ipv6-533"])
def test_records_are_those_of_real_brokers(golden: GoldenStore, name: str) -> None:
    """From the fields that the broker's own decoder read, with the properties in the order in which they are stored."""
    same = 0
    with Store.open(golden(name)) as store:
        for row in stores.truth(name)["messages"]:
            stored = read_record_bytes(store.log, row["phyOffset"])
            assert stored is not None
            same += is_written_again(stored, row)
    assert same > 20


def is_written_again(stored: bytes, row: dict[str, Any]) -> bool:
    """False for a record whose property string no map gives, as of a client of its own."""
    found = decode_record(stored, 0, row["phyOffset"])
    properties = dict(found.properties)
    has_crc = properties.pop(record.PROPERTY_CRC_NAME.decode(), None) is not None
    separator = bytes([record.PROPERTY_SEPARATOR])
    if found.raw_properties.count(separator) - found.raw_properties.endswith(separator) != len(found.properties) - 1:
        return False
    numbers = Numbers(
        row["queueId"],
        row["flag"],
        row["queueOffset"],
        row["phyOffset"],
        row["sysFlag"],
        row["bornTimestamp"],
        row["storeTimestamp"],
        row["reconsumeTimes"],
        row["preparedTransactionOffset"],
    )
    rules = EncodeRules(found.raw_properties.endswith(separator), has_crc, 0, False)
    made = encode.encode_record(
        row["topic"], found.body, properties, numbers, found.raw_born_host, found.raw_store_host, rules
    )
    assert made.data == stored
    return True


def columns_of(messages: Sequence[Message]) -> MessageColumns:
    queues = list(dict.fromkeys((m.topic, m.numbers.queue_id) for m in messages))
    hosts = list(dict.fromkeys(m.born_host for m in messages))
    pairs = [pair for m in messages for pair in m.properties.items()]
    return MessageColumns(
        queues=queues,
        hosts=hosts,
        queue=np.array([queues.index((m.topic, m.numbers.queue_id)) for m in messages], np.int32),
        host=np.array([hosts.index(m.born_host) for m in messages], np.int32),
        flag=np.array([m.numbers.flag for m in messages], np.int32),
        sys_flag=np.array([m.numbers.sys_flag for m in messages], np.int32),
        born_timestamp_ms=np.array([m.numbers.born_timestamp_ms for m in messages], np.int64),
        reconsume_times=np.array([m.numbers.reconsume_times for m in messages], np.int32),
        body=TextColumn.of([m.body for m in messages]),
        pair_bounds=np.cumsum([0, *(len(m.properties) for m in messages)]),
        names=TextColumn.of([name.encode() for name, _ in pairs]),
        values=TextColumn.of([value.encode() for _, value in pairs]),
    )


def one_by_one(messages: Sequence[Message], rules: EncodeRules, place: Place) -> Iterator[encode.Encoded]:
    at, numbers = place.phy_offset, dict[tuple[str, int], int]()
    for message in messages:
        key = message.topic, message.numbers.queue_id
        own = message.numbers._replace(
            queue_offset=numbers.setdefault(key, 7),
            phy_offset=at,
            store_timestamp_ms=place.store_timestamp_ms,
            prepared_phy_offset=0,
        )
        properties = message.properties | {"CLUSTER": "c1"}
        one = Message(message.topic, message.body, properties, own, message.born_host, STORE_HOST)
        made = encoded(one, rules)
        yield made
        at += len(made.data)
        numbers[key] += 1


@settings(max_examples=60)
@given(st.lists(MESSAGES, max_size=8), RULES)
def test_columns_are_encoded_as_messages_one_by_one(messages: list[Message], rules: EncodeRules) -> None:
    messages = [m for m in messages if len(m.topic) <= 127 and m.topic != "ü" * 70]
    columns = columns_of(messages)
    next_offset = np.full(len(columns.queues), 7, np.int64)
    made = encode.encode_records(columns, next_offset, [(b"CLUSTER", b"c1")], 0, FAR, STORE_HOST, rules)
    singles = list(one_by_one(messages, rules, FAR))
    assert not made.refusal.any()
    assert made.data.tobytes() == b"".join(single.data for single in singles)
    assert made.size_bytes.tolist() == [len(single.data) for single in singles]
    assert made.tags_code.tolist() == [single.tags_code for single in singles]
    keys = [(row, key_hash) for row, single in enumerate(singles) for key_hash in single.key_hashes]
    assert list(zip(made.key_row.tolist(), made.key_hash.tolist(), strict=True)) == keys
    counts = [sum(q == number for q in columns.queue) for number in range(len(columns.queues))]
    assert next_offset.tolist() == [7 + count for count in counts]


def plain(body: bytes = b"x", topic: str = "t", **properties: str) -> Message:
    return Message(topic, body, properties, Numbers(0, 0, 0, 0, 0, 1, 2, 0, 0), STORE_HOST, STORE_HOST)


def batch(messages: Sequence[Message], place: Place = FAR, first: int = 0) -> EncodedRows:
    columns = columns_of(messages)
    return encode.encode_records(
        columns, np.zeros(len(columns.queues), np.int64), [], first, place, STORE_HOST, SEPARATED
    )


def test_what_cannot_be_stored_is_refused_and_takes_no_number() -> None:
    messages = [
        plain(),
        plain(a="b\x02c"),
        plain(topic="ü" * 70),
        plain(a="b" * 32766),
        plain(b"y" * 51),
        plain(b"y" * 50, a="b" * 100),
        plain(b"z"),
    ]
    made = batch(messages, FAR._replace(longest_body_bytes=50, longest_record_bytes=200))
    assert [EncodeRefusal(code).name for code in made.refusal.tolist()] == [
        "NOT",
        "SEPARATOR",
        "TOPIC",
        "PROPERTIES",
        "BODY",
        "RECORD",
        "NOT",
    ]
    assert [size > 0 for size in made.size_bytes.tolist()] == [True, *[False] * 5, True]
    assert made.queue_offset.tolist()[-1] == 1
    second = decode_record(made.data.tobytes(), int(made.size_bytes[0]), 0)
    assert (second.body, second.queue_offset, second.own_phy_offset) == (b"z", 1, 4096 + int(made.size_bytes[0]))


def test_a_batch_ends_where_the_segment_has_no_room_for_a_blank_after_the_record() -> None:
    size = int(batch([plain()]).size_bytes[0])
    for room, fit in ((3 * size + 8, 3), (3 * size + 7, 2), (size + 7, 0)):
        made = batch([plain()] * 5, FAR._replace(room_bytes=room))
        assert len(made) == fit
        assert len(made.data) == fit * size
    assert len(batch([plain()] * 5, FAR._replace(most_bytes=size + 1))) == 2
    assert len(batch([plain()] * 5, first=3)) == 2


def test_the_last_of_several_values_counts_at_the_place_of_the_first() -> None:
    columns = columns_of([plain(a="1", b="2", c="3")])
    columns = replace(columns, names=TextColumn.of([b"a", b"b", b"a"]))
    made = encode.encode_records(columns, np.zeros(1, np.int64), [], 0, FAR, STORE_HOST, SEPARATED)
    assert decode_record(made.data.tobytes(), 0, 0).raw_properties == b"a\x013\x02b\x012\x02"


def test_columns_that_do_not_fit_each_other_are_an_error() -> None:
    columns = columns_of([plain(), plain()])
    columns.queue[1] = 9
    with pytest.raises((ValueError, IndexError)):
        encode.encode_records(columns, np.zeros(1, np.int64), [], 0, FAR, STORE_HOST, SEPARATED)
