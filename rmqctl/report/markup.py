"""Small pieces of HTML: escaped text, tables, numbers, spans of time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from html import escape
from typing import Final

from rmqctl.output.cells import escape_controls
from rmqctl.times import format_time
from store_core.recovery.loss_report.model import TimeSpan

_LONGEST_TEXT: Final = 600
_LONGEST_WORD: Final = 22  # a longer name may be broken, so that it does not widen a table


class Markup(str):
    """Text that is HTML already."""


@dataclass(frozen=True, slots=True)
class Column:
    """A heading; ``kind`` is ``number`` (flush right), ``code`` (fixed width) or ``text``."""

    heading: str
    kind: str = "text"


def text(value: object) -> Markup:
    """Anything as text of a page. What a store holds may be long, drive terminals, or look like markup: none of it works here."""
    if isinstance(value, Markup):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return Markup(f"{value:,}")
    plain = "" if value is None else str(value)
    if len(plain) > _LONGEST_TEXT:
        plain = plain[:_LONGEST_TEXT] + "…"
    plain = escape_controls(plain)
    if max(map(len, plain.split(" ")), default=0) <= _LONGEST_WORD:
        return Markup(escape(plain))
    return Markup(" ".join(_breakable(word) for word in plain.split(" ")))


def attribute(value: str) -> str:
    """The value of an attribute, within double quotes."""
    return escape(escape_controls(value[:_LONGEST_TEXT]))


def _breakable(word: str) -> str:
    parts = (word[at : at + _LONGEST_WORD] for at in range(0, len(word), _LONGEST_WORD))
    return "<wbr>".join(map(escape, parts))


def join(parts: Iterable[object]) -> Markup:
    return Markup("".join(text(part) for part in parts))


def element(name: str, *content: object, css: str = "") -> Markup:
    """An element with escaped content; ``css`` is its class."""
    return Markup(f"<{name}{f' class={chr(34)}{css}{chr(34)}' if css else ''}>{join(content)}</{name}>")


def table(columns: Sequence[Column], rows: Iterable[Sequence[object]], more: str = "") -> Markup:
    """A table; on narrow screens every row becomes a list of its cells under their headings. ``more`` stands below."""
    head = "".join(f'<th scope="col" class="{c.kind}">{text(c.heading)}</th>' for c in columns)
    body = "".join(
        "<tr>"
        + "".join(
            f'<td class="{c.kind}" data-label="{attribute(c.heading)}"><div>{text(cell)}</div></td>'
            for c, cell in zip(columns, row, strict=True)
        )
        + "</tr>\n"
        for row in rows
    )
    below = element("p", more, css="more") if more else ""
    return Markup(f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>\n{below}\n")


def count(number: int, noun: str, plural: str = "") -> str:
    """``1 message``, ``2,000 messages``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def moment(timestamp_ms: int, zone: tzinfo) -> str:
    """``2026-11-21 02:18:38.538``, in the zone that the page names."""
    told = format_time(timestamp_ms, zone).replace("T", " ")
    return told[:23] if len(told) > 23 and told[4] == "-" else told


def time_span(span: TimeSpan, zone: tzinfo) -> Markup:
    """When something was stored, as far as it is known."""
    first, last = span.first_timestamp_ms, span.last_timestamp_ms
    if span.time_from is None or (first is None and last is None):
        return element("span", "unknown", css="dim")
    if first is None or last is None:
        word, known = ("after", first) if last is None else ("before", last)
        return join((element("span", word, css="dim"), " ", _moment(known or 0, zone)))
    ends = (_moment(first, zone), _moment(last, zone, first))
    if span.time_from == "neighbours":
        words = element("span", "between", css="dim"), element("span", "and", css="dim")
        return join((words[0], " ", ends[0], " ", words[1], " ", ends[1]))
    return ends[0] if first == last else join((ends[0], " – ", ends[1]))


def _moment(timestamp_ms: int, zone: tzinfo, behind_ms: int | None = None) -> Markup:
    """A moment that does not break; behind another one of the same day only its time."""
    told = moment(timestamp_ms, zone)
    if behind_ms is not None and moment(behind_ms, zone)[:10] == told[:10]:
        told = told[11:]
    return element("span", told, css="time")
