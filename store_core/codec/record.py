"""Convert a record of the log from bytes to a Message and back (store format, sections 2 to 5)."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from struct import Struct
from struct import error as struct_error
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

from store_core.codec.compression import Compression, compression_kind
from store_core.codec.hosts import host_text, is_v6_host
from store_core.codec.message_id import format_offset_message_id
from store_core.codec.properties import KEYS, TAGS, UNIQ_KEY, format_properties, parse_properties, split_keys
from store_core.codec.text import decode_text, utf16_length
from store_core.layout import marks, record

Transaction = Literal["none", "prepared", "commit", "rollback"]
Reason = Literal["short", "beyond", "blank", "magic", "bounds", "mismatch"]

_TRANSACTIONS: Final[dict[int, Transaction]] = {
    record.TRANSACTION_NONE: "none",
    record.TRANSACTION_PREPARED: "prepared",
    record.TRANSACTION_COMMIT: "commit",
    record.TRANSACTION_ROLLBACK: "rollback",
}
_MAGIC: Final = record.PREFIX.field_struct("magic")
_MAGIC_AT: Final = record.PREFIX.offset_of("magic")
_MAGICS: Final = re.compile(b"|".join(re.escape(_MAGIC.pack(magic)) for magic in (record.MAGIC_V1, record.MAGIC_V2)))
_HOST_MASK: Final = record.FLAG_BORN_HOST_V6 | record.FLAG_STORE_HOST_V6
_REASONS: Final[dict[Reason, str]] = {
    "short": "too few bytes for a record",
    "beyond": "the record's size points beyond the end",
    "blank": "a blank, not a record",
    "magic": "no record magic",
    "bounds": "a part of the record does not fit",
    "mismatch": "the record's size is not the sum of its parts",
}


class RecordError(Exception):
    """The bytes at a position are no record.

    ``reason`` names the check that failed. ``size_bytes`` is the record's size field (0 where it could not be read); a broker's check reports that
    size only for ``mismatch``.
    """

    def __init__(self, reason: Reason, size_bytes: int = 0) -> None:
        super().__init__(_REASONS[reason])
        self.reason = reason
        self.size_bytes = size_bytes


def _fixed_struct(host_flags: int) -> Struct:
    """Return one struct of head, born host, store time, store host and middle for a combination of host lengths."""
    born = record.host_size_bytes(bool(host_flags & record.FLAG_BORN_HOST_V6))
    store = record.host_size_bytes(bool(host_flags & record.FLAG_STORE_HOST_V6))
    codes = [layout.struct.format.removeprefix(">") for layout in (record.HEAD, record.STORE_TIME, record.MIDDLE)]
    return Struct(f">{codes[0]}{born}s{codes[1]}{store}s{codes[2]}")


_FIXED: Final = {
    flags: _fixed_struct(flags)
    for flags in (
        0,
        record.FLAG_BORN_HOST_V6,
        record.FLAG_STORE_HOST_V6,
        record.FLAG_BORN_HOST_V6 | record.FLAG_STORE_HOST_V6,
    )
}
_SYS_FLAG: Final = record.HEAD.field_struct("sys_flag")
_SYS_FLAG_AT: Final = record.HEAD.offset_of("sys_flag")
_FIXED_NAMES: Final = (
    *record.HEAD.names,
    "raw_born_host",
    *record.STORE_TIME.names,
    "raw_store_host",
    *record.MIDDLE.names,
)


@lru_cache(maxsize=8)  # a caller that needs one field of a record mostly needs several
def _fixed_fields(head: bytes) -> tuple[Any, ...]:
    (sys_flag,) = _SYS_FLAG.unpack_from(head, _SYS_FLAG_AT)
    return _FIXED[sys_flag & _HOST_MASK].unpack(head)


_parsed: Final = lru_cache(maxsize=8)(parse_properties)
_Field = TypeVar("_Field", int, bytes)
_Part = TypeVar("_Part", int, bytes, str)


class _Fixed(Generic[_Field]):
    """A field before the body, decoded on access."""

    def __init__(self, name: str) -> None:
        self._place = _FIXED_NAMES.index(name)

    def __get__(self, message: Message, owner: type[Message]) -> _Field:
        field: _Field = _fixed_fields(message.head)[self._place]
        return field


class _Parts(NamedTuple):
    phy_offset: int
    head: bytes
    body: bytes
    topic: str
    raw_properties: bytes


def _getter(name: str, kind: type[_Part]) -> _Part:
    """Return the descriptor that gets a part from a tuple of five."""
    getter: _Part = vars(_Parts)[name]
    return getter


class Message(tuple[int, bytes, bytes, str, bytes]):
    """A record. ``phy_offset`` is its position, ``own_phy_offset`` the position it contains; hosts and body are as stored.

    A plain tuple of its parts in their order, because a named tuple takes longer to make. ``head`` is the bytes before the body.
    """

    __slots__ = ()

    phy_offset = _getter("phy_offset", int)
    head = _getter("head", bytes)
    body = _getter("body", bytes)
    topic = _getter("topic", str)
    raw_properties = _getter("raw_properties", bytes)

    size_bytes = _Fixed[int]("size_bytes")
    magic = _Fixed[int]("magic")
    body_crc = _Fixed[int]("body_crc")
    queue_id = _Fixed[int]("queue_id")
    flag = _Fixed[int]("flag")
    queue_offset = _Fixed[int]("queue_offset")
    own_phy_offset = _Fixed[int]("own_phy_offset")
    sys_flag = _Fixed[int]("sys_flag")
    born_timestamp_ms = _Fixed[int]("born_timestamp_ms")
    raw_born_host = _Fixed[bytes]("raw_born_host")
    store_timestamp_ms = _Fixed[int]("store_timestamp_ms")
    raw_store_host = _Fixed[bytes]("raw_store_host")
    reconsume_times = _Fixed[int]("reconsume_times")
    prepared_transaction_offset = _Fixed[int]("prepared_transaction_offset")

    def with_parts(self, body: bytes, raw_properties: bytes, **numbers: int) -> Message:
        """Return the message with another body and properties, and changed numbers of the head, by name.

        Raises ValueError where a number does not fit.
        """
        fields = dict(zip(_FIXED_NAMES, _fixed_fields(self.head), strict=True)) | numbers | {"body_length": len(body)}
        try:
            head = _FIXED[fields["sys_flag"] & _HOST_MASK].pack(*fields.values())
        except struct_error as error:
            raise ValueError(str(error)) from error
        return Message((self.phy_offset, head, body, self.topic, raw_properties))

    @property
    def properties(self) -> dict[str, str]:
        """Names and values. The caller must not change them."""
        return _parsed(self.raw_properties)

    @property
    def born_host(self) -> str:
        return host_text(self.raw_born_host)

    @property
    def store_host(self) -> str:
        return host_text(self.raw_store_host)

    @property
    def transaction(self) -> Transaction:
        return transaction_kind(self.sys_flag)

    @property
    def compression(self) -> Compression:
        return compression_kind(self.sys_flag)

    @property
    def offset_msg_id(self) -> str:
        """The id that clients compute from the record's own offset field."""
        return format_offset_message_id(self.raw_store_host, self.own_phy_offset)

    @property
    def unique_key(self) -> str | None:
        return self.properties.get(UNIQ_KEY)

    @property
    def keys(self) -> list[str]:
        return split_keys(self.properties.get(KEYS))

    @property
    def tags(self) -> str | None:
        return self.properties.get(TAGS)

    @property
    def is_tombstone(self) -> bool:
        """True if rmqctl wrote it in place of a lost message: it has the mark, and no properties of producers."""
        properties = self.properties
        is_marked = marks.TOMBSTONE_PROPERTY in properties and properties.keys().isdisjoint((UNIQ_KEY, KEYS, TAGS))
        return is_marked and self.transaction != "rollback"


def transaction_kind(sys_flag: int) -> Transaction:
    """Return which part of a transaction a record is."""
    return _TRANSACTIONS[sys_flag & record.TRANSACTION_MASK]


def decode_record(buffer: Any, at: int, phy_offset: int, size_left: int | None = None) -> Message:
    """Return the record at ``buffer[at]`` (bytes or a memoryview), by the structure check of section 2.5.

    ``phy_offset`` is its position in the log. ``size_left`` is the number of bytes to the segment's end, where the buffer extends further. The body's
    checksum is not verified (see ``body_crc_ok``). Raises RecordError and nothing else.
    """
    available = len(buffer) - at if size_left is None else min(len(buffer) - at, size_left)
    size_bytes, magic = _prefix(buffer, at, available)
    if available < record.MIN_RECORD_SIZE_BYTES:
        raise RecordError("bounds", size_bytes)
    (sys_flag,) = _SYS_FLAG.unpack_from(buffer, at + _SYS_FLAG_AT)
    body_at = at + _FIXED[sys_flag & _HOST_MASK].size
    end = at + available
    if body_at > end:
        raise RecordError("bounds", size_bytes)
    (body_length,) = _BODY_LENGTH.unpack_from(buffer, body_at - _BODY_LENGTH.size)
    body, cursor = _part(buffer, body_at, body_length, size_bytes, end)
    topic_length, cursor = _length(_TOPIC_LENGTHS[magic], buffer, cursor, end, size_bytes)
    if topic_length < 0:
        raise RecordError("bounds", size_bytes)
    topic, cursor = _part(buffer, cursor, topic_length, size_bytes, end)
    properties_length, cursor = _length(_PROPERTIES_LENGTH, buffer, cursor, end, size_bytes)
    properties, cursor = _part(buffer, cursor, properties_length, size_bytes, end)
    if cursor - at != size_bytes:
        raise RecordError("mismatch", size_bytes)
    return Message((phy_offset, bytes(buffer[at:body_at]), body, decode_text(topic), properties))


_BODY_LENGTH: Final = record.MIDDLE.field_struct("body_length")  # the last field before the body
_PROPERTIES_LENGTH: Final = record.PROPERTIES_LENGTH.struct
_TOPIC_LENGTHS: Final = {
    magic: record.topic_length_layout(magic).struct for magic in (record.MAGIC_V1, record.MAGIC_V2)
}


def _prefix(buffer: Any, at: int, available: int) -> tuple[int, int]:
    if at < 0 or available < record.PREFIX.size_bytes:
        raise RecordError("short")
    size_bytes, magic = record.PREFIX.struct.unpack_from(buffer, at)
    if size_bytes > available:
        raise RecordError("beyond", size_bytes)
    if magic == record.MAGIC_BLANK:
        raise RecordError("blank", size_bytes)
    if magic not in (record.MAGIC_V1, record.MAGIC_V2):
        raise RecordError("magic", size_bytes)
    return size_bytes, magic


def _length(struct: Struct, buffer: Any, at: int, end: int, size_bytes: int) -> tuple[int, int]:
    field_end = at + struct.size
    if field_end > end:
        raise RecordError("bounds", size_bytes)
    return struct.unpack_from(buffer, at)[0], field_end


def _part(buffer: Any, at: int, length: int, size_bytes: int, end: int) -> tuple[bytes, int]:
    """Return a variable part and its end. A broker copies it into an array of the record's size, hence that bound."""
    if length <= 0:
        return b"", at
    if length > size_bytes or at + length > end:
        raise RecordError("bounds", size_bytes)
    return bytes(buffer[at : at + length]), at + length


def body_crc(body: bytes) -> int:
    """Return the checksum that a record stores of its body; 0 for an empty one."""
    return zlib.crc32(body) & record.CRC_MASK


def possible_starts(data: bytes) -> Iterator[int]:
    """Yield the positions in some bytes where a record may start, by its magic; a position may be negative."""
    return (match.start() - _MAGIC_AT for match in _MAGICS.finditer(data))


def identity_of(message: Message) -> tuple[object, ...]:
    """Return the fields that identify a message independently of its body and properties."""
    return (
        message.size_bytes,
        message.own_phy_offset,
        message.topic,
        message.queue_id,
        message.queue_offset,
        message.body_crc,
        message.born_timestamp_ms,
        message.store_timestamp_ms,
    )


def body_crc_ok(message: Message) -> bool:
    """Return True if the stored body matches the record's checksum; an empty body is not checked, as in a broker."""
    return not message.body or body_crc(message.body) == message.body_crc


def property_crc_ok(raw: bytes) -> bool | None:
    """Return True if the property CRC at a whole record's end is right; None where the record has none (section 2.6)."""
    at = len(raw) - record.PROPERTY_CRC.size_bytes
    if at < record.MIN_RECORD_SIZE_BYTES:
        return None
    tail = bytes(raw[at:])
    if not tail.startswith(record.PROPERTY_CRC_NAME + bytes([record.NAME_VALUE_SEPARATOR])):
        return None
    return tail == _property_crc_tail(raw[:at])


def _property_crc_tail(front: bytes) -> bytes:
    width = record.PROPERTY_CRC.field("digits").size_bytes
    digits = f"{zlib.crc32(front) & record.CRC_MASK:0{width}d}"[::-1].encode()
    return record.PROPERTY_CRC.struct.pack(
        record.PROPERTY_CRC_NAME, record.NAME_VALUE_SEPARATOR, digits, record.PROPERTY_SEPARATOR
    )


def topic_magic(topic: str) -> int:
    """Return V2 for topics of more than 127 Java characters, else V1."""
    return record.MAGIC_V2 if utf16_length(topic) > record.LONGEST_V1_TOPIC else record.MAGIC_V1


def encode_record(
    *,
    topic: str,
    body: bytes,
    properties: Mapping[str, str] | bytes,
    queue_id: int,
    queue_offset: int,
    phy_offset: int,
    born_timestamp_ms: int,
    born_host: bytes,
    store_timestamp_ms: int,
    store_host: bytes,
    flag: int = 0,
    sys_flag: int = 0,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
    final_separator: bool = True,
    property_crc: bool = False,
) -> bytes:
    """Return a whole record, as a broker writes it. ``body`` is stored unchanged; ``sys_flag`` names its compression.

    Hosts are stored bytes (``codec.hosts.host_bytes``); their flags in ``sys_flag`` are set from their lengths. ``properties`` is a mapping, or a
    ready property string. Raises ValueError where a part is too long for its field.
    """
    sys_flag = sys_flag & ~_HOST_MASK | _host_flags(born_host, store_host)
    magic, raw_topic = topic_magic(topic), topic.encode()
    text = properties if isinstance(properties, bytes) else format_properties(properties, final_separator)
    if property_crc and text and text[-1] != record.PROPERTY_SEPARATOR:
        text += bytes([record.PROPERTY_SEPARATOR])
    properties_length = len(text) + (record.PROPERTY_CRC.size_bytes if property_crc else 0)
    topic_length = record.topic_length_layout(magic)
    if len(raw_topic) >= 1 << (8 * topic_length.size_bytes - 1):
        raise ValueError(f"a topic of {len(raw_topic)} bytes does not fit")
    if properties_length > record.MAX_PROPERTIES_SIZE_BYTES:
        raise ValueError(f"properties of {properties_length} bytes do not fit")
    size_bytes = record.record_size_bytes(magic, sys_flag, len(body), len(raw_topic), properties_length)
    head = (size_bytes, magic, body_crc(body), queue_id, flag, queue_offset, phy_offset, sys_flag, born_timestamp_ms)
    middle = (reconsume_times, prepared_transaction_offset, len(body))
    front = b"".join(
        (
            _FIXED[sys_flag & _HOST_MASK].pack(*head, born_host, store_timestamp_ms, store_host, *middle),
            body,
            topic_length.struct.pack(len(raw_topic)),
            raw_topic,
            record.PROPERTIES_LENGTH.struct.pack(properties_length),
            text,
        )
    )
    return front + _property_crc_tail(front) if property_crc else front


def _host_flags(born_host: bytes, store_host: bytes) -> int:
    born = record.FLAG_BORN_HOST_V6 if is_v6_host(born_host) else 0
    store = record.FLAG_STORE_HOST_V6 if is_v6_host(store_host) else 0
    for raw in (born_host, store_host):
        host_text(raw)  # raises ValueError for any other length
    return born | store


def encode_blank(size_left: int) -> bytes:
    """Return the eight bytes that close a segment with ``size_left`` bytes left in it, these eight included."""
    return record.PREFIX.struct.pack(size_left, record.MAGIC_BLANK)


def decode_blank(buffer: Any, at: int, size_left: int | None = None) -> int | None:
    """Return the size field of the blank at a position; None where there is no blank. The size may be wrong."""
    available = len(buffer) - at if size_left is None else min(len(buffer) - at, size_left)
    if at < 0 or available < record.PREFIX.size_bytes:
        return None
    size_bytes, magic = record.PREFIX.struct.unpack_from(buffer, at)
    return size_bytes if magic == record.MAGIC_BLANK else None
