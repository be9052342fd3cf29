"""Hosts and offset message ids of many records as text (store format, sections 2.2 and 12)."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_core.codec.hosts import host_text
from store_core.export.rows.properties import Ints, Mask, merge_order
from store_core.layout import message_id, record

Bytes = NDArray[np.uint8]

_HEX: Final = np.array([f"{byte:02X}".encode() for byte in range(256)]).view(np.uint16)


def host_texts(window: Bytes, at: Ints, is_v6: Mask) -> pa.StringArray:
    """``codec.hosts.host_text`` of the host fields at these positions. There are few different ones in a window."""
    codes = np.empty(len(at), np.int32)
    texts: list[str] = []
    for wanted, width in ((~is_v6, record.HOST_V4_SIZE_BYTES), (is_v6, record.HOST_V6_SIZE_BYTES)):
        if wanted.any():
            raw = gather(window, at[wanted], width)
            encoded = pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(width), len(raw), [None, pa.py_buffer(raw)]
            ).dictionary_encode()
            codes[wanted] = encoded.indices.to_numpy() + len(texts)
            texts += map(host_text, encoded.dictionary.to_pylist())
    return pa.array(texts, pa.string()).take(pa.array(codes))


def message_ids(window: Bytes, host_at: Ints, is_v6: Mask, own_phy_offset: Ints) -> pa.StringArray:
    """``codec.message_id.format_offset_message_id`` of the store hosts at these positions and the records' own offsets."""
    if not is_v6.any():
        return _hex(window, host_at, record.HOST_V4_SIZE_BYTES, own_phy_offset)
    short = _hex(window, host_at[~is_v6], record.HOST_V4_SIZE_BYTES, own_phy_offset[~is_v6])
    long = _hex(window, host_at[is_v6], record.HOST_V6_SIZE_BYTES, own_phy_offset[is_v6])
    return pa.concat_arrays([short, long]).take(merge_order(is_v6))


def gather(window: Bytes, at: Ints, width: int) -> Bytes:
    """The ``width`` bytes at each position, one row each."""
    rows: Any = np.lib.stride_tricks.sliding_window_view(window, width)[at]
    return np.ascontiguousarray(rows)


def _hex(window: Bytes, at: Ints, width: int, own_phy_offset: Ints) -> pa.StringArray:
    if not len(at):
        return pa.array([], pa.string())
    offsets = own_phy_offset.astype(f">{message_id.OFFSET.fields[0].type}").view(np.uint8)
    raw = np.concatenate([gather(window, at, width), offsets.reshape(len(at), -1)], axis=1)
    digits = _HEX[raw]
    bounds = np.arange(len(at) + 1, dtype=np.int32) * (2 * raw.shape[1])
    return pa.StringArray.from_buffers(len(at), pa.py_buffer(bounds), pa.py_buffer(digits))
