"""Encode offsets of a stream for Spark's checkpoint: how far the log of each store has been read.

An offset is the end and the last message before it, by which a log is recognised later: ``{"broker-a": {"end": 1024,
"last_phy_offset": 768, "last_size_bytes": 256, "last_crc32c": 2774732551, "last_store_timestamp_ms": …}}``. Without
such a message it is the number alone.

Spark keeps the end of a batch, and takes the end of the previous batch for its start. That start is wrong for a
store's first batch, and where a stream continued after data loss; then the offset contains the start too:
``{"broker-a": {"begin": 0, "end": 1024, …}}``. So a batch that is read again holds the same records, whatever options
and files say by then.

A stream that has no batch yet has a ``begin`` alone. That equals no batch's end, so Spark makes and keeps the first
batch even if there is nothing to read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, NamedTuple

from store_core.errors import FailedError
from store_core.export.dest.state import Proof

Offset = int | dict[str, int]
Offsets = Mapping[str, Offset]

_BEGIN: Final = "begin"
_END: Final = "end"
_LAST: Final = ("last_phy_offset", "last_size_bytes", "last_crc32c", "last_store_timestamp_ms")


class Last(NamedTuple):
    """The last message before an offset, with the CRC-32C of its bytes. Its store time distinguishes it from another
    message of its size.
    """

    phy_offset: int
    size_bytes: int
    crc32c: int
    store_timestamp_ms: int

    @property
    def proof(self) -> Proof:
        return Proof(*self[:3])


class Span(NamedTuple):
    """The range [begin, end) of a log, in bytes, that a batch reads."""

    begin: int
    end: int


def first_offset(begin: int) -> Offset:
    """Return the offset of a stream that has no batch yet."""
    return {_BEGIN: begin}


def end_of(offset: Offset) -> int:
    """Return the end up to which the log has been read."""
    return offset.get(_END, offset.get(_BEGIN, 0)) if isinstance(offset, dict) else offset


def last_of(offset: Offset | None) -> Last | None:
    """Return the last message before the end, if the offset contains it."""
    values = [offset[name] for name in _LAST if name in offset] if isinstance(offset, dict) else []
    return Last(*values) if len(values) == len(_LAST) else None


def offset_after(before: Offset | None, span: Span, last: Last | None = None) -> Offset:
    """Return the offset of a batch that reads a span with ``last`` before its end.

    ``before`` is the offset of the previous batch, None for a new store.
    """
    fields = dict(zip(_LAST, last, strict=True)) if last is not None else {}
    if before is not None and before != first_offset(span.begin):
        if span == (end_of(before), end_of(before)):
            return before  # Spark would make a batch for an offset in any other form
        is_empty = isinstance(before, dict) and before.get(_BEGIN) == before.get(_END) == span.begin
        if span.begin == end_of(before) and not is_empty:
            return {_END: span.end, **fields} if fields else span.end
    return {_BEGIN: span.begin, _END: span.end, **fields}


def spans_between(before: Offsets, after: Offsets) -> dict[str, Span]:
    """Return the span that a batch reads of each store, without empty ones."""
    spans = {}
    for name, offset in after.items():
        begin = offset.get(_BEGIN) if isinstance(offset, dict) else None
        span = Span(end_of(before.get(name, 0)) if begin is None else begin, end_of(offset))
        if offset != before.get(name) and span.begin < span.end:
            spans[name] = span
    return spans


def refuse_malformed(offsets: Offsets) -> None:
    """Raise FailedError for an offset that no stream has written."""
    for name, offset in offsets.items():
        if not _is_well_formed(offset):
            raise FailedError(
                f"the checkpoint's offset of {name} is damaged: {json.dumps(offset)}",
                to_do="start the query with another checkpoint",
            )


def _is_well_formed(offset: Offset) -> bool:
    fields = offset if isinstance(offset, dict) else {_END: offset}
    if not all(type(number) is int for number in fields.values()) or not fields.keys() & {_BEGIN, _END}:
        return False
    if (fields.keys() - {_BEGIN, _END}) not in (set(), set(_LAST)) or min(fields.get(_BEGIN, 0), end_of(fields)) < 0:
        return False
    last = last_of(fields)
    return last is None or (last.size_bytes > 0 and 0 <= last.phy_offset <= end_of(fields) - last.size_bytes)
