"""Export one store: find the start, plan its tasks, prove that their pieces join, and report its findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from store_core.check.log import MISSING, REMOVED, UNREADABLE, LogFindings, is_missing_file
from store_core.check.report import MOST_FINDINGS_PER_CODE
from store_core.errors import FailedError, PlanOutOfDateError, UnreadableError
from store_core.export.dest.parts import Part, PartWriter, Range, inside, kind_name, quarantine_rows
from store_core.export.dest.state import Proof, StoreState, Told
from store_core.export.replica_merge import Stretch, heal, lacks_of, still_missing
from store_core.export.splits.chain import is_in_its_queue
from store_core.export.splits.join import Joined, join_pieces, walk_on
from store_core.export.splits.plan import EXPORT_ANEW, SegmentPlan, Split, Task, plan_splits, segments_of
from store_core.export.splits.split_task import Piece, range_as_table
from store_core.export.splits.tail import begins_of, landmarks_of, still_holds, unseen
from store_core.findings import Finding, finding, summary
from store_core.kernel.codes import FrameCode, FrameKind
from store_core.layout.record import PREFIX
from store_core.read.log import has_message_after, start_for_time
from store_core.read.log_copies import differences
from store_core.read.log_files import refuse_partial_log, unread_log
from store_core.scan.pieces import end_now
from store_core.storage.live import is_live
from store_core.storage.live_start import Begin
from store_core.storage.store import Store


@dataclass(slots=True)
class StoreReport:
    """The result of one store. ``next_phy_offset``: the end of its last frame in range, where a later export starts."""

    store: str
    from_phy_offset: int
    next_phy_offset: int
    rows: int = 0
    findings: list[Finding] = field(default_factory=list)
    proof: tuple[Proof, ...] = ()
    told: tuple[Told, ...] = ()
    copies: tuple[str, ...] = ()  # the roots of copies of the log that were read as one log, if several
    healed: list[Stretch] = field(default_factory=list)  # damaged ranges that were read from another copy
    left_out: list[Finding] = field(default_factory=list)  # those findings that earlier commits caused
    begins: tuple[Proof, ...] = ()

    def as_state(self) -> StoreState:
        met = [found for found in self.findings if found not in self.left_out]
        return StoreState(
            self.store,
            self.from_phy_offset,
            self.next_phy_offset,
            self.rows,
            summary(met),
            self.proof,
            self.told,
            lacks_of(met, self.next_phy_offset),
            self.begins,
        )


class StoreExport:
    """The export of one store. ``task`` has the fields that all its tasks share, ``last`` the state after the last
    commit.

    Raises:
        PlanOutOfDateError: the log is not the one that was exported, or has been cut since.
        FailedError: a later commit misses a folder of the log.
    """

    def __init__(self, store: Store, task: Task, split_size_bytes: int, last: StoreState | None = None) -> None:
        self.store, self._last = store, last
        self._live = is_live(store.root).live
        self._task = replace(task, live=self._live, landmarks=landmarks_of(store))
        start, lost = _start_and_losses(store, task, last)
        is_proven = last is not None and start == last.next_phy_offset and bool(last.proof)
        self._plans = plan_splits(store.log, start, task.wanted.to_phy_offset, split_size_bytes, is_proven=is_proven)
        self.report = StoreReport(task.store, start, start, copies=copies_of(store))
        self._expired_findings = lost
        self._led = _way_to_last_message(store, last)
        self._findings = LogFindings(store.log)
        self._begin = Begin(store.log)
        self._border_ranges: list[tuple[Range, str]] = []  # rows of the quarantine table that no task wrote
        self._held: list[Range] = []  # ranges after the last message so far: perhaps the tail of the log
        self._body_findings: list[Finding] = []
        self._more_body_findings = 0
        self._met_frames = False

    def tasks(self) -> list[Task]:
        splits = [split for plan in self._plans for split in plan.splits]
        return [replace(self._task_of(split), led=None if number else self._led) for number, split in enumerate(splits)]

    def join(self, pieces: Sequence[Piece], redo: Callable[[Task], Piece]) -> list[Part]:
        """Prove that the pieces join, and return the files that count; fills the report.

        ``pieces`` are in the order of ``tasks``.
        """
        if self._led is not None and not pieces:
            # No task reads anything, so none has checked whether the log was cut.
            at = self.report.from_phy_offset
            redo(replace(self._task_of(Split(at, at, exact=True)), led=self._led))
        following = iter(map(self._assert_seen, pieces))
        joined = [
            join_pieces(
                plan,
                [next(following) for _ in plan.splits],
                lambda split: self._assert_seen(redo(self._task_of(split))),
            )
            for plan in self._plans
        ]
        if self._live:
            self._walk_on(joined, lambda task: self._assert_seen(redo(task)))
        copy_task = replace(self._task, landmarks=())  # another copy may lack the landmarks
        joined, self.report.healed = heal(self._plans, joined, self.store.log, copy_task, redo)
        parts: list[Part] = []
        for plan, found in zip(self._plans, joined, strict=True):
            if not found:
                self._add_hole(plan)
            for joined_piece in found:
                self._add(joined_piece.piece, head_counts=joined_piece.head_counts)
                parts += joined_piece.piece.parts
        self._finish()
        return parts

    def borders(self, number: int) -> Part | None:
        """Write a file of the ranges that no task could classify: those between pieces and after them.

        ``number`` is the commit's. Returns None if there are none.
        """
        if not self._border_ranges:
            return None
        task = self._task
        name = f"{task.stem}-borders{f'-{number:06d}' if number > 1 else ''}.parquet"
        writer = PartWriter(task.place, "quarantine", task.store, name)
        writer.write(quarantine_rows(task.store, self._border_ranges))
        return writer.close()

    def _assert_seen(self, piece: Piece) -> Piece:
        """Return the piece.

        Raises FailedError if this machine has a file that the task's machine did not see: its absence there is no
        hole of the log.
        """
        for start, end in piece.lacking:
            for segment, _ in segments_of(self.store.log, Split(start, end, exact=True)):
                if max(start, segment.phy_offset) < end_now(self.store.log, segment):
                    raise unseen(segment.path, max(start, segment.phy_offset))
        return piece

    def _task_of(self, split: Split) -> Task:
        return replace(self._task, split=split)

    def _walk_on(self, joined: list[list[Joined]], redo: Callable[[Task], Piece]) -> None:
        """Walk the end of segments again whose end was read before their last records were written.

        Records in a later segment prove that. A segment that had no file yet is read now.
        """
        goes_on = False
        for plan, found in reversed(list(zip(self._plans, joined, strict=True))):
            if goes_on and plan.hole is not None:
                start, size = plan.hole
                split = Split(start, start + size, exact=True)
                found.append(Joined(redo(replace(self._task_of(split), live=False))))
            elif goes_on:
                walk_on(plan, found, lambda split: redo(replace(self._task_of(split), live=False)))
            goes_on = goes_on or any(joined_piece.piece.first_phy_offset is not None for joined_piece in found)

    def _add_hole(self, plan: SegmentPlan) -> None:
        if plan.hole is not None:
            self._add_range(Range(FrameKind.HOLE, FrameCode.OK, *plan.hole, ""))

    def _add(self, piece: Piece, *, head_counts: bool) -> None:
        report = self.report
        if piece.next_phy_offset is not None:
            self._met_frames = True
            report.next_phy_offset = max(report.next_phy_offset, piece.next_phy_offset)
            report.proof = piece.proof
        report.rows += piece.rows
        for found in piece.head if head_counts else ():
            self._add_range(found)
        if piece.has_messages:
            self._border_ranges += self._inside(self._held)
            self._held = []
            self._findings.join(piece.found)
        for found in piece.tail:
            self._add_range(found)
        room = max(MOST_FINDINGS_PER_CODE - len(self._body_findings), 0)
        self._body_findings += piece.bodies[:room]
        self._more_body_findings += piece.bodies_beyond + len(piece.bodies[room:])

    def _add_range(self, found: Range) -> None:
        self._findings.add(range_as_table(found), found.file)
        self._held.append(found)

    def _inside(self, ranges: Sequence[Range]) -> list[tuple[Range, str]]:
        """Return rows of the quarantine table; a range that the broker has removed meanwhile is REMOVED, as in the
        findings.
        """
        return [
            (found, REMOVED if code == MISSING and self._begin.has_passed(found.end_phy_offset) else code)
            for found, code in inside(ranges)
        ]

    def _finish(self) -> None:
        """Complete the report. Held ranges are the log's tail, unless records follow after ``--to``."""
        log, to_phy_offset = self.store.log, self._task.wanted.to_phy_offset
        is_part = to_phy_offset is not None and to_phy_offset < log.max_phy_offset
        end_of_frames = max(to_phy_offset or 0, self.report.next_phy_offset)
        goes_on = is_part and bool(self._held) and has_message_after(self.store, end_of_frames)
        live = self._live or (self._findings.may_be_torn and is_live(self.store.root).live)
        if goes_on:
            self._border_ranges += self._inside(self._held)
            self._findings.good_after()
        for found in () if goes_on else self._held:
            is_ahead = live and is_missing_file(found.kind, found.code, found.file)
            if found.kind in (FrameKind.STALE, FrameKind.HOLE) and not is_ahead:
                self._border_ranges += self._inside([found])
            elif found.kind == FrameKind.DAMAGE and not live:
                self._border_ranges.append((found, "L004"))
        self._report_once()
        with suppress(UnreadableError):
            self.report.begins = begins_of(log, self.report.from_phy_offset, self.report.next_phy_offset)
        self.report.left_out = list(still_missing(self.store, self._last))
        self.report.findings = [
            *self._expired_findings,
            *self.report.left_out,
            *self._findings.end(live=live),
            *differences(self.store, self.report.from_phy_offset, self.report.next_phy_offset),
            *self._body_findings,
        ]
        self._assert_readable()
        self.report.findings += unread_log(self.store)
        if self._more_body_findings:
            self.report.findings.append(
                finding("L012", f"and {self._more_body_findings} more: bodies that cannot be decompressed")
            )

    def _assert_readable(self) -> None:
        """Raise FailedError if no frame at all could be read. Other damage stops no export."""
        refused = [found for found in self.report.findings if found.code == UNREADABLE]
        if self._last is None and refused and not self._met_frames:
            raise FailedError(
                f"nothing of the log of {self.report.store} can be read: {refused[0].message}",
                path=str(self.store.root / (refused[0].file or "")),
                to_do="check permissions and the disk",
            )

    def _report_once(self) -> None:
        """Drop rows of the quarantine table after the last frame that an earlier commit has written."""
        before = frozenset(self._last.told if self._last is not None else ())
        after_last_frame = [
            _told_range(found) for found, _ in self._border_ranges if found.end_phy_offset > self.report.next_phy_offset
        ]
        self._border_ranges = [(found, code) for found, code in self._border_ranges if _told_range(found) not in before]
        self.report.told = tuple(after_last_frame)


def copies_of(store: Store) -> tuple[str, ...]:
    """Return the roots of the copies of the log that are read as one log, if several."""
    others = store.settings.copies
    return tuple(map(str, (store.root, *others))) if others else ()


def _start_and_losses(store: Store, task: Task, last: StoreState | None) -> tuple[int, list[Finding]]:
    """Return where to start, and findings about bytes lost since the last commit."""
    start = max(task.wanted.from_phy_offset or 0, start_for_time(store, task.wanted.begin_ms))
    if last is None:
        return max(start, store.log.min_phy_offset), []
    refuse_partial_log(store)  # later commits would never read what is missing now
    _assert_same_log(store, task.store, last)
    at = max(start, last.next_phy_offset)
    return max(at, store.log.min_phy_offset), list(_expired(store, at))


def _assert_same_log(store: Store, name: str, last: StoreState) -> None:
    log = store.log
    if last.proof and not log.segments:
        raise PlanOutOfDateError(
            f"the log of {name} has no file, but has been exported up to {last.next_phy_offset}",
            path=str(store.root),
            to_do="check that its disk is mounted and that the settings name its folder",
        )
    if last.proof and log.max_phy_offset < last.next_phy_offset:
        raise PlanOutOfDateError(
            f"the last file of {name}'s log ends at {log.max_phy_offset}, but it has been exported up to {last.next_phy_offset}",
            path=str(store.root),
            to_do=f"it has been cut or is another broker's: {EXPORT_ANEW}",
        )
    for proof in last.proof:
        if proof.phy_offset >= log.min_phy_offset and not still_holds(log, proof):
            raise PlanOutOfDateError(
                f"the log of {name} no longer has the record at {proof.phy_offset} that was exported last",
                path=str(store.root),
                to_do=f"it has been cut and written on, or is another broker's: {EXPORT_ANEW}",
            )


def _way_to_last_message(store: Store, last: StoreState | None) -> Split | None:
    """Return the way from its segment's start to the message that was exported last, unless a queue has that message.

    Without a queue entry the message may be old bytes after the place where a log was cut.
    """
    for proof in last.proof if last is not None else ():
        segment = store.log.find(proof.phy_offset)
        if segment is not None and proof.size_bytes > PREFIX.size_bytes and not is_in_its_queue(store, proof):
            return Split(segment.phy_offset, proof.phy_offset, exact=True)
    return None


def _expired(store: Store, at: int) -> Iterator[Finding]:
    """Yield L020 for bytes that a broker has removed from the log's start before they were exported."""
    lost = store.log.min_phy_offset - at
    if lost > 0:
        yield finding(
            "L020",
            f"{lost} bytes of the log were removed before they were exported",
            phy_offset=at,
            size_bytes=lost,
        )


def _told_range(found: Range) -> Told:
    return Told(found.phy_offset, found.size_bytes, kind_name(found))
