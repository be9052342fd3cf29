"""Hold a window of the log as columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from store_core.codec.properties import last_value
from store_core.kernel.codes import FrameCode, FrameKind, PropertyFlag
from store_core.layout import marks, record

if TYPE_CHECKING:
    from store_core.codec.record import Message

_FILLER_TOPIC: Final = marks.FILLER_TOPIC.encode()
_TOMBSTONE_PROPERTY: Final = marks.TOMBSTONE_PROPERTY.encode()
_NAMES: Final = int(PropertyFlag.KEYS | PropertyFlag.UNIQ_KEY | PropertyFlag.TAGS)
Ints = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class FrameTable:
    """Frames in log order, a row for each; all columns have the same length. Offsets are bytes in the log, times are ms.

    * Columns after ``size_bytes`` are filled in message rows only, and 0 in other rows.
    * ``*_at`` are positions in ``window``, which is valid until the next table of the same scan is taken.
    * A scan in runs (ScanOptions) has a single row, filled up to ``size_bytes``, for good messages that adjoin each other;
      ``message_count`` counts each of them.
    * ``odd_count``: rows that are not good messages; None if not counted.
    * ``key_row`` and ``key_hash`` have an element for each index key, in the order in which a broker inserts them; they are
      empty unless the scan options request them.
    """

    window: memoryview
    window_phy_offset: int
    topics: Sequence[bytes]
    kind: Ints
    code: Ints
    phy_offset: Ints
    size_bytes: Ints
    magic: Ints
    body_crc: Ints
    queue_id: Ints
    flag: Ints
    queue_offset: Ints
    own_phy_offset: Ints
    sys_flag: Ints
    born_timestamp_ms: Ints
    store_timestamp_ms: Ints
    reconsume_times: Ints
    prepared_transaction_offset: Ints
    body_at: Ints
    body_length: Ints
    topic_at: Ints
    topic_length: Ints
    properties_at: Ints
    properties_length: Ints
    topic_id: Ints
    tags_code: Ints
    delay_level: Ints
    property_flags: Ints
    key_row: Ints
    key_hash: Ints
    message_count: int = 0
    odd_count: int | None = None

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def is_good(self) -> bool:
        """True if all rows are good messages."""
        return not (self.kind.any() or self.code.any()) if self.odd_count is None else not self.odd_count

    @property
    def messages(self) -> NDArray[np.bool_]:
        """Mask of the rows that are messages."""
        return self.of_kind(FrameKind.MESSAGE)

    def of_kind(self, kind: FrameKind) -> NDArray[np.bool_]:
        """Return the mask of the rows of a kind."""
        mask: NDArray[np.bool_] = self.kind == int(kind)  # numpy compares with an int much faster than with an enum
        return mask

    def of_code(self, code: FrameCode) -> NDArray[np.bool_]:
        """Return the mask of the rows with a code."""
        mask: NDArray[np.bool_] = self.code == int(code)
        return mask

    def with_property(self, flag: PropertyFlag) -> NDArray[np.bool_]:
        """Return the mask of the rows with a property."""
        mask: NDArray[np.bool_] = (self.property_flags & int(flag)) != 0
        return mask

    def any_has(self, flag: PropertyFlag) -> bool:
        """Return True if any row has a property; cheaper than the mask of ``with_property``."""
        return bool(np.bitwise_or.reduce(self.property_flags) & int(flag))

    @property
    def end_phy_offset(self) -> int:
        """The offset after the last row; the window's start if there is none."""
        return int(self.phy_offset[-1] + self.size_bytes[-1]) if len(self.kind) else self.window_phy_offset

    def body(self, row: int) -> bytes:
        """Return the stored body of a message."""
        at = int(self.body_at[row])
        return bytes(self.window[at : at + max(int(self.body_length[row]), 0)])

    def topic(self, row: int) -> bytes:
        """Return the topic of a message, as stored."""
        return self.topics[int(self.topic_id[row])]

    def properties(self, row: int) -> bytes:
        """Return the property string of a message, as stored."""
        at = int(self.properties_at[row])
        return bytes(self.window[at : at + max(int(self.properties_length[row]), 0)])

    def record(self, row: int) -> memoryview:
        """Return the frame's bytes, without those outside the window."""
        at = int(self.phy_offset[row]) - self.window_phy_offset
        return self.window[max(at, 0) : at + int(self.size_bytes[row])]

    def message(self, row: int) -> Message:
        """Return a row as a decoded message object."""
        from store_core.codec.record import decode_record

        at = int(self.phy_offset[row]) - self.window_phy_offset
        return decode_record(self.window, at, int(self.phy_offset[row]), int(self.size_bytes[row]))

    def rows(self, mask: NDArray[np.bool_] | None = None) -> Iterator[int]:
        """Yield row numbers, of all rows or of those in a mask."""
        return iter(range(len(self))) if mask is None else (int(row) for row in np.flatnonzero(mask))


_NOT_BY_ROW = ("window", "window_phy_offset", "topics", "key_row", "key_hash", "message_count", "odd_count")


ROW_COLUMNS = tuple(f.name for f in fields(FrameTable) if f.name not in _NOT_BY_ROW)


def select(table: FrameTable, mask: Any) -> FrameTable:
    """Return the rows of a mask, with their keys, as copied columns."""
    columns = {name: getattr(table, name)[mask] for name in ROW_COLUMNS}
    keep = mask[table.key_row]
    new_row = np.cumsum(mask) - 1
    count = table.message_count - int(np.count_nonzero(table.messages & ~mask))
    keys = {"key_row": new_row[table.key_row[keep]], "key_hash": table.key_hash[keep]}
    return replace(table, **columns, **keys, message_count=count, odd_count=None)


def stretch(table: FrameTable, first: int, stop: int) -> FrameTable:
    """Return the rows [first, stop), with their keys, as views of the same columns."""
    if first == 0 and stop >= len(table):
        return table
    ends = np.array(
        (first, stop), table.key_row.dtype
    )  # same type as the column, so that numpy does not convert the column
    low, high = table.key_row.searchsorted(ends)
    columns = {name: getattr(table, name)[first:stop] for name in ROW_COLUMNS}
    messages, odd = table.message_count, table.odd_count
    for edge in (slice(0, first), slice(stop, None)):
        kind = table.kind[edge]
        if len(kind):
            messages -= int(np.count_nonzero(kind == int(FrameKind.MESSAGE)))
            odd = odd and odd - int(np.count_nonzero(kind | table.code[edge]))
    keys = {"key_row": table.key_row[low:high] - table.key_row.dtype.type(first), "key_hash": table.key_hash[low:high]}
    return replace(table, **columns, **keys, message_count=messages, odd_count=odd)


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
