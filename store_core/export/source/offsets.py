"""Offsets of a stream, as Spark keeps them in its checkpoint: how far the log of each store has been read.

``{"broker-a": 1024}``. Spark keeps where a batch ends, and takes for its begin where the one before ended. That does not tell where a
store's first batch began, nor where a stream went on after data was lost; then the offset tells both:
``{"broker-a": {"begin": 0, "end": 1024}}``. So a batch that is read again holds the same records, whatever options and files say by then. A
stream that has no batch yet has a begin alone: that is no batch's end, so that the first batch is made, and kept, even where nothing is to be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

Offset = int | dict[str, int]
Offsets = Mapping[str, Offset]

_BEGIN: Final = "begin"
_END: Final = "end"


class Span(NamedTuple):
    """[begin, end) of a log, in bytes: what a batch reads of it."""

    begin: int
    end: int


def first_offset(begin: int) -> Offset:
    """Where a stream begins that has no batch yet."""
    return {_BEGIN: begin}


def end_of(offset: Offset) -> int:
    """Up to where the log has been read."""
    return offset.get(_END, offset[_BEGIN]) if isinstance(offset, dict) else offset


def offset_behind(before: Offset | None, span: Span) -> Offset:
    """The offset of a batch that reads a span, behind one that ended with ``before``; None where the store is new."""
    if before is not None and before != first_offset(span.begin):
        if span == (end_of(before), end_of(before)):
            return before  # an offset that is written otherwise would be a batch
        if span.begin == end_of(before) and before != {_BEGIN: span.begin, _END: span.begin}:
            return span.end
    return {_BEGIN: span.begin, _END: span.end}


def spans_between(before: Offsets, after: Offsets) -> dict[str, Span]:
    """What a batch reads, by store, without those of which it reads nothing."""
    spans = {}
    for name, offset in after.items():
        if isinstance(offset, dict):
            span = Span(offset[_BEGIN], end_of(offset))
        else:
            span = Span(end_of(before.get(name, 0)), offset)
        if offset != before.get(name) and span.begin < span.end:
            spans[name] = span
    return spans
