"""Write the notes of a recovery: the effects of its options, and advice that fits the plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from store_core.broker.versions import Version
from store_core.findings import Finding
from store_core.layout import paths
from store_core.recovery.header_repair import Repair
from store_core.recovery.keep_options import KeepOptions
from store_core.recovery.lost_messages import SkippedEarlier, beyond_log_end, index_traces, traced
from store_core.recovery.plan_keep import KeepPlan
from store_core.recovery.plans.plan import Op, Plan
from store_core.recovery.prediction.outcome import Outcome
from store_core.recovery.shifted_records import Shift
from store_core.recovery.skipped_offsets import Kept
from store_core.storage.config_files import offset_table, read_config
from store_core.storage.store import QueueKey, Store

_MOST_NAMED: Final = 10
_MENDED: Final = "The plan mends it."
_MENDING: Final = (
    "`rmqctl recover`",
    "`rmqctl rebuild queues`",
    "`rmqctl rebuild index`",
    "`rmqctl checkpoint --rebuild`",
)
_CONFIG: Final = ("P002", "P003", "P004", "P009")
_HOLES: Final = ("L001", "L002", "L003", "L006", "L008", "L013")
_ADVICE: Final = {
    "L006": "Is a log folder missing (name the broker's properties file with `-c`)? Is there a copy (name it with `--sibling`)? "
    "Else the plan closes the hole.",
    "L009": "The plan sets the length; if another size is configured, name the broker's properties file with `-c`.",
}


def notes_of(found: KeepPlan, after: Outcome, version: Version) -> tuple[str, ...]:
    """Return the notes for the operator about the plan and the lost messages."""
    notes = (
        *_sibling_notes(found),
        *(_earlier_note(found.options, skipped) for skipped in found.earlier),
        _moved_note(found),
        _shifted_note(found.shifted),
        _repair_note(found.repairs),
        *_assumed_notes(found),
        _dead_note(found),
        _kept_note(found.kept),
        _delay_note(found),
        _config_note(found),
        _open_note(found, after, version),
    )
    return tuple(note for note in notes if note)


def in_recover(findings: Iterable[Finding], plan: Plan, options: KeepOptions | None = None) -> tuple[Finding, ...]:
    """Return the findings with advice that names what the plan does, instead of the command that is already running."""
    if not plan.steps:
        return tuple(findings)
    removed = {step.path for step in plan.steps if step.op in (Op.REMOVE_FILE, Op.REMOVE_FOLDER)}
    written = {step.path for step in plan.steps}
    fills = options is None or options.fill
    return tuple(replace(found, advice=_advice(found, removed, written, fills=fills)) for found in findings)


def _advice(found: Finding, removed: set[str], written: set[str], *, fills: bool) -> str:
    if found.file in removed and found.code[0] in "LQI":
        return "The plan removes it."
    if found.code in _HOLES and not fills:
        return "It is left as it is (--no-fill)."
    if found.file in written and found.code in _CONFIG:
        return _MENDED
    if found.code in _ADVICE:
        return _ADVICE[found.code]
    return _MENDED if any(words in found.advice for words in _MENDING) else found.advice


def loans_of(options: KeepOptions, earlier: Iterable[SkippedEarlier] = ()) -> list[dict[str, Any]]:
    """Return, for the command's document, the ranges taken from each sibling and its earlier range that is not taken."""
    earlier_by_sibling = {skipped.sibling: skipped.as_json() for skipped in earlier}
    return [
        {
            "sibling": str(root),
            "records": sum(loan.records for loan in loans),
            "bytes": sum(loan.size_bytes for loan in loans),
            "ranges": [{"phy_offset": n.phy_offset, "size_bytes": n.size_bytes, "records": n.records} for n in loans],
            "earlier": earlier_by_sibling.get(number),
        }
        for number, root in enumerate(options.siblings)
        for loans in [[loan for loan in options.loans or () if loan.sibling == number]]
    ]


def lost_records_of(store: Store, found: KeepPlan) -> list[dict[str, Any]]:
    """Return the known fields of each lost record, for the command's document."""
    if not found.lost_runs():
        return []
    sizes, regions = (
        found.derivation.sizes,
        [*(closed_region.region for closed_region in found.closed_regions), *found.survey.tail],
    )
    after_end = index_traces(
        store, sizes, [beyond_log_end(store, found.survey)], from_phy_offset=found.survey.end_phy_offset
    )
    return traced(found.lost.first(), [*index_traces(store, sizes, regions), *after_end])


def beyond_notes(store: Store, ends: Mapping[QueueKey, int]) -> tuple[str, ...]:
    """Return a note that names the groups whose progress is after the new end of a queue (store behaviour 12.1).

    Policy ``broker`` leaves that progress, as a broker's start does. ``ends``: the queues' end offsets after the plan.
    """
    table = offset_table(read_config(store.root))
    groups = sorted({g for (g, topic, n), at in table.items() if at > ends.get(QueueKey(topic, n), at)})
    if not groups:
        return ()
    return (
        f"progress beyond the new end of a queue stays, for a broker's start leaves it (P001): {_first_names(groups)}; what is sent before such a group "
        "pulls again gets numbers that it has passed, and is not delivered to it (--policy keep sets progress to the end)",
    )


def _assumed_notes(found: KeepPlan) -> list[str]:
    """Return notes about assumed lengths of new files; later runs take the lengths of these files for proven."""
    assumed = [assumption for assumption in found.derivation.findings if assumption.code == "S009"]
    return [
        f"{assumption.message}; a broker that is configured otherwise refuses such files ({assumption.code})"
        for assumption in assumed
    ]


def _sibling_notes(found: KeepPlan) -> list[str]:
    notes = []
    for taken in loans_of(found.options, found.earlier):
        if not taken["records"] and taken["earlier"] is not None:
            continue  # the note about its earlier range names its records
        if not taken["records"]:
            notes.append(
                f"nothing was taken from {taken['sibling']}: it has no record that is missing here, or nothing that both have shows that it is a copy"
            )
            continue
        text = f"{_count(taken['records'], 'record')}, {taken['bytes']} bytes, taken from {taken['sibling']}"
        after_end = sum(r["records"] for r in taken["ranges"] if r["phy_offset"] >= found.own_end_phy_offset)
        notes.append(text + (f"; {after_end} of them come after the last record of this store" if after_end else ""))
    return notes


def _earlier_note(options: KeepOptions, skipped: SkippedEarlier) -> str:
    what = "that are missing here" if skipped.begin.is_missing else "that have expired here"
    end = skipped.phy_offset + skipped.size_bytes
    return (
        f"the log begins at {end}, that of {options.siblings[skipped.sibling]} at {skipped.phy_offset}: {skipped.size_bytes} bytes {what}. "
        f"--sibling-from {skipped.phy_offset} takes them"
    )


def _first_names(names: Sequence[str]) -> str:
    return ", ".join(
        [*names[:_MOST_NAMED], *([f"and {len(names) - _MOST_NAMED} more"] if len(names) > _MOST_NAMED else [])]
    )


def _moved_note(found: KeepPlan) -> str:
    if not found.moved:
        return ""
    names = [f"{move.path.name} belongs at {move.phy_offset}" for move in found.moved]
    return f"files of the log stand under wrong names, as their records say: {_first_names(names)}"


def _shifted_note(shifted: Sequence[Shift]) -> str:
    if not shifted:
        return ""
    named = [
        f"{_count(s.records, 'record')} of {s.path.name}, {abs(by)} bytes {'before' if by > 0 else 'after'} {s.phy_offset}"
        for s in shifted
        for by in [s.phy_offset - s.source[0]]
    ]
    return f"records lie beside their place, where no broker finds them, and go back: {_first_names(named)}"


def _repair_note(repairs: list[Repair]) -> str:
    if not repairs:
        return ""
    named = [f"{r.topic}/{r.queue_id} {r.queue_offset} ({', '.join(r.fields)})" for r in repairs[:_MOST_NAMED]]
    rest = [f"and {len(repairs) - _MOST_NAMED} more"] if len(repairs) > _MOST_NAMED else []
    return f"{_count(len(repairs), 'damaged head')} repaired, for all else of the record proves it: {', '.join([*named, *rest])}"


def _dead_note(found: KeepPlan) -> str:
    count = found.dead_messages
    if not count:
        return ""
    return (
        f"{_count(count, 'lost message')} {'gets a dead entry' if count == 1 else 'get dead entries'}, which consumers pass over; "
        "under brokers 5.x such an entry can hide good messages beside it once the log files before its own have expired "
        "(tombstones last: --gaps tombstone)"
    )


def _kept_note(kept: Kept) -> str:
    if not kept.messages:
        return ""
    named = [f"{lost.topic}/{lost.queue_id} {lost.queue_offset} ({why})" for lost, why in kept.first]
    rest = [f"and {kept.messages - len(named)} more"] if kept.messages > len(named) else []
    return f"{_count(kept.messages, 'lost message')} cannot be skipped: a tombstone stands for {', '.join([*named, *rest])}"


def _delay_note(found: KeepPlan) -> str:
    delays = found.configuration.delays if found.configuration is not None else {}
    if not delays:
        return ""
    levels = [f"level {level} goes on at {delay.queue_offset}" for level, delay in delays.items()]
    again = sum(delay.again for delay in delays.values())
    text = f"the delay service's progress was lost; by the delivered copies in the log {', '.join(levels)}"
    if not again:
        return text
    return f"{text}; {_count(again, 'message')} after one whose copy is not there {'is' if again == 1 else 'are'} delivered a second time"


def _config_note(found: KeepPlan) -> str:
    if found.configuration is None or not found.configuration.files.has_none:
        return ""
    delayed = any(key.topic == paths.SCHEDULE_TOPIC for key in found.derivation.queue_keys)
    return (
        "the store has no config file, as a copy of a log and its queues, and gets none. Where a broker is to start with it, put config/ back "
        "first, or name a copy that has it with --sibling: else topics and groups are gone, groups start where their consumers are configured to"
        f"{', and delayed messages are delivered once more' if delayed else ''}"
    )


def _open_note(found: KeepPlan, after: Outcome, version: Version) -> str:
    if found.options.fill or not found.closed_regions:
        return ""
    size = sum(closed_region.region.size_bytes for closed_region in found.closed_regions)
    note = f"{_count(len(found.closed_regions), 'hole')} of {size} bytes stays open: "
    if not after.starts:
        return note + f"a broker ({version}) would not start ({after.reason})"
    if after.lost_messages:
        return (
            note
            + f"a broker ({version}) would cut the log at {after.max_phy_offset} and lose {after.lost_messages} messages"
        )
    return note + f"a broker ({version}) would not meet it at its next start; one that scans it cuts the log there"


def _count(number: int, noun: str) -> str:
    if number != 1:
        noun = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number} {noun}"
