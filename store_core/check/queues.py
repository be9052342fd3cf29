"""Check every queue entry against its record, and every record for its entry (store format 6; store behaviour 2, 7, 15)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from store_core.check import entries as shapes
from store_core.check.entries import ENTRY_SIZE_BYTES, Array, Mask
from store_core.check.live_check import log_reaches, look_at_queues, store_now, tags_code_now
from store_core.check.log_map import Intervals, LogMap, runs_of, windows_of
from store_core.check.report import Findings
from store_core.derive.dispatch import Rows
from store_core.derive.queues import QueueBuilder, are_as_built, queue_builder
from store_core.derive.spool import RowsByQueue
from store_core.derive.topics import expired_light_queues
from store_core.findings import Severity
from store_core.layout import paths
from store_core.layout.queue import ENTRY, EXT_MAX_ADDRESS
from store_core.read.queue import end_of_entries
from store_core.read.records import read_message
from store_core.storage.sequence import SegmentSequence
from store_core.storage.store import QueueKey, Store

_RUNS_LOOKED_AT: Final = 8  # a run may continue one of so many runs before it
_MOST_RUNS_HELD: Final = 4096
_MOST_BYTES_EXPECTED: Final = 1 << 16  # a larger size of an entry is not trusted
_MOST_READ_AGAIN: Final = 64  # records of a chunk whose properties may have been written since
_SPAN: Final = 8  # a slice of entries is read at once if it has at most so many times the rows that need it


def check_queues(
    store: Store,
    rows: RowsByQueue,
    log: LogMap,
    findings: Findings,
    *,
    starting: bool = False,
    live: bool = False,
) -> None:
    """Check all ordinary queues. ``rows`` are the log's messages by queue.

    ``starting``: the store is ``live`` or crashed, so messages after the last dispatched one are not a fault: the broker
    dispatches them next.
    """
    ordinary = set(rows.queue_keys()) - {k for k in rows.queue_keys() if k.topic in rows.rules.batch_topics}
    for key in (expired := expired_light_queues(store, rows)):
        text = "no queue, and its newest message is older than the parent topic keeps light queues"
        findings.say("Q022", text, topic=key.topic, queue_id=key.queue_id)
    ordinary -= expired

    def look(now: Store, key: QueueKey, found: Findings) -> None:
        check = _QueueCheck(now, key, rows, log.from_offset(now.log.min_phy_offset), found, live=live)
        check.ask_undispatched = undispatched_from
        check.run()

    with ExitStack() as stack:
        listed = stack.enter_context(store_now(store)) if live else store
        keys = sorted(ordinary | set(listed.queues))

        @cache
        def undispatched_from() -> int | None:
            """Return the end of dispatch from the ends of all queues, read only once an entry seems to be missing."""
            if not starting:
                return None
            ends = (_QueueCheck(listed, key, rows, log, findings, live=live).last_phy_offset for key in keys)
            return max(ends, default=-1) + 1

        if live:
            undispatched_from()  # before the broker dispatches more
    look_at_queues(store, keys, look, findings, live=live)


class _QueueCheck:
    """The check of one queue. ``last_phy_offset``: the offset in the last entry that a broker's recovery keeps; -1 if none is in the log."""

    def __init__(
        self, store: Store, key: QueueKey, rows: RowsByQueue, log: LogMap, findings: Findings, *, live: bool = False
    ) -> None:
        self.store, self.key, self.rows, self.log, self.findings = store, key, rows, log, findings
        self.live = live
        self.files: SegmentSequence | None = store.queues.get(key)
        if self.files is not None and not self.files.segments:
            self.files = None
        self.ask_undispatched: Callable[[], int | None] = lambda: None

    @property
    def undispatched_from(self) -> int | None:
        """The offset from which a broker dispatches next; None if it dispatches nothing at its start."""
        return self.ask_undispatched()

    @cached_property
    def broker_end(self) -> int:
        """The number at which a broker's recovery ends the queue."""
        return end_of_entries(self.files, ENTRY) // ENTRY_SIZE_BYTES if self.files is not None else 0

    @property
    def last_phy_offset(self) -> int:
        if self.files is None or not self.broker_end:
            return -1
        last = int(shapes.read_entries(self.files, self.broker_end - 1, self.broker_end)["phy_offset"][0])
        if last >= self.log.end_phy_offset and self.live and log_reaches(self.store, last, live=True):
            return self.log.end_phy_offset - 1  # the broker has dispatched the whole walked log since
        return last if last < self.log.end_phy_offset else -1

    def run(self) -> None:
        builder = queue_builder(self.store, self.rows, self.log.min_phy_offset)
        if self._is_as_built(builder):
            return
        self.numbering = builder.numbering(self.key)
        self.matched = Intervals()  # numbers whose entry points to the record with that number
        self.found_rows = Intervals()  # rows that such an entry points to
        self.runs: list[_Run] = []
        self._compare()
        drifted = self._check_unmatched_entries() if self.files is not None else np.empty(0, np.int64)
        self._check_rows_without_entry(np.sort(drifted))
        self._say_runs()
        if self.numbering.superseded and self.numbering.repeated:
            self._say(
                "Q006",
                f"{self.numbering.repeated} messages whose numbers others have",
                severity="warning",
            )

    def _is_as_built(self, builder: QueueBuilder) -> bool:
        """Return True if the files are as recovery builds them, of consecutive messages from the first place on."""
        files, ext = self.files, self.store.ext_queues.get(self.key)
        return (
            files is not None
            and builder.summary(self.key).is_whole_from(files.min_phy_offset // ENTRY_SIZE_BYTES)
            and are_as_built(self.store, files, builder.files(self.key))
            and (ext is None or are_as_built(self.store, ext, builder.ext_files(self.key)))
        )

    # Records to entries

    def _compare(self) -> None:
        if self.files is None:
            return
        at = 0
        for rows in self.rows.rows(self.key):
            numbers = rows["queue_offset"]
            entries, known = self._entries_at(numbers)
            same = known & (entries["phy_offset"] == rows["phy_offset"]) & (entries["size_bytes"] > 0)
            self.found_rows.add_numbers(np.flatnonzero(same) + at)
            at += len(rows)
            if not same.all():
                rows, entries = rows[same], entries[same]
            self.matched.add_numbers(rows["queue_offset"])
            self._compare_fields(rows, entries)

    def _entries_at(self, numbers: Array) -> tuple[Array, Mask]:
        """Return the entries with these numbers, and the mask of the numbers within the files' range."""
        files = self.files
        assert files is not None
        limit = files.max_phy_offset // ENTRY_SIZE_BYTES
        known = (numbers >= 0) & (numbers < limit)
        if len(numbers) and known.all() and (numbers == np.arange(numbers[0], numbers[0] + len(numbers))).all():
            return shapes.read_entries(files, int(numbers[0]), int(numbers[-1]) + 1), known
        found = np.zeros(len(numbers), ENTRY.dtype)
        if known.any():
            low, high = int(numbers[known].min()), int(numbers[known].max()) + 1
            if high - low <= _SPAN * len(numbers):
                found[known] = shapes.read_entries(files, low, high)[numbers[known] - low]
            else:  # scattered numbers: damage, or a topic that was created again
                for place in np.flatnonzero(known).tolist():
                    number = int(numbers[place])
                    found[place] = shapes.read_entries(files, number, number + 1)[0]
        return found, known

    def _compare_fields(self, rows: Rows, entries: Array) -> None:
        sizes = entries["size_bytes"] != rows["size_bytes"]
        self._say_numbers("Q003", rows["queue_offset"][sizes], "{n} with a size that is not the record's")
        tags, times, bad = shapes.resolve_units(self.store.ext_queues.get(self.key), entries["tags_code"])
        other = (
            entries["tags_code"] != rows["tags_code"]
        )  # a delivery time from a damaged store time may look like an address
        self._say_numbers("Q016", rows["queue_offset"][bad & other], "{n} with an address where no good unit stands")
        wrong = (tags != rows["tags_code"]) & ~bad & other
        for place in np.flatnonzero(wrong)[:_MOST_READ_AGAIN].tolist() if self.live else ():
            at = int(rows["phy_offset"][place])
            wrong[place] = tags[place] != tags_code_now(self.store, self.rows.rules, at)
        self._say_numbers("Q005", rows["queue_offset"][wrong], "{n} with a tags code that is not the record's")
        is_unit = other & ~bad & (entries["tags_code"] <= EXT_MAX_ADDRESS)
        late = is_unit & (times != rows["store_timestamp_ms"])
        self._say_numbers(
            "Q021", rows["queue_offset"][late], "{n} whose unit has a store time that is not the record's"
        )

    # Entries to records

    def _check_unmatched_entries(self) -> Array:
        """Check the entries that do not match the record with their number; return the offsets of drifted records."""
        files = self.files
        assert files is not None
        first = files.min_phy_offset // ENTRY_SIZE_BYTES
        filled_end = shapes.filled_end(
            files
        )  # before the broker's end: entries that it appends in between are not after that
        end = max(self.broker_end, self.matched.end)
        drifted = [np.empty(0, np.int64)]
        for at, unmatched in windows_of(self.matched.missing(first, end), shapes.CHUNK_ENTRIES):
            drifted.append(self._judge(at, shapes.read_entries(files, at, at + len(unmatched)), unmatched, end))
        self._check_after_end(files, end, filled_end)
        return np.concatenate(drifted)

    def _judge(self, at: int, entries: Array, unjudged: Mask, end: int) -> Array:
        """Report the ``unjudged`` entries by kind of fault; clear the mask, and return the offsets of drifted records."""
        phy_offset = entries["phy_offset"].astype(np.int64)

        def take(mask: Mask) -> Mask:
            taken: Mask = unjudged & mask
            unjudged[taken] = False
            return taken

        self._judge_fillers(at, take(shapes.fillers(entries)), end)
        for begin, stop in runs_of(take(shapes.dead_entries(entries, self.store.log.file_size_bytes)), at):
            self._say_run("Q014", begin, stop, "{n} that skips a lost message")
        holes = take((entries["size_bytes"] <= 0) | (phy_offset < 0))
        for begin, stop in runs_of(holes & ~self._without_file(at, len(entries)), at):
            self._say_run("Q008", begin, stop, "{n} of size 0, with good ones after")
        take(phy_offset < self.log.min_phy_offset)  # expired
        for begin, stop in runs_of(take(phy_offset >= self.log.end_phy_offset), at):
            self._say_beyond(begin, stop, int(phy_offset[begin - at]), is_tail=stop >= end)
        for begin, stop in runs_of(take(self.log.not_records.contain(phy_offset)), at):
            self._say_run("Q001", begin, stop, "{n} pointing to where no record starts", phy_offset[begin - at])
        drifted = take(self._own_records(phy_offset, unjudged))
        for begin, stop in runs_of(drifted, at):
            self._say_run("Q004", begin, stop, "{n} of a record with another number", phy_offset[begin - at])
        self._look_up(at, entries, unjudged)
        return phy_offset[drifted]

    def _say_beyond(self, begin: int, stop: int, phy_offset: int, *, is_tail: bool) -> None:
        """Report entries beyond the end of the log; as info if the next start cuts them or a live log has grown."""
        is_torn = is_tail and self.undispatched_from is not None and log_reaches(self.store, phy_offset, live=self.live)
        text = "{n} pointing beyond the end of the log" + (", cut at the next start" if is_torn else "")
        self._say_run("Q011", begin, stop, text, phy_offset, severity="info" if is_torn else None)

    def _judge_fillers(self, at: int, mask: Mask, end: int) -> None:
        """Report fillers after the first message: at the end they block the queue, elsewhere they hide a number."""
        front = self.numbering.first_queue_offset if self.numbering.stretches else self.matched.end
        for begin, stop in runs_of(mask, at):
            if stop >= end:
                self._say_run("Q010", max(begin, 0), stop, "the queue ends with {n}", noun="filler")
            elif stop > front:
                self._say_run(
                    "Q001", max(begin, front), stop, "{n} between messages", noun="filler", severity="warning"
                )

    def _without_file(self, at: int, count: int) -> Mask:
        """Return the mask of the numbers without a file, as a missing file has its own finding."""
        assert self.files is not None
        missing = np.ones(count, bool)
        for segment in self.files.segments:
            low, high = segment.phy_offset // ENTRY_SIZE_BYTES - at, segment.end_phy_offset // ENTRY_SIZE_BYTES - at
            if high > 0 and low < count:
                missing[max(low, 0) : max(high, 0)] = False
        return missing

    def _own_records(self, phy_offset: Array, wanted: Mask) -> Mask:
        """Return the mask of the ``wanted`` entries that point to any record of this queue."""
        found = np.zeros(len(phy_offset), bool)
        if not wanted.any():
            return found
        low, high = int(phy_offset[wanted].min()), int(phy_offset[wanted].max())
        for rows in self._rows_between(low, high):
            found |= np.isin(phy_offset, rows["phy_offset"])
        return found & wanted

    def _rows_between(self, low: int, high: int) -> Iterator[Rows]:
        """Yield the chunks of the queue's rows, in log order, that contain offsets in [low, high]."""
        begin, end = 0, self.rows.count(self.key)
        while end - begin > 1:  # find the last row at or before ``low``
            middle = (begin + end) // 2
            row = next(self.rows.rows(self.key, middle, middle + 1))
            begin, end = (middle, end) if row["phy_offset"][0] <= low else (begin, middle)
        for rows in self.rows.rows(self.key, begin):
            if rows["phy_offset"][0] > high:
                return
            yield rows

    def _look_up(self, at: int, entries: Array, unjudged: Mask) -> None:
        """Report entries that point to other queues' records or between records."""
        foreign = np.zeros(len(entries), bool)
        positions = np.flatnonzero(unjudged)
        records, first, of_record = np.unique(entries["phy_offset"][positions], return_index=True, return_inverse=True)
        sizes = np.minimum(entries["size_bytes"][positions[first]], _MOST_BYTES_EXPECTED)
        readable = [
            read_message(self.store.log, phy_offset, size) is not None
            for phy_offset, size in zip(records.tolist(), sizes.tolist(), strict=True)
        ]
        foreign[positions] = np.array(readable, bool)[of_record]
        for begin, stop in runs_of(foreign, at):
            phy_offset = int(entries["phy_offset"][begin - at])
            message = read_message(self.store.log, phy_offset)
            owner = f", of {message.topic} queue {message.queue_id}" if message is not None else ""
            self._say_run("Q002", begin, stop, "{n} pointing to another queue's record" + owner, phy_offset)
        for begin, stop in runs_of(unjudged & ~foreign, at):
            phy_offset = int(entries["phy_offset"][begin - at])
            self._say_run("Q001", begin, stop, "{n} pointing to where no record starts", phy_offset)

    def _check_after_end(self, files: SegmentSequence, end: int, filled_end: int) -> None:
        if filled_end > end:
            self._say_run("Q009", end, filled_end, "bytes in {n} after the queue's end", noun="place")
        last_end = max([end, *(stretch.end for stretch in self.numbering.stretches)])
        for segment in shapes.empty_files(files, last_end):
            self._say(
                "Q017",
                "a file of zeros after the queue's end",
                segment.phy_offset // ENTRY_SIZE_BYTES,
                size_bytes=segment.size_bytes,
            )

    # Records without entries

    def _check_rows_without_entry(self, drifted: Array) -> None:
        """Report messages that no entry of the queue points to, one finding for a run of numbers."""
        for stretch in self.numbering.stretches:
            for begin, stop in list(self.found_rows.missing(stretch.row, stretch.row + stretch.count)):
                number = stretch.queue_offset + begin - stretch.row
                for rows in self.rows.rows(self.key, begin, stop):
                    if not len(drifted) and rows["phy_offset"][0] >= self.log.min_phy_offset:  # later rows too
                        self._say_missing(rows, number)
                        number += len(rows)
                        continue
                    absent = ~np.isin(rows["phy_offset"], drifted) & (rows["phy_offset"] >= self.log.min_phy_offset)
                    for low, high in runs_of(absent):
                        self._say_missing(rows[low:high], number + low)
                    number += len(rows)

    def _say_missing(self, rows: Rows, number: int) -> None:
        first = int(rows["phy_offset"][0])
        severity: Severity | None = None
        text = "{n} without an entry"
        if self.undispatched_from is not None and first >= self.undispatched_from:
            severity, text = "info", text + ": what a broker dispatches next"
        self._note(
            _Run("Q006", text, "message", severity, number, number + len(rows), first, int(rows["size_bytes"].sum()))
        )

    # Reporting

    def _say_numbers(self, code: str, numbers: NDArray[Any], text: str) -> None:
        found = Intervals()
        found.add_numbers(numbers)
        for begin, stop in found.sorted():
            self._say_run(code, begin, stop, text)

    def _say_run(
        self,
        code: str,
        begin: int,
        stop: int,
        text: str,
        phy_offset: Any = None,
        *,
        noun: str = "entry",
        severity: Severity | None = None,
    ) -> None:
        at = None if phy_offset is None else int(phy_offset)
        self._note(_Run(code, text, noun, severity, begin, stop, at, (stop - begin) * ENTRY_SIZE_BYTES))

    def _note(self, run: _Run) -> None:
        """Keep a run for the report, joined with an earlier run that it continues."""
        for known in reversed(self.runs[-_RUNS_LOOKED_AT:]):
            if known.stop == run.begin and known.kind == run.kind:
                known.stop = run.stop
                known.size_bytes += run.size_bytes
                return
        if len(self.runs) >= _MOST_RUNS_HELD:
            self._say_runs()
        self.runs.append(run)

    def _say(
        self,
        code: str,
        message: str,
        queue_offset: int | None = None,
        phy_offset: int | None = None,
        size_bytes: int | None = None,
        *,
        severity: Severity | None = None,
    ) -> None:
        is_listed = not self.findings.is_full(code)
        self.findings.say(
            code,
            message,
            file=self._file(queue_offset) if is_listed else None,
            phy_offset=phy_offset,
            size_bytes=size_bytes,
            topic=self.key.topic,
            queue_id=self.key.queue_id,
            queue_offset=queue_offset,
            severity=severity,
        )

    def _say_runs(self) -> None:
        for run in sorted(self.runs, key=lambda run: run.begin):
            self._say(
                run.code,
                run.text.replace("{n}", _count(run.stop - run.begin, run.noun), 1),  # a topic in it may contain braces
                run.begin,
                run.phy_offset,
                run.size_bytes,
                severity=run.severity,
            )
        self.runs.clear()

    def _file(self, queue_offset: int | None) -> str:
        segment = None
        if self.files is not None and queue_offset is not None:
            segment = self.files.find(queue_offset * ENTRY_SIZE_BYTES)
        return (
            self.store.relative(segment.path)
            if segment is not None
            else f"{paths.CONSUMEQUEUE}/{self.key.topic}/{self.key.queue_id}"
        )


@dataclass(slots=True)
class _Run:
    """Numbers [begin, stop) with the same fault; in ``text`` {n} becomes the count of ``noun``."""

    code: str
    text: str
    noun: str
    severity: Severity | None
    begin: int
    stop: int
    phy_offset: int | None
    size_bytes: int

    @property
    def kind(self) -> tuple[str, str, str, Severity | None]:
        return self.code, self.text, self.noun, self.severity


def _count(number: int, noun: str) -> str:
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun[:-1]}ies" if noun.endswith("y") else f"{number} {noun}s"
