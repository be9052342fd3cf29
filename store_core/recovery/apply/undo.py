"""Undo applied plans: restore every byte, every name, every modification time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from store_core.errors import PlanOutOfDateError, UsageError
from store_core.recovery.apply.execute import Advance, Change
from store_core.recovery.apply.finish_interrupted import (
    Settled,
    assert_can_go_back,
    assert_room_back,
    changing,
    go_back,
    leave_no_trace,
    remove_change,
    settle,
)
from store_core.recovery.apply.originals import Left, left_of
from store_core.recovery.apply.trusted_paths import assert_named, assert_nothing_kept_outside, assert_trusted
from store_core.recovery.plans.plan import Op, is_in_place
from store_core.storage.digest import digest_file
from store_core.storage.failure import failed
from store_core.storage.journal import Journal, State, heads, list_ids, read_journal
from store_core.storage.lock import StoreLock
from store_core.storage.syscalls import FileOps
from store_core.storage.writer import Writer

_RESUME: Final = "run the command again: it goes on where it stopped"


@dataclass(frozen=True, slots=True)
class Undoable:
    """A change whose kept bytes are still stored."""

    id: str
    state: str
    kind: str | None
    policy: str | None
    plan_id: str | None
    made_at_ms: int | None
    steps: int | None


@dataclass(frozen=True, slots=True)
class UndoItem:
    """A path that undo restores: ``what`` happens to it, and its length and time afterwards (None: it is removed).

    ``ranges`` are the restored bytes, (offset, size): the whole file, or only those that the change overwrote or cut off.
    """

    path: str
    what: str
    size_bytes: int | None
    mtime_ns: int | None
    ranges: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class UndoReport:
    """The paths that an undo restores or has restored. ``later_folders`` keep their times, as they were used since.

    ``state`` is the state of the change. An interrupted change has no ``items``: it is finished or taken back first.
    """

    id: str
    items: tuple[UndoItem, ...]
    later_folders: tuple[str, ...]
    applied: bool
    state: str = str(State.DONE)


def list_undo(root: Path | str) -> list[Undoable]:
    """Return the changes that can be undone or are unfinished, newest first. The store is only read."""
    found = []
    for head in reversed(list(heads(root))):
        kind, policy, plan_id = map(head.text, ("kind", "policy", "plan_id"))
        made_at_ms, steps = map(head.number, ("made_at_ms", "steps"))
        found.append(Undoable(head.id, str(head.state), kind, policy, plan_id, made_at_ms, steps))
    return found


def undo(
    root: Path | str,
    id: str | None = None,
    *,
    apply: bool = False,
    writable_roots: Sequence[Path | str] = (),
    lock: StoreLock | None = None,
    on_settled: Callable[[Settled], None] = lambda settled: None,
    on_progress: Callable[[int], None] | None = None,
    ops: FileOps | None = None,
) -> UndoReport:
    """Undo the change ``id``, or the newest one. Without ``apply`` the store is only read.

    Interrupted changes are finished or taken back first, and reported to ``on_settled``; if that took this change back,
    there is nothing to undo.

    Raises:
        UsageError: no such change, or it writes outside the store to folders that are not among ``writable_roots``.
        PlanOutOfDateError: another program has changed the files since.
        StoreInUseError: a broker or another command uses the store.
        FailedError: the kept bytes are damaged, or an I/O error; another run continues where this one stopped.
    """
    if not apply:
        journal = _undoable(Path(root), id)
        if not journal.state.finished:
            return UndoReport(journal.id, (), (), False, str(journal.state))
        with Writer(root, writable_roots=writable_roots, ops=ops) as writer:
            return _checked_report(_trusted_change(writer, journal), False)
    with changing(root, writable_roots, lock, ops) as (writer, held):
        named = _undoable(writer.root, id)
        settle(writer, held, on_settled)
        if not named.state.finished and named.id not in list_ids(writer.root):
            return UndoReport(named.id, (), (), True, str(named.state))
        journal = _find(writer.root, named.id)
        change = _trusted_change(writer, journal, _summing(on_progress))
        report = _checked_report(change, True)
        try:
            assert_room_back(change)
            journal.mark(writer, State.UNDOING, later_folders=report.later_folders)
            go_back(change, report.later_folders)
            leave_no_trace(writer, journal, held)
        except OSError as error:
            raise failed(error, f"cannot undo {journal.id} to the end", state=_RESUME) from error
        return report


def forget(
    root: Path | str,
    id: str,
    *,
    abandon: bool = False,
    writable_roots: Sequence[Path | str] = (),
    lock: StoreLock | None = None,
    ops: FileOps | None = None,
) -> None:
    """Remove the bytes kept for a change, which can then never be undone.

    ``abandon``: also forget an unfinished change, and leave the store in its present state.

    Raises:
        UsageError: no such change, it is unfinished, or bytes are kept next to a log folder that is not among
            ``writable_roots``.
        StoreInUseError: a broker or another command uses the store.
        FailedError: I/O error.
    """
    _find(Path(root), id)
    with changing(root, writable_roots, lock, ops) as (writer, _):
        journal = _find(writer.root, id)
        if journal.state is not State.DONE and not abandon:
            raise UsageError(
                f"the change {id} is unfinished",
                to_do="run any writing command to finish it, or add --yes to leave it so",
            )
        assert_nothing_kept_outside(journal, writer.places)
        try:
            if journal.entries:
                journal.mark(writer, State.FORGOTTEN)
            remove_change(writer, journal)
        except OSError as error:
            raise failed(error, f"cannot forget {id}", state=_RESUME) from error


def _find(root: Path, id: str | None) -> Journal:
    for change_id in reversed(list_ids(root)):
        if id in (None, change_id):
            return read_journal(root, change_id)
    raise UsageError(
        f"there is no change {id!r} to undo" if id else "there is nothing to undo", to_do="see `rmqctl undo --list`"
    )


def _undoable(root: Path, id: str | None) -> Journal:
    journal = _find(root, id)
    if journal.state is State.FORGOTTEN:
        raise UsageError(f"the change {journal.id} is being forgotten", to_do="run `rmqctl undo --forget` to the end")
    return journal


def _trusted_change(writer: Writer, journal: Journal, advance: Advance = lambda size_bytes: None) -> Change:
    """Read a journal's change, after checking that it names only what rmqctl may have written in places of ``writer``."""
    assert_named(journal, writer.places)
    change = Change.read(writer, journal, advance)
    assert_trusted(change)
    return change


def _summing(on_progress: Callable[[int], None] | None) -> Advance:
    done = 0

    def advance(size_bytes: int) -> None:
        nonlocal done
        done += size_bytes
        if on_progress is not None:
            on_progress(done)

    return advance


def _checked_report(change: Change, applied: bool) -> UndoReport:
    """Check that files are as the change left them and that kept bytes are whole. Return what undo restores."""
    states = left_of(change.journal)
    try:
        for path in change.plan.by_path:
            if change.plan.by_path[path][0].op is not Op.REMOVE_FOLDER and _state_of(change, path) != states.get(path):
                raise PlanOutOfDateError(
                    f"something else has changed the file since {change.journal.id}",
                    path=path,
                    to_do=_later_change(change, path) or "copy aside what you need; undo would overwrite it",
                )
        assert_can_go_back(change)
        later = tuple(path for path in change.records.folders if _used_later(change, path, states))
    except OSError as error:
        raise failed(error, f"cannot look at what {change.journal.id} changed") from error
    return UndoReport(change.journal.id, tuple(_items(change)), later, applied)


def _state_of(change: Change, path: str) -> Left:
    real = change.writer.path(path)
    if not real.exists():
        return Left(path)
    found = digest_file(real)
    return Left(path, found.size_bytes, found.crc32c)


def _used_later(change: Change, path: str, states: Mapping[str, Left]) -> bool:
    """Return True if a folder's time has changed since the change, so that undo must not set it back."""
    real = change.writer.path(path)
    mtime_ns = states[path].mtime_ns if path in states else None
    return mtime_ns is not None and real.exists() and real.stat().st_mtime_ns != mtime_ns


def _later_change(change: Change, path: str) -> str | None:
    """Return advice if a later change of rmqctl has touched a path."""
    ids = list_ids(change.writer.root)
    for id in reversed(ids[ids.index(change.journal.id) + 1 :]):
        journal = read_journal(change.writer.root, id)
        if any(entry.get("path") == path for entry in journal.lines("original")):
            return f"undo {id} first"
    return None


def _items(change: Change) -> Iterator[UndoItem]:
    for path, steps in change.plan.by_path.items():
        original = change.records.originals[path]
        if steps[0].op is Op.REMOVE_FOLDER:
            yield UndoItem(path, "make folder again", None, change.records.folders[path].mtime_ns)
        elif not original.existed:
            yield UndoItem(path, "remove", None, None)
        elif is_in_place(steps):
            ranges = tuple((kept.offset, kept.size_bytes) for kept in original.ranges)
            what = "restore bytes" if ranges else "restore time"
            yield UndoItem(path, what, original.size_bytes, original.mtime_ns, ranges)
        else:
            whole_file = (0, original.size_bytes)
            yield UndoItem(path, "bring back", original.size_bytes, original.mtime_ns, (whole_file,))
