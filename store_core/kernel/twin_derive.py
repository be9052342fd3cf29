"""What follows from columns, in Python that is written to be read (compiled: src/derive.rs). See ``derive`` for what goes in and out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from store_core.kernel.codes import FrameCode, FrameKind
from store_core.layout import index, record

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
Ints = NDArray[Any]
_MS_PER_SECOND: Final = 1000
_LARGEST_SECONDS: Final = (1 << 31) - 1
_TRANSACTIONS_WITH_ENTRY: Final = (record.TRANSACTION_NONE, record.TRANSACTION_COMMIT)


def chain_entries(slots: Ints, slot: Ints, first: int) -> tuple[Ints, int]:
    """Each entry follows the newest of its slot, and becomes the newest."""
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
    """Entries field by field; an entry's time is whole seconds, none where the file has no begin yet."""
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
    """Messages of no transaction or a committed one have an entry; pairs are numbered as they appear."""
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


def group_rows(parts: Sequence[Ints], key_ids: Sequence[Ints], width: int, keys: int) -> tuple[Ints, Ints]:
    """A stable sort by key."""
    key_id = np.concatenate(key_ids)
    rows = np.concatenate(parts).reshape(-1, width)
    return rows[np.argsort(key_id, kind="stable")].reshape(-1), np.bincount(key_id, minlength=keys).astype(np.int32)
