"""Writes docs/prediction.md from a run of the product (tests/broker/product.py)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from store_core.broker.versions import RELEASES, Version, behaviour_of, groups_of
from tests import stores
from tests.broker.axes import AXES, Cell
from tests.broker.outcomes import recorded_cases
from tests.broker.verdict import DOES_NOT_LOAD, NEVER_RETURNS, STARTS

if TYPE_CHECKING:
    from tests.broker.product import Verdict

Run = tuple[str, str]  # release, golden store

# The rows of broker/versions.py in words.
_FEATURES: Final = {
    "clean_start": "after a clean stop the scan begins at",
    "crash_start": "after a crash it begins at the newest segment that is not newer than the checkpoint; of its first record are looked at",
    "newest_segments_scanned": "newest segments that are ever scanned",
    "clean_start_dispatches": "after a clean stop, what lies behind the queues' end is dispatched again",
    "dispatches_from_queue_end": "what lies behind the queues' end is dispatched before start returns, which waits for it, for ever if need be",
    "queue_cut": "queues are cut at the log's end",
    "queues_cut_first": "queues are cut before the log",
    "mismatch_is_record": "after a crash, a record whose parts do not add up to its length is walked over",
    "queue_end_is_start": "a queue ends where its last record starts",
    "min_offset_search": "a queue's min offset is found by",
    "empty_log_drops_queues": "a clean start with an empty log deletes all queues",
    "odd_size_ends_list": "a file of wrong length ends the list of files quietly; else it is not loaded at all",
    "folders_ignored": "folders between the files are ignored; else nothing is loaded",
    "empty_last_deleted": "a last file of length 0 is deleted; else nothing is loaded",
    "index_failure_stops": "an index that cannot be loaded stops the start",
    "reads_v2": "reads V2 records",
    "reads_v6_hosts": "reads IPv6 hosts",
    "reads_next_tags": "a pull fails, too, where the further tags of the next message cannot be read",
    "drops_parted_values": "a property with a byte 0x01 in its value is none",
    "bounds_size": "a record's length is compared with what is left of the file before memory is asked for",
    "refuses_negative_blanks": "a blank of negative size ends the log",
    "bounds_own_offset": "knows `checkCommitLogOffsetOnRecover`: after a crash a record that says it lies outside its file ends the log",
    "scans_from_queue_offset": "knows `enableAcceleratedRecovery` for queues in files: after a crash the scan begins at the checkpoint's queue offset",
    "verifies_property_crc": "knows `forceVerifyPropCRC`",
    "batch_queues": "has batch queues",
    "multi_dispatch": "puts a record into further queues (light queues)",
    "no_lists": "but none of these topics",
    "passes_light_folders": "passes over a light queue whose name is a path",
    "late_delay_table": "delayed messages dispatched during recovery are delivered at once",
    "timer_wheel": "has a timer wheel",
    "index_tags": "indexes tags",
    "deletes_damaged_config": "deletes a damaged config file",
    "config_reader": "reads the values in config files as",
    "config_members": "knows the members of config files",
}

_COMPARED: Final = (
    ("starts or not, and whether it fails to load or never ends its start", "`load()`, and `start()` within 8 s"),
    ("kind of recovery, first segment scanned", "its log, where it says so"),
    ("max and min offset of the log, segments left", "its mapped files"),
    ("segments, index and queue files deleted", "the folder, before and after"),
    ("index files left, their numbers of entries, ends and times, whether entries are added", "the headers of its index files"),
    ("each queue: min and max offset, end in the log, every entry with its tags code", "its queues, entry by entry (digest)"),
    (
        "messages lost",
        "pulling one message at every offset from min to max of every queue: each record that is whole in the damaged log and"
        " that no pull brings",
    ),
    ("ghosts", "old records and old entries that were put there, and are below its max offset or are served"),
    ("delayed messages delivered at once", "entries of the delay queues without a delivery time"),
)  # fmt: skip


def page(verdicts: Sequence[Verdict], *, seed: int, seconds: float, about: str) -> str:
    """The page as Markdown."""
    runs = [*dict.fromkeys((verdict.version, verdict.base) for verdict in verdicts)]
    by_run = {run: [v for v in verdicts if (v.version, v.base) == run] for run in runs}
    parts = [
        _head(verdicts, runs, seed, seconds, about),
        _result(by_run),
        _disagreements(verdicts),
        _compared(),
        _axes(),
        _agreement(by_run),
        _consequences(by_run),
        decision_table(sorted({Version.parse(version) for version, _ in runs})),
        _LIMITS,
        _consumers(verdicts),
        _recorded(),
        _again(seed),
    ]
    return "\n".join(part.strip("\n") + "\n" for part in parts if part)


def _rows(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines) + "\n"


def _count(number: int) -> str:
    return f"{number:,}"


def _name(run: Run) -> str:
    return f"{run[0]}, {run[1]}"


def _head(verdicts: Sequence[Verdict], runs: Sequence[Run], seed: int, seconds: float, about: str) -> str:
    agreeing = sum(not verdict.differences for verdict in verdicts)
    releases = [*dict.fromkeys(version for version, _ in runs)]
    return f"""
# How the prediction was proven

`rmqctl recover --predict` says what the next start of a broker will do to a store. This page tells how far that can be trusted: stores
were damaged in every combination of the ways below, each was predicted, and then a copy of it was opened and started by the store code of
real releases, taken from their own jars. **{_count(agreeing)} of {_count(len(verdicts))} starts ended as predicted, in
everything that is compared.**

Written by `python -m tests.broker.product --out docs/prediction.md`: releases {", ".join(releases)}, seed {seed}, {seconds / 60:.0f} minutes
on {datetime.now(UTC):%Y-%m-%d}; {about}.
"""


def _result(by_run: dict[Run, list[Verdict]]) -> str:
    def row(run: Run, verdicts: list[Verdict]) -> Sequence[object]:
        endings = Counter(verdict.ending for verdict in verdicts)
        harmless = sum(verdict.ending == STARTS and not verdict.lost_messages for verdict in verdicts)
        agreeing = sum(not verdict.differences for verdict in verdicts)
        counts = (len(verdicts), agreeing, endings[STARTS], endings[DOES_NOT_LOAD], endings[NEVER_RETURNS], harmless)
        return *run, *map(_count, counts)

    head = ("release", "store", "combinations", "as predicted", STARTS, DOES_NOT_LOAD, NEVER_RETURNS, "loses nothing")
    rows = [row(run, verdicts) for run, verdicts in by_run.items()]
    return f"""
## Result

{_rows(head, rows)}
The stores were written by real brokers: load-497 by 4.9.7 (6 segments, 1,961 records), load-533 by 5.3.3 (8 segments, 2,183 records), and
crash-533 by a 5.3.3 that was killed (12 segments, the last one pre-allocated, 3,061 records: more segments than 5.4.0 ever scans).
*{STARTS.capitalize()}* and *loses nothing* tell of the real start, not of the prediction.
"""


def _disagreements(verdicts: Sequence[Verdict]) -> str:
    wrong = [verdict for verdict in verdicts if verdict.differences]
    if not wrong:
        return ""
    lines = "\n".join(f"* {v.version} on {v.base}: {v.cell}: {', '.join(v.differences)}" for v in wrong)
    return f"""
## Where they disagree

{lines}
"""


def _compared() -> str:
    return f"""
## What is compared

{_rows(("the prediction says", "the real code tells by"), _COMPARED)}
One difference in one of them makes the combination count as wrongly predicted.
"""


def _axes() -> str:
    rows = [
        (axis, value, str(harm.__doc__).splitlines()[0])
        for axis, values in AXES.items()
        for value, harm in values.items()
    ]
    sizes = " × ".join(str(len(values)) for values in AXES.values())
    total = len(AXES)
    return f"""
## What was combined

Every value of these {total} with every value of the others: {sizes} combinations. Which segment, record, bit, queue or how much is drawn
anew for each combination, from its name and the seed; so the same seed gives the same stores, and another seed others.

{_rows(("", "value", "what is done"), rows)}
"""


def _agreement(by_run: dict[Run, list[Verdict]]) -> str:
    def cells(position: int, value: str) -> Iterator[str]:
        for verdicts in by_run.values():
            there = [v for v in verdicts if isinstance(v.cell, Cell) and v.cell.values[position] == value]
            yield f"{sum(not v.differences for v in there)} / {len(there)}"

    rows = [(axis, value, *cells(n, value)) for n, (axis, values) in enumerate(AXES.items()) for value in values]
    return f"""
## Agreement by axis and release

As predicted / combinations with this value.

{_rows(("", "value", *map(_name, by_run)), rows)}
"""


def _consequences(by_run: dict[Run, list[Verdict]]) -> str:
    def cells(position: int, value: str) -> Iterator[str]:
        for verdicts in by_run.values():
            there = [v for v in verdicts if isinstance(v.cell, Cell) and v.cell.values[position] == value]
            started = sorted(v.lost_messages for v in there if v.ending == STARTS)
            share = f"{100 * len(started) / len(there):.0f} %" if there else "-"
            yield f"{share}, {_count(started[len(started) // 2]) if started else '-'}"

    rows = [(axis, value, *cells(n, value)) for n, (axis, values) in enumerate(AXES.items()) for value in values]
    return f"""
## What the real starts came to

How many of the combinations with this value started, and the messages that were lost for consumers in the middle one (median) of those. It
shows what harms most, and that releases differ; your store is another one, so ask `rmqctl recover --predict` about it.

{_rows(("", "value", *map(_name, by_run)), rows)}
"""


def decision_table(proven: Sequence[Version]) -> str:
    """The section about what differs between releases, with the proven ones as columns."""
    columns = [behaviour_of(version) for version in proven]

    def text(value: Any) -> str:
        if isinstance(value, Enum):
            return str(value.value or "-")
        if isinstance(value, bool):
            return "yes" if value else "-"
        return str(value or "all")

    def changes(feature: str) -> str:
        values = [(release, getattr(behaviour_of(release), feature)) for release in RELEASES]
        steps = [str(there[0]) for here, there in pairwise(values) if here[1] != there[1]]
        return ", ".join(steps)

    rows = [
        (words, *(text(getattr(column, feature)) for column in columns), changes(feature))
        for feature, words in _FEATURES.items()
    ]
    groups = [
        f"{members[0]} to {members[-1]}" if len(members) > 1 else str(members[0]) for _, members in groups_of(RELEASES)
    ]
    return f"""
## What differs between releases

The prediction plays a start through by this table (`store_core/broker/versions.py`). The last column names the releases whose behaviour
differs from the release before, so that each release from {RELEASES[0]} to {RELEASES[-1]} has its column; alike are {", ".join(groups)}.

{_rows(("", *map(str, proven), "changes with"), rows)}
"""


_LIMITS: Final = """
## Limits

* The releases in the table above were run. For those in between, the table rests on what their source tags say and on the rows around them.
* One harm of each kind at a time, drawn once a combination; small segments (128 KiB) and queue files (4,000 bytes), and sizes enter the code only
  as numbers. Stores with V2 records, IPv6 hosts, batch queues, light queues, ConsumeQueueExt and property checksums are not in the product; piles of
  harms are done to them instead (`--piles`, below), some in each run of the tests.
* Whether a record counts as *lost* that is itself half destroyed is not compared, and neither is whether an old entry to such a record is a ghost.
* A length that claims 256 MiB or more makes releases before 5.3.2 ask for that much memory. Whether they get it depends on the heap; then
  the prediction carries a note. Beyond 2 GiB - 3 it is refused on every heap, and predicted.
* Start means `load()` and `start()` of the store. What the broker does around it (config files, timer wheel) is predicted from recorded
  outcomes; its delay service, which puts due messages into the log a second after the start, was held back so that it could not blur what is compared.
* Config files are judged by rules about types: which members a release knows, and what its JSON library takes for a number, a flag, a word. The rules
  agree with every recorded pair of a file and its `.bak` (below). Not looked at: keys without quotes that are words, which 5.4.0 alone refuses; a list of
  one object in place of a plain map, which some releases take; a text in place of an array of numbers, which 4.x and 5.x up to 5.3 decode; an
  empty text in place of `offsetTable` or `forbiddenTable`. Between these releases they rest on the libraries that each release names.
* Outside of what is predicted: queues in RocksDB (recover ends with an error), DLedger and controller mode, and whatever happens after the start, such as
  expiry.
* Only 4.5.0 to 4.9.8, and 5.x with `recheckReputOffsetFromCq`, can *never end* a start. It was given 8 s, and such a broker waits in steps of 1 s.

## What the proof has found

The first runs disagreed in 59 combinations, by three things that no recorded case had shown. All are predicted now.

* 5.x makes a queue's next file before it sees that a message is a repeat, and cannot find the min offset of a queue whose newest file has no entry:
  it does not load (`newPosition < 0`). Old entries behind the end of a queue that fill its file exactly are enough, and so is a newest file of
  zeros, where the queues together end before the log does.
* 4.x, dispatching at its start, counts a record whose parts do not add up by the length it claims but reads on where the parts end. At the next bad
  record it therefore goes on inside the *next* segment, between two records, and loses that one as well.
* 4.3 does not cut queues after a clean stop; old entries that it keeps may point beyond the end of the log, where they bring nothing back.

## What no prediction can settle

The table leaves nothing to chance but the memory of the machine (above) and time: index files made during the start are named by the clock, and
background threads flush the checkpoint and make files when they come by, so names of new index files and the checkpoint's bytes are not
predicted.

One thing is known and left out. With `enableConsumeQueueExt` a start writes new units where the good ones end; where a damaged length made
the units behind it no units, these are written over, and what a pull of their messages comes to hangs on the bytes that lie there then. So
one in a hundred stores with some damaged lengths in such files lost another message or two than was predicted.
"""


def _consumers(verdicts: Sequence[Verdict]) -> str:
    skipping = [verdict.skipped for verdict in verdicts if verdict.skipped]
    seen = (
        f"Of the {_count(len(verdicts))} starts, {len(skipping)} ended so; the most messages missed in one were {max(skipping)}."
        if skipping
        else "It did not happen in this run."
    )
    return f"""
## What consumers make of it

*Lost* is what no pull brings from a queue of its topic; light queues that list it too do not count. A consumer that goes through a queue in pulls of 32 can miss more: where the broker cannot read what an entry points
to (fillers at the beginning of a queue point to offset 0), it skips, in that pull, all further entries into the same segment, and
the consumer goes on behind them. {seen}
"""


def _recorded() -> str:
    counts = Counter((base, by) for base, by, _ in recorded_cases())
    rows = [(base, by or stores.truth(base)["written_by"], count) for (base, by), count in counts.items()]
    killed = len(stores.KILLED)
    return f"""
## Recorded cases

Before the product there were recorded ones: outcomes of real store code on stores with single harms, kept with the tests and predicted
in every run of `tests/broker/test_start.py`, {sum(counts.values())} in all. They reach what the axes do not: strange files and folders, index files,
garbage, fillers, blanks.

{_rows(("store", "started by", "outcomes"), rows)}
Besides: {len(stores.WITH_QUEUE_FILES)} stores as their writers left them, of which {killed} were killed; {len(stores.extra_truth("cross"))} stores started by another
release than their writer; {len(stores.extra_truth("propcrc")["outcomes"])} starts on damaged properties with and without `forceVerifyPropCRC`; damaged
config files with each of four releases; and {len(stores.config_type_cases()["cases"])} pairs of a config file and its `.bak` with each of five.
"""


def _again(seed: int) -> str:
    return f"""
## Run it again

With a JDK and Maven (they fetch the releases' jars), in a checkout:

    python -m tests.broker.product                                         all of it
    python -m tests.broker.product --releases 5.3.3 --sample 50 --seed 7   50 combinations, other places
    python -m tests.broker.product --piles 200 --seed 7                    instead, stores with up to five harms of all kinds
    python -m tests.broker.product --seed {seed} --out docs/prediction.md        this page

It prints every difference with both answers, and ends with 1 if there is one. Each run of the tests takes a fixed part of the product
and a drawn one, whose seed it prints (`tests/broker/test_product.py`).

See also: [recovery.md](recovery.md), what to do with a store whose prediction is bad.
"""
