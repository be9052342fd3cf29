"""Convert a message's body to text: a string where it is short, else pieces made while they are written."""

from __future__ import annotations

import codecs
from base64 import b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from store_core.codec.compression import inflated

LONG_BODY_BYTES: Final = 1 << 20  # of a larger body only the stored bytes are in memory as a whole
Encoding = Literal["utf-8", "base64"]
_BASE64_GROUP_BYTES: Final = 3
_NOT_COMPRESSED: Final = 0
_utf8_decoder: Final = codecs.getincrementaldecoder("utf-8")


@dataclass(frozen=True, slots=True)
class LongBody:
    """A readable body that is too large to be one string. ``size_bytes`` is the size of the plain body."""

    stored: bytes = field(repr=False)
    sys_flag: int
    encoding: Encoding
    size_bytes: int

    def pieces(self) -> Iterator[str]:
        """Yield the text in pieces of at most a quarter of a MiB; each call decompresses the body again."""
        plain = inflated(self.stored, self.sys_flag)
        return _base64_pieces(plain) if self.encoding == "base64" else _utf8_pieces(plain)

    def head(self, characters: int) -> str:
        """Return the first ``characters`` characters of the text."""
        text = ""
        for piece in self.pieces():
            text += piece[: characters - len(text)]
            if len(text) == characters:
                break
        return text

    def __str__(self) -> str:
        return "".join(self.pieces())


BodyText = str | LongBody


def plain_text(stored: bytes, sys_flag: int) -> tuple[BodyText, Encoding]:
    """Return the decompressed body as text if it is UTF-8, else in base64. Raises BodyError."""
    short_body: list[bytes | memoryview] = []
    size = 0
    decoder = _utf8_decoder()
    encoding: Encoding = "utf-8"
    for piece in inflated(stored, sys_flag):
        size += len(piece)
        if size <= LONG_BODY_BYTES:
            short_body.append(piece)
            continue
        if encoding == "utf-8" and not (_decodes(decoder, short_body) and _decodes(decoder, [piece])):
            encoding = "base64"
        short_body.clear()
    if size <= LONG_BODY_BYTES:
        return _short(b"".join(short_body))
    if encoding == "utf-8" and not _decodes(decoder, [b""], final=True):
        encoding = "base64"
    return LongBody(stored, sys_flag, encoding, size), encoding


def stored_text(stored: bytes, *, base64: bool) -> tuple[BodyText, Encoding]:
    """Return the stored body as text; set ``base64`` for bytes that are no text, such as a compressed body."""
    if not base64:
        return plain_text(stored, _NOT_COMPRESSED)
    if len(stored) > LONG_BODY_BYTES:
        return LongBody(stored, _NOT_COMPRESSED, "base64", len(stored)), "base64"
    return b64encode(stored).decode(), "base64"


def _short(body: bytes) -> tuple[str, Encoding]:
    try:
        return body.decode(), "utf-8"
    except UnicodeDecodeError:
        return b64encode(body).decode(), "base64"


def _decodes(decoder: codecs.IncrementalDecoder, pieces: Iterable[bytes | memoryview], *, final: bool = False) -> bool:
    try:
        for piece in pieces:
            decoder.decode(bytes(piece), final)
    except UnicodeDecodeError:
        return False
    return True


def _utf8_pieces(plain: Iterable[bytes | memoryview]) -> Iterator[str]:
    decoder = _utf8_decoder()
    for piece in plain:
        yield decoder.decode(bytes(piece))
    yield decoder.decode(b"", True)


def _base64_pieces(plain: Iterable[bytes | memoryview]) -> Iterator[str]:
    rest = b""
    for piece in plain:
        data = rest + piece
        whole = len(data) - len(data) % _BASE64_GROUP_BYTES
        rest = data[whole:]
        yield b64encode(data[:whole]).decode()
    yield b64encode(rest).decode()
