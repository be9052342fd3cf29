"""Property strings, hashes and index keys against worked values of the format (sections 4, 7.3, 13)."""

from __future__ import annotations

import pytest

from store_core.codec.properties import has_parted_value, some_properties
from store_core.codec.tags import index_key_hashes, index_text_hash, java_hash, tags_code
from store_core.codec.text import decode_text
from store_core.kernel.codes import PROPERTY_NAMES


def test_java_hash() -> None:
    assert java_hash("TagA") == 2598919
    assert java_hash("orders") == -1008770331
    assert java_hash("") == 0
    assert tags_code("orders") == -1008770331
    assert java_hash("\U0001f600") == java_hash("\ud83d\ude00")


def test_index_keys() -> None:
    values = {b"KEYS": b"K1001  K2 ", b"UNIQ_KEY": b"U", b"TAGS": b"T"}
    unique, first, second = index_key_hashes(b"order-events", values)
    assert first == 260429664
    assert unique == abs(java_hash("order-events#U"))
    assert second == abs(java_hash("order-events#K2"))
    assert index_key_hashes(b"order-events", values, with_keys=False, with_tags=True) == [
        abs(java_hash("order-events#T#T"))
    ]


def test_the_hash_without_a_positive_counterpart_counts_as_zero() -> None:
    """``polygenelubricants`` hashes to the smallest int."""
    assert java_hash("polygenelubricants") == -(1 << 31)
    assert index_text_hash("polygenelubricants") == 0
    assert index_text_hash("orders") == 1008770331


@pytest.mark.parametrize(
    ("text", "decoded"),
    [
        (b"\xed\xa0\x80", "\ufffd"),  # a surrogate: one mark in Java
        (b"\xed\xa0", "\ufffd"),
        (b"\xed\xa0A", "\ufffdA"),
        (b"\xedA", "\ufffdA"),
        (b"\xe4\xb8", "\ufffd"),
        (b"\xe4\xb8A", "\ufffdA"),
        (b"\xc0\x80", "\ufffd\ufffd"),
        (b"\xf0\x9f\x98", "\ufffd"),
        (b"\xf4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd"),
        (b"\xf0\x9f\x98\x80", "\U0001f600"),
    ],
)
def test_malformed_text_as_java_decodes_it(text: bytes, decoded: str) -> None:
    """Each of these values was printed by a JVM."""
    assert decode_text(text) == decoded


@pytest.mark.parametrize(
    ("text", "new", "old"),
    [
        (b"TAGS\1x\1y", b"x\1y", None),
        (b"TAGS\1x\1", b"x\1", b"x"),
        (b"TAGS\1x\1\1", b"x\1\1", b"x"),
        (b"TAGS\1\1", b"\1", None),
        (b"TAGS\1\1x", b"\1x", None),
        (b"TAGS\1x\2TAGS\1y\1z", b"y\1z", b"x"),
        (b"TAGS\1y\1z\2TAGS\1x", b"x", b"x"),
    ],
)
def test_values_with_a_separator_as_releases_read_them(text: bytes, new: bytes, old: bytes | None) -> None:
    """Each as ``string2messageProperties`` of 4.3.0, 4.9.0, 4.9.1 and 4.9.7 gives it."""
    assert some_properties(text, PROPERTY_NAMES) == {b"TAGS": new}
    assert some_properties(text, PROPERTY_NAMES, drops_parted=True) == ({} if old is None else {b"TAGS": old})
    assert has_parted_value(some_properties(text, PROPERTY_NAMES)) is (new != old)


def test_property_grammar() -> None:
    text = b"TAGS\1;KEYS\1v;\1z;TRAN_MSG\1d\1e;KEYS\1w;DELAY;UNIQ_KEY\1\1;xTAGS\1y".replace(b";", b"\2")
    assert some_properties(text, PROPERTY_NAMES) == {
        b"KEYS": b"w",
        b"TRAN_MSG": b"d\1e",
        b"UNIQ_KEY": b"\1",
    }
    assert some_properties(b"", PROPERTY_NAMES) == {}
