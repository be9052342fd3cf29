"""Write the report in words: the verdict, the headline figures, and the next steps."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from rmqctl.output.cells import human_size
from store_core.recovery.loss_report.model import BrokerStart, HalfMessages, Kept, Loss, LossReport

_BACKUP: Final = "/backup/store"
_NOTHING: Final = "Nothing is lost."


class Card(NamedTuple):
    """A headline figure with lines of detail."""

    title: str
    figure: str
    unit: str
    lines: list[str]
    is_good: bool


class Step(NamedTuple):
    """A next step: words, a command as typed, and words after it."""

    words: str
    command: str = ""
    more: str = ""


def count(number: int, noun: str, plural: str = "") -> str:
    """Return ``1 message``, ``2,000 messages``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def verdict(report: LossReport) -> str:
    """Return the report in a sentence or two."""
    sentence, losses = _verdict(report), report.losses
    if not losses.begin_is_missing:
        return sentence
    number = losses.before_begin_messages
    missing = f"{count(number, 'message')} before the log’s first byte {'is' if number == 1 else 'are'} missing."
    return missing if sentence == _NOTHING else f"{sentence} {missing}"


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
        return f"{first}, and this plan does the same, without its resurrected records."
    if kept.loss.is_nothing:
        return f"{first}; nothing need be lost." if lost or not broker.starts else _NOTHING
    gone = count(kept.loss.lost_messages, "message") if kept.loss.lost_messages else ""
    unknown = count(kept.loss.unknown_ranges, "range") if kept.loss.unknown_ranges else ""
    named = " and ".join(part for part in (gone, unknown and f"what was in {unknown} of the log") if part)
    is_one = kept.loss.lost_messages + kept.loss.unknown_ranges == 1
    if not lost and broker.starts:
        return f"{first}, but {named} {'is' if is_one else 'are'} lost already."
    return f"{first}. All but {named} can be kept."


def known_messages(report: LossReport) -> int:
    """Return the number of readable messages and those known to be unreadable already."""
    return report.readable_messages + (report.losses.unreadable_messages or 0)


def cards(report: LossReport) -> list[Card]:
    """Return the headline figures of a broker's start, and with a plan, of the messages it keeps and loses."""
    kept = report.kept
    return [_broker_card(report.broker), *((_kept_card(kept), _lost_card(kept)) if kept is not None else ())]


def _card(title: str, figure: str, unit: str, lines: Sequence[str], *, is_good: bool) -> Card:
    return Card(title, figure, unit, [line for line in lines if line], is_good)


def _broker_card(broker: BrokerStart) -> Card:
    title, loss = "If a broker is started now", broker.thrown_away
    if loss is None:
        return _card(title, "does not start", "", [broker.reason], is_good=False)
    undecided, early = loss.half_messages.decision_lost, sum(e.messages for e in loss.delivered_early)
    cuts = loss.lost_messages or broker.deleted_commitlog_files
    lines = [
        f"{broker.recovery} recovery, from {broker.first_file_scanned}" if broker.first_file_scanned else "",
        f"log cut at {broker.max_phy_offset:,}" if broker.max_phy_offset is not None and cuts else "",
        _deleted(broker),
        _affected_groups(loss),
        f"{count(undecided, 'transaction')} undecided again" if undecided else "",
        f"{count(early, 'delayed message')} delivered at once" if early else "",
        f"{count(broker.ghosts, 'old record')} or entries come back as if new" if broker.ghosts else "",
    ]
    word = "message thrown away" if loss.lost_messages == 1 else "messages thrown away"
    return _card(title, f"{loss.lost_messages:,}", word, lines, is_good=not loss.lost_messages)


def _kept_card(kept: Kept) -> Card:
    more = f"{count(kept.broker_loses, 'message')} more" if kept.broker_loses else "nothing more"
    lines = [
        f"the log ends at {kept.end_phy_offset:,}" if kept.end_phy_offset is not None else "",
        f"a broker starts on it and loses {more}" if kept.broker_starts else "a broker would still not start on it",
        f"plan {kept.plan_id}, {count(kept.steps, 'step')}, policy {kept.policy}",
    ]
    is_good = kept.broker_starts and not kept.broker_loses
    return _card("What can be kept", f"{kept.messages:,}", "messages", lines, is_good=is_good)


def _lost_card(kept: Kept) -> Card:
    loss = kept.loss
    unknown = f"{count(loss.unknown_ranges, 'range')} of the log ({human_size(loss.unknown_bytes)})"
    topics = count(len({q.topic for q in loss.queues}), "topic")
    lines = [
        f"and unknown messages in {unknown}" if loss.unknown_ranges else "",
        f"in {count(len(loss.queues), 'queue')} of {topics}" if loss.queues else "",
        f"{loss.given_up_messages:,} of them can be read, but must be given up" if loss.given_up_messages else "",
        _affected_groups(loss),
    ]
    title = "Lost with this policy" if kept.policy == "broker" else "Lost either way"
    word = "message" if loss.lost_messages == 1 else "messages"
    return _card(title, f"{loss.lost_messages:,}", word, lines, is_good=loss.is_nothing)


def _deleted(broker: BrokerStart) -> str:
    parts = [
        count(len(names), noun)
        for names, noun in ((broker.deleted_commitlog_files, "log file"), (broker.deleted_index_files, "index file"))
        if names
    ]
    return f"{' and '.join(parts)} deleted" if parts else ""


def _affected_groups(loss: Loss) -> str:
    groups = {group.group for group in loss.groups}
    missing = {group.group for group in loss.groups if group.missed_messages}
    misses = f", {len(missing)} would miss messages" if missing else ""
    return f"{count(len(groups), 'consumer group')} affected{misses}" if groups else ""


def half_messages_in_words(halves: HalfMessages) -> str:
    """Return the open and lost half messages, counted, as one sentence."""
    words = []
    if halves.open_messages:
        lost = f", {halves.decision_lost:,} because the decision is lost" if halves.decision_lost else ""
        words.append(f"{count(halves.open_messages, 'half message')} left open{lost}")
    if halves.lost_messages:
        words.append(f"{count(halves.lost_messages, 'half message')} lost")
    if halves.lost_operations:
        so = ", so some of the open ones may be decided" if halves.open_messages else ""
        words.append(f"{count(halves.lost_operations, 'record')} of decisions lost{so}")
    return "; ".join(words) + "."


def how_to_go_on(report: LossReport, arguments: Sequence[str], options: Sequence[str]) -> Iterator[Step]:
    """Yield the next steps, with commands as typed.

    ``arguments`` name the store and its settings, ``options`` are those of the plan.
    """
    store, kept = shlex.join(arguments), report.kept
    has_work = kept is None or kept.steps
    if not has_work and kept is not None and kept.loss.is_nothing:
        yield Step("Nothing has to be mended.", f"rmqctl check {store}", "looks at everything once more.")
        return
    if has_work:
        yield Step("Keep the broker down, and whatever restarts it. It recovers before it asks anybody.")
        yield Step("Copy the store first:", f"cp -a --sparse=always {shlex.quote(report.store.path)} {_BACKUP}")
    if kept is None:
        yield Step("See what can be kept; nothing is changed:", f"rmqctl recover {store}")
    if has_work:
        policy = ("--policy", kept.policy) if kept is not None and kept.policy != "keep" else ()
        yes = " --yes" if kept is not None and kept.loss.given_up_messages else ""
        planned = shlex.join((*arguments, *policy, *options))
        words = "Carry the plan out. Every changed byte is kept until it is dropped on purpose:"
        yield Step(words, f"rmqctl recover {planned} --apply{yes}")
        words = "Ask again what a broker would do. It must end with 0 before one is started:"
        yield Step(words, f"rmqctl recover {store} --predict")
    loss = kept.loss if kept is not None else report.broker.thrown_away
    yield from map(Step, _people_to_inform(loss) if loss is not None else ())
    if has_work:
        words = "Something is odd, and no broker has started yet? This takes everything back:"
        yield Step(words, f"rmqctl undo {store} --apply")


def _people_to_inform(loss: Loss) -> Iterator[str]:
    if not loss.is_nothing:
        yield (
            "Have the producers send again what is lost: the tables name queue offsets, times and, where known, message keys."
            " The JSON form of this report has them all."
        )
    if groups := {g.group for g in loss.groups if g.missed_messages}:
        yield (
            f"Inform the owners of {count(len(groups), 'consumer group')} that will never see some messages;"
            " groups that had consumed them already miss nothing."
        )
    if loss.half_messages.open_messages:
        yield "Ask the producers of the open transactions: a half message that is never decided is never delivered."
