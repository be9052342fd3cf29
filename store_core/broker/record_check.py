"""Check the bytes at one offset exactly as a broker's record check does (behaviour 3.1, store format 2.5).

The walk uses it where the kernel found no frame; all other records go through the kernel's columns.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol

from store_core.codec.properties import has_bad_batch, has_bad_level, has_parted_value, some_properties
from store_core.kernel.codes import PROPERTY_NAMES, FrameCode, PropertyFlag
from store_core.kernel.columns import Row, property_columns
from store_core.layout import record

if TYPE_CHECKING:
    from store_core.broker.versions import Behaviour

Read = Callable[[int, int], bytes]  # (phy_offset, size_bytes) -> bytes, fewer at the end of a segment

# A Java array cannot be longer; a request for more ends load() with OutOfMemoryError.
JAVA_ARRAY_LIMIT: Final = 0x7FFFFFFD
# From this size on it depends on the heap if the check can allocate its scratch array.
HEAP_DEPENDENT_BYTES: Final = 256 << 20
_CHUNK_BYTES: Final = 16 << 20
_V6_FLAGS: Final = record.FLAG_BORN_HOST_V6 | record.FLAG_STORE_HOST_V6


class Verdict(Enum):
    """The check's result, in its own terms of (success, size)."""

    RECORD = "success, size of the record"
    BLANK = "success, 0"
    MISMATCH = "failure, size: the parts do not add up"
    FAILED = "failure, -1"
    OUT_OF_MEMORY = "no answer: the scratch array can not be had"


@dataclass(frozen=True, slots=True)
class Checked:
    """The check's answer. Only a RECORD has a ``row``, whose ``*_at`` count from the record's start.

    ``consumed_bytes``: for a MISMATCH, the end of the parts. ``scratch_bytes``: the size of the array that the check made.
    """

    verdict: Verdict
    size_bytes: int = 0
    consumed_bytes: int = 0
    scratch_bytes: int = 0
    row: Row | None = None
    topic: bytes = b""
    properties: bytes = b""


class SizeRules(Protocol):
    """The rules of a release for impossible sizes.

    Read them only where such a size is found: releases whose rules a start did not read take the same path.
    """

    @property
    def bounds_size(self) -> bool: ...
    @property
    def refuses_negative_blanks(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class CheckRules:
    """The rules of the check that depend on release and configuration."""

    check_crc: bool
    verify_property_crc: bool
    reads_v2: bool
    reads_v6_hosts: bool
    reads_batches: bool
    drops_parted_values: bool
    sizes: SizeRules

    @classmethod
    def of(cls, behaviour: Behaviour, *, check_crc: bool, verify_property_crc: bool) -> CheckRules:
        return cls(
            check_crc,
            check_crc and verify_property_crc and behaviour.verifies_property_crc,
            behaviour.reads_v2,
            behaviour.reads_v6_hosts,
            behaviour.batch_queues,
            behaviour.drops_parted_values,
            behaviour,
        )


def check_at(read: Read, phy_offset: int, left: int, rules: CheckRules) -> Checked:
    """Check the frame at ``phy_offset`` with ``left`` bytes to the end of the broker's readable bytes."""
    prefix = read(phy_offset, min(record.PREFIX.size_bytes, left))
    if len(prefix) < record.PREFIX.size_bytes:
        return Checked(Verdict.FAILED)
    size, magic = record.PREFIX.struct.unpack(prefix)
    if size > left and rules.sizes.bounds_size:
        return Checked(Verdict.FAILED)
    if magic == record.MAGIC_BLANK:
        return Checked(Verdict.FAILED if size < 0 and rules.sizes.refuses_negative_blanks else Verdict.BLANK)
    if magic != record.MAGIC_V1 and not (magic == record.MAGIC_V2 and rules.reads_v2):
        return Checked(Verdict.FAILED)
    if size < 0:
        return Checked(Verdict.FAILED)
    if size > JAVA_ARRAY_LIMIT:
        return Checked(Verdict.OUT_OF_MEMORY, size)
    return replace(_check_parts(read, phy_offset, left, size, magic, rules), scratch_bytes=size)


def _check_parts(read: Read, start: int, left: int, size: int, magic: int, rules: CheckRules) -> Checked:
    """Do steps 4 to 9. In the broker a read past ``left``, or of more than the scratch array of ``size``, throws."""
    head_bytes = read(start, min(left, record.body_at(_V6_FLAGS)))
    if len(head_bytes) < record.HEAD.size_bytes:
        return Checked(Verdict.FAILED)
    head = record.HEAD.read(head_bytes)
    host_flags = head["sys_flag"] & _V6_FLAGS if rules.reads_v6_hosts else 0
    body_at = record.body_at(host_flags)
    if len(head_bytes) < body_at:
        return Checked(Verdict.FAILED)
    store_time = record.STORE_TIME.read(head_bytes, record.store_time_at(host_flags))
    middle = record.MIDDLE.read(head_bytes, record.middle_at(host_flags))
    body_length = max(middle["body_length"], 0)
    if body_length > size or body_at + body_length > left:
        return Checked(Verdict.FAILED)
    wants_crc = rules.check_crc and not rules.verify_property_crc and body_length
    if wants_crc and _crc(read, start + body_at, body_length) != head["body_crc"]:
        return Checked(Verdict.FAILED)
    topic_part = _counted(
        read, start, body_at + body_length, record.topic_length_layout(magic).struct.format, size, left
    )
    if topic_part is None:
        return Checked(Verdict.FAILED)
    topic_at, topic = topic_part
    properties_part = _counted(
        read, start, topic_at + len(topic), record.PROPERTIES_LENGTH.struct.format, size, left, may_be_negative=True
    )
    if properties_part is None:
        return Checked(Verdict.FAILED)
    properties_at, properties = properties_part
    if rules.verify_property_crc and not _property_crc_holds(read, start, size, properties):
        return Checked(Verdict.FAILED)
    if has_bad_level(topic, properties, drops_parted=rules.drops_parted_values):
        return Checked(Verdict.FAILED)
    if properties_at + len(properties) != size:
        return Checked(Verdict.MISMATCH, size, consumed_bytes=properties_at + len(properties))
    bad_batch = has_bad_batch(properties)
    if bad_batch and rules.reads_batches:
        return Checked(Verdict.FAILED)
    values = some_properties(properties, PROPERTY_NAMES, drops_parted=rules.drops_parted_values)
    tags_code, delay_level, property_flags = property_columns(topic, values)
    if has_parted_value(some_properties(properties, PROPERTY_NAMES)):
        property_flags |= PropertyFlag.PARTED_VALUE
    row = Row(
        kind=0,
        code=FrameCode.BAD_NUMBER if bad_batch else FrameCode.OK,
        phy_offset=start,
        **head,
        **store_time,
        **{name: middle[name] for name in ("reconsume_times", "prepared_transaction_offset")},
        body_at=body_at,
        body_length=body_length,
        topic_at=topic_at,
        topic_length=len(topic),
        properties_at=properties_at,
        properties_length=len(properties),
        topic_id=0,
        tags_code=tags_code,
        delay_level=delay_level,
        property_flags=property_flags,
    )
    return Checked(Verdict.RECORD, size, row=row, topic=topic, properties=properties)


def _counted(
    read: Read, start: int, at: int, length_format: str, size: int, left: int, *, may_be_negative: bool = False
) -> tuple[int, bytes] | None:
    """Read a length and the bytes it counts; return their start in the record and the bytes, or None if reading throws."""
    width = struct.calcsize(length_format)
    raw = read(start + at, width) if at + width <= left else b""
    if len(raw) < width:
        return None
    (length,) = struct.unpack(length_format, raw)
    if may_be_negative:
        length = max(length, 0)
    if not 0 <= length <= size or at + width + length > left:
        return None
    return at + width, read(start + at + width, length)


def _crc(read: Read, phy_offset: int, size_bytes: int) -> int:
    crc, done = 0, 0
    while done < size_bytes:
        piece = read(phy_offset + done, min(size_bytes - done, _CHUNK_BYTES))
        if not piece:
            break
        crc, done = zlib.crc32(piece, crc), done + len(piece)
    return crc & record.CRC_MASK


def _property_crc_holds(read: Read, start: int, size: int, properties: bytes) -> bool:
    """Return True if the record has the checksum property that forceVerifyPropCRC requires, with the right value (2.6)."""
    digits = some_properties(properties, (record.PROPERTY_CRC_NAME,)).get(record.PROPERTY_CRC_NAME, b"")
    covered = size - record.PROPERTY_CRC.size_bytes
    if not digits.isdigit() or covered <= 0:
        return False
    return _crc(read, start, covered) == int(digits[::-1])
