"""The heads of records at known places, as columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from store_core.kernel.twin_record import RecordHead, check_record


@dataclass(frozen=True, slots=True, eq=False)
class RecordColumns:
    """One row a record; rows that are not ``good`` are zeros.

    ``*_at`` are indices into the window. Negative body and property lengths, which count as 0 in a record, are 0 here.
    """

    good: NDArray[np.bool_]
    magic: NDArray[np.int32]
    body_crc: NDArray[np.int32]
    queue_id: NDArray[np.int32]
    flag: NDArray[np.int32]
    queue_offset: NDArray[np.int64]
    own_phy_offset: NDArray[np.int64]
    sys_flag: NDArray[np.int32]
    born_timestamp_ms: NDArray[np.int64]
    store_timestamp_ms: NDArray[np.int64]
    reconsume_times: NDArray[np.int32]
    prepared_transaction_offset: NDArray[np.int64]
    body_at: NDArray[np.uint32]
    body_length: NDArray[np.int32]
    topic_at: NDArray[np.uint32]
    topic_length: NDArray[np.int32]
    properties_at: NDArray[np.uint32]
    properties_length: NDArray[np.int32]


def twin_cut_records(window: Any, places: Iterable[tuple[int, int]]) -> RecordColumns:
    """The heads of the records at these places of a window (bytes-like), in their order.

    ``places``: index and how long the record should be. A row is good where a well-formed record of exactly that length
    stands.
    """
    rows = [_row(window, *place) for place in places]
    columns = zip(*rows, strict=True) if rows else ([] for _ in _TYPES)
    return RecordColumns(**{name: np.array(column, _TYPES[name]) for name, column in zip(_TYPES, columns, strict=True)})


def _row(window: Any, at: int, size_bytes: int) -> list[int]:
    if 0 <= at <= at + size_bytes <= len(window):
        head = check_record(window[at : at + size_bytes], 0, size_bytes)
        if isinstance(head, RecordHead) and head.size_bytes == size_bytes:
            return [True, *(getattr(head.moved_by(at), name) for name in list(_TYPES)[1:])]
    return [0] * len(_TYPES)


_LONGS: Final = (
    "queue_offset",
    "own_phy_offset",
    "born_timestamp_ms",
    "store_timestamp_ms",
    "prepared_transaction_offset",
)
_TYPES: Final = {
    field.name: "?"
    if field.name == "good"
    else "i8"
    if field.name in _LONGS
    else "u4"
    if field.name.endswith("_at")
    else "i4"
    for field in fields(RecordColumns)
}
