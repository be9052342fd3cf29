"""Lay out the picture of the log: a strip for the whole, and strips for its segments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from rmqctl.output.cells import human_size
from rmqctl.report.words import count
from store_core.recovery.loss_report.log_strips import BAD_KINDS, KINDS, SegmentStrip, Span, SpanKind

_CELLS: Final = 400  # a strip has at most this many parts
_MOST_STRIPS: Final = 40
_LANE: Final = 16  # pixels: height of the lane of the log's contents
_FATE: Final = 5  # height of the lane below it: the parts a broker keeps
_GAP: Final = 2

LEGEND: Final[dict[SpanKind, str]] = {
    "good": "readable messages",
    "lost": "lost messages",
    "damaged": "damaged",
    "hole": "missing file or end of a file",
    "zero": "zeros inside the log",
    "stale": "remains of older data",
    "blank": "end mark of a segment",
    "unused": "not written yet",
}
_SHORT: Final[dict[SpanKind, str]] = {
    "lost": "lost",
    "damaged": "damaged",
    "hole": "missing",
    "stale": "remains",
    "zero": "zeros",
}
_FATES: Final = {"cut": "cut by a broker", "deleted": "deleted by a broker"}


class Rect(NamedTuple):
    """A part of a strip: left edge and width in percent, place and height in pixels."""

    css: str
    left: str
    width: str
    y: int
    height: int


class Strip(NamedTuple):
    """A strip to draw, and its text for readers who cannot see it."""

    label: str
    height: int
    rects: list[Rect]


class Row(NamedTuple):
    """A segment (``zeros``, then ``name``), or several together without a name."""

    zeros: str
    name: str
    segments: int
    strip: Strip
    summary: str


class Mark(NamedTuple):
    """An entry of the legend."""

    css: str
    words: str
    y: int = 0
    height: int = 12


class StripMap(NamedTuple):
    """The picture; ``overview`` is None where there is no log file."""

    phy_offset: int
    end_phy_offset: int
    overview: Strip | None
    legend: list[Mark]
    rows: list[Row]
    is_coarse: bool


def strip_map(segments: Sequence[SegmentStrip], cut_phy_offset: int | None) -> StripMap:
    """Return the log as strips. ``cut_phy_offset``: where a broker cuts the log, None where it does not start."""
    if not segments:
        return StripMap(0, 0, None, [], [], False)
    start, end = segments[0].phy_offset, max(s.phy_offset + s.size_bytes for s in segments)
    label = f"The whole log: {count(len(segments), 'segment')}, {human_size(end - start)}"
    return StripMap(
        start,
        end,
        _strip(_spans(segments), start, end, cut_phy_offset, label, lane=2 * _LANE),
        list(_legend(segments, cut_phy_offset)),
        [_row(strips, cut_phy_offset) for strips in _grouped(segments)],
        len(segments) > 1 or any(strip.is_aggregated for strip in segments),
    )


def _spans(strips: Iterable[SegmentStrip]) -> list[Span]:
    return [span for strip in strips for span in strip.spans]


def _row(strips: Sequence[SegmentStrip], cut: int | None) -> Row:
    start, end = strips[0].phy_offset, strips[-1].phy_offset + strips[-1].size_bytes
    summary, name = _summary(strips), strips[0].name if len(strips) == 1 else ""
    label = f"{name or count(len(strips), 'segment')}: {summary}"
    digits = name.lstrip("0") or name[-1:]
    strip = _strip(_spans(strips), start, end, cut, label)
    return Row(name[: len(name) - len(digits)], digits, len(strips), strip, summary)


def _summary(strips: Sequence[SegmentStrip]) -> str:
    """Return the faults of segments, in a few words."""
    totals: dict[SpanKind, int] = {}
    for strip in strips:
        for kind, size in strip.totals.items():
            totals[kind] = totals.get(kind, 0) + size
    missing = sum(strip.is_missing for strip in strips)
    words = [f"{missing} files missing" if len(strips) > 1 else "file missing"] if missing else []
    words += [
        f"{human_size(totals[kind])} {_SHORT[kind]}"
        for kind in reversed(KINDS)
        if kind in BAD_KINDS and totals.get(kind) and not (kind == "hole" and missing)
    ]
    words = words or ["whole"]
    for fate, verb in _FATES.items():
        if number := sum(strip.fate == fate for strip in strips):
            words.append(verb if len(strips) == 1 else f"{number:,} {verb}")
    return ", ".join(words)


def _grouped(segments: Sequence[SegmentStrip]) -> Iterator[list[SegmentStrip]]:
    """Yield each segment alone if there are few; else the worst ones alone, and those between them together."""
    if len(segments) <= _MOST_STRIPS:
        yield from ([strip] for strip in segments)
        return
    worst = sorted((s for s in segments if s.bad_bytes or s.fate == "cut"), key=_weight, reverse=True)
    alone = {strip.phy_offset for strip in worst[: _MOST_STRIPS // 2]}
    for is_alone, strips in groupby(segments, key=lambda strip: strip.phy_offset in alone):
        found = list(strips)
        yield from ([strip] for strip in found) if is_alone else [found]


def _weight(strip: SegmentStrip) -> tuple[bool, int, int]:
    return strip.fate == "cut", strip.totals.get("lost", 0), strip.bad_bytes


def _strip(spans: Sequence[Span], start: int, end: int, cut: int | None, label: str, *, lane: int = _LANE) -> Strip:
    size = max(end - start, 1)

    def rect(part_start: int, part_end: int, css: str, y: int, height: int) -> Rect:
        left, right = 100 * (part_start - start) / size, 100 * (part_end - start) / size
        return Rect(css, f"{left:.2f}", f"{max(right - left, 0.05):.2f}", y, height)

    rects = [rect(part_start, part_end, kind, 0, lane) for part_start, part_end, kind in _parts(spans, start, size)]
    if cut is None:
        return Strip(label, lane, rects)
    used = max((span.end_phy_offset for span in spans if span.kind != "unused"), default=start)
    middle = min(max(cut, start), used)
    fates = ((start, middle, "keep"), (middle, used, "cut"))
    rects += [
        rect(part_start, part_end, css, lane + _GAP, _FATE)
        for part_start, part_end, css in fates
        if part_start < part_end
    ]
    return Strip(label, lane + _GAP + _FATE, rects)


def _parts(spans: Iterable[Span], start: int, size: int) -> list[tuple[int, int, SpanKind]]:
    """Return the parts to draw: near spans merged, with their worst kind; bad ones last, so that they are on top."""
    parts: list[tuple[int, int, SpanKind]] = []
    for span in spans:
        if parts and (
            parts[-1][2] == span.kind
            or (span.kind == "blank" and span.size_bytes * _CELLS < size)  # too thin to be seen
        ):
            parts[-1] = (parts[-1][0], span.end_phy_offset, parts[-1][2])
            continue
        first, last = _cells(span.phy_offset, span.end_phy_offset, start, size)
        if parts and first == last and _cells(*parts[-1][:2], start, size) == (first, first):
            parts[-1] = (parts[-1][0], span.end_phy_offset, max(parts[-1][2], span.kind, key=KINDS.index))
        else:
            parts.append((span.phy_offset, span.end_phy_offset, span.kind))
    return sorted((part for part in parts if part[2] != "unused"), key=lambda part: part[2] in BAD_KINDS)


def _cells(part_start: int, part_end: int, start: int, size: int) -> tuple[int, int]:
    first = (part_start - start) * _CELLS // size
    return first, max((part_end - start) * _CELLS // size, first)


def _legend(segments: Sequence[SegmentStrip], cut: int | None) -> Iterator[Mark]:
    """Yield the legend of the colours in the picture."""
    present = {kind for strip in segments for kind in strip.totals}
    yield from (Mark(kind, words) for kind, words in LEGEND.items() if kind in present)
    if cut is not None:
        yield Mark("keep", "below: a broker would keep it", 4, _FATE)
        if any(strip.fate != "kept" for strip in segments):
            yield Mark("cut", "below: a broker would throw it away", 4, _FATE)
