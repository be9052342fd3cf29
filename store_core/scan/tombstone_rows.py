"""Find the fillers and tombstones that rmqctl wrote into the log (store behaviour, section 15.1)."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from store_core.codec.properties import last_value
from store_core.kernel.codes import PropertyFlag
from store_core.layout import marks, record
from store_core.scan.frames import FrameTable

_FILLER_TOPIC: Final = marks.FILLER_TOPIC.encode()
_TOMBSTONE_PROPERTY: Final = marks.TOMBSTONE_PROPERTY.encode()
_NAMES: Final = int(PropertyFlag.KEYS | PropertyFlag.UNIQ_KEY | PropertyFlag.TAGS)


def filler_rows(table: FrameTable) -> list[int]:
    """Return the rows of fillers, which are recognised by their exact shape."""
    rollback = table.messages & (_transaction(table) == record.TRANSACTION_ROLLBACK)
    shape = (table.properties_length == 0) & (table.queue_id == 0) & (table.queue_offset == 0)
    rows = np.flatnonzero(rollback & shape & (table.magic == record.MAGIC_V1)).tolist()
    return [row for row in rows if table.topic(row) == _FILLER_TOPIC]


def tombstone_rows(table: FrameTable) -> list[int]:
    """Return the rows of tombstones. The table must have its window's bytes."""
    # Messages of producers have a unique key; a tombstone has properties, but neither keys nor tags.
    nameless = (table.property_flags & _NAMES) == 0
    rollback = _transaction(table) == record.TRANSACTION_ROLLBACK
    rows = np.flatnonzero(table.messages & ~rollback & nameless & (table.properties_length > 0)).tolist()
    if not rows or _TOMBSTONE_PROPERTY not in bytes(table.window):
        return []
    return [row for row in rows if last_value(table.properties(row), _TOMBSTONE_PROPERTY) is not None]


def _transaction(table: FrameTable) -> Any:
    return table.sys_flag & record.TRANSACTION_MASK
