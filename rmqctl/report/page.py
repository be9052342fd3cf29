"""Write the loss report as one HTML page: no script, nothing fetched, safe to attach to an incident."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from functools import partial
from typing import Any, Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from rmqctl import __version__
from rmqctl.loss_report import loss_rows
from rmqctl.output.cells import escape_controls, human_size
from rmqctl.report.strip_map import strip_map
from rmqctl.report.words import cards, count, half_messages_in_words, how_to_go_on, verdict
from rmqctl.times import format_time
from store_core.findings import KINDS
from store_core.recovery.loss_report.model import (
    DelayedLoss,
    GroupLoss,
    HalfMessages,
    LossReport,
    LostRange,
    QueueLoss,
    TimeSpan,
)

_MOST_QUEUES: Final = 80
_MOST_RANGES: Final = 6  # of a queue
_MOST_KEYS: Final = 6  # of a queue
_MOST_GROUPS: Final = 60
_MOST_HALVES: Final = 30
_LONGEST_TEXT: Final = 600
_LONGEST_WORD: Final = 22  # a longer name may be broken, so that it does not widen a table
_POSITIONS: Final = {
    "in": "in the gap: its next message is lost",
    "before": "has not reached the gap",
    "between": "between two gaps",
    "beyond": "has passed the gap",
}


@dataclass(frozen=True, slots=True)
class Reader:
    """Settings of a page's reader.

    * ``zone``, ``zone_name``: the zone of times, and its name
    * ``arguments``: they name the store on a command line
    * ``options``: the command line options of its plan
    """

    zone: tzinfo = UTC
    zone_name: str = "UTC"
    arguments: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


class Shown(NamedTuple):
    """Rows of a table, and a line below it about those left out."""

    rows: list[tuple[object, ...]]
    more: str = ""


def page(report: LossReport, reader: Reader) -> str:
    """Return the whole page. Its length is bounded whatever was lost: long lists are cut, with a note."""
    loader = PackageLoader("rmqctl.report", "")
    pages = Environment(
        autoescape=True, loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_shown
    )
    pages.filters.update(
        attribute=_attribute,
        count=count,
        size=human_size,
        moment=partial(_moment, zone=reader.zone),
        lost_queues=partial(_lost_queues, zone=reader.zone),
        affected_groups=_affected_groups,
        half_messages=half_messages_in_words,
        open_halves=partial(_open_halves, zone=reader.zone),
        delays=_delays,
    )
    style, _, _ = loader.get_source(pages, "style.css")
    cut_phy_offset = report.broker.max_phy_offset if report.broker.starts else None
    return pages.get_template("page.html.j2").render(
        report=report,
        reader=reader,
        style=Markup(style),  # a file of this package, so safe as markup
        verdict=verdict(report),
        cards=cards(report),
        losses=[(_sentence(n), "not known" if v is None else v) for n, v in loss_rows(report.losses.as_json())],
        strip_map=strip_map(report.segments, cut_phy_offset),
        steps=list(how_to_go_on(report, reader.arguments, reader.options)),
        facts=list(_facts(report, reader)),
    )


def _shown(value: object) -> object:
    """Return any value as safe text of the page. Text from a store may be long, contain control characters, or look like markup."""
    if isinstance(value, Markup):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    words = escape_controls("" if value is None else _cut(str(value))).split(" ")
    return Markup(" ").join(Markup("<wbr>").join(_parts(word)) for word in words)


def _parts(word: str) -> list[str]:
    return [word[at : at + _LONGEST_WORD] for at in range(0, len(word), _LONGEST_WORD)]


def _attribute(value: str) -> Markup:
    return escape(escape_controls(value[:_LONGEST_TEXT]))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "…"


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _moment(timestamp_ms: int, zone: tzinfo) -> str:
    """Return ``2026-11-21 02:18:38.538``, in the zone that the page names."""
    text = format_time(timestamp_ms, zone).replace("T", " ")
    return text[:23] if len(text) > 23 and text[4] == "-" else text


def _time(text: str) -> Markup:
    return Markup('<span class="time">{}</span>').format(text)


def _time_span(span: TimeSpan, zone: tzinfo) -> Markup:
    """Return when messages were stored, as far as that is known."""
    first, last = (
        None if at is None else _moment(at, zone) for at in (span.first_timestamp_ms, span.last_timestamp_ms)
    )
    dim = Markup('<span class="dim">{}</span>')
    if span.time_from is None or (first is None and last is None):
        return dim.format("unknown")
    if first is None or last is None:
        word, known = ("after", first) if last is None else ("before", last)
        return dim.format(word) + " " + _time(known or "")
    end = _time(last[11:] if last[:10] == first[:10] else last)
    if span.time_from == "neighbours":
        return Markup("{} {} {} {}").format(dim.format("between"), _time(first), dim.format("and"), end)
    return _time(first) if first == last else _time(first) + " – " + end


def _lost_queues(queues: Sequence[QueueLoss], zone: tzinfo) -> Shown:
    worst = sorted(queues, key=lambda queue: -queue.messages)[:_MOST_QUEUES]
    more = ""
    if len(worst) < len(queues):
        rest = sum(q.messages for q in queues) - sum(q.messages for q in worst)
        more = f"The {len(worst)} queues that lose most; {count(len(queues) - len(worst), 'more queue')} with {count(rest, 'message')} in the JSON form."
    rows: list[tuple[object, ...]] = [
        (
            q.topic,
            q.queue_id,
            _offsets(q.ranges),
            q.messages,
            human_size(q.size_bytes),
            _time_span(q.span, zone),
            ", ".join(q.keys[:_MOST_KEYS]) + (", …" if len(q.keys) > _MOST_KEYS else ""),
        )
        for q in sorted(worst, key=lambda queue: (queue.topic, queue.queue_id))
    ]
    return Shown(rows, more)


def _offsets(ranges: Sequence[LostRange]) -> str:
    shown = [
        f"{r.first_queue_offset}"
        if r.first_queue_offset == r.last_queue_offset
        else f"{r.first_queue_offset}–{r.last_queue_offset}"
        for r in ranges[:_MOST_RANGES]
    ]
    if len(ranges) > _MOST_RANGES:
        shown.append(f"… {len(ranges) - _MOST_RANGES:,} more up to {ranges[-1].last_queue_offset}")
    return ", ".join(shown)


def _affected_groups(groups: Sequence[GroupLoss]) -> Shown:
    worst = sorted(groups, key=lambda g: (-g.missed_messages, -g.lost_messages))[:_MOST_GROUPS]
    rows: list[tuple[object, ...]] = [
        (g.group, g.topic, g.queue_id, g.offset, g.consumed_messages, g.missed_messages, _progress(g))
        for g in sorted(worst, key=lambda g: (g.group, g.topic, g.queue_id))
    ]
    return Shown(
        rows, f"{count(len(groups) - len(worst), 'more row')} in the JSON form." if groups[len(worst) :] else ""
    )


def _progress(group: GroupLoss) -> object:
    """Return where a group's progress is, in words."""
    words = "" if group.position == "beyond" and not group.consumed_messages else _POSITIONS[group.position]
    if not group.beyond_end:
        return words
    past = f"{group.offset - (group.max_offset or 0):,} past the queue’s new end {group.max_offset or 0:,}"
    return Markup('{}<span class="warn">{}</span>').format(f"{words}; " if words else "", past)


def _open_halves(halves: HalfMessages, zone: tzinfo) -> Shown:
    listed = halves.listed[:_MOST_HALVES]
    rows: list[tuple[object, ...]] = [
        (
            half.topic,
            half.producer_group,
            half.queue_offset,
            _time(_moment(half.store_timestamp_ms, zone)),
            half.unique_key,
            f"{'decision lost' if half.decision_lost else 'never decided'}; "
            + ("a broker asks its producer" if half.call_again else "no broker asks for it again"),
        )
        for half in listed
    ]
    more = halves.open_messages - len(listed)
    return Shown(rows, f"{count(more, 'more half message')} not shown." if more > 0 else "")


def _delays(delayed: Sequence[DelayedLoss]) -> list[tuple[object, ...]]:
    return [
        ("timer" if d.delay_level is None else f"level {d.delay_level}", d.lost_messages, d.not_delivered)
        for d in delayed
    ]


def _facts(report: LossReport, reader: Reader) -> Iterator[tuple[str, list[Any]]]:
    """Yield the facts about the store: a name, and its lines."""
    version, possible = report.broker_version, report.broker_version["possible"]
    broker = str(version["assumed"])
    if len(possible) > 1:
        broker += f" assumed; possible: {possible[0]} to {possible[-1]}"
    yield "Path", [report.store.path]
    yield "Broker version", [broker]
    yield "How that is known", ["; ".join(map(str, version["evidence"]))]
    yield "Last exit", [report.last_exit]
    yield "Files", [f"{report.store.files:,} files, {human_size(report.store.size_bytes)}"]
    yield "File list, SHA-256", [Markup("<code>{}</code>").format(report.store.file_list_sha256)]
    yield "Readable messages in the log", [report.readable_messages]
    ends = report.first_timestamp_ms, report.last_timestamp_ms
    if ends[0] is not None and ends[1] is not None:
        yield "Stored", [f"{_moment(ends[0], reader.zone)} to {_moment(ends[1], reader.zone)} {reader.zone_name}"]
    made = f"{_moment(report.made_timestamp_ms, reader.zone)} {reader.zone_name}, rmqctl {__version__}"
    yield "Report made", [made]
    if report.findings:
        yield "Findings", [f"{code} {KINDS[code].title} ({number:,})" for code, number in report.findings.items()]
    yield from (("Note", [note]) for note in report.notes)
