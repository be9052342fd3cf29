"""What follows from a window's columns in bulk: entries by queue, index entries with their chains; compiled where it could be."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from store_core.kernel import is_native
from store_core.layout import queue

# One entry to be: what queues of all kinds are built from. In memory and in scratch files only, so of native byte order.
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
# Rows with consecutive numbers: the first, how many, where the first and the last record lie.
STRETCH: Final = np.dtype([("queue_offset", "i8"), ("rows", "i8"), ("phy_offset", "i8"), ("last_phy_offset", "i8")])
Ints = NDArray[Any]


def _kernel() -> ModuleType:
    if is_native():
        from store_core.kernel import _native

        return _native
    from store_core.kernel.reference import derive as reference

    return reference


def chain_entries(slots: Ints, slot: Ints, first: int) -> tuple[Ints, int]:
    """Hang index entries ``first``, ``first`` + 1, … on their slots: what each one follows, and how many slots were empty.

    ``slots`` i32[slots] holds the newest entry of each slot and is brought up to date; ``slot`` i64[n]. Raises ValueError
    for a slot that is not there.
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
    """Index entries ``first``, ``first`` + 1, … as a file holds them, u8[n * 20], and how many slots were empty.

    ``slots`` as in ``chain_entries``. ``key_row`` u32[n] are places in the columns ``phy_offset`` and
    ``store_timestamp_ms`` i64[rows]; ``key_hash`` i32[n]. Times count from ``begin_timestamp_ms``, and are 0 if that is.
    Raises ValueError where the columns do not fit each other.
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
    """The messages of a table that get an entry in their queue, and what it is made of. All columns are as the scan gives them.

    Returns their places u32[n], the number of each one's topic and queue i32[n], the distinct topics and queues in the
    order they first appear, and the entries, each a ROW: u8[n * ROW.itemsize]. Raises ValueError where the columns do not
    fit each other.
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
    """ROWs sorted by key, those of a key in their order, and packed for a scratch file.

    ``parts`` u8 and ``key_ids`` i32, all below ``keys``, are the rows and their keys, in parts. Returns u8 what was packed,
    and of each key with rows, i32 all three: its id, how many rows, how many bytes. Raises ValueError where they do not fit
    each other.
    """
    ids = [np.ascontiguousarray(part, np.int32) for part in key_ids]
    packed: tuple[Ints, Ints, Ints, Ints] = _kernel().pack_rows(list(parts), ids, keys)
    return packed


def unpack_rows(packed: bytes, counts: Ints) -> Ints:
    """The ROWs of keys that ``pack_rows`` put back to back, ``counts`` of each. Raises ValueError for anything else."""
    rows: Ints = _kernel().unpack_rows(*_packed(packed, counts)).view(ROW)
    return rows


def unpack_entries(packed: bytes, counts: Ints) -> Ints:
    """The same rows as entries of an ordinary queue's files, u8[n, 20] (store format 6.1). Raises ValueError as unpack_rows."""
    entries: Ints = _kernel().unpack_entries(*_packed(packed, counts)).reshape(-1, queue.ENTRY.size_bytes)
    return entries


def unpack_stretches(packed: bytes, counts: Ints) -> Ints:
    """The same rows as STRETCHes: neighbours with consecutive queue offsets are one. Raises ValueError as unpack_rows."""
    stretches: Ints = _kernel().unpack_stretches(*_packed(packed, counts)).view(STRETCH)
    return stretches


def _packed(packed: bytes, counts: Ints) -> tuple[Ints, Ints]:
    return np.frombuffer(packed, np.uint8), np.ascontiguousarray(counts, np.int32)
