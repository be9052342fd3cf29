"""Verify checksums and count statistics of logs of any size, on the splits, runners and proofs of an export."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from store_core.check.log import MISSING, REMOVED
from store_core.check.verify import SegmentReport, VerifyReport
from store_core.export.resume import Work
from store_core.export.runners.runner import Runner
from store_core.export.splits.count_task import Nowhere, SurveyPiece, SurveyTask, What
from store_core.export.splits.notes import task_keys
from store_core.export.splits.plan import SPLIT_SIZE_BYTES, Split, Task
from store_core.export.splits.split_task import Piece
from store_core.export.store_export import StoreExport, StoreReport
from store_core.export.tables.stats import PartialStats, StatsBuilder
from store_core.findings import Finding, summary
from store_core.read.log import LogFilter
from store_core.scan.log import nominal_end
from store_core.storage.store import Store

Stores = Sequence[tuple[str, Store]]
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class StoreStats:
    """The counts of one store; ``stats`` is None without messages."""

    report: StoreReport
    stats: PartialStats | None


def verify_stores(
    stores: Stores,
    runner: Runner,
    *,
    split_size_bytes: int = SPLIT_SIZE_BYTES,
    on_progress: Progress | None = None,
) -> list[VerifyReport]:
    """Check the whole log of each store against its checksums, done by a runner.

    The reports are those of ``check.verify.verify_log``. ``on_progress`` is called with the bytes of all stores
    walked so far. Raises StoreError.
    """
    started = time.monotonic()
    surveys = _surveyed(stores, runner, "records", LogFilter(), split_size_bytes, on_progress)
    seconds = (time.monotonic() - started) / max(len(surveys), 1)
    return [survey.verified(seconds) for survey in surveys]


def stats_of_stores(
    stores: Stores,
    runner: Runner,
    wanted: LogFilter | None = None,
    *,
    split_size_bytes: int = SPLIT_SIZE_BYTES,
    on_progress: Progress | None = None,
) -> list[StoreStats]:
    """Count statistics of the wanted messages of each store, done by a runner. Raises StoreError."""
    surveys = _surveyed(stores, runner, "stats", wanted or LogFilter(), split_size_bytes, on_progress)
    return _counted(surveys)


def stats_kept(
    stores: Stores,
    work: Work[SurveyPiece],
    wanted: LogFilter | None = None,
    *,
    split_size_bytes: int = SPLIT_SIZE_BYTES,
) -> list[StoreStats]:
    """Count statistics as ``stats_of_stores`` does, but note finished splits and reuse noted ones. Raises StoreError."""
    surveys = _planned(stores, "stats", wanted or LogFilter(), split_size_bytes)
    keyed: list[dict[str, SurveyTask]] = []
    for survey in surveys:
        tasks = survey.survey_tasks()
        keyed.append(dict(zip(task_keys(tasks, survey.store.log, "stats"), tasks, strict=True)))
    pieces = work.do({key: task for tasks in keyed for key, task in tasks.items()})
    for survey, tasks_of_it in zip(surveys, keyed, strict=True):
        survey.join([pieces[key] for key in tasks_of_it], _redo_survey(work.redo))
    return _counted(surveys)


def _counted(surveys: Sequence[_Survey]) -> list[StoreStats]:
    return [StoreStats(survey.report, survey.stats.partial()) for survey in surveys]


def _surveyed(
    stores: Stores,
    runner: Runner,
    what: What,
    wanted: LogFilter,
    split_size_bytes: int,
    on_progress: Progress | None,
) -> list[_Survey]:
    walked = 0

    def on_walked(size_bytes: int) -> None:
        nonlocal walked
        walked += size_bytes
        if on_progress is not None:
            on_progress(walked)

    def redo(task: SurveyTask) -> SurveyPiece:
        [piece] = runner.run([task], on_walked)
        return piece

    surveys = _planned(stores, what, wanted, split_size_bytes)
    pieces = iter(runner.run([task for survey in surveys for task in survey.survey_tasks()], on_walked))
    for survey in surveys:
        survey.join([next(pieces) for _ in survey.tasks()], _redo_survey(redo))
    return surveys


def _planned(stores: Stores, what: What, wanted: LogFilter, split_size_bytes: int) -> list[_Survey]:
    surveys = []
    for name, store in stores:
        nothing_yet = Split(0, 0, exact=True)
        task = SurveyTask(name, "", store.settings, nothing_yet, wanted, Nowhere(), what=what)
        surveys.append(_Survey(store, task, split_size_bytes))
    return surveys


def _redo_survey(redo: Callable[[SurveyTask], SurveyPiece]) -> Callable[[Task], Piece]:
    """Adapt ``redo`` to callers that know only tasks and pieces."""

    def done(task: Task) -> Piece:
        assert isinstance(task, SurveyTask)
        return redo(task)

    return done


class _Survey(StoreExport):
    """The survey of one store: adds up the counts of the pieces that count."""

    def __init__(self, store: Store, task: SurveyTask, split_size_bytes: int) -> None:
        super().__init__(store, task, split_size_bytes)
        self.stats = StatsBuilder()
        self._records: Counter[str] = Counter()
        self._bad: Counter[str] = Counter()

    def survey_tasks(self) -> list[SurveyTask]:
        return [task for task in self.tasks() if isinstance(task, SurveyTask)]

    def _add(self, piece: Piece, *, head_counts: bool) -> None:
        super()._add(piece, head_counts=head_counts)
        assert isinstance(piece, SurveyPiece)
        self._records.update(piece.records)
        self._bad.update(piece.bad)
        if piece.stats is not None:
            self.stats.merge(piece.stats)

    def verified(self, seconds: float) -> VerifyReport:
        """Return the report of a whole log."""
        log, findings = self.store.log, self.report.findings
        segments = []
        for segment in log.segments:
            file = self.store.relative(segment.path)
            listed = min(segment.end_phy_offset, nominal_end(log, segment)) - segment.phy_offset
            size = listed - _missing_bytes(findings, segment.phy_offset, segment.phy_offset + listed)
            if size or not listed or self._records[file]:  # else the file was removed before any of it was read
                segments.append(SegmentReport(segment.name, size, self._records[file], self._bad[file]))
        size_bytes = sum(segment.size_bytes for segment in segments)
        return VerifyReport(size_bytes, self.report.rows, segments, findings, seconds, summary(findings))


def _missing_bytes(findings: Sequence[Finding], start: int, end: int) -> int:
    """Return how many bytes of [start, end) in the log had no file."""
    gone = [found for found in findings if found.code in (MISSING, REMOVED) and found.phy_offset is not None]
    ranges = [(found.phy_offset or 0, (found.phy_offset or 0) + (found.size_bytes or 0)) for found in gone]
    return sum(max(min(stop, end) - max(first, start), 0) for first, stop in ranges)
