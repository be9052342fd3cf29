"""Read records by their offset in the log (store behaviour 10.1). A length is checked before it is used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from store_core.codec.batch import BatchItem, split_inner_batch
from store_core.codec.compression import BodyError, decompress
from store_core.codec.record import Message, RecordError, body_crc, body_crc_ok, decode_record
from store_core.layout import record
from store_core.storage.sequence import SegmentSequence

_FIRST_READ_BYTES: Final = 2048  # holds most records whole
_MOST_BELIEVED_BYTES: Final = 1 << 16  # more is read only by the record's own size field
_STORE_TIME_READ_BYTES: Final = record.store_host_at(record.FLAG_BORN_HOST_V6)
# Module names, not attributes, because point reads spend their time here.
_unpack_prefix: Final = record.PREFIX.struct.unpack_from
_PREFIX_SIZE: Final = record.PREFIX.size_bytes
_MIN_SIZE: Final = record.MIN_RECORD_SIZE_BYTES
_MAX_SIZE: Final = record.MAX_RECORD_SIZE_BYTES
_MAGICS: Final = (record.MAGIC_V1, record.MAGIC_V2)


def read_record_bytes(log: SegmentSequence, phy_offset: int, expected_size_bytes: int = 0) -> bytes | None:
    """Return the bytes of the record at an offset, by its own size field; None where no record can start.

    ``expected_size_bytes`` (a queue entry's size) saves a second read when it is right, and does no harm when it is not.
    """
    wanted = _FIRST_READ_BYTES
    if expected_size_bytes > 0:
        wanted = min(max(expected_size_bytes, _PREFIX_SIZE), _MOST_BELIEVED_BYTES)
    data = log.read(phy_offset, wanted)
    if len(data) < _PREFIX_SIZE:
        return None
    size_bytes, magic = _unpack_prefix(data)
    if magic not in _MAGICS or not _MIN_SIZE <= size_bytes <= _MAX_SIZE:
        return None
    if size_bytes > len(data):
        data = log.read(phy_offset, size_bytes)
    return data[:size_bytes] if len(data) >= size_bytes else None


def read_message(log: SegmentSequence, phy_offset: int, expected_size_bytes: int = 0) -> Message | None:
    """Return the record at an offset; None where there is no well-formed one. Its body's checksum is not verified."""
    data = read_record_bytes(log, phy_offset, expected_size_bytes)
    if data is None:
        return None
    try:
        return decode_record(data, 0, phy_offset)
    except RecordError:
        return None


def read_size_bytes(log: SegmentSequence, phy_offset: int) -> int | None:
    """Return the size of the record at an offset, from its own size field; None where no record can start."""
    data = log.read(phy_offset, _PREFIX_SIZE) if phy_offset >= 0 else b""
    if len(data) < _PREFIX_SIZE:
        return None
    size_bytes, magic = _unpack_prefix(data)
    return int(size_bytes) if magic in _MAGICS and _MIN_SIZE <= size_bytes <= _MAX_SIZE else None


def read_store_timestamp_ms(log: SegmentSequence, phy_offset: int) -> int | None:
    """Return the store time of the record at an offset in ms; None where there is no record."""
    data = log.read(phy_offset, _STORE_TIME_READ_BYTES) if phy_offset >= 0 else b""
    if len(data) < record.PREFIX.size_bytes or _unpack_prefix(data)[1] not in (record.MAGIC_V1, record.MAGIC_V2):
        return None
    if len(data) < record.HEAD.size_bytes:
        return None
    (sys_flag,) = _SYS_FLAG.unpack_from(data, _SYS_FLAG_AT)
    at = record.store_time_at(sys_flag)
    if at + _STORE_TIME.size > len(data):
        return None
    found: int = _STORE_TIME.unpack_from(data, at)[0]
    return found


_SYS_FLAG: Final = record.HEAD.field_struct("sys_flag")
_SYS_FLAG_AT: Final = record.HEAD.offset_of("sys_flag")
_STORE_TIME: Final = record.STORE_TIME.struct
_LONG: Final = 1 << 63


def needs_unwrap(message: Message) -> bool:
    """Return True if a consumer must split this record's body into messages (store format 5.3)."""
    both = record.FLAG_INNER_BATCH | record.FLAG_NEED_UNWRAP
    return message.sys_flag & both == both


def unwrapped(message: Message) -> Iterator[Message]:
    """Yield the messages of an inner batch as a client gets them: own flag, body and properties, consecutive queue offsets.

    Offset in the log, times, hosts and ids are the record's. A record that is no batch, or whose body cannot be split, is yielded whole.
    """
    items = _items(message) if needs_unwrap(message) else []
    if not items:
        yield message
        return
    # An item has no checksum of its own, so the record's decides.
    crc_holds = body_crc_ok(message)
    plain_flags = message.sys_flag & ~(record.FLAG_COMPRESSED | record.FLAG_INNER_BATCH | record.FLAG_NEED_UNWRAP)
    for number, item in enumerate(items):
        yield message.with_parts(
            item.body,
            item.raw_properties,
            flag=item.flag,
            body_crc=body_crc(item.body) if crc_holds else message.body_crc,
            sys_flag=plain_flags,
            queue_offset=(message.queue_offset + number + _LONG) % (2 * _LONG) - _LONG,  # wraps as Java's numbers do
        )


def _items(message: Message) -> list[BatchItem]:
    """Return the items of a batch; none where the body cannot be decompressed or split."""
    try:
        return split_inner_batch(decompress(message.body, message.sys_flag))
    except BodyError:
        return []
