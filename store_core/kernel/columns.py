"""Represent the result of a kernel's call: a window of the log as columns. Imports numpy only when columns are made."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from store_core.codec.properties import DELAY, TAGS
from store_core.codec.tags import tags_code
from store_core.codec.text import decode_text
from store_core.kernel.codes import PROPERTY_NAMES, SCHEDULE_TOPIC

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class WindowColumns:
    """The frames of a window, in log order; every array but the key columns has one item for each frame.

    Frames of kind MESSAGE fill all columns. Other frames, and runs of messages, have zeros after ``size_bytes`` and topic_id -1. ``*_at`` are indices
    into the window. Negative body and property lengths, which count as 0 in a record, are 0 here.
    """

    kind: npt.NDArray[np.uint8]
    code: npt.NDArray[np.uint8]
    phy_offset: npt.NDArray[np.int64]
    size_bytes: npt.NDArray[np.int64]
    magic: npt.NDArray[np.int32]
    body_crc: npt.NDArray[np.int32]
    queue_id: npt.NDArray[np.int32]
    flag: npt.NDArray[np.int32]
    queue_offset: npt.NDArray[np.int64]
    own_phy_offset: npt.NDArray[np.int64]
    sys_flag: npt.NDArray[np.int32]
    born_timestamp_ms: npt.NDArray[np.int64]
    store_timestamp_ms: npt.NDArray[np.int64]
    reconsume_times: npt.NDArray[np.int32]
    prepared_transaction_offset: npt.NDArray[np.int64]
    body_at: npt.NDArray[np.uint32]
    body_length: npt.NDArray[np.int32]
    topic_at: npt.NDArray[np.uint32]
    topic_length: npt.NDArray[np.int32]
    properties_at: npt.NDArray[np.uint32]
    properties_length: npt.NDArray[np.int32]
    topic_id: npt.NDArray[np.int32]  # into ``topics``
    tags_code: npt.NDArray[np.int64]
    delay_level: npt.NDArray[np.int32]
    property_flags: npt.NDArray[np.uint16]
    key_row: npt.NDArray[np.uint32]  # row of the message a key belongs to
    key_hash: npt.NDArray[np.int32]
    topics: list[bytes]  # in the order they first appear in the window's rows
    message_count: int  # how many messages the rows represent, in runs or one by one
    odd_count: int  # how many rows are not good messages: of another kind, or with a code
    next_at: int  # where the next window must start; after a blank this may be beyond the window
    next_state: int  # the next call's ScanState; CHAINED at the segment's end
    need_bytes: int  # 0, or the least length of a window from next_at
    continues: bool  # the first frame is the rest of the frame the previous window ended with


class Row(NamedTuple):
    """A frame: an item of each column."""

    kind: int
    code: int
    phy_offset: int
    size_bytes: int
    magic: int = 0
    body_crc: int = 0
    queue_id: int = 0
    flag: int = 0
    queue_offset: int = 0
    own_phy_offset: int = 0
    sys_flag: int = 0
    born_timestamp_ms: int = 0
    store_timestamp_ms: int = 0
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    body_at: int = 0
    body_length: int = 0
    topic_at: int = 0
    topic_length: int = 0
    properties_at: int = 0
    properties_length: int = 0
    topic_id: int = -1
    tags_code: int = 0
    delay_level: int = 0
    property_flags: int = 0


_DELAY: Final = DELAY.encode()
_TAGS: Final = TAGS.encode()
_INTEGER: Final = re.compile(rb"[+-]?0*[0-9]{1,10}")
_LARGEST_INT: Final = 0x7FFFFFFF
# Columns that are not listed are i4.
_TYPES: Final = {
    "kind": "u1",
    "code": "u1",
    "phy_offset": "i8",
    "size_bytes": "i8",
    "queue_offset": "i8",
    "own_phy_offset": "i8",
    "born_timestamp_ms": "i8",
    "store_timestamp_ms": "i8",
    "prepared_transaction_offset": "i8",
    "body_at": "u4",
    "topic_at": "u4",
    "properties_at": "u4",
    "tags_code": "i8",
    "property_flags": "u2",
}


def frame_columns(rows: Sequence[tuple[int, ...]]) -> dict[str, npt.NDArray[Any]]:
    """Return the frame columns of WindowColumns by name, from tuples in the order of Row."""
    import numpy as np

    columns: Iterable[Sequence[int]] = zip(*rows, strict=True) if rows else [()] * len(Row._fields)
    return {
        name: np.array(column, dtype=_TYPES.get(name, "i4")) for name, column in zip(Row._fields, columns, strict=True)
    }


def property_columns(topic: bytes, properties: Mapping[bytes, bytes]) -> tuple[int, int, int]:
    """Return ``tags_code``, ``delay_level`` and ``property_flags`` of a record; ``properties``: those with PROPERTY_NAMES."""
    level = properties.get(_DELAY, b"") if topic == SCHEDULE_TOPIC else b""
    delay_level = int(level) if _INTEGER.fullmatch(level) else 0
    flags = sum(PROPERTY_NAMES[name] for name in properties)
    code = tags_code(decode_text(properties.get(_TAGS, b"")))
    return code, delay_level if 0 < delay_level <= _LARGEST_INT else 0, flags


def key_columns(keys: Sequence[tuple[int, int]]) -> dict[str, npt.NDArray[Any]]:
    """Return ``key_row`` and ``key_hash`` from pairs of the two."""
    import numpy as np

    return {
        "key_row": np.array([row for row, _ in keys], dtype=np.uint32),
        "key_hash": np.array([key_hash for _, key_hash in keys], dtype=np.int32),
    }
