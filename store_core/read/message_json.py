"""Build the MESSAGE object of the command line's contract."""

from __future__ import annotations

import codecs
from base64 import b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from store_core.codec.compression import BodyError, inflated
from store_core.codec.record import Message, body_crc_ok
from store_core.findings import Finding, finding

LONG_BODY_BYTES: Final = 1 << 20  # of a larger body only the stored bytes are in memory as a whole
_BASE64_GROUP_BYTES: Final = 3
_NOT_COMPRESSED: Final = 0
_BODY_FIELDS: Final = ("body", "body_encoding")
_FIELDS: Final = (
    "topic",
    "queue_id",
    "queue_offset",
    "phy_offset",
    "size_bytes",
    "offset_msg_id",
    "unique_key",
    "tags",
    "keys",
    "flag",
    "sys_flag",
    "transaction",
    "compression",
    "born_timestamp_ms",
    "born_host",
    "store_timestamp_ms",
    "store_host",
    "reconsume_times",
    "prepared_transaction_offset",
    "body_crc",
    "crc",
    "body_size_bytes",
    "properties",
)

Encoding = Literal["utf-8", "base64"]


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


BodyForm = Literal["plain", "raw", "none"]


@dataclass(frozen=True, slots=True)
class MessageView:
    """A choice of the body to show: decompressed, as stored, or none. A large body is a ``LongBody``."""

    body: BodyForm = "plain"

    @property
    def fields(self) -> tuple[str, ...]:
        """The keys of every message in this view."""
        return _FIELDS if self.body == "none" else _FIELDS + _BODY_FIELDS

    def as_json(self, message: Message, findings: list[Finding] | None = None) -> dict[str, Any]:
        """Return one MESSAGE. A wrong checksum and a body that cannot be decompressed are added to ``findings``."""
        crc_holds = body_crc_ok(message)
        shown = {
            "topic": message.topic,
            "queue_id": message.queue_id,
            "queue_offset": message.queue_offset,
            "phy_offset": message.phy_offset,
            "size_bytes": message.size_bytes,
            "offset_msg_id": message.offset_msg_id,
            "unique_key": message.unique_key,
            "tags": message.tags,
            "keys": message.keys,
            "flag": message.flag,
            "sys_flag": message.sys_flag,
            "transaction": message.transaction,
            "compression": message.compression,
            "born_timestamp_ms": message.born_timestamp_ms,
            "born_host": message.born_host,
            "store_timestamp_ms": message.store_timestamp_ms,
            "store_host": message.store_host,
            "reconsume_times": message.reconsume_times,
            "prepared_transaction_offset": message.prepared_transaction_offset,
            "body_crc": message.body_crc,
            "crc": "ok" if crc_holds else "bad",
            "body_size_bytes": len(message.body),
            "properties": message.properties,
        }
        if findings is not None and not crc_holds:
            findings.append(_about("L001", "the body does not match its checksum", message))
        if self.body != "none":
            shown |= self._body(message, findings)
        return shown

    def _body(self, message: Message, findings: list[Finding] | None) -> dict[str, BodyText]:
        body = message.body
        try:
            if self.body == "raw":
                text, encoding = stored_text(body, base64=message.compression != "none")
            else:
                text, encoding = plain_text(body, message.sys_flag)
        except BodyError as error:
            if findings is not None:
                findings.append(_about("L012", f"the body is given as stored: {error}", message))
            text, encoding = stored_text(body, base64=True)
        return {"body": text, "body_encoding": encoding}


def _about(code: str, text: str, message: Message) -> Finding:
    return finding(
        code,
        text,
        phy_offset=message.phy_offset,
        size_bytes=message.size_bytes,
        topic=message.topic,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
    )
