"""Offsets of a stream, as Spark keeps them in its checkpoint: how far the log of each store has been read.

``{"broker-a": {"end": 1024, "last_phy_offset": 768, "last_size_bytes": 256, "last_crc32c": 2774732551, "last_store_timestamp_ms": …}}``: the end, and the last message in
front of it, by which a log is known again; where there is none, the number alone. Spark keeps where a batch ends, and takes for its begin where the
one before ended. That does not tell where a store's first batch began, nor where a stream went on after data was lost; then the offset
tells it, too: ``{"broker-a": {"begin": 0, "end": 1024, …}}``. So a batch that is read again holds the same records, whatever options and files say by then. A
stream that has no batch yet has a begin alone: that is no batch's end, so that the first batch is made, and kept, even where nothing is to be read.
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
    """The last message in front of a place, with the CRC-32C of its bytes. Its store time tells it from another one of its size."""

    phy_offset: int
    size_bytes: int
    crc32c: int
    store_timestamp_ms: int

    @property
    def proof(self) -> Proof:
        return Proof(*self[:3])


class Span(NamedTuple):
    """[begin, end) of a log, in bytes: what a batch reads of it."""

    begin: int
    end: int


def first_offset(begin: int) -> Offset:
    """Where a stream begins that has no batch yet."""
    return {_BEGIN: begin}


def end_of(offset: Offset) -> int:
    """Up to where the log has been read."""
    return offset.get(_END, offset.get(_BEGIN, 0)) if isinstance(offset, dict) else offset


def last_of(offset: Offset | None) -> Last | None:
    """The last message in front of the end, if the offset tells it."""
    told = [offset[name] for name in _LAST if name in offset] if isinstance(offset, dict) else []
    return Last(*told) if len(told) == len(_LAST) else None


def offset_after(before: Offset | None, span: Span, last: Last | None = None) -> Offset:
    """The offset of a batch that reads a span with ``last`` in front of its end, behind one that ended with ``before``; None where
    the store is new."""
    told = dict(zip(_LAST, last, strict=True)) if last is not None else {}
    if before is not None and before != first_offset(span.begin):
        if span == (end_of(before), end_of(before)):
            return before  # an offset that is written otherwise would be a batch
        is_empty = isinstance(before, dict) and before.get(_BEGIN) == before.get(_END) == span.begin
        if span.begin == end_of(before) and not is_empty:
            return {_END: span.end, **told} if told else span.end
    return {_BEGIN: span.begin, _END: span.end, **told}


def spans_between(before: Offsets, after: Offsets) -> dict[str, Span]:
    """What a batch reads, by store, without those of which it reads nothing."""
    spans = {}
    for name, offset in after.items():
        begin = offset.get(_BEGIN) if isinstance(offset, dict) else None
        span = Span(end_of(before.get(name, 0)) if begin is None else begin, end_of(offset))
        if offset != before.get(name) and span.begin < span.end:
            spans[name] = span
    return spans


def refuse_malformed(offsets: Offsets) -> None:
    """Raise FailedError for what no stream has written."""
    for name, offset in offsets.items():
        if not _is_well_formed(offset):
            raise FailedError(
                f"the checkpoint's offset of {name} is damaged: {json.dumps(offset)}",
                to_do="start the query with another checkpoint",
            )


def _is_well_formed(offset: Offset) -> bool:
    told = offset if isinstance(offset, dict) else {_END: offset}
    if not all(type(number) is int for number in told.values()) or not told.keys() & {_BEGIN, _END}:
        return False
    if (told.keys() - {_BEGIN, _END}) not in (set(), set(_LAST)) or min(told.get(_BEGIN, 0), end_of(told)) < 0:
        return False
    last = last_of(told)
    return last is None or (last.size_bytes > 0 and 0 <= last.phy_offset <= end_of(told) - last.size_bytes)
