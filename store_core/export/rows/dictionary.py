"""Texts that recur, with a dictionary of what stands in the same rows."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from store_core.export.rows import schema

_MANY_WORDS: Final = 1000


def with_own_words(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of a row group as ``schema.WRITTEN`` has them.

    Where the kernel has met too many words for a dictionary these get one of their own, and where a dictionary has many they do
    too: each row group's part of a file would hold all words of a run.
    """
    columns = [_encoded(column, field.type) for column, field in zip(rows.columns, schema.WRITTEN, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema.WRITTEN)


def _encoded(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    if pa.types.is_map(wanted):
        return _with_encoded_keys(column)
    return _dictionary_of(column) if pa.types.is_dictionary(wanted) and _is_to_be_encoded(column) else column


def _is_to_be_encoded(texts: pa.Array) -> bool:
    return not pa.types.is_dictionary(texts.type) or len(texts.dictionary) > _MANY_WORDS


def _dictionary_of(texts: pa.Array) -> pa.DictionaryArray:
    plain = texts.dictionary_decode() if pa.types.is_dictionary(texts.type) else texts
    return plain.dictionary_encode()


def _with_encoded_keys(column: pa.MapArray) -> pa.MapArray:
    if not _is_to_be_encoded(column.keys):
        return column
    bounds = column.offsets
    first, last = bounds[0].as_py(), bounds[-1].as_py()
    keys, items = (part.slice(first, last - first) for part in (column.keys, column.items))
    return pa.MapArray.from_arrays(pc.subtract(bounds, bounds[0]), _dictionary_of(keys), items)
