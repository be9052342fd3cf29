"""Check whether a record is well formed, and read its head (store format 2.2 and 2.5, behaviour 3.1).

Point reads use this too, so it needs only struct and zlib.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Final, NamedTuple

from store_core.kernel.codes import FrameCode
from store_core.layout import record

Window = bytes | bytearray | memoryview


class RecordHead(NamedTuple):
    """A well-formed record. ``*_at`` are indices into the window; negative body and property lengths are 0 here."""

    size_bytes: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    own_phy_offset: int
    sys_flag: int
    born_timestamp_ms: int
    store_timestamp_ms: int
    reconsume_times: int
    prepared_transaction_offset: int
    body_at: int
    body_length: int
    topic_at: int
    topic_length: int
    properties_at: int
    properties_length: int


@dataclass(frozen=True, slots=True)
class Shortage:
    """The window ends too early to decide: so many bytes from the record's start are needed."""

    need_bytes: int


def _head_struct(host_flags: int) -> struct.Struct:
    """Return one struct for everything before the body, hosts skipped."""
    born, store = (
        f"{record.host_size_bytes(bool(host_flags & flag))}x"
        for flag in (record.FLAG_BORN_HOST_V6, record.FLAG_STORE_HOST_V6)
    )
    layouts = (part.struct.format.removeprefix(">") for part in (record.HEAD, record.STORE_TIME, record.MIDDLE))
    head, store_time, middle = layouts
    return struct.Struct(f">{head}{born}{store_time}{store}{middle}")


_HOST_FLAGS: Final = record.FLAG_BORN_HOST_V6 | record.FLAG_STORE_HOST_V6
_HEADS: Final = {
    flags: _head_struct(flags) for flags in (0, record.FLAG_BORN_HOST_V6, record.FLAG_STORE_HOST_V6, _HOST_FLAGS)
}
_SHORT_HEAD: Final = _HEADS[0]
_SYS_FLAG: Final = record.HEAD.names.index("sys_flag")
_OWN_PHY_OFFSET: Final = record.HEAD.names.index("own_phy_offset")
_PROPERTIES_LENGTH_SIZE: Final = record.PROPERTIES_LENGTH.size_bytes
_TOPIC_LENGTHS: Final = {
    magic: record.topic_length_layout(magic).struct for magic in (record.MAGIC_V1, record.MAGIC_V2)
}
_LEAST_AFTER_BODY: Final = {
    magic: length.size + record.PROPERTIES_LENGTH.size_bytes for magic, length in _TOPIC_LENGTHS.items()
}
_MIN_SIZE: Final = record.MIN_RECORD_SIZE_BYTES
_MAX_SIZE: Final = record.MAX_RECORD_SIZE_BYTES
_OK: Final = FrameCode.OK
_unpack_prefix: Final = record.PREFIX.struct.unpack_from
_unpack_properties_length: Final = record.PROPERTIES_LENGTH.struct.unpack_from


def check_prefix(size_bytes: int, magic: int, left: int) -> FrameCode:
    """Return OK if the first two words can be a record's, with ``left`` bytes to the segment's end; else the reason."""
    if magic not in _TOPIC_LENGTHS:
        return FrameCode.MAGIC
    if not _MIN_SIZE <= size_bytes <= _MAX_SIZE or size_bytes > left:
        return FrameCode.SIZE
    return _OK


def check_record(window: Window, at: int, left: int) -> RecordHead | FrameCode | Shortage:
    """Return the record at index ``at`` of the window, ``left`` bytes before the segment's end.

    Every length is checked against the record's size before it is used. If there is no well-formed record, the reason is returned: MAGIC, SIZE or
    LENGTH_MISMATCH. Checksums and the record's own offset are not checked.
    """
    available = len(window) - at
    if available < record.PREFIX.size_bytes:
        return Shortage(record.PREFIX.size_bytes)
    size, magic = _unpack_prefix(window, at)
    if reason := check_prefix(size, magic, left):
        return reason
    if size > available:
        return Shortage(size) if _may_fill(window, at, size) else FrameCode.LENGTH_MISMATCH

    head = _SHORT_HEAD
    fields = head.unpack_from(window, at)
    host_flags = fields[_SYS_FLAG] & _HOST_FLAGS
    if host_flags:
        head = _HEADS[host_flags]
        if head.size > size:
            return FrameCode.LENGTH_MISMATCH
        fields = head.unpack_from(window, at)
    body_length = max(fields[-1], 0)
    if head.size + body_length + _LEAST_AFTER_BODY[magic] > size:
        return FrameCode.LENGTH_MISMATCH

    body_at = at + head.size
    topic_length_at = body_at + body_length
    topic_length_struct = _TOPIC_LENGTHS[magic]
    (topic_length,) = topic_length_struct.unpack_from(window, topic_length_at)
    topic_at = topic_length_at + topic_length_struct.size
    properties_length_at = topic_at + topic_length
    properties_at = properties_length_at + _PROPERTIES_LENGTH_SIZE
    if topic_length < 0 or properties_at > at + size:
        return FrameCode.LENGTH_MISMATCH
    properties_length = max(_unpack_properties_length(window, properties_length_at)[0], 0)
    if properties_at + properties_length != at + size:
        return FrameCode.LENGTH_MISMATCH
    places = (body_at, body_length, topic_at, topic_length, properties_at, properties_length)
    return RecordHead._make(fields[:-1] + places)


def _may_fill(window: Window, at: int, size_bytes: int) -> bool:
    """Return True if the parts of a record may add up to its size; the window has only its start.

    The scan must not wait for more bytes because of a wrong size.
    """
    available = len(window) - at
    if available < _SHORT_HEAD.size:
        return True
    _, magic = _unpack_prefix(window, at)
    head = _HEADS[_SHORT_HEAD.unpack_from(window, at)[_SYS_FLAG] & _HOST_FLAGS]
    if available < head.size:
        return True
    topic_length_at = head.size + max(head.unpack_from(window, at)[-1], 0)
    if topic_length_at + _LEAST_AFTER_BODY[magic] > size_bytes:
        return False
    topic_length_struct = _TOPIC_LENGTHS[magic]
    if topic_length_at + topic_length_struct.size > available:
        return True
    (topic_length,) = topic_length_struct.unpack_from(window, at + topic_length_at)
    properties_length_at = topic_length_at + topic_length_struct.size + topic_length
    properties_at = properties_length_at + _PROPERTIES_LENGTH_SIZE
    if topic_length < 0 or properties_at > size_bytes:
        return False
    if properties_at > available:
        return True
    return bool(properties_at + max(_unpack_properties_length(window, at + properties_length_at)[0], 0) == size_bytes)


def body_crc_holds(window: Window, head: RecordHead) -> bool:
    """Return True if the body matches its checksum; an empty body has none (store format 2.6)."""
    if not head.body_length:
        return True
    body = window[head.body_at : head.body_at + head.body_length]
    crc: int = zlib.crc32(body) & record.CRC_MASK
    return crc == head.body_crc


def property_crc_holds(window: Window, at: int, head: RecordHead) -> bool:
    """Return True if the property CRC tail matches the record before it; a record without a tail passes (2.6)."""
    if head.properties_length < record.PROPERTY_CRC.size_bytes:
        return True
    tail_at = at + head.size_bytes - record.PROPERTY_CRC.size_bytes
    name, separator, digits, end = record.PROPERTY_CRC.struct.unpack_from(window, tail_at)
    if name != record.PROPERTY_CRC_NAME or separator != record.NAME_VALUE_SEPARATOR:
        return True
    if end != record.PROPERTY_SEPARATOR or not digits.isdigit():
        return False
    crc = zlib.crc32(window[at:tail_at]) & record.CRC_MASK
    return crc == int(digits[::-1])


def has_plausible_head(window: Window, at: int, phy_offset: int, left: int) -> bool:
    """Return True if the bytes before the body could be of a record of this or an earlier place.

    The window must have the record's whole head at ``at``, unless the window ends with the segment.
    """
    size, magic = _unpack_prefix(window, at)
    if check_prefix(size, magic, left):
        return False
    fields = _SHORT_HEAD.unpack_from(window, at)
    head = _HEADS[fields[_SYS_FLAG] & _HOST_FLAGS]
    if not 0 <= fields[_OWN_PHY_OFFSET] <= phy_offset or head.size > size:
        return False
    body_length: int = max(head.unpack_from(window, at)[-1], 0)
    return bool(head.size + body_length + _LEAST_AFTER_BODY[magic] <= size)
