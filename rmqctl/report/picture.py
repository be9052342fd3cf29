"""The picture of the log: one strip for the whole, and one for each segment where something is to be seen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

from rmqctl.output.cells import human_size
from rmqctl.report.markup import Markup, attribute, count, element, join, text
from store_core.recovery.loss_report.log_strips import BAD_KINDS, KINDS, SegmentStrip, Span, SpanKind

_CELLS: Final = 400  # a strip shows so many parts at most
_MOST_STRIPS: Final = 40
_LANE: Final = 16  # pixels: what the log holds
_FATE: Final = 5  # and below it what the broker keeps
_GAP: Final = 2

LEGEND: Final[tuple[tuple[SpanKind, str], ...]] = (
    ("good", "readable messages"),
    ("lost", "lost messages"),
    ("damaged", "damaged"),
    ("hole", "missing file or end of a file"),
    ("zero", "zeros inside the log"),
    ("stale", "left-overs of older data"),
    ("blank", "end mark of a segment"),
    ("unused", "not written yet"),
)
_FATES: Final = {"kept": "", "cut": "cut by a broker", "deleted": "deleted by a broker"}

Lane = tuple[float, float, str]  # left and right in hundredths of the width, class


def picture(segments: Sequence[SegmentStrip], cut_phy_offset: int | None) -> Markup:
    """The log as strips. ``cut_phy_offset``: where a broker cuts the log, None where it does not start."""
    if not segments:
        return element("p", "There is no log file.")
    rows = "\n".join(_row(strips, cut_phy_offset) for strips in _grouped(segments))
    above = f"{_overview(segments, cut_phy_offset)}\n{_legend(segments, cut_phy_offset)}"
    return Markup(f'{above}\n<div class="strips">\n{rows}\n</div>')


def _overview(segments: Sequence[SegmentStrip], cut: int | None) -> Markup:
    start = segments[0].phy_offset
    end = max(s.phy_offset + s.size_bytes for s in segments)
    spans = [span for strip in segments for span in strip.spans]
    label = f"The whole log: {count(len(segments), 'segment')}, {human_size(end - start)}"
    return Markup(
        f'<div class="overview"><div class="ends"><span>{start:,}</span><span>{text(label)}</span><span>{end:,}</span></div>'
        f"{_strip(spans, start, end, cut, label, tall=True)}</div>"
    )


def _row(strips: Sequence[SegmentStrip], cut: int | None) -> Markup:
    start, end = strips[0].phy_offset, strips[-1].phy_offset + strips[-1].size_bytes
    spans = [span for strip in strips for span in strip.spans]
    told = _told(strips)
    label = _name(strips[0].name) if len(strips) == 1 else element("span", count(len(strips), "segment"), css="many")
    name = f"{strips[0].name}: {told}" if len(strips) == 1 else f"{len(strips)} segments: {told}"
    css = "strip" if len(strips) == 1 else "strip several"
    return Markup(
        f'<div class="{css}"><div class="name">{label}</div>{_strip(spans, start, end, cut, name)}'
        f'<div class="told">{text(told)}</div></div>'
    )


def _name(name: str) -> Markup:
    digits = name.lstrip("0") or "0"
    return join((element("span", name[: len(name) - len(digits)], css="zeros"), digits))


def _told(strips: Sequence[SegmentStrip]) -> str:
    """What is to be said beside a strip."""
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
    for fate in ("cut", "deleted"):
        if number := sum(strip.fate == fate for strip in strips):
            words.append(_FATES[fate] if len(strips) == 1 else f"{number:,} {_FATES[fate]}")
    return ", ".join(words)


_SHORT: Final[dict[SpanKind, str]] = {
    "lost": "lost",
    "damaged": "damaged",
    "hole": "missing",
    "stale": "left-overs",
    "zero": "zeros",
}


def _grouped(segments: Sequence[SegmentStrip]) -> Iterator[list[SegmentStrip]]:
    """Each segment alone where there are few; else the worst ones alone, and those between them together."""
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


def _strip(spans: Sequence[Span], start: int, end: int, cut: int | None, label: str, *, tall: bool = False) -> Markup:
    lane = _LANE * 2 if tall else _LANE
    height = lane + (_GAP + _FATE if cut is not None else 0)
    rects = [_rect(part, 0, lane) for part in _parts(spans, start, end)]
    if cut is not None:
        rects += [_rect(part, lane + _GAP, _FATE) for part in _fates(spans, start, end, cut)]
    return Markup(
        f'<svg class="bar" width="100%" height="{height}" role="img" aria-label="{attribute(label)}">'
        f"<title>{attribute(label)}</title>{''.join(rects)}</svg>"
    )


def _fates(spans: Sequence[Span], start: int, end: int, cut: int) -> Iterator[Lane]:
    """What a broker keeps, and what it throws away of what has been written."""
    used = max((span.end_phy_offset for span in spans if span.kind != "unused"), default=start)
    middle = min(max(cut, start), used)
    for begin, stop, css in ((start, middle, "keep"), (middle, used, "cut")):
        if begin < stop:
            yield 100 * (begin - start) / (end - start), 100 * (stop - start) / (end - start), css


def _parts(spans: Iterable[Span], start: int, end: int) -> list[Lane]:
    """What to draw: near spans as one, of the worst kind they hold; the bad ones last, so that they lie on top."""
    size = max(end - start, 1)
    parts: list[tuple[int, int, SpanKind]] = []
    for span in spans:
        if span.kind == "blank" and parts and span.size_bytes * _CELLS < size:  # too thin to be seen: only flickers
            parts[-1] = (parts[-1][0], span.end_phy_offset, parts[-1][2])
            continue
        first = (span.phy_offset - start) * _CELLS // size
        last = max((span.end_phy_offset - start) * _CELLS // size, first)
        if parts and parts[-1][2] == span.kind:
            parts[-1] = (parts[-1][0], span.end_phy_offset, span.kind)
        elif parts and _cell(parts[-1], start, size) == (first, first) and first == last:
            worse = max(parts[-1][2], span.kind, key=KINDS.index)
            parts[-1] = (parts[-1][0], span.end_phy_offset, worse)
        else:
            parts.append((span.phy_offset, span.end_phy_offset, span.kind))
    lanes = [(100 * (a - start) / size, 100 * (b - start) / size, kind) for a, b, kind in parts if kind != "unused"]
    return sorted(lanes, key=lambda lane: lane[2] in BAD_KINDS)


def _cell(part: tuple[int, int, SpanKind], start: int, size: int) -> tuple[int, int]:
    first = (part[0] - start) * _CELLS // size
    return first, max((part[1] - start) * _CELLS // size, first)


def _rect(lane: Lane, y: int, height: int) -> str:
    left, right, css = lane
    place = f' y="{y}"' if y else ""
    return f'<rect class="{css}" x="{left:.2f}%" width="{max(right - left, 0.05):.2f}%"{place} height="{height}"/>'


def _legend(segments: Sequence[SegmentStrip], cut: int | None) -> Markup:
    """What the colours mean: those that are there."""
    there = {kind for strip in segments for kind in strip.totals}
    marks = [_mark(kind, words) for kind, words in LEGEND if kind in there]
    if cut is not None:
        marks.append(_mark("keep", "below: a broker would keep it"))
        if any(strip.fate != "kept" for strip in segments):
            marks.append(_mark("cut", "below: a broker would throw it away"))
    return Markup(f'<ul class="legend">{"".join(marks)}</ul>')


def _mark(css: str, words: str) -> Markup:
    thin = css in ("keep", "cut")
    place = f'y="{4 if thin else 0}" height="{_FATE if thin else 12}"'
    return Markup(
        f'<li><svg width="18" height="12" aria-hidden="true"><rect class="{css}" width="18" {place}/></svg>{text(words)}</li>'
    )


def patterns() -> Markup:
    """The hatchings, so that kinds can be told apart without colours too."""
    hatch = (
        '<pattern id="{0}" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate({1})">'
        '<rect width="6" height="6" class="{0}-ground"/><rect width="{2}" height="6" class="{0}-line"/></pattern>'
    )
    kinds = (("p-damaged", 45, 3), ("p-hole", -45, 2), ("p-cut", 45, 3), ("p-stale", 0, 2))
    inside = "".join(hatch.format(*kind) for kind in kinds)
    return Markup(f'<svg width="0" height="0" class="defs" aria-hidden="true"><defs>{inside}</defs></svg>')
