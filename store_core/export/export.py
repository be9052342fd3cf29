"""An export from end to end: plan splits, have them done, prove that they join, publish. The same for every runner."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from store_core.check.log import LogFindings
from store_core.check.report import MOST_FINDINGS_PER_CODE
from store_core.errors import UsageError
from store_core.export.dest.manifest import manifest_bytes
from store_core.export.dest.parts import Part, PartWriter, Range, file_stem, inside, quarantine_rows
from store_core.export.runners.runner import Runner
from store_core.export.splits.join import join_pieces
from store_core.export.splits.piece import Piece, range_as_table
from store_core.export.splits.plan import SPLIT_SIZE_BYTES, SegmentPlan, Split, Task, plan_splits
from store_core.findings import Finding, finding
from store_core.kernel.codes import FrameCode, FrameKind
from store_core.read.log import LogFilter, start_for_time
from store_core.storage.live import is_live
from store_core.storage.publish import ResultFolder
from store_core.storage.store import Store

MIN_SPLIT_SIZE_BYTES: Final = 256


@dataclass(slots=True)
class StoreReport:
    """What one store gave. ``next_phy_offset``: where its last frame in range ends, so where a later export goes on."""

    store: str
    from_phy_offset: int
    next_phy_offset: int
    rows: int = 0
    findings: list[Finding] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ExportReport:
    """A published export; sizes in bytes. ``bytes_read`` is what was walked of the logs, ``bytes_written`` all files."""

    dest: Path
    parts: tuple[Part, ...]
    rows: int
    bytes_read: int
    bytes_written: int
    stores: tuple[StoreReport, ...]
    seconds: float

    @property
    def findings(self) -> list[Finding]:
        return [found for store in self.stores for found in store.findings]


def export_stores(
    stores: Sequence[tuple[str, Store]],
    dest: Path,
    runner: Runner,
    wanted: LogFilter | None = None,
    *,
    split_size_bytes: int = SPLIT_SIZE_BYTES,
    overwrite: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> ExportReport:
    """Write the messages of some stores, each with its name, as Parquet below ``dest``, with a quarantine table and a manifest.

    Nothing appears in ``dest`` before all is written and proven; an export that breaks off leaves it as it was, or empty.
    ``on_progress`` is told the bytes of the logs walked so far. Raises UsageError for a folder that must not be written
    to, StoreInUseError where another export writes to it, FailedError where reading or writing fails.
    """
    started = time.monotonic()
    wanted = wanted or LogFilter()
    if split_size_bytes < MIN_SPLIT_SIZE_BYTES:
        raise UsageError(f"splits of {split_size_bytes} bytes are too small", to_do="name 64 to 256 MiB")
    _refuse_inside(dest, stores)
    with ResultFolder(dest, overwrite=overwrite) as folder:
        stems = _stems([name for name, _ in stores])
        jobs = [
            _StoreExport(name, stem, store, wanted, folder.staging, split_size_bytes)
            for (name, store), stem in zip(stores, stems, strict=True)
        ]
        walked = 0

        def on_walked(size_bytes: int) -> None:
            nonlocal walked
            walked += size_bytes
            if on_progress is not None:
                on_progress(walked)

        pieces = iter(runner.run([task for job in jobs for task in job.tasks()], on_walked))

        def redo(task: Task) -> Piece:
            [piece] = runner.run([task], on_walked)
            return piece

        parts = [part for job in jobs for part in job.join([next(pieces) for _ in job.tasks()], redo)]
        parts = _never_empty(parts, folder.staging)
        reports = tuple(job.report for job in jobs)
        written = sum(part.size_bytes for part in parts)
        folder.publish([(part.staged, part.path) for part in parts], manifest_bytes(parts, reports, wanted))
    rows = sum(report.rows for report in reports)
    return ExportReport(dest, tuple(parts), rows, walked, written, reports, time.monotonic() - started)


class _StoreExport:
    """One store's part of an export."""

    def __init__(
        self, name: str, stem: str, store: Store, wanted: LogFilter, staging: Path, split_size_bytes: int
    ) -> None:
        self._store, self._wanted = store, wanted
        self._task = Task(name, stem, store.settings, Split(0, 0, exact=True), wanted, staging)
        start = max(wanted.from_phy_offset or 0, start_for_time(store, wanted.begin_ms), store.log.min_phy_offset)
        self._plans = plan_splits(store.log, start, wanted.to_phy_offset, split_size_bytes)
        self.report = StoreReport(name, start, start)
        self._findings = LogFindings()
        self._edges: list[tuple[Range, str]] = []  # rows of the quarantine table that no task wrote
        self._held: list[Range] = []  # may be the tail of the log
        self._bodies: list[Finding] = []
        self._bodies_beyond = 0

    def tasks(self) -> list[Task]:
        return [self._of(split) for plan in self._plans for split in plan.splits]

    def _of(self, split: Split) -> Task:
        task = self._task
        return Task(task.store, task.stem, task.settings, split, task.wanted, task.staging)

    def join(self, pieces: Sequence[Piece], redo: Callable[[Task], Piece]) -> list[Part]:
        """Prove the pieces, in the order of ``tasks``, and give the files that count; fills the report."""
        parts: list[Part] = []
        following = iter(pieces)
        for plan in self._plans:
            self._add_hole(plan)
            mine = [next(following) for _ in plan.splits]
            for joined in join_pieces(plan, mine, lambda split: redo(self._of(split))):
                self._add(joined.piece, head_counts=joined.head_counts)
                parts += joined.piece.parts
        self._finish()
        if self._edges:
            parts.append(self._write_edges())
        return parts

    def _add_hole(self, plan: SegmentPlan) -> None:
        if plan.hole is not None:
            self._add_range(Range(FrameKind.HOLE, FrameCode.OK, *plan.hole, ""))

    def _add(self, piece: Piece, *, head_counts: bool) -> None:
        report = self.report
        report.next_phy_offset = max(report.next_phy_offset, piece.next_phy_offset or 0)
        report.rows += piece.rows
        for found in piece.head if head_counts else ():
            self._add_range(found)
        if piece.has_messages:
            self._edges += inside(self._held)
            self._held = []
            self._findings.join(piece.found)
        for found in piece.tail:
            self._add_range(found)
        room = max(MOST_FINDINGS_PER_CODE - len(self._bodies), 0)
        self._bodies += piece.bodies[:room]
        self._bodies_beyond += piece.bodies_beyond + len(piece.bodies[room:])

    def _add_range(self, found: Range) -> None:
        self._findings.add(range_as_table(found), found.file)
        self._held.append(found)

    def _finish(self) -> None:
        """What is still held is the end of what was asked for: the log's tail, unless records follow behind ``--to``."""
        log = self._store.log
        is_part = self._wanted.to_phy_offset is not None and self._wanted.to_phy_offset < log.max_phy_offset
        live = is_part or is_live(self._store.root).live
        for found in self._held:
            if found.kind in (FrameKind.STALE, FrameKind.HOLE):
                self._edges += inside([found])
            elif found.kind == FrameKind.DAMAGE and not live:
                self._edges.append((found, "L004"))
        self.report.findings = [*self._findings.end(live=live), *self._bodies]
        if not self._store.log.segments:
            self.report.findings.append(finding("S007", "there is no log file"))
        if self._bodies_beyond:
            self.report.findings.append(
                finding("L012", f"and {self._bodies_beyond} more: bodies that cannot be decompressed")
            )

    def _write_edges(self) -> Part:
        task = self._task
        writer = PartWriter(task.staging, "quarantine", task.store, f"{task.stem}-borders.parquet")
        writer.write(quarantine_rows(task.store, self._edges))
        return writer.close()


def _never_empty(parts: list[Part], staging: Path) -> list[Part]:
    """Both tables have a file, so that readers find their columns."""
    empty = [
        PartWriter(staging, table, "", "empty.parquet").close()
        for table in ("messages", "quarantine")
        if not any(part.table == table for part in parts)
    ]
    return parts + empty


def _stems(names: Sequence[str]) -> list[str]:
    """What the stores' file names begin with: their names as far as possible, and no two alike."""
    stems: list[str] = []
    for name in names:
        stem = file_stem(name)
        while stem in stems:
            stem += "_"
        stems.append(stem)
    return stems


def _refuse_inside(dest: Path, stores: Sequence[tuple[str, Store]]) -> None:
    """Nothing may be written into a store: a broker that finds foreign folders may refuse to start."""
    target = dest.resolve()
    for _, store in stores:
        for root in (store.root, *store.settings.commitlog_paths):
            if target.is_relative_to(root.resolve()):
                raise UsageError("the destination lies inside the store", path=str(dest), to_do="name a folder outside")
