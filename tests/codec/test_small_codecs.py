"""Properties, hashes, ids, hosts, delay levels and properties files: worked values, odd input, round trips."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_core.codec.delay_levels import DEFAULT_DELAYS_MS, delivery_timestamp_ms, parse_delay_levels
from store_core.codec.hosts import host_bytes, host_text
from store_core.codec.java_properties import parse_java_properties
from store_core.codec.message_id import (
    OffsetMessageId,
    UniqueKey,
    format_offset_message_id,
    parse_offset_message_id,
    parse_unique_key,
)
from store_core.codec.properties import format_properties, parse_properties, some_properties, split_keys
from store_core.codec.tags import index_key_hash, index_text_hash, index_texts, java_hash, tags_code
from store_core.codec.text import decode_text, utf16_length
from store_core.layout.paths import SCHEDULE_TOPIC
from tests import stores

FFFD = "\ufffd"


class TestProperties:
    def test_worked_string(self) -> None:
        raw = b"a^;b^v;^z;c^d^e;b^w".replace(b"^", b"\x01").replace(b";", b"\x02")
        assert parse_properties(raw) == {"b": "w", "c": "d\x01e"}

    @pytest.mark.parametrize(
        "raw", [b"", b"\x02", b"\x02\x02\x02", b"a", b"\x01", b"\x01\x01", b"\x01a\x01b", b"a\x01\x02"]
    )
    def test_strings_without_properties(self, raw: bytes) -> None:
        assert parse_properties(raw) == {}

    def test_both_forms_read_alike(self) -> None:
        properties = {"KEYS": "a b", "ключ": "значение 🚀"}
        unterminated, terminated = format_properties(properties, False), format_properties(properties, True)
        assert terminated == unterminated + b"\x02"
        assert parse_properties(unterminated) == parse_properties(terminated) == properties
        assert format_properties({}, True) == b""

    def test_invalid_utf8_is_kept_apart_from_the_separators(self) -> None:
        assert parse_properties(b"a\x01\xff\x02\xe2\x82\x01b\x02") == {"a": FFFD, FFFD: "b"}

    def test_what_would_be_read_otherwise_is_refused(self) -> None:
        for properties in ({"a\x01b": "c"}, {"a\x02": "c"}, {"a": "b\x02c"}):
            with pytest.raises(ValueError, match="separator"):
                format_properties(properties, True)
        assert parse_properties(format_properties({"a": "b\x01c"}, True)) == {"a": "b\x01c"}

    @given(
        st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1),
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x02"), min_size=1),
        ),
        st.booleans(),
    )
    def test_round_trip(self, properties: dict[str, str], final_separator: bool) -> None:
        assert parse_properties(format_properties(properties, final_separator)) == properties

    @given(st.binary())
    def test_any_bytes_are_read(self, raw: bytes) -> None:
        assert all(name and value for name, value in parse_properties(raw).items())

    def test_keys_are_split_at_single_spaces(self) -> None:
        assert split_keys(" a  b\tc ") == ["a", "b\tc"]
        assert split_keys(None) == split_keys("") == split_keys("  ") == []


# What java.lang.String makes of these bytes in UTF-8 (OpenJDK 17).
JAVA_DECODES = [
    ("80", FFFD),
    ("c0af", FFFD * 2),
    ("c3", FFFD),
    ("e282", FFFD),
    ("e28241", FFFD + "A"),
    ("e08080", FFFD * 3),
    ("eda080", FFFD),
    ("eda0", FFFD),
    ("eda041", FFFD + "A"),
    ("eda080edb080", FFFD * 2),
    ("f0908041", FFFD + "A"),
    ("f09080", FFFD),
    ("f0808080", FFFD * 4),
    ("f4908080", FFFD * 4),
    ("f8888080", FFFD * 4),
    ("ff41fe", FFFD + "A" + FFFD),
    ("f09f9a80", "🚀"),
    ("ed9fbf", "\ud7ff"),
]


@pytest.mark.parametrize(("raw", "text"), JAVA_DECODES)
def test_malformed_text_as_in_java(raw: str, text: str) -> None:
    assert decode_text(bytes.fromhex(raw)) == text


@given(st.binary())
def test_any_bytes_become_text_that_can_be_written(raw: bytes) -> None:
    assert decode_text(decode_text(raw).encode()) == decode_text(raw)


def test_lengths_in_java_characters() -> None:
    assert [utf16_length(text) for text in ("", "aü", "🚀a")] == [0, 2, 3]


class TestHashes:
    def test_worked_values(self) -> None:
        assert java_hash("") == 0
        assert (tags_code("TagA"), tags_code("orders")) == (2598919, -1008770331)
        assert java_hash("Aa") == java_hash("BB") == 2112
        assert java_hash("🚀") == 1773027
        assert index_key_hash("order-events", "K1001") == 260429664

    def test_the_number_without_an_absolute_value(self) -> None:
        assert java_hash("polygenelubricants") == -(1 << 31)
        assert index_text_hash("polygenelubricants") == 0

    def test_no_tags(self) -> None:
        assert tags_code(None) == tags_code("") == 0

    def test_index_texts_in_the_brokers_order(self) -> None:
        properties = {"KEYS": "a  b a", "TAGS": "t", "UNIQ_KEY": "u"}
        assert index_texts("T", properties) == ["T#u", "T#a", "T#b", "T#a"]
        assert index_texts("T", properties, with_tags=True) == ["T#u", "T#a", "T#b", "T#a", "T#T#t"]
        assert index_texts("T", {}, with_tags=True) == []

    @pytest.mark.parametrize("name", ["clean-497", "clean-533", "clean-540"])
    def test_the_real_index_was_built_of_these_texts(self, name: str) -> None:
        """The truth counts entries: as many as there are key texts."""
        texts = [
            text
            for message in stores.truth(name)["messages"]
            for text in index_texts(message["topic"], message["properties"], with_tags=name == "clean-540")
        ]
        entries = sum(file["indexCount"] - 1 for file in stores.truth(name)["afterLoad"]["indexFiles"])
        assert len(texts) == entries

    @given(st.text(st.characters(exclude_categories=["Cs"])), st.text(max_size=3))
    def test_a_hash_goes_on_where_its_front_ended(self, front: str, rest: str) -> None:
        units = rest.encode("utf-16-be", "surrogatepass")
        value = java_hash(front)
        for at in range(0, len(units), 2):
            value = value * 31 + int.from_bytes(units[at : at + 2], "big")
        assert (java_hash(front + rest) - value) % (1 << 32) == 0


class TestHosts:
    @pytest.mark.parametrize(
        ("raw", "text"),
        [
            ("0A01020300009C40", "10.1.2.3:40000"),
            ("0000000000000000", "0.0.0.0:0"),
            ("FFFFFFFFFFFFFFFF", "255.255.255.255:4294967295"),
            ("00000000000000000000000000000001" + "00002A9F", "[::1]:10911"),
            ("20010DB8000000000000000000000001" + "00000001", "[2001:db8::1]:1"),
        ],
    )
    def test_worked(self, raw: str, text: str) -> None:
        assert host_text(bytes.fromhex(raw)) == text
        assert host_bytes(text) == bytes.fromhex(raw)

    @pytest.mark.parametrize(
        "text", ["", "1.2.3.4", "1.2.3:4", "1.2.3.4:x", "1.2.3.4:-1", "[::1]", "::1:5", "[zz]:1", "h:1"]
    )
    def test_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match="no host and port"):
            host_bytes(text)

    def test_port_too_large(self) -> None:
        with pytest.raises(ValueError, match="no host and port"):
            host_bytes(f"1.2.3.4:{1 << 32}")

    @given(st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=20, max_size=20)))
    def test_round_trip(self, raw: bytes) -> None:
        assert host_bytes(host_text(raw)) == raw

    @given(st.binary(max_size=30).filter(lambda raw: len(raw) not in (8, 20)))
    def test_other_lengths(self, raw: bytes) -> None:
        with pytest.raises(ValueError, match="a host of"):
            host_text(raw)


def ms(year: int, month: int, day: int) -> int:
    return int(datetime(year, month, day, tzinfo=UTC).timestamp() * 1000)


class TestMessageIds:
    def test_worked_offset_id(self) -> None:
        text = "0A01020400002A9F0000000000001000"
        assert format_offset_message_id(host_bytes("10.1.2.4:10911"), 4096) == text
        assert parse_offset_message_id(text) == OffsetMessageId("10.1.2.4:10911", 4096)
        assert parse_offset_message_id(text.lower()) == OffsetMessageId("10.1.2.4:10911", 4096)

    @given(
        st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=20, max_size=20)), st.integers(0, (1 << 63) - 1)
    )
    def test_round_trip(self, host: bytes, phy_offset: int) -> None:
        assert parse_offset_message_id(format_offset_message_id(host, phy_offset)) == OffsetMessageId(
            host_text(host), phy_offset
        )

    @pytest.mark.parametrize(
        "text", ["", "0" * 31, "0" * 33, "G" * 32, "0A 1020400002A9F0000000000001000", "٠" * 32, "F" * 32]
    )
    def test_other_texts(self, text: str) -> None:
        assert parse_offset_message_id(text) is None
        assert parse_unique_key(text, 0) is None

    def test_unique_key(self) -> None:
        key = "7F0000011234DEADBEEF" + f"{86_400_000 + 5:08X}" + "00FF"
        assert parse_unique_key(key, ms(2026, 11, 2)) == UniqueKey(
            "127.0.0.1", 0x1234, 0xDEADBEEF, ms(2026, 11, 2) + 5, 255
        )
        v6 = "00000000000000000000000000000001" + key[8:]
        assert parse_unique_key(v6, ms(2026, 11, 2)) == UniqueKey("::1", 0x1234, 0xDEADBEEF, ms(2026, 11, 2) + 5, 255)

    @pytest.mark.parametrize(
        ("month_ms", "reference", "expected"),
        [
            (0, (2026, 12, 1), (2026, 12, 1)),
            (0, (2026, 11, 30), (2026, 12, 1)),  # the client lives east of Greenwich
            (30 * 86_400_000, (2027, 1, 1), (2026, 12, 31)),  # and here west of it
            (28 * 86_400_000, (2024, 2, 29), (2024, 2, 29)),
        ],
    )
    def test_the_month_is_the_nearest(
        self, month_ms: int, reference: tuple[int, int, int], expected: tuple[int, int, int]
    ) -> None:
        found = parse_unique_key(f"7F000001123400000000{month_ms:08X}0000", ms(*reference))
        assert found is not None
        assert found.timestamp_ms == ms(*expected)

    def test_more_than_a_month_is_no_key_of_that_form(self) -> None:
        assert parse_unique_key("7F000001123400000000FFFFFFFF0000", 0) is None

    @pytest.mark.parametrize("reference", [-(1 << 63), (1 << 63) - 1, -62135596800000, 253402300799999])
    def test_a_damaged_reference_time(self, reference: int) -> None:
        assert parse_unique_key("7F000001123400000000000000050000", reference) is not None

    @pytest.mark.parametrize("name", ["clean-430", "clean-497", "clean-533", "ipv6-533"])
    def test_real_unique_keys_tell_the_time_they_were_made(self, name: str) -> None:
        decoded = 0
        for message in stores.truth(name)["messages"]:
            key = message["properties"].get("UNIQ_KEY", "")
            found = parse_unique_key(key, message["bornTimestamp"])
            assert (found is None) == ("@" in key or not key)
            if found is not None:
                decoded += 1
                assert abs(found.timestamp_ms - message["storeTimestamp"]) < 3_600_000
        assert decoded > 400


class TestDelayLevels:
    def test_default(self) -> None:
        assert len(DEFAULT_DELAYS_MS) == 18
        assert DEFAULT_DELAYS_MS[:5] == (1000, 5000, 10_000, 30_000, 60_000)
        assert DEFAULT_DELAYS_MS[-2:] == (3_600_000, 7_200_000)
        assert parse_delay_levels("2d") == (172_800_000,)

    @pytest.mark.parametrize("text", ["", "5", "s", "1x", "1s  2s", "1.5s", "1s,2s", "٣s\u0661"])
    def test_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match="no delay level"):
            parse_delay_levels(text)

    def test_a_level_above_the_table_is_its_highest(self) -> None:
        assert delivery_timestamp_ms(10, 3) == 10_010
        assert delivery_timestamp_ms(10, 99) == 7_200_010
        assert delivery_timestamp_ms(10, 1, ()) == 1010

    @pytest.mark.parametrize("name", ["clean-497", "clean-514", "clean-533", "clean-540"])
    def test_real_delivery_times(self, name: str) -> None:
        levels = parse_delay_levels(stores.truth(name)["properties"]["messageDelayLevel"])
        delayed = [m for m in stores.truth(name)["messages"] if m["topic"] == SCHEDULE_TOPIC]
        assert delayed
        for message in delayed:
            level = int(message["properties"]["DELAY"])
            assert delivery_timestamp_ms(message["storeTimestamp"], level, levels) == message["tagsCode"]


# What java.util.Properties makes of these texts (OpenJDK 17).
JAVA_PROPERTIES = [
    ("a=b", {"a": "b"}),
    ("a : b\nc d\n e\t=\tf ", {"a": "b", "c": "d", "e": "f "}),
    ("# no\n! no\n\n   \n\t# no\na=#yes", {"a": "#yes"}),
    ("a=one,\\\n   two\\\r\n# three", {"a": "one,two# three"}),
    ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
    ("a\\=b\\:c\\ d=e", {"a=b:c d": "e"}),
    ("a=\\u00fc\\t\\q\\n", {"a": "ü\tq\n"}),
    ("a==b\nc=:d\ne::f", {"a": "=b", "c": ":d", "e": ":f"}),
    ("alone\nempty=", {"alone": "", "empty": ""}),
    ("a=1\na=2", {"a": "2"}),
    ("a=1\rb=2\r\nc=3", {"a": "1", "b": "2", "c": "3"}),
    ("=x", {"": "x"}),
    ("a=\\ud83d\\ude80", {"a": "🚀"}),
    ("a=b\\", {"a": "b"}),
]


@pytest.mark.parametrize(("text", "expected"), JAVA_PROPERTIES)
def test_properties_files(text: str, expected: dict[str, str]) -> None:
    assert parse_java_properties(text.encode()) == expected


def test_encodings_of_properties_files() -> None:
    assert parse_java_properties(b"\xef\xbb\xbfa=\xc3\xbc") == {"a": "ü"}
    assert parse_java_properties(b"a=\xfc") == {"a": "ü"}


@given(st.one_of(st.binary(), st.text("ab\\u0=: #!\n\r\t").map(str.encode)))
def test_any_bytes_are_a_properties_file(data: bytes) -> None:
    for name, value in parse_java_properties(data).items():
        assert (name + value).encode() is not None


def test_a_large_file_of_continuations_is_quick() -> None:
    assert parse_java_properties(b"a=" + b"x\\\n" * 300_000) == {"a": "x" * 300_000}


@given(st.lists(st.sampled_from([b"KEYS", b"TAGS", b"\x01", b"\x02", b"x", b"\xed\xa0", b"\xc3"]), max_size=30))
def test_some_properties_are_those_of_all(parts: list[bytes]) -> None:
    raw = b"".join(parts)
    told = some_properties(raw, (b"KEYS", b"TAGS"))
    whole = parse_properties(raw)
    assert {name.decode(): decode_text(value) for name, value in told.items()} == {
        name: whole[name] for name in ("KEYS", "TAGS") if name in whole
    }
