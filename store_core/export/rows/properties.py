"""Property strings of many records to Arrow columns (store format, section 4).

Ordinary strings, ``name 0x01 value 0x02`` with the last 0x02 there or not, go by separator positions. A record with any
other string (an empty name or value, a 0x01 in a value, a name twice, bytes that are not UTF-8) goes through
``codec.properties``, which defines what they mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store_core.codec.properties import KEY_SEPARATOR, KEYS, TAGS, UNIQ_KEY, parse_properties
from store_core.layout import record

Ints = NDArray[Any]
Mask = NDArray[np.bool_]

MAP: Final = pa.map_(pa.string(), pa.string())
_WANTED: Final = (UNIQ_KEY, TAGS, KEYS)
_MOST_NAMES_AS_BITS: Final = 62
_CONTINUATION_MASK: Final = 0xC0  # 0b10…… goes on with a UTF-8 character
_CONTINUATION: Final = 0x80


@dataclass(frozen=True, slots=True)
class PropertyColumns:
    """One row a record: all properties, and three of them as text; null where a record has none."""

    maps: pa.MapArray
    unique_key: pa.StringArray
    tags: pa.StringArray
    keys: pa.StringArray


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Separator positions over the joined strings: a pair is name [start, middle), value [middle + 1, end)."""

    text: NDArray[np.uint8]
    row_offsets: Ints
    starts: Ints
    middles: Ints
    ends: Ints
    pair_offsets: Ints  # of the rows, into starts and ends
    middle_offsets: Ints  # of the rows, into middles


def property_columns(raw: pa.BinaryArray) -> PropertyColumns:
    """Columns of property strings as they are stored, without nulls."""
    pairs = _pairs(raw)
    irregular = _irregular(pairs)
    if irregular is not None:
        return _merged(raw, irregular)
    names, values = _names_and_values(pairs)
    encoded = names.dictionary_encode()
    codes = encoded.indices.to_numpy()
    repeated = _with_a_name_twice(codes, len(encoded.dictionary), pairs.pair_offsets)
    if repeated is not None:
        return _merged(raw, repeated)
    known = encoded.dictionary.to_pylist()
    rows = np.repeat(np.arange(len(raw)), np.diff(pairs.pair_offsets))
    texts = [_text_of(known, name, codes, rows, values, len(raw)) for name in _WANTED]
    maps = pa.MapArray.from_arrays(pa.array(pairs.pair_offsets.astype(np.int32)), names, values)
    return PropertyColumns(maps, *texts)


def split_keys_column(keys: pa.StringArray) -> pa.ListArray:
    """``codec.properties.split_keys`` of a column: what stands between single spaces, empty ones left out."""
    split = pc.split_pattern(pc.fill_null(keys, ""), KEY_SEPARATOR)
    flat = split.flatten()
    kept = pc.greater(pc.binary_length(flat), 0)
    before = np.r_[0, np.cumsum(kept.to_numpy(zero_copy_only=False))].astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(before[split.offsets.to_numpy()]), flat.filter(kept))


def _pairs(raw: pa.BinaryArray) -> _Pairs:
    _, offsets, data = raw.buffers()
    row_offsets = np.frombuffer(offsets, np.int32)[raw.offset : raw.offset + len(raw) + 1].astype(np.int64)
    first, last = int(row_offsets[0]), int(row_offsets[-1])
    text = np.frombuffer(data, np.uint8)[first:last] if last > first else np.zeros(0, np.uint8)
    row_offsets -= first
    middles = np.flatnonzero(text == record.NAME_VALUE_SEPARATOR)
    ends = np.flatnonzero(text == record.PROPERTY_SEPARATOR)
    row_ends = row_offsets[1:]
    filled = row_ends > row_offsets[:-1]
    opened = filled.copy()  # rows whose last pair has no separator behind it
    opened[filled] = text[row_ends[filled] - 1] != record.PROPERTY_SEPARATOR
    widths = np.ones(len(ends), np.int64)
    if opened.any():
        at = np.searchsorted(ends, row_ends[opened], side="left")
        ends = np.insert(ends, at, row_ends[opened])
        widths = np.insert(widths, at, 0)
    starts = np.r_[0, (ends + widths)[:-1]] if len(ends) else ends
    pair_offsets = np.r_[0, np.cumsum(_counts(text, row_offsets, record.PROPERTY_SEPARATOR) + opened)]
    middle_offsets = np.r_[0, np.cumsum(_counts(text, row_offsets, record.NAME_VALUE_SEPARATOR))]
    return _Pairs(text, row_offsets, starts, middles, ends, pair_offsets, middle_offsets)


def _counts(text: NDArray[np.uint8], row_offsets: Ints, separator: int) -> Ints:
    positions = np.flatnonzero(text == separator)
    return np.diff(np.searchsorted(positions, row_offsets, side="left"))


def _irregular(pairs: _Pairs) -> Mask | None:
    """Rows that are not made of non-empty names and values with one 0x01 between them, or are no UTF-8; None if all are."""
    broken = _not_utf8(pairs)
    fits = len(pairs.middles) == len(pairs.ends) and bool(
        ((pairs.starts < pairs.middles) & (pairs.middles + 1 < pairs.ends)).all()
    )
    if fits:
        return broken
    pair_counts, middle_counts = np.diff(pairs.pair_offsets), np.diff(pairs.middle_offsets)
    irregular: Mask = pair_counts != middle_counts
    rows = np.repeat(np.arange(len(irregular)), pair_counts)
    even = ~irregular[rows]
    middles = pairs.middles[np.repeat(~irregular, middle_counts)]
    wrong = (pairs.starts[even] >= middles) | (middles + 1 >= pairs.ends[even])
    irregular[rows[even][wrong]] = True
    return irregular if broken is None else irregular | broken


def _not_utf8(pairs: _Pairs) -> Mask | None:
    text, offsets = pairs.text, pairs.row_offsets
    if not len(text) or text.max() < _CONTINUATION:
        return None
    heads = text[offsets[:-1][offsets[:-1] < len(text)]]
    if _is_utf8(text.tobytes()) and not ((heads & _CONTINUATION_MASK) == _CONTINUATION).any():
        return None
    rows = [text[a:b].tobytes() for a, b in pairwise(offsets)]
    broken = np.array([not _is_utf8(row) for row in rows])
    return broken if broken.any() else None


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _names_and_values(pairs: _Pairs) -> tuple[pa.StringArray, pa.StringArray]:
    """One string array over [name, separator, value, separator, …] without a copy, of which every other is taken."""
    count = len(pairs.ends)
    if not count:
        return pa.array([], pa.string()), pa.array([], pa.string())
    bounds = np.empty(4 * count, np.int32)
    bounds[0::4], bounds[1::4], bounds[2::4], bounds[3::4] = pairs.starts, pairs.middles, pairs.middles + 1, pairs.ends
    every = pa.StringArray.from_buffers(4 * count - 1, pa.py_buffer(bounds), pa.py_buffer(pairs.text))
    wanted = np.arange(0, 4 * count - 1, 4)
    return every.take(pa.array(wanted)), every.take(pa.array(wanted + 2))


def _with_a_name_twice(codes: Ints, names: int, pair_offsets: Ints) -> Mask | None:
    """Rows in which a name occurs twice; None if there are none."""
    counts = np.diff(pair_offsets)
    rows = np.flatnonzero(counts)
    if not len(rows):
        return None
    if names <= _MOST_NAMES_AS_BITS:
        bits = np.left_shift(np.int64(1), codes.astype(np.int64))
        begins = pair_offsets[:-1][rows]
        twice = rows[np.add.reduceat(bits, begins) != np.bitwise_or.reduceat(bits, begins)]
    else:
        pairs = np.sort(np.repeat(np.arange(len(counts)), counts) * names + codes)
        twice = pairs[1:][pairs[1:] == pairs[:-1]] // names
    mask = np.zeros(len(counts), np.bool_)
    mask[twice] = True
    return mask if len(twice) else None


def _text_of(
    known: list[str], name: str, codes: Ints, rows: Ints, values: pa.StringArray, count: int
) -> pa.StringArray:
    """The value of one property in each row, null where it is not there."""
    if name not in known:
        return pa.nulls(count, pa.string())
    hits = np.flatnonzero(codes == known.index(name))
    if len(hits) == count:
        return values.take(pa.array(hits))
    place = np.full(count, -1)
    place[rows[hits]] = hits
    return values.take(pa.array(place, mask=place < 0))


def _merged(raw: pa.BinaryArray, irregular: Mask) -> PropertyColumns:
    """The rows of the mask one by one, the others by columns, back in their order."""
    mask = pa.array(irregular)
    regular, exact = property_columns(raw.filter(pc.invert(mask))), _exact(raw.filter(mask))
    order = merge_order(irregular)
    return PropertyColumns(
        *(
            pa.concat_arrays([getattr(regular, name), getattr(exact, name)]).take(order)
            for name in ("maps", "unique_key", "tags", "keys")
        )
    )


def merge_order(second: Mask) -> pa.Array:
    """Where each row stands in the rows of the mask's False followed by those of its True."""
    order = np.empty(len(second), np.int64)
    firsts = len(second) - int(second.sum())
    order[~second] = np.arange(firsts)
    order[second] = np.arange(firsts, len(second))
    return pa.array(order)


def _exact(raw: pa.BinaryArray) -> PropertyColumns:
    parsed = [parse_properties(row) for row in raw.to_pylist()]
    texts = [pa.array([row.get(name) for row in parsed], pa.string()) for name in _WANTED]
    return PropertyColumns(pa.array([list(row.items()) for row in parsed], MAP), *texts)
