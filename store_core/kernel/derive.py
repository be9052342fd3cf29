"""Derive queue entries and index entries from a window's columns in bulk; compiled where possible."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from store_core.kernel import is_native
from store_core.layout import queue

# A future entry, from which queues of all kinds are built. Native byte order, as it is only in memory and scratch files.
ROW: Final = np.dtype(
    [
        ("queue_offset", "i8"),
        ("phy_offset", "i8"),
        ("tags_code", "i8"),
        ("store_timestamp_ms", "i8"),
        ("size_bytes", "i4"),
        ("batch_size", "i2"),
    ]
)
# Rows with consecutive queue offsets: the first, their number, the places of the first and the last record.
STRETCH: Final = np.dtype([("queue_offset", "i8"), ("rows", "i8"), ("phy_offset", "i8"), ("last_phy_offset", "i8")])
Ints = NDArray[Any]


def _kernel() -> ModuleType:
    if is_native():
        from store_core.kernel import _native

        return _native
    from store_core.kernel.reference import derive as reference

    return reference


def chain_entries(slots: Ints, slot: Ints, first: int) -> tuple[Ints, int]:
    """Append index entries ``first``, ``first`` + 1, … to their slots' chains.

    ``slots`` i32[slots] has the newest entry of each slot and is updated; ``slot`` i64[n]. Returns each entry's predecessor, and the number of slots
    that were empty. Raises ValueError for a slot that does not exist.
    """
    chained: tuple[Ints, int] = _kernel().chain_entries(slots, np.ascontiguousarray(slot, np.int64), first)
    return chained


def index_entries(
    slots: Ints,
    key_row: Ints,
    key_hash: Ints,
    phy_offset: Ints,
    store_timestamp_ms: Ints,
    first: int,
    begin_timestamp_ms: int,
) -> tuple[Ints, int]:
    """Return index entries ``first``, ``first`` + 1, … as in a file, and the number of empty slots.

    The entries are u8[n * 20]. ``slots`` as in ``chain_entries``. ``key_row`` u32[n] are rows of the columns ``phy_offset`` and
    ``store_timestamp_ms`` i64[rows]; ``key_hash`` i32[n]. Times count from ``begin_timestamp_ms``, and are 0 if that is. Raises ValueError where the
    columns do not fit each other.
    """
    made: tuple[Ints, int] = _kernel().index_entries(
        slots,
        np.ascontiguousarray(key_row, np.uint32),
        np.ascontiguousarray(key_hash, np.int32),
        np.ascontiguousarray(phy_offset, np.int64),
        np.ascontiguousarray(store_timestamp_ms, np.int64),
        first,
        begin_timestamp_ms,
    )
    return made


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
    """Return the messages of a table that get a queue entry, and their future entries. Columns are as the scan returns them.

    Returns:
        Their rows u32[n]; each one's number of topic and queue i32[n]; the distinct topics and queues in order of appearance; the entries,
        each a ROW: u8[n * ROW.itemsize].

    Raises:
        ValueError: The columns do not fit each other.
    """
    columns = (
        np.ascontiguousarray(kind, np.uint8),
        np.ascontiguousarray(code, np.uint8),
        *(np.ascontiguousarray(column, np.int32) for column in (sys_flag, topic_id, queue_id)),
        *(np.ascontiguousarray(column, np.int64) for column in (queue_offset, phy_offset, tags_code)),
        *(np.ascontiguousarray(column, np.int64) for column in (store_timestamp_ms, size_bytes)),
    )
    found: tuple[Ints, Ints, list[tuple[int, int]], Ints] = _kernel().dispatch_rows(*columns, include_bad_crc)
    return found


def pack_rows(parts: Sequence[Ints], key_ids: Sequence[Ints], keys: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Return ROWs sorted by key, in their order within a key, and packed for a scratch file.

    ``parts`` u8 are the rows and ``key_ids`` i32, all below ``keys``, their keys, in parts. Raises ValueError where they do not fit each other.

    Returns:
        u8: the packed rows. For each key with rows, i32: its id, its number of rows, its number of bytes.
    """
    ids = [np.ascontiguousarray(part, np.int32) for part in key_ids]
    packed: tuple[Ints, Ints, Ints, Ints] = _kernel().pack_rows(list(parts), ids, keys)
    return packed


def unpack_rows(packed: bytes, counts: Ints) -> Ints:
    """Return the ROWs of keys packed by ``pack_rows``, ``counts`` of each. Raises ValueError for other bytes."""
    rows: Ints = _kernel().unpack_rows(*_packed(packed, counts)).view(ROW)
    return rows


def unpack_entries(packed: bytes, counts: Ints) -> Ints:
    """Return these rows as entries of an ordinary queue's files, u8[n, 20] (store format 6.1). Raises ValueError as unpack_rows."""
    entries: Ints = _kernel().unpack_entries(*_packed(packed, counts)).reshape(-1, queue.ENTRY.size_bytes)
    return entries


def unpack_stretches(packed: bytes, counts: Ints) -> Ints:
    """Return these rows as STRETCHes: neighbours with consecutive queue offsets are one. Raises ValueError as unpack_rows."""
    stretches: Ints = _kernel().unpack_stretches(*_packed(packed, counts)).view(STRETCH)
    return stretches


def _packed(packed: bytes, counts: Ints) -> tuple[Ints, Ints]:
    return np.frombuffer(packed, np.uint8), np.ascontiguousarray(counts, np.int32)
