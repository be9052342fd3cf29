"""What the report says in words: the verdict, the headline figures, and how to go on."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Final

from rmqctl.output.cells import human_size
from rmqctl.report.markup import Markup, count, element, join, text
from store_core.recovery.loss_report.model import BrokerStart, Kept, Loss, LossReport

_BACKUP: Final = "/backup/store"
_NOTHING: Final = "Nothing is lost."


def verdict(report: LossReport) -> str:
    """The report in a sentence or two."""
    said, losses = _verdict(report), report.losses
    if not losses.begin_is_missing:
        return said
    number = losses.before_begin_messages
    missing = f"{count(number, 'message')} before the log’s first byte {'is' if number == 1 else 'are'} missing."
    return missing if said == _NOTHING else f"{said} {missing}"


def _verdict(report: LossReport) -> str:
    broker, kept = report.broker, report.kept
    lost = broker.thrown_away.lost_messages if broker.thrown_away else 0
    total = known_messages(report)
    if not broker.starts:
        first = "A broker would not start on this store"
    elif lost:
        first = f"A broker started now would throw away {lost:,} of {count(total, 'known message')}"
    else:
        first = "A broker started now would throw away nothing that can be read"
    if kept is None:
        return f"{first}."
    if kept.policy == "broker":
        return f"{first}, and this plan does the same, without its ghosts."
    if kept.loss.is_nothing:
        return f"{first}; nothing need be lost." if lost or not broker.starts else _NOTHING
    gone = count(kept.loss.lost_messages, "message") if kept.loss.lost_messages else ""
    unknown = count(kept.loss.unknown_ranges, "stretch", "stretches") if kept.loss.unknown_ranges else ""
    named = " and ".join(part for part in (gone, unknown and f"what was in {unknown} of the log") if part)
    is_one = kept.loss.lost_messages + kept.loss.unknown_ranges == 1
    if not lost and broker.starts:
        return f"{first}, but {named} {'is' if is_one else 'are'} lost already."
    return f"{first}. All but {named} can be kept."


def known_messages(report: LossReport) -> int:
    """Readable messages and those known to be unreadable already."""
    return report.readable_messages + (report.losses.unreadable_messages or 0)


def broker_card(broker: BrokerStart) -> Markup:
    if broker.thrown_away is None:
        return _card("If a broker is started now", "does not start", "", [broker.reason], "bad")
    loss = broker.thrown_away
    lines = [
        f"{broker.recovery} recovery, from {broker.first_file_scanned}" if broker.first_file_scanned else "",
        f"log cut at {broker.max_phy_offset:,}" if broker.max_phy_offset is not None and _cuts(broker) else "",
        _deleted(broker),
        _groups_told(loss),
        f"{count(loss.half_messages.decision_lost, 'transaction')} undecided again"
        if loss.half_messages.decision_lost
        else "",
        f"{count(sum(e.messages for e in loss.delivered_early), 'delayed message')} delivered at once"
        if loss.delivered_early
        else "",
        f"{count(broker.ghosts, 'old record')} or entries come back as if new" if broker.ghosts else "",
    ]
    word = "message thrown away" if loss.lost_messages == 1 else "messages thrown away"
    return _card(
        "If a broker is started now", f"{loss.lost_messages:,}", word, lines, "bad" if loss.lost_messages else "good"
    )


def kept_card(kept: Kept) -> Markup:
    lines = [
        f"the log ends at {kept.end_phy_offset:,}" if kept.end_phy_offset is not None else "",
        _start_on(kept),
        f"plan {kept.plan_id}, {count(kept.steps, 'step')}, policy {kept.policy}",
    ]
    good = kept.broker_starts and not kept.broker_loses
    return _card("What can be kept", f"{kept.messages:,}", "messages", lines, "good" if good else "bad")


def _start_on(kept: Kept) -> str:
    if not kept.broker_starts:
        return "a broker would still not start on it"
    more = f"{count(kept.broker_loses, 'message')} more" if kept.broker_loses else "nothing more"
    return f"a broker starts on it and loses {more}"


def lost_card(kept: Kept) -> Markup:
    loss = kept.loss
    lines = [
        f"and {count(loss.unknown_ranges, 'stretch', 'stretches')} of the log ({human_size(loss.unknown_bytes)}) that nobody can name"
        if loss.unknown_ranges
        else "",
        f"in {count(len(loss.queues), 'queue')} of {count(len({q.topic for q in loss.queues}), 'topic')}"
        if loss.queues
        else "",
        f"{loss.given_up_messages:,} of them can be read, but must be given up" if loss.given_up_messages else "",
        _groups_told(loss),
    ]
    title = "Lost with this policy" if kept.policy == "broker" else "Lost either way"
    word = "message" if loss.lost_messages == 1 else "messages"
    return _card(title, f"{loss.lost_messages:,}", word, lines, "good" if loss.is_nothing else "bad")


def _card(title: str, figure: str, unit: str, lines: Sequence[str], css: str) -> Markup:
    items = join(element("li", line) for line in lines if line)
    return element(
        "div",
        element("h2", title),
        element("div", figure, " ", element("small", unit), css="figure"),
        element("ul", items) if items else "",
        css=f"card {css}",
    )


def _cuts(broker: BrokerStart) -> bool:
    return bool(broker.thrown_away and broker.thrown_away.lost_messages) or bool(broker.deleted_commitlog_files)


def _deleted(broker: BrokerStart) -> str:
    parts = [
        count(len(names), noun)
        for names, noun in ((broker.deleted_commitlog_files, "log file"), (broker.deleted_index_files, "index file"))
        if names
    ]
    return f"{' and '.join(parts)} deleted" if parts else ""


def _groups_told(loss: Loss) -> str:
    groups = {group.group for group in loss.groups}
    missing = {group.group for group in loss.groups if group.missed_messages}
    if not groups:
        return ""
    return f"{count(len(groups), 'consumer group')} affected" + (
        f", {len(missing)} would miss messages" if missing else ""
    )


def how_to_go_on(report: LossReport, arguments: Sequence[str], options: Sequence[str]) -> Iterator[Markup]:
    """The steps from here, with commands as they are typed. ``arguments`` name the store and its settings,
    ``options`` are those of the plan."""
    store = shlex.join(arguments)
    broker, kept = report.broker, report.kept
    has_work = kept is None or kept.steps
    if not has_work and kept is not None and kept.loss.is_nothing:
        yield join(("Nothing has to be mended. ", _command(f"rmqctl check {store}"), "looks at everything once more."))
        return
    if has_work:
        yield text("Keep the broker down, and whatever restarts it. It recovers before it asks anybody.")
        yield join(
            (
                "Copy the store first:",
                _command(f"cp -a --sparse=always {shlex.quote(report.store.path)} {_BACKUP}"),
            )
        )
    if kept is None:
        yield join(("See what can be kept; nothing is changed:", _command(f"rmqctl recover {store}")))
    policy = ("--policy", kept.policy) if kept is not None and kept.policy != "keep" else ()
    planned = shlex.join((*arguments, *policy, *options))
    if has_work:
        yes = " --yes" if kept is not None and kept.loss.given_up_messages else ""
        yield join(
            (
                "Carry the plan out. Every changed byte is kept until it is dropped on purpose:",
                _command(f"rmqctl recover {planned} --apply{yes}"),
            )
        )
        yield join(
            (
                "Ask again what a broker would do. It must end with 0 before one is started:",
                _command(f"rmqctl recover {store} --predict"),
            )
        )
    loss = kept.loss if kept is not None else broker.thrown_away
    if loss is not None and not loss.is_nothing:
        yield text(
            "Have the producers send again what is lost: the tables name queue offsets, times and, where known, message keys."
            " The JSON form of this report has them all."
        )
    if loss is not None and (groups := {g.group for g in loss.groups if g.missed_messages}):
        yield text(
            f"Tell the owners of {count(len(groups), 'consumer group')} that will never see some messages;"
            " groups that had consumed them already miss nothing."
        )
    if loss is not None and loss.half_messages.open_messages:
        yield text("Ask the producers of the open transactions: a half message that nobody decides is never delivered.")
    if has_work:
        yield join(
            (
                "Something is odd, and no broker has started yet? This takes everything back:",
                _command(f"rmqctl undo {store} --apply"),
            )
        )


def _command(line: str) -> Markup:
    return element("pre", element("code", line))
