"""Apply a plan wholly or not at all, even if the process is killed, so that it can be undone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from store_core.errors import PlanOutOfDateError, StoreError
from store_core.layout.paths import OURS
from store_core.recovery.apply.execute import Change
from store_core.recovery.apply.finish_interrupted import Outcome, changing, remove_change, settle, take_back
from store_core.recovery.apply.originals import assert_room
from store_core.recovery.apply.prepare import RESERVE_FILE, Preparation
from store_core.recovery.plans.plan import Contents, Plan, assert_expected
from store_core.storage.failure import failed
from store_core.storage.journal import (
    UNDO_FOLDER,
    State,
    heads,
    list_ids,
    read_journal,
    remove_empty_folders,
    start_journal,
)
from store_core.storage.live import assert_not_live
from store_core.storage.lock import StoreLock
from store_core.storage.syscalls import FileOps
from store_core.storage.writer import Writer

_NOTHING_CHANGED = "nothing was changed"
_PUT_BACK = "everything was put back as it was"


@dataclass(frozen=True, slots=True)
class Applied:
    """An applied plan. ``undo_id`` is the argument of ``undo``; ``kept_size_bytes`` counts the bytes kept for it."""

    undo_id: str
    plan_id: str
    kept_size_bytes: int
    finished_earlier: bool = False  # an interrupted apply of the same plan was finished instead


class _Progress:
    """Adds up the bytes worked on and reports the sum."""

    def __init__(self, on_progress: Callable[[int], None] | None) -> None:
        self._on_progress = on_progress
        self._done = 0

    def __call__(self, size_bytes: int) -> None:
        self._done += size_bytes
        if self._on_progress is not None:
            self._on_progress(self._done)


def apply(
    plan: Plan,
    root: Path | str,
    *,
    writable_roots: Sequence[Path | str] = (),
    lock: StoreLock | None = None,
    made: Contents | None = None,
    check: Callable[[Path], None] | None = None,
    on_progress: Callable[[int], None] | None = None,
    ops: FileOps | None = None,
) -> Applied:
    """Apply a plan to the store at ``root``, after finishing or taking back an interrupted change there.

    Args:
        lock: the store's lock, if the caller holds it already.
        made: files that the plan's builders made during planning; used only with ``lock``, held since then, because
            the store is then unchanged and the builders would make the same bytes.
        check: called with the root of the changed store before the change counts as done; if it raises, all is taken back.
        on_progress: gets the bytes done so far, of ``work_size_bytes(plan)``.

    Raises:
        StoreInUseError: a broker or another command uses the store.
        PlanOutOfDateError: the store is not as the plan expects, or the plan was applied before.
        FailedError: no room, no permission, or an I/O error.
        UsageError: a path outside the store.

    After any of these the store is as before, or the error says that the next run will finish.
    """
    with changing(root, writable_roots, lock, ops) as (writer, held):
        finished = _finish_first(plan, writer, held)
        if finished is not None:
            return finished
        progress = _Progress(on_progress)
        try:
            assert_expected(plan, writer)
            assert_room(plan, writer)
        except OSError as error:
            raise failed(error, "cannot read the store", state=_NOTHING_CHANGED) from error
        change = _prepare(plan, writer, held, progress, (made or {}) if lock is not None else {})
        _carry_out(change, check)
        return _applied(change)


def _finish_first(plan: Plan, writer: Writer, lock: StoreLock) -> Applied | None:
    """Finish or take back interrupted changes; return the result if that finished this very plan."""
    settled = settle(writer, lock)
    for head in reversed(list(heads(writer.root))):
        if head.text("plan_id") == plan.id and head.state is State.DONE:
            if any(change.id == head.id and change.outcome is Outcome.FINISHED for change in settled):
                return _applied(Change.read(writer, read_journal(writer.root, head.id)), finished_earlier=True)
            raise PlanOutOfDateError(
                f"this plan has been applied already, as {head.id}", to_do=f"rmqctl undo {head.id} takes it back"
            )
    return None


def _prepare(plan: Plan, writer: Writer, lock: StoreLock, progress: _Progress, made: Contents) -> Change:
    """Do all work before the first change to the store; on any error, remove the folder made for it."""
    before = set(list_ids(writer.root))
    try:
        journal = start_journal(
            writer,
            plan.kind,
            plan.id,
            policy=plan.policy,
            lock_created=lock.created,
            writable_roots=[str(path) for path in writer.places.writable_roots],
            steps=len(plan.steps),
        )
        records = Preparation(plan, writer, journal, progress, made).run()
        assert_not_live(writer.root, writer.places.writable_roots)  # a broker may have started while files were built
    except BaseException as error:
        _remove_preparation(writer, lock, before)
        if isinstance(error, OSError):
            raise failed(error, "cannot prepare the change", state=_NOTHING_CHANGED) from error
        raise
    return Change(writer, journal, plan, records, progress)


def _remove_preparation(writer: Writer, lock: StoreLock, before: set[str]) -> None:
    """Remove the files of a failed preparation; the next run removes those that cannot be removed now."""
    with suppress(OSError, StoreError):
        for id in set(list_ids(writer.root)) - before:
            journal = read_journal(writer.root, id)
            if journal.state is State.PREPARED:
                writer.unlink(f"{journal.folder}/{RESERVE_FILE}")
                journal.mark(writer, State.UNDONE)
            remove_change(writer, journal)
        for place in ("", *(f"{area.parent}/" for area in writer.places.areas[1:])):
            if not before and writer.path(f"{place}{OURS}").is_dir():  # the folder was made before the disk was full
                remove_empty_folders(writer, f"{place}{UNDO_FOLDER}")
        if lock.created:
            lock.remove_file()


def _carry_out(change: Change, check: Callable[[Path], None] | None) -> None:
    try:
        change.forward()
        if check is not None:
            check(change.writer.root)
        change.journal.mark(change.writer, State.DONE)
    except BaseException as error:
        take_back(change)
        if isinstance(error, OSError):
            raise failed(error, "the change failed", state=_PUT_BACK) from error
        raise


def _applied(change: Change, finished_earlier: bool = False) -> Applied:
    return Applied(change.journal.id, change.plan.id, change.kept_size_bytes, finished_earlier)
