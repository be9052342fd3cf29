"""Derive entries from columns, in readable Python (compiled: src/derive.rs). See ``derive`` for arguments and results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from store_core.kernel.codes import FrameCode, FrameKind
from store_core.kernel.derive import ROW, STRETCH
from store_core.layout import index, queue, record

Ints = NDArray[Any]
# The fields of a row in the order of their bits, and the assumed row before a key's first.
_PACKED: Final = ("phy_offset", "queue_offset", "tags_code", "store_timestamp_ms", "size_bytes", "batch_size")
_FIRST: Final[tuple[int, ...]] = (0, -1, 0, 0, 0, 1)
_MS_PER_SECOND: Final = 1000
_LARGEST_SECONDS: Final = (1 << 31) - 1
_TRANSACTIONS_WITH_ENTRY: Final = (record.TRANSACTION_NONE, record.TRANSACTION_COMMIT)


def chain_entries(slots: Ints, slot: Ints, first: int) -> tuple[Ints, int]:
    """Link each entry to the newest of its slot, and make it the newest."""
    previous = np.zeros(len(slot), np.int32)
    for number, place in enumerate(slot.tolist()):
        previous[number] = slots[place]
        slots[place] = first + number
    return previous, int(np.count_nonzero(previous == index.NO_ENTRY))


def index_entries(
    slots: Ints,
    key_row: Ints,
    key_hash: Ints,
    phy_offset: Ints,
    store_timestamp_ms: Ints,
    first: int,
    begin_timestamp_ms: int,
) -> tuple[Ints, int]:
    """Build the entries field by field; an entry's time is whole seconds, 0 where the file has no start time yet."""
    entries = np.zeros(len(key_row), index.ENTRY.dtype)
    entries["key_hash"] = key_hash
    entries["phy_offset"] = phy_offset[key_row]
    if begin_timestamp_ms > 0:
        seconds = (store_timestamp_ms[key_row] - begin_timestamp_ms) // _MS_PER_SECOND
        entries["seconds"] = np.clip(seconds, 0, _LARGEST_SECONDS)
    entries["previous"], empty = chain_entries(slots, key_hash.astype(np.int64) % len(slots), first)
    return entries.view(np.uint8), empty


def dispatch_rows(
    kind: Ints,
    code: Ints,
    sys_flag: Ints,
    topic_id: Ints,
    queue_id: Ints,
    queue_offset: Ints,
    phy_offset: Ints,
    tags_code: Ints,
    store_timestamp_ms: Ints,
    size_bytes: Ints,
    include_bad_crc: bool,
) -> tuple[Ints, Ints, list[tuple[int, int]], Ints]:
    """Give an entry to each message of no transaction or a committed one; number pairs in order of appearance."""
    has_entry = (kind == FrameKind.MESSAGE) & np.isin(sys_flag & record.TRANSACTION_MASK, _TRANSACTIONS_WITH_ENTRY)
    if not include_bad_crc:
        has_entry &= code != FrameCode.BAD_CRC
    picked = np.flatnonzero(has_entry)
    rows = np.zeros(len(picked), ROW)
    rows["queue_offset"] = queue_offset[picked]
    rows["phy_offset"] = phy_offset[picked]
    rows["tags_code"] = tags_code[picked]
    rows["store_timestamp_ms"] = store_timestamp_ms[picked]
    rows["size_bytes"] = size_bytes[picked]
    rows["batch_size"] = 1
    numbers: dict[tuple[int, int], int] = {}
    pairs = zip(topic_id[picked].tolist(), queue_id[picked].tolist(), strict=True)
    found = [numbers.setdefault(pair, len(numbers)) for pair in pairs]
    return picked.astype(np.uint32), np.array(found, np.int32), list(numbers), rows.view(np.uint8)


def pack_rows(parts: Sequence[Ints], key_ids: Sequence[Ints], keys: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Sort by key, stably; then store of each row only the differences from the row expected after the row before.

    A row is a byte with a bit for each field that differs, then each of these fields. A field is the difference with its sign in the lowest bit, so
    that small differences are small numbers, in groups of 7 bits, the lowest first; the top bit is set in all bytes but the last.
    """
    key_id = np.concatenate(key_ids)
    rows = np.concatenate(parts).view(ROW)[np.argsort(key_id, kind="stable")]
    counts = np.bincount(key_id, minlength=keys)
    ids = np.flatnonzero(counts)
    packed, sizes, start = bytearray(), [], 0
    for count in counts[ids].tolist():
        packed_start, before = len(packed), _FIRST
        for row in rows[start : start + count][list(_PACKED)].tolist():
            differences = [_wrapped(value - expected) for value, expected in zip(row, _expected(before), strict=True)]
            packed.append(sum(1 << field for field, difference in enumerate(differences) if difference))
            for difference in filter(None, differences):
                packed += _number(difference)
            before = row
        start += count
        sizes.append(len(packed) - packed_start)
    data = np.frombuffer(packed, np.uint8)
    return data, ids.astype(np.int32), counts[ids].astype(np.int32), np.array(sizes, np.int32)


def unpack_rows(packed: Ints, counts: Ints) -> Ints:
    """Restore each row as the expected row plus the differences."""
    data = iter(bytes(packed))
    rows = np.zeros(int(counts.sum()), ROW)
    at = 0
    try:
        for count in counts.tolist():
            row = _FIRST
            for _ in range(count):
                if (flags := next(data)) >> len(_PACKED):
                    raise ValueError("the columns do not fit each other")
                differences = [_difference(data) if flags >> field & 1 else 0 for field in range(len(_PACKED))]
                row = tuple(
                    _wrapped(value + difference) for value, difference in zip(_expected(row), differences, strict=True)
                )
                for name, value in zip(_PACKED, row, strict=True):
                    rows[name][at] = value
                at += 1
    except StopIteration:
        raise ValueError("the columns do not fit each other") from None
    if next(data, None) is not None:
        raise ValueError("the columns do not fit each other")
    return rows.view(np.uint8)


def unpack_entries(packed: Ints, counts: Ints) -> Ints:
    """Build the entries field by field."""
    rows = unpack_rows(packed, counts).view(ROW)
    entries = np.zeros(len(rows), queue.ENTRY.dtype)
    for name in queue.ENTRY.names:
        entries[name] = rows[name]
    return entries.view(np.uint8)


def unpack_stretches(packed: Ints, counts: Ints) -> Ints:
    """Start a STRETCH at each row whose queue offset does not follow that of the row before."""
    rows = unpack_rows(packed, counts).view(ROW)
    first = np.flatnonzero(np.diff(rows["queue_offset"], prepend=rows["queue_offset"][:1]) != 1)
    last = np.append(first[1:], len(rows))[: len(first)] - 1
    stretches = np.zeros(len(first), STRETCH)
    stretches["queue_offset"] = rows["queue_offset"][first]
    stretches["rows"] = last - first + 1
    stretches["phy_offset"] = rows["phy_offset"][first]
    stretches["last_phy_offset"] = rows["phy_offset"][last]
    return stretches.view(np.int64)


def _expected(before: tuple[int, ...]) -> tuple[int, ...]:
    """Return the row after this one if only the queue offset grows."""
    phy_offset, queue_offset, *rest = before
    return phy_offset, queue_offset + 1, *rest


def _wrapped(value: int) -> int:
    """Return the value as a signed 64-bit number."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _number(difference: int) -> bytes:
    rest = difference << 1 if difference >= 0 else -(difference << 1) - 1
    parts = []
    while rest >= 1 << 7:
        parts.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*parts, rest])


def _difference(data: Iterator[int]) -> int:
    value = shift = 0
    while (byte := next(data)) >= 1 << 7:
        value |= (byte & 0x7F) << shift
        shift += 7
    value |= byte << shift
    return -(value + 1 >> 1) if value & 1 else value >> 1
