"""The heads of records at known places, as columns; compiled where it could be."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from store_core.kernel import is_native
from store_core.kernel.twin_record import RecordHead, check_record

Ints = NDArray[Any]


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


def cut_records(window: Any, at: Ints, size_bytes: Ints) -> RecordColumns:
    """The heads of the records at these places of a window (bytes-like), in their order.

    ``at``: indices; ``size_bytes``: how long the record should be; arrays of int64 of one length. A row is good where a
    well-formed record of exactly that length stands. Raises ValueError when the arrays differ in length.
    """
    if not is_native():
        return twin_cut_records(window, at, size_bytes)
    from store_core.kernel import _native

    data = np.frombuffer(window, dtype=np.uint8) if len(window) else np.empty(0, dtype=np.uint8)
    at, size_bytes = (np.ascontiguousarray(column, np.int64) for column in (at, size_bytes))
    return RecordColumns(**_native.cut_records(data, at, size_bytes))


def twin_cut_records(window: Any, at: Ints, size_bytes: Ints) -> RecordColumns:
    """As ``cut_records``: the definition, to be read."""
    rows = [_row(window, *place) for place in zip(at.tolist(), size_bytes.tolist(), strict=True)]
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
