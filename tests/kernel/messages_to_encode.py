"""Messages that hypothesis makes up for the encoder: what brokers accept, and what they refuse."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from store_core.codec.record import encode_record as encode_by_codec
from store_core.codec.tags import in_java_order
from store_core.kernel.encode import EncodeRules, Numbers

_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=12)
_VALUE = st.one_of(_TEXT, st.text("ab ", min_size=1, max_size=20))
_NAME = st.one_of(st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "DELAY", "CLUSTER", "WAIT", "a", "b", "c"]), _TEXT)
_TOPIC = st.one_of(
    st.sampled_from(["orders", "Ünï-code", "t" * 127, "t" * 128, "ü" * 70]), st.text("ab%|-_", min_size=1)
)
_V4 = st.binary(min_size=4, max_size=4).map(lambda address: address + b"\0\0\x2a\x9f")
_V6 = st.binary(min_size=16, max_size=16).map(lambda address: address + b"\0\0\x2a\x9f")
_INT = st.integers(-(1 << 31), (1 << 31) - 1)
_LONG = st.integers(0, (1 << 63) - 1)
_TRANSACTIONS = st.sampled_from([0, 4, 8, 12])
_COMPRESSION = st.sampled_from([0, 0x1, 0x101, 0x201, 0x301])


@dataclass(frozen=True)
class Message:
    """What the encoder gets of one message. ``numbers.queue_id`` is not negative."""

    topic: str
    body: bytes
    properties: dict[str, str]
    numbers: Numbers
    born_host: bytes
    store_host: bytes


_NUMBERS = st.builds(
    Numbers,
    queue_id=st.integers(0, (1 << 31) - 1),
    flag=_INT,
    queue_offset=_LONG,
    phy_offset=_LONG,
    sys_flag=st.builds(int.__or__, _TRANSACTIONS, _COMPRESSION),
    born_timestamp_ms=_LONG,
    store_timestamp_ms=_LONG,
    reconsume_times=st.integers(0, (1 << 31) - 1),
    prepared_phy_offset=_LONG,
)
MESSAGES = st.builds(
    Message,
    topic=_TOPIC,
    body=st.binary(max_size=300),
    properties=st.dictionaries(_NAME, _VALUE, max_size=20),
    numbers=_NUMBERS,
    born_host=st.one_of(_V4, _V6),
    store_host=st.one_of(_V4, _V6),
)
RULES = st.builds(
    EncodeRules,
    final_separator=st.booleans(),
    property_crc=st.booleans(),
    property_map_size=st.sampled_from([0, 16, 128]),
    index_tags=st.booleans(),
)


def by_codec(message: Message, rules: EncodeRules) -> bytes:
    """The record as the codec writes it."""
    numbers = message.numbers._asdict()
    prepared = numbers.pop("prepared_phy_offset")
    properties = message.properties
    if rules.property_map_size:
        properties = in_java_order(properties, rules.property_map_size)
    return encode_by_codec(
        topic=message.topic,
        body=message.body,
        properties=properties,
        born_host=message.born_host,
        store_host=message.store_host,
        prepared_transaction_offset=prepared,
        final_separator=rules.final_separator,
        property_crc=rules.property_crc,
        **numbers,
    )
