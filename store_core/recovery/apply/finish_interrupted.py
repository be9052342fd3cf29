"""Finish an interrupted change, or take it back; every writing command does this first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from store_core.errors import NotAStoreError
from store_core.recovery.apply.execute import Change
from store_core.recovery.apply.partial_state import assert_can_go_back, assert_ours, can_go_forward
from store_core.recovery.apply.trusted_paths import assert_named, assert_trusted
from store_core.storage.failure import failed
from store_core.storage.journal import Journal, State, heads, list_ids, read_journal, remove_our_folder
from store_core.storage.live import assert_not_live
from store_core.storage.lock import StoreLock
from store_core.storage.syscalls import FileOps
from store_core.storage.writer import Writer

_UNFINISHED: Final = "the change is unfinished: run the command again, and it is finished or taken back"


class Outcome(StrEnum):
    """The outcome of an interrupted change."""

    FINISHED = "finished"
    ROLLED_BACK = "rolled back"
    UNDONE = "undone"  # the undo was interrupted, and is finished
    FORGOTTEN = "forgotten"  # forgetting it was interrupted, and is finished


@dataclass(frozen=True, slots=True)
class Settled:
    """An interrupted change and its outcome."""

    id: str
    kind: str | None
    outcome: Outcome


@contextmanager
def changing(
    root: Path | str, writable_roots: Sequence[Path | str], lock: StoreLock | None, ops: FileOps | None
) -> Iterator[tuple[Writer, StoreLock]]:
    """Yield a writer and the lock of a store that no broker or command uses. Raises NotAStoreError, StoreInUseError."""
    if not Path(root).is_dir():
        raise NotAStoreError("there is no store", path=str(root))
    with Writer(root, writable_roots=writable_roots, ops=ops) as writer:
        held = lock or StoreLock(root, writer=writer)
        if not held.held:
            held.acquire()
        try:
            assert_not_live(root, writable_roots)
            yield writer, held
        except Exception:
            if lock is None and held.created and not list_ids(writer.root):
                with suppress(OSError):
                    held.remove_file()
            raise
        finally:
            if lock is None:
                held.release()


def settle(
    writer: Writer, lock: StoreLock, on_settled: Callable[[Settled], None] = lambda settled: None
) -> tuple[Settled, ...]:
    """Finish interrupted changes, or take back those that cannot be finished.

    ``on_settled`` gets each change as soon as it is settled. Only places of ``writer`` are written; the writable roots in
    the journal are not trusted.

    Raises:
        PlanOutOfDateError: another program has changed the files since.
        UsageError: the change writes to log folders that are not among those of ``writer``.
        FailedError: I/O error, or damaged files under ``.rmqctl/``.
    """
    found = []
    for head in heads(writer.root):
        if head.state.finished:
            continue
        journal = read_journal(writer.root, head.id)
        assert_named(journal, writer.places)
        try:
            outcome = _settle(writer, journal, lock)
        except OSError as error:
            raise failed(error, f"cannot finish the interrupted change {head.id}", state=_UNFINISHED) from error
        if journal.entries:  # a folder without a journal is a change that did not start, or was almost removed
            found.append(Settled(head.id, head.text("kind"), outcome))
            on_settled(found[-1])
    return tuple(found)


def _settle(writer: Writer, journal: Journal, lock: StoreLock) -> Outcome:
    """Settle an interrupted change by the state of its journal.

    * PREPARING: the store is untouched; remove the change's folder
    * PREPARED: carry the change out; if new bytes are missing or the system refuses, take it back
    * UNDOING: take the change back
    * UNDONE, FORGOTTEN: remove the change's folder
    """
    match journal.state:
        case State.PREPARED:
            if _carried_out(writer, journal):
                return Outcome.FINISHED
            outcome = Outcome.ROLLED_BACK
        case State.UNDOING:
            change = Change.read(writer, journal)
            assert_trusted(change)
            assert_ours(change)
            go_back(change, _kept_times(change))
            outcome = Outcome.UNDONE
        case State.FORGOTTEN:
            remove_change(writer, journal)
            return Outcome.FORGOTTEN
        case State.PREPARING:
            outcome = Outcome.ROLLED_BACK
        case _:
            outcome = Outcome.UNDONE
    leave_no_trace(writer, journal, lock)
    return outcome


def _kept_times(change: Change) -> Collection[str]:
    """Return the folders whose times an interrupted undo keeps; the journal of rmqctl 0.1 named the other folders."""
    entry = change.journal.last("undoing")
    if isinstance(restored := entry.get("folders"), list):
        return [path for path in change.records.folders if path not in restored]
    later = entry.get("later_folders")
    return later if isinstance(later, list) else ()


def _carried_out(writer: Writer, journal: Journal) -> bool:
    change = Change.read(writer, journal)
    assert_trusted(change)
    assert_ours(change)
    if can_go_forward(change):
        with suppress(OSError):
            change.forward()
            journal.mark(writer, State.DONE)
            return True
    go_back(change)
    return False


def go_back(change: Change, keep_times: Collection[str] = ()) -> None:
    """Take a change back and mark its journal. Raises OSError, FailedError if kept bytes are damaged."""
    assert_can_go_back(change)
    change.back(keep_times)


def take_back(change: Change) -> None:
    """Take back a change that failed half-way. Raises FailedError if that fails too."""
    try:
        go_back(change)
        remove_change(change.writer, change.journal)
    except OSError as error:
        raise failed(error, "the change failed, and taking it back did too", state=_UNFINISHED) from error


def leave_no_trace(writer: Writer, journal: Journal, lock: StoreLock) -> None:
    """Remove the folders of a change that is taken back, and the lock file if the change made it."""
    if journal.last("begin").get("lock_created") or lock.created:
        lock.remove_file()
    remove_change(writer, journal)


def remove_change(writer: Writer, journal: Journal) -> None:
    """Remove a change's folders, the one with the journal last. Raises OSError."""
    for area in writer.places.areas[1:]:
        folder = str(area.parent / journal.folder)
        if writer.path(folder).exists():
            remove_our_folder(writer, folder)
    remove_our_folder(writer, journal.folder)
