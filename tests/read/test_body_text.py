"""Bodies as text: the same whole and in pieces, and never much of them in memory."""

from __future__ import annotations

import tracemalloc
from base64 import b64encode

import pytest

from store_core.codec.compression import BodyError, compress
from store_core.read.message_json import LONG_BODY_BYTES, LongBody, plain_text, stored_text

KINDS = ("none", "zlib", "lz4", "zstd")


def stored(body: bytes, kind: str) -> tuple[bytes, int]:
    return (body, 0) if kind == "none" else compress(body, kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [0, 7, LONG_BODY_BYTES, LONG_BODY_BYTES + 1, 3 * LONG_BODY_BYTES + 5])
def test_text_is_the_text_and_bytes_are_base64(kind: str, size: int) -> None:
    text = ("größer €" * (size // 8 + 1)).encode()[:size].decode(errors="ignore") + "x"
    for body, expected, encoding in (
        (text.encode(), text, "utf-8"),
        (text.encode() + b"\xff", b64encode(text.encode() + b"\xff").decode(), "base64"),
        (b"\xff" + text.encode(), b64encode(b"\xff" + text.encode()).decode(), "base64"),
        (text.encode() + "€".encode()[:-1], b64encode(text.encode() + "€".encode()[:-1]).decode(), "base64"),
    ):
        shown, told = plain_text(*stored(body, kind))
        assert (str(shown), told) == (expected, encoding)
        assert isinstance(shown, LongBody) == (len(body) > LONG_BODY_BYTES)
        if isinstance(shown, LongBody):
            assert shown.size_bytes == len(body)
            assert shown.head(100_001) == expected[:100_001]
            assert shown.head(len(expected) + 1) == expected


@pytest.mark.parametrize("size", [5, LONG_BODY_BYTES + 1])
def test_stored_bytes_are_text_only_where_they_may_be(size: int) -> None:
    body = b"a" * size
    assert [str(part) for part in stored_text(body, base64=False)] == [body.decode(), "utf-8"]
    assert [str(part) for part in stored_text(body, base64=True)] == [b64encode(body).decode(), "base64"]


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_long_body_that_is_torn_is_told_before_any_of_it_is_shown(kind: str) -> None:
    data, flags = compress(b"a" * (4 * LONG_BODY_BYTES), kind)
    with pytest.raises(BodyError):
        plain_text(data[:-1], flags)


@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize("byte", [b"a", b"\0", b"\xff"])
def test_a_long_body_is_never_in_memory(kind: str, byte: bytes) -> None:
    data, flags = compress(byte * (48 << 20), kind)
    tracemalloc.start()
    try:
        shown, _ = plain_text(data, flags)
        assert isinstance(shown, LongBody)
        assert sum(map(len, shown.pieces())) >= 48 << 20
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
