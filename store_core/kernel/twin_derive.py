"""What follows from columns, in Python that is written to be read (compiled: src/derive.rs). See ``derive`` for what goes in and out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from store_core.layout import index

Ints = NDArray[Any]
_MS_PER_SECOND: Final = 1000
_LARGEST_SECONDS: Final = (1 << 31) - 1


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


def number_pairs(topic_id: Ints, queue_id: Ints) -> tuple[Ints, list[tuple[int, int]]]:
    """Pairs are numbered as they appear."""
    numbers: dict[tuple[int, int], int] = {}
    rows = zip(topic_id.tolist(), queue_id.tolist(), strict=True)
    found = [numbers.setdefault(pair, len(numbers)) for pair in rows]
    return np.array(found, np.int32), list(numbers)


def group_rows(parts: Sequence[Ints], key_ids: Sequence[Ints], width: int, keys: int) -> tuple[Ints, Ints]:
    """A stable sort by key."""
    key_id = np.concatenate(key_ids)
    rows = np.concatenate(parts).reshape(-1, width)
    return rows[np.argsort(key_id, kind="stable")].reshape(-1), np.bincount(key_id, minlength=keys).astype(np.int32)
