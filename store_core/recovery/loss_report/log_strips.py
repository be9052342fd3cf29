"""Draw a map of the log with a strip of spans for each segment: exact if they are few, else coarser.

Memory grows with the number of segments and is bounded for each of them, whatever the damage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from store_core.kernel.codes import FrameCode, FrameKind
from store_core.layout import paths
from store_core.scan.frames import FrameTable
from store_core.scan.log import nominal_end
from store_core.storage.store import Store

SpanKind = Literal["good", "blank", "unused", "zero", "stale", "damaged", "hole", "lost"]
# In rising order of importance: spans that are drawn as one get the last of their kinds.
KINDS: Final[tuple[SpanKind, ...]] = ("unused", "blank", "good", "zero", "stale", "hole", "damaged", "lost")
BAD_KINDS: Final = frozenset[SpanKind](("zero", "stale", "hole", "damaged", "lost"))
_MAY_HAVE_HELD: Final = frozenset[SpanKind](("zero", "stale", "hole", "damaged"))
_MOST_SPANS: Final = 20_000  # in a whole report
_SPANS_PER_SEGMENT: Final = (8, 400)  # minimum, maximum
_BAD_CODES: Final = (FrameCode.BAD_CRC, FrameCode.BAD_PROPERTY_CRC)

Ints = NDArray[np.int64]
_OF_FRAME: Final = np.full(max(FrameKind) + 1, KINDS.index("damaged"))
for _frame, _kind in (
    (FrameKind.MESSAGE, "good"),
    (FrameKind.BLANK, "blank"),
    (FrameKind.ZEROS, "zero"),
    (FrameKind.STALE, "stale"),
    (FrameKind.HOLE, "hole"),
):
    _OF_FRAME[_frame] = KINDS.index(_kind)


@dataclass(frozen=True, slots=True)
class Span:
    """A range of a segment with bytes of one kind."""

    kind: SpanKind
    phy_offset: int
    size_bytes: int

    @property
    def end_phy_offset(self) -> int:
        return self.phy_offset + self.size_bytes


@dataclass(frozen=True, slots=True)
class SegmentStrip:
    """A segment on the map.

    * ``totals``: exact bytes by kind
    * ``spans``: cover the segment in order; if ``is_aggregated``, near spans were joined and have the worst of their kinds
    * ``is_missing``: there is no file
    * ``fate``: the segment's state after the broker's start
    """

    name: str
    phy_offset: int
    size_bytes: int
    spans: tuple[Span, ...]
    totals: dict[SpanKind, int]
    is_aggregated: bool = False
    is_missing: bool = False
    fate: Literal["kept", "cut", "deleted"] = "kept"

    @property
    def bad_bytes(self) -> int:
        return sum(size for kind, size in self.totals.items() if kind in BAD_KINDS)

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "phy_offset": self.phy_offset,
            "bytes": self.size_bytes,
            "is_missing": self.is_missing,
            "is_aggregated": self.is_aggregated,
            "fate": self.fate,
            "totals": dict(self.totals),
            "spans": [{"kind": s.kind, "phy_offset": s.phy_offset, "bytes": s.size_bytes} for s in self.spans],
        }


@dataclass(slots=True)
class _Strip:
    name: str
    start: int
    end: int
    is_missing: bool
    spans: list[Span] = field(default_factory=list)
    totals: dict[SpanKind, int] = field(default_factory=dict)
    is_aggregated: bool = False


class LogMapper:
    """Collects the map from all tables of a walk; afterwards ``strips`` yields it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._size = store.log.file_size_bytes
        low, high = _SPANS_PER_SEGMENT
        self._most = min(max(_MOST_SPANS // max(len(store.log.segments), 1), low), high)
        self._strips: list[_Strip] = []

    def add(self, table: FrameTable) -> None:
        if not len(table):
            return
        kinds = kinds_of(table)
        edges = np.flatnonzero(np.diff(kinds)) + 1
        starts = table.phy_offset[np.r_[0, edges]].tolist()
        ends = [*starts[1:], table.end_phy_offset]
        for start, end, kind in zip(starts, ends, kinds[np.r_[0, edges]].tolist(), strict=True):
            self._add(start, end, KINDS[kind])

    def _add(self, start: int, end: int, kind: SpanKind) -> None:
        while start < end:  # a hole may span several segments
            strip = self._strip_at(start)
            stop = min(end, strip.end)
            _append(strip.spans, Span(kind, start, stop - start))
            strip.totals[kind] = strip.totals.get(kind, 0) + stop - start
            if len(strip.spans) > 4 * self._most:
                self._coarsen(strip)
            start = stop

    def _strip_at(self, at: int) -> _Strip:
        if self._strips and self._strips[-1].end > at:
            return self._strips[-1]
        segment = self._store.log.find(at)
        if segment is not None:
            strip = _Strip(segment.name, segment.phy_offset, nominal_end(self._store.log, segment), False)
        else:
            start = at - at % self._size if self._size else at
            strip = _Strip(paths.segment_name(start), start, start + (self._size or 1), True)
        strip.end = max(strip.end, at + 1)
        self._strips.append(strip)
        return strip

    def _coarsen(self, strip: _Strip) -> None:
        cell = max((strip.end - strip.start) // self._most, 1)
        strip.spans = _joined_spans(strip.spans, strip.start, cell)
        strip.is_aggregated = True

    def strips(
        self, lost: tuple[Ints, Ints], max_phy_offset: int | None = None, deleted: Sequence[str] = ()
    ) -> Iterator[SegmentStrip]:
        """Yield the strips of the map.

        Args:
            lost: (starts, ends) of lost records in log order; they are drawn only over ranges without good records.
            max_phy_offset: offset at which a broker would cut the log.
            deleted: names of the files that a broker would delete.
        """
        for strip in self._strips:
            _mark_lost(strip, lost)
        self._report_unused()
        deleted_names = frozenset(deleted)
        for strip in self._strips:
            if len(strip.spans) > self._most:
                self._coarsen(strip)
            is_cut = max_phy_offset is not None and strip.end > max_phy_offset and _is_used(strip, max_phy_offset)
            fate: Literal["kept", "cut", "deleted"] = "cut" if is_cut else "kept"
            fate = "deleted" if strip.name in deleted_names else fate
            yield SegmentStrip(
                strip.name,
                strip.start,
                strip.end - strip.start,
                tuple(strip.spans),
                {kind: strip.totals[kind] for kind in KINDS if strip.totals.get(kind)},
                strip.is_aggregated,
                strip.is_missing,
                fate,
            )

    def _report_unused(self) -> None:
        """Mark the zeros at the end of the log as unused: they were never written."""
        for strip in reversed(self._strips):
            last = strip.spans[-1]
            if last.kind != "zero":
                return
            strip.spans[-1] = Span("unused", last.phy_offset, last.size_bytes)
            strip.totals["zero"] -= last.size_bytes
            strip.totals["unused"] = strip.totals.get("unused", 0) + last.size_bytes
            if len(strip.spans) > 1:
                return


def kinds_of(table: FrameTable) -> NDArray[np.int64]:
    """Return the kind of each row as an index of ``KINDS``; a message with a wrong checksum is damaged."""
    kinds: NDArray[np.int64] = _OF_FRAME[table.kind].astype(np.int64)
    kinds[is_bad(table)] = KINDS.index("damaged")
    return kinds


def is_bad(table: FrameTable) -> NDArray[np.bool_]:
    """Return the mask of messages with a readable head and a wrong checksum."""
    mask: NDArray[np.bool_] = table.messages & np.isin(table.code, _BAD_CODES)
    return mask


def _is_used(strip: _Strip, from_phy_offset: int) -> bool:
    return any(s.end_phy_offset > from_phy_offset and s.kind not in ("unused", "zero") for s in strip.spans)


def _append(spans: list[Span], span: Span) -> None:
    if spans and spans[-1].kind == span.kind:
        before = spans.pop()
        span = Span(span.kind, before.phy_offset, before.size_bytes + span.size_bytes)
    spans.append(span)


def _joined_spans(spans: Sequence[Span], origin: int, cell: int) -> list[Span]:
    """Join spans that start in the same cell of ``cell`` bytes, with the most important of their kinds."""
    joined: list[Span] = []
    for span in spans:
        before = joined[-1] if joined else None
        if before is not None and (before.phy_offset - origin) // cell == (span.phy_offset - origin) // cell:
            kind = max(before.kind, span.kind, key=KINDS.index)
            joined[-1] = Span(kind, before.phy_offset, before.size_bytes + span.size_bytes)
        else:
            joined.append(span)
    merged: list[Span] = []
    for span in joined:
        _append(merged, span)
    return merged


def _mark_lost(strip: _Strip, lost: tuple[Ints, Ints]) -> None:
    """Cut the lost records out of the spans without good records."""
    starts, ends = lost
    spans: list[Span] = []
    for span in strip.spans:
        if span.kind not in _MAY_HAVE_HELD:
            _append(spans, span)
            continue
        low = int(np.searchsorted(ends, span.phy_offset, "right"))
        high = int(np.searchsorted(starts, span.end_phy_offset, "left"))
        at = span.phy_offset
        for start, end in zip(starts[low:high].tolist(), ends[low:high].tolist(), strict=True):
            start, end = max(start, at), min(end, span.end_phy_offset)
            if at < start:
                _append(spans, Span(span.kind, at, start - at))
            _append(spans, Span("lost", start, end - start))
            strip.totals[span.kind] -= end - start
            strip.totals["lost"] = strip.totals.get("lost", 0) + end - start
            at = end
        if at < span.end_phy_offset:
            _append(spans, Span(span.kind, at, span.end_phy_offset - at))
    strip.spans = spans
