"""Export messages: plan splits, have a runner do them, prove that they join, and publish the result.

The steps are the same for every runner.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from store_core.errors import UsageError
from store_core.export.dest.destination import Destination
from store_core.export.dest.folder import FolderDestination
from store_core.export.dest.layout import Layout
from store_core.export.dest.parts import FOLDERS, Part, PartWriter, file_stem
from store_core.export.dest.state import Commit, ExportState, filter_as_json
from store_core.export.dest.task_destination import Place
from store_core.export.resume import Walked, Work
from store_core.export.runners.runner import Runner
from store_core.export.splits.notes import task_keys
from store_core.export.splits.plan import SPLIT_SIZE_BYTES, Split, Task
from store_core.export.splits.split_task import Piece
from store_core.export.splits.tail import is_copy_of
from store_core.export.store_export import StoreExport, StoreReport
from store_core.findings import KINDS, Finding, finding
from store_core.read.log import LogFilter
from store_core.storage.remote_path import real_path
from store_core.storage.store import Store

MIN_SPLIT_SIZE_BYTES: Final = 256
_NO_SPLIT: Final = Split(0, 0, exact=True)

Stores = Sequence[tuple[str, Store]]


@dataclass(frozen=True, slots=True)
class ExportReport:
    """A published export; sizes in bytes. ``bytes_read`` counts bytes walked in the logs, ``bytes_written`` the bytes
    of all files.

    ``commit`` is the number of the last commit, the previous one if there was nothing new; ``taken`` counts the
    splits that an interrupted export had already done.
    """

    dest: str
    parts: tuple[Part, ...]
    rows: int
    bytes_read: int
    bytes_written: int
    stores: tuple[StoreReport, ...]
    seconds: float
    commit: int = 1
    taken: int = 0

    @property
    def findings(self) -> list[Finding]:
        return [found for store in self.stores for found in store.findings]


def export_stores(
    stores: Stores,
    dest: Path | Destination,
    runner: Runner,
    wanted: LogFilter | None = None,
    *,
    split_size_bytes: int = SPLIT_SIZE_BYTES,
    layout: Layout | None = None,
    overwrite: bool = False,
    incremental: bool = False,
    keep_copies: bool = False,
    on_plan: Callable[[int], Callable[[int], None]] | None = None,
) -> ExportReport:
    """Write the messages and the damaged ranges of some named stores to a destination.

    Nothing appears there before all files are written and proven. The same call resumes an interrupted export.

    Args:
        dest: a destination or a folder; ``overwrite`` and ``incremental`` are for a folder.
        keep_copies: accept a log that was exported before under another name.
        on_plan: is called with the number of bytes to walk, and returns a callback for the number of bytes walked so
            far.

    Raises:
        UsageError: the destination must not be written to, or filter or layout differ from the last commit's.
        PlanOutOfDateError: a log is not the one that was exported before.
        StoreInUseError: another export writes to the destination.
        FailedError: reading or writing fails.
    """
    started = time.monotonic()
    wanted, layout = wanted or LogFilter(), layout or Layout()
    if split_size_bytes < MIN_SPLIT_SIZE_BYTES:
        raise UsageError(
            f"splits of {split_size_bytes} bytes are too small",
            to_do=f"name {MIN_SPLIT_SIZE_BYTES} or more; 64 to 256 MiB are usual",
        )
    if isinstance(dest, Path):
        dest = FolderDestination(dest, overwrite=overwrite, incremental=incremental)
    if dest.path is not None:
        refuse_inside(dest.path, stores)
    with dest as destination:
        last, gone = destination.last, destination.gone()
        if last is not None:
            _assert_same_kind(last, wanted, layout, destination.address)
            if not keep_copies:
                _assert_not_renamed(stores, last)
        jobs = _plan_exports(stores, destination.place, wanted, layout, split_size_bytes, last)
        walked = Walked(on_plan)
        work = Work(destination, runner, walked, Piece)
        parts = _do_tasks(jobs, work)
        number = last.commit + 1 if last is not None else 1
        parts += [part for job in jobs if (part := job.borders(number)) is not None]
        reports = tuple(job.report for job in jobs)
        if last is None and destination.never_empty:
            parts = _with_empty_parts(parts, destination.place)
        if last is None or parts or _has_moved(last, reports):
            commit = Commit(number, work.plan, tuple(report.as_state() for report in reports))
            before = last or ExportState(0, "", filter_as_json(wanted), layout.as_json(), ())
            untold = before.last_findings if destination.is_untold else {}
            destination.publish(parts, commit, before.after(number, work.plan, commit.stores, untold))
        else:
            number = last.commit
            destination.finish()
    for report in reports[:1]:
        report.findings += _gone_files(gone)
    if last is not None and destination.is_untold:
        for report in reports:
            report.findings += _unreported(last, report.store)
        for store in last.last_findings.keys() - {report.store for report in reports}:
            reports[0].findings += _unreported(last, store, f" of {store}")
    return ExportReport(
        destination.address,
        tuple(parts),
        sum(report.rows for report in reports),
        walked.size_bytes,
        sum(part.size_bytes for part in parts),
        reports,
        time.monotonic() - started,
        number,
        work.taken,
    )


def _plan_exports(
    stores: Stores, place: Place, wanted: LogFilter, layout: Layout, split_size_bytes: int, last: ExportState | None
) -> list[StoreExport]:
    """Plan an export of each store from its files' names and lengths and the records at the last commit's end."""
    jobs: list[StoreExport] = []
    for name, store in stores:
        task = Task(name, file_stem(name), store.settings, _NO_SPLIT, wanted, place, layout)
        jobs.append(StoreExport(store, task, split_size_bytes, last.of(name) if last is not None else None))
    return jobs


def _do_tasks(jobs: Sequence[StoreExport], work: Work[Piece]) -> list[Part]:
    """Run all tasks, and return the files that count."""
    keyed: list[dict[str, Task]] = []
    for job in jobs:
        planned = job.tasks()
        keyed.append(dict(zip(task_keys(planned, job.store.log), planned, strict=True)))
    pieces = work.do({key: task for tasks in keyed for key, task in tasks.items()})
    parts: list[Part] = []
    for job, tasks in zip(jobs, keyed, strict=True):
        found: list[Piece] = [pieces[key] for key in tasks]
        parts += job.join(found, work.redo)
    return parts


def _assert_same_kind(last: ExportState, wanted: LogFilter, layout: Layout, address: str) -> None:
    """Raise UsageError if filter or layout differ from the last commit's: the rows of the export would follow two
    rules.
    """
    for what, before, now in (
        ("the filter", last.filter, filter_as_json(wanted)),
        ("the layout", last.layout, layout.as_json()),
    ):
        if dict(before) != dict(now):
            changed = ", ".join(sorted(key for key in {*before, *now} if before.get(key) != now.get(key)))
            raise UsageError(
                f"{what} is not that of the last commit: {changed}",
                path=address,
                to_do="give the same options as before (an age like -15m is another time in each run), or export to another place",
            )


def _assert_not_renamed(stores: Stores, last: ExportState) -> None:
    """Raise UsageError if a log was exported under another name: it would be exported a second time from its start."""
    for name, store in stores:
        for state in last.stores if last.of(name) is None else ():
            if is_copy_of(store.log, state.proof, state.begins):
                raise UsageError(
                    f"the log of {name} has been exported as {state.store}, up to {state.next_phy_offset}",
                    path=str(store.root),
                    to_do=f"name it as before, -s {state.store}=PATH, or take it once more with --keep-copies",
                )


def _has_moved(last: ExportState, reports: Sequence[StoreReport]) -> bool:
    """Return True if a store is new, or if this export walked more of it than the last commit."""
    before = {state.store: state for state in last.stores}
    return any(
        report.store not in before
        or (report.next_phy_offset, report.told) != (before[report.store].next_phy_offset, before[report.store].told)
        for report in reports
    )


def _gone_files(gone: Sequence[str]) -> Iterator[Finding]:
    """Yield X001 for files of earlier commits that are gone or have another length."""
    if gone:
        files = f"{len(gone)} files of earlier commits are" if len(gone) > 1 else "a file of an earlier commit is"
        yield finding("X001", f"{files} gone or of another length: {gone[0]}{', …' if len(gone) > 1 else ''}")


def _unreported(last: ExportState, store: str, whose: str = "") -> Iterator[Finding]:
    """Yield the findings of earlier commits in a store that no report has shown."""
    for code, count in last.last_findings.get(store, {}).items():
        if code in KINDS:
            yield finding(
                code, f"{count} up to commit {last.commit}{whose}, whose export was ended before it could report them"
            )


def _with_empty_parts(parts: list[Part], place: Place) -> list[Part]:
    """Add an empty file for each table without one, so that readers find its columns."""
    empty = [
        PartWriter(place, table, "", "empty.parquet").close()
        for table in FOLDERS
        if not any(part.table == table for part in parts)
    ]
    return parts + empty


def refuse_inside(dest: Path, stores: Stores) -> None:
    """Raise UsageError for a destination inside a store: a broker that finds foreign folders may refuse to start."""
    target = real_path(dest)
    for _, store in stores:
        for root in (store.root, *store.settings.copies, *store.settings.commitlog_paths):
            if target.is_relative_to(real_path(root)):
                raise UsageError("the destination lies inside the store", path=str(dest), to_do="name a folder outside")
