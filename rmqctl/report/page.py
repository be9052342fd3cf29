"""The loss report as one HTML page: no script, nothing fetched, safe to attach to an incident."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import Final

from rmqctl import __version__
from rmqctl.loss_report import loss_rows
from rmqctl.output.cells import human_size
from rmqctl.report.markup import Column, Markup, attribute, count, element, join, moment, table, text, time_span
from rmqctl.report.picture import patterns, picture
from rmqctl.report.style import STYLE
from rmqctl.report.words import broker_card, how_to_go_on, kept_card, lost_card, verdict
from store_core.findings import KINDS
from store_core.recovery.loss_report.model import (
    GroupLoss,
    HalfMessages,
    Loss,
    LossReport,
    LostRange,
    OpenHalf,
    QueueLoss,
)

_MOST_QUEUES: Final = 80
_MOST_RANGES: Final = 6  # of a queue
_MOST_KEYS: Final = 6  # of a queue
_MOST_GROUPS: Final = 60
_MOST_HALVES: Final = 30

_QUEUE_COLUMNS: Final = (
    Column("Topic"),
    Column("Queue", "number"),
    Column("Lost queue offsets", "code"),
    Column("Messages", "number"),
    Column("Size", "number"),
    Column("Stored"),
    Column("Keys", "code"),
)
_GROUP_COLUMNS: Final = (
    Column("Group"),
    Column("Topic"),
    Column("Queue", "number"),
    Column("Next offset", "number"),
    Column("Had consumed", "number"),
    Column("Will miss", "number"),
    Column("Where it stands"),
)
_HALF_COLUMNS: Final = (
    Column("For topic"),
    Column("Producer group"),
    Column("Half queue offset", "number"),
    Column("Stored"),
    Column("Unique key", "code"),
    Column("State"),
)
_MESSAGES_COLUMNS: Final = (Column("What becomes of them"), Column("Messages", "number"))
_DELAYED_COLUMNS: Final = (Column("Delay"), Column("Lost", "number"), Column("Not delivered yet", "number"))


@dataclass(frozen=True, slots=True)
class Reader:
    """For whom the page is: times in ``zone``, which is called ``zone_name``; ``arguments`` name the store on a command
    line, ``options`` are what its plan was asked for with."""

    zone: tzinfo = UTC
    zone_name: str = "UTC"
    arguments: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


def page(report: LossReport, reader: Reader) -> str:
    """The whole page. Its length is bounded whatever was lost: long lists are cut and say so."""
    title = f"Loss report: {report.store.path}"
    parts = [
        _header(report, reader),
        _cards(report),
        _messages(report),
        _log(report),
        *_losses(report, reader),
        _section(
            "How to go on",
            element("ol", join(element("li", s) for s in how_to_go_on(report, reader.arguments, reader.options))),
        ),
        _identity(report, reader),
    ]
    body = "\n".join(part for part in parts if part)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{attribute(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{patterns()}\n<main>\n{body}\n"
        f"</main>\n</body>\n</html>\n"
    )


def _section(title: str, *content: object) -> Markup:
    return Markup(f"<section>\n<h2>{text(title)}</h2>\n{join(content)}\n</section>")


def _header(report: LossReport, reader: Reader) -> Markup:
    exit_ = "after a crash" if report.last_exit == "crash" else "after a clean stop"
    where = f"{report.store.path} · {moment(report.made_timestamp_ms, reader.zone)} {reader.zone_name} · broker {report.broker_version['assumed']}, {exit_}"
    return Markup(
        f'<header>\n<p class="kicker">Loss report</p>\n<h1>{text(verdict(report))}</h1>\n<p class="where">{text(where)}</p>\n</header>'
    )


def _cards(report: LossReport) -> Markup:
    cards = [broker_card(report.broker)]
    if report.kept is not None:
        cards += [kept_card(report.kept), lost_card(report.kept)]
    return Markup('<div class="cards">\n' + "\n".join(cards) + "\n</div>")


def _messages(report: LossReport) -> Markup:
    rows = [
        (name[0].upper() + name[1:], "not known" if n is None else n) for name, n in loss_rows(report.losses.as_json())
    ]
    return _section("Messages", table(_MESSAGES_COLUMNS, rows))


def _log(report: LossReport) -> Markup:
    cut = report.broker.max_phy_offset if report.broker.starts else None
    coarse = any(strip.is_aggregated for strip in report.segments)
    note = " Near spans are drawn as one, of the worst kind they hold." if coarse or len(report.segments) > 1 else ""
    return _section(
        "The log",
        element("p", f"Every strip is a stretch of the log from its first byte to its last.{note}", css="dim"),
        picture(report.segments, cut),
    )


def _losses(report: LossReport, reader: Reader) -> Iterable[Markup]:
    broker, kept = report.broker, report.kept
    if kept is not None:
        title = "Lost with this policy" if kept.policy == "broker" else "Lost either way"
        yield _loss(title, kept.loss, reader, "What no tool can bring back from these files.")
    if broker.thrown_away is not None and (kept is None or kept.policy != "broker"):
        lead = "Good messages that no consumer would get any more once a broker has started on the store as it is."
        yield _loss("What a broker would throw away", broker.thrown_away, reader, lead)


def _loss(title: str, loss: Loss, reader: Reader, lead: str) -> Markup:
    if loss.is_nothing and not (loss.groups or loss.half_messages.open_messages or loss.delivered_early):
        return _section(title, element("p", "Nothing."))
    parts: list[object] = [element("p", lead if not loss.is_nothing else "No message.", css="dim")]
    if loss.queues:
        parts.append(_queues(loss.queues, reader))
    if loss.unknown_ranges:
        words = f"{count(loss.unknown_ranges, 'stretch', 'stretches')} of the log, {human_size(loss.unknown_bytes)} in all, may have held messages that nobody can name: neither a header nor a queue entry is left of them."
        parts.append(element("p", words))
    if loss.groups:
        parts += [element("h3", "Consumer groups"), _groups(loss.groups)]
    parts += _halves(loss.half_messages, reader)
    if loss.delayed:
        parts += [element("h3", "Delayed messages"), _delayed(loss)]
    if loss.delivered_early:
        told = ", ".join(f"{early.topic} ({early.messages:,})" for early in loss.delivered_early)
        parts.append(element("p", f"Delivered at once, although they are delayed: {told}."))
    return _section(title, *parts)


def _queues(queues: Sequence[QueueLoss], reader: Reader) -> Markup:
    shown = sorted(queues, key=lambda queue: -queue.messages)[:_MOST_QUEUES]
    shown.sort(key=lambda queue: (queue.topic, queue.queue_id))
    more = ""
    if len(shown) < len(queues):
        rest = sum(q.messages for q in queues) - sum(q.messages for q in shown)
        more = f"The {len(shown)} queues that lose most; {count(len(queues) - len(shown), 'more queue')} with {count(rest, 'message')} in the JSON form."
    return table(_QUEUE_COLUMNS, (_queue_row(queue, reader) for queue in shown), more)


def _queue_row(queue: QueueLoss, reader: Reader) -> Sequence[object]:
    keys = queue.keys
    told = ", ".join(keys[:_MOST_KEYS]) + (", …" if len(keys) > _MOST_KEYS else "")
    return (
        queue.topic,
        queue.queue_id,
        _offsets(queue.ranges),
        queue.messages,
        human_size(queue.size_bytes),
        time_span(queue.span, reader.zone),
        told,
    )


def _offsets(ranges: Sequence[LostRange]) -> str:
    told = [
        f"{r.first_queue_offset}"
        if r.first_queue_offset == r.last_queue_offset
        else f"{r.first_queue_offset}–{r.last_queue_offset}"
        for r in ranges[:_MOST_RANGES]
    ]
    if len(ranges) > _MOST_RANGES:
        told.append(f"… {len(ranges) - _MOST_RANGES:,} more up to {ranges[-1].last_queue_offset}")
    return ", ".join(told)


def _groups(groups: Sequence[GroupLoss]) -> Markup:
    shown = sorted(groups, key=lambda g: (-g.missed_messages, -g.lost_messages))[:_MOST_GROUPS]
    shown.sort(key=lambda g: (g.group, g.topic, g.queue_id))
    more = ""
    if len(shown) < len(groups):
        more = f"{count(len(groups) - len(shown), 'more row')} in the JSON form."
    return table(_GROUP_COLUMNS, (_group_row(group) for group in shown), more)


def _group_row(group: GroupLoss) -> Sequence[object]:
    missed: object = group.missed_messages
    return (group.group, group.topic, group.queue_id, group.offset, group.consumed_messages, missed, standing(group))


def standing(group: GroupLoss) -> Markup:
    """Where a group's progress is, in words."""
    words = {
        "in": "in the gap: its next message is lost",
        "before": "has not reached the gap",
        "between": "between two gaps",
        "beyond": "has passed the gap" if group.consumed_messages else "",
    }[group.position]
    if not group.beyond_end:
        return text(words)
    behind = f"{group.offset - (group.max_offset or 0):,} past the queue’s new end {group.max_offset or 0:,}"
    return join((f"{words}; " if words else "", element("span", behind, css="warn")))


def _halves(halves: HalfMessages, reader: Reader) -> Iterable[Markup]:
    if not (halves.open_messages or halves.lost_messages or halves.lost_operations):
        return
    yield element("h3", "Transactions")
    words = []
    if halves.open_messages:
        words.append(f"{count(halves.open_messages, 'half message')} left open")
        if halves.decision_lost:
            words[-1] += f", {halves.decision_lost:,} because the decision is lost"
    if halves.lost_messages:
        words.append(f"{count(halves.lost_messages, 'half message')} lost")
    if halves.lost_operations:
        so = ", so some of the open ones may be decided" if halves.open_messages else ""
        words.append(f"{count(halves.lost_operations, 'record')} of decisions lost{so}")
    yield element("p", "; ".join(words) + ".")
    if halves.listed:
        more = halves.open_messages - len(halves.listed[:_MOST_HALVES])
        rows = (_half_row(half, reader) for half in halves.listed[:_MOST_HALVES])
        yield table(_HALF_COLUMNS, rows, f"{count(more, 'more half message')} not shown." if more > 0 else "")


def _half_row(half: OpenHalf, reader: Reader) -> Sequence[object]:
    state = "decision lost" if half.decision_lost else "never decided"
    asked = "a broker asks its producer" if half.call_again else "no broker asks for it again"
    return (
        half.topic,
        half.producer_group,
        half.queue_offset,
        element("span", moment(half.store_timestamp_ms, reader.zone), css="time"),
        half.unique_key,
        f"{state}; {asked}",
    )


def _delayed(loss: Loss) -> Markup:
    rows = [
        (
            "timer" if d.delay_level is None else f"level {d.delay_level}",
            d.lost_messages,
            d.not_delivered,
        )
        for d in loss.delayed
    ]
    return table(_DELAYED_COLUMNS, rows)


def _identity(report: LossReport, reader: Reader) -> Markup:
    version = report.broker_version
    possible = version["possible"]
    broker = str(version["assumed"])
    if len(possible) > 1:
        broker += f" assumed; possible: {possible[0]} to {possible[-1]}"
    facts: list[tuple[str, object]] = [
        ("Path", report.store.path),
        ("Broker version", broker),
        ("How that is known", "; ".join(map(str, version["evidence"]))),
        ("Last exit", report.last_exit),
        ("Files", f"{report.store.files:,} files, {human_size(report.store.size_bytes)}"),
        ("File list, SHA-256", element("code", report.store.file_list_sha256)),
        ("Readable messages in the log", report.readable_messages),
        ("Report made", f"{moment(report.made_timestamp_ms, reader.zone)} {reader.zone_name}, rmqctl {__version__}"),
    ]
    if report.first_timestamp_ms is not None and report.last_timestamp_ms is not None:
        span = f"{moment(report.first_timestamp_ms, reader.zone)} to {moment(report.last_timestamp_ms, reader.zone)} {reader.zone_name}"
        facts.insert(-1, ("Stored", span))
    if report.findings:
        told = [f"{code} {KINDS[code].title} ({number:,})" for code, number in report.findings.items()]
        facts.append(("Findings", join(element("div", line) for line in told)))
    for note in report.notes:
        facts.append(("Note", note))
    rows = join(join((element("dt", name), element("dd", value))) for name, value in facts)
    ways = (
        f"Times are store times, in {reader.zone_name}. “Between” means that the lost messages’ own times are gone: they were"
        " stored between the nearest messages that can be read. Keys are the first few that are known."
        " The file list’s digest is over path, size and modification time of every file, as the store was when this was made."
    )
    return _section("The store", element("dl", rows), element("p", ways, css="more"))
