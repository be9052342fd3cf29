"""Finish an interrupted change, or take it back; every writing command does this first.

Before either, each byte of its files must be the old or the new one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from store_core.errors import FailedError, NotAStoreError, PlanOutOfDateError
from store_core.recovery.apply.execute import Change
from store_core.recovery.apply.originals import KeptRange, Original, Room, Staged, allocated_bytes, device_of
from store_core.recovery.apply.trusted_paths import assert_named, assert_trusted
from store_core.recovery.plans.plan import RANGES, Content, Op, Step, is_in_place
from store_core.storage.digest import (
    WINDOW_SIZE_BYTES,
    Digest,
    Hole,
    data_bytes,
    digest_file,
    digest_range,
    runs,
)
from store_core.storage.failure import failed
from store_core.storage.files import FileCache
from store_core.storage.journal import Journal, State, heads, list_ids, read_journal, remove_our_folder
from store_core.storage.live import assert_not_live
from store_core.storage.lock import StoreLock
from store_core.storage.syscalls import FileOps
from store_core.storage.writer import Writer

_UNFINISHED: Final = "the change is unfinished: run the command again, and it is finished or taken back"
_SECTOR_SIZE_BYTES: Final = 512


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


def assert_ours(change: Change) -> None:
    """Raise PlanOutOfDateError if another program has changed a file since the change was interrupted."""
    for path in foreign(change):
        raise PlanOutOfDateError(
            f"the change {change.journal.id} was interrupted, and something else has changed a file of it since",
            path=path,
            to_do=f"start from a copy, or give up finishing it with: rmqctl undo --forget {change.journal.id} --yes",
        )


def foreign(change: Change) -> Iterator[str]:
    """Yield paths in a state that neither the store before the change, nor the change, nor a crash in it explains."""
    for path, steps in change.plan.by_path.items():
        if is_in_place(steps):
            explained = _explained_in_place(change, path)
        elif steps[0].op is Op.REMOVE_FOLDER:
            explained = True  # a folder that is not empty is not removed
        else:
            explained = _explained_whole(change, path)
        if not explained:
            yield path


def can_go_forward(change: Change) -> bool:
    """Return True if all new bytes that are not yet in the store are whole in their staged files."""
    records = change.records
    waiting = [new for new in records.new_files.values() if _digest(change, new.path) != _digest_of(new)]
    return all(_digest(change, new.staged) == _digest_of(new) for new in (*waiting, *records.new_ranges.values()))


def assert_can_go_back(change: Change) -> None:
    """Raise FailedError if kept bytes that are still needed are missing or damaged."""
    for original in change.records.originals.values():
        if original.kept is not None and not _kept_is_whole(change, original):
            raise FailedError(
                "the kept bytes are damaged",
                path=str(change.writer.path(original.kept)),
                to_do=f"nothing was brought back; rmqctl undo --forget {change.journal.id} leaves the store as it is",
            )


def assert_room_back(change: Change) -> None:
    """Raise FailedError if a file system has no room to take the change back, even without the change's own files."""
    room = Room(change.writer)
    for path, steps in change.plan.by_path.items():
        original, real = change.records.originals[path], change.writer.path(path)
        if is_in_place(steps):
            kept = change.writer.path(original.kept or "")
            for piece in original.ranges:
                held = data_bytes(real, piece.offset, piece.size_bytes)
                room.need(real, max(0, data_bytes(kept, piece.kept_offset, piece.size_bytes) - held))
            room.need(real, -data_bytes(real, original.size_bytes, real.stat().st_size))
            continue
        if real.is_file() and real.stat().st_nlink == 1:
            room.need(real, -allocated_bytes(real))
        if original.kept is not None and device_of(change.writer.path(original.kept)) != device_of(real.parent):
            room.need(
                real, allocated_bytes(change.writer.path(original.kept))
            )  # a rename cannot cross file systems, so the kept file is copied
    room.refuse_full()


def _kept_is_whole(change: Change, original: Original) -> bool:
    if original.crc32c is not None:
        digest = Digest(original.crc32c, original.size_bytes)
        return digest in (_digest(change, original.kept or ""), _digest(change, original.path))
    kept = change.writer.path(original.kept or "")
    return kept.exists() and all(
        digest_range(kept, r.kept_offset, r.size_bytes) == Digest(r.crc32c, r.size_bytes) for r in original.ranges
    )


def _explained_whole(change: Change, path: str) -> bool:
    """Return True if a whole file is in a state that the change explains.

    * It is missing, the old file, or the new one.
    * It is a mixture of both and zeros: a copy across file systems was interrupted.
    """
    original, new = change.records.originals[path], change.records.new_files.get(path)
    found = _digest(change, path)
    if found is None:
        return not os.path.lexists(change.writer.path(path))
    if original.crc32c is not None and found == Digest(original.crc32c, original.size_bytes):
        return True
    if new is not None and found == _digest_of(new):
        return True
    sources = [_Source()]
    if original.kept and _digest(change, original.kept) == Digest(original.crc32c or 0, original.size_bytes):
        sources.append(
            _Source(change.writer.path(original.kept))
        )  # a damaged kept file, which may be a second name of this one, proves nothing
    if new is not None and _digest(change, new.staged) == _digest_of(new):
        sources.append(_Source(change.writer.path(new.staged)))
    return len(sources) > 1 and _is_mixture(change.writer.path(path), 0, found.size_bytes, sources)


def _explained_in_place(change: Change, path: str) -> bool:
    steps, original = change.plan.by_path[path], change.records.originals[path]
    real = change.writer.path(path)
    if not real.is_file():
        return False
    lengths = [original.size_bytes, *(s.size_bytes or 0 for s in steps if s.op is Op.SET_LENGTH)]
    longest = max([*lengths, *(s.end for s in steps if s.op in RANGES)])
    if not min(lengths) <= real.stat().st_size <= longest:
        return False
    kept = {piece.offset: piece for piece in original.ranges}
    for step in steps:
        start = (step.offset if step.op in RANGES else step.size_bytes) or 0
        sources = [_old_source(change, original, kept.get(start)), _new_source(change, step)]
        size_bytes = (step.size_bytes or 0) if step.op in RANGES else max(0, original.size_bytes - start)
        if not _is_mixture(real, start, size_bytes, sources):
            return False
    return True


def _old_source(change: Change, original: Original, piece: KeptRange | None) -> _Source:
    return _Source(change.writer.path(original.kept), piece) if original.kept and piece else _Source()


def _new_source(change: Change, step: Step) -> _Source:
    if isinstance(step.content, Content):
        return _Source(content=step.content)
    staged = change.records.new_ranges.get((step.path, step.offset or 0))
    return _Source(change.writer.path(staged.staged)) if staged else _Source()


class _Source:
    """Bytes that a range may contain: those of a kept or staged file, of a content, or zeros."""

    def __init__(
        self, path: Path | None = None, piece: KeptRange | None = None, content: Content | None = None
    ) -> None:
        self._path = path
        self._piece = piece
        self._content = content
        self._cache = FileCache(1)

    def read(self, at: int, size_bytes: int) -> bytes:
        """Return the bytes from ``at`` of the range; zeros after the source's end."""
        found = b""
        if self._content is not None:
            found = self._content.read(at, size_bytes)
        elif self._path is not None:
            start, limit = (self._piece.kept_offset, self._piece.size_bytes) if self._piece else (0, at + size_bytes)
            found = self._cache.read(self._path, start + at, max(0, min(size_bytes, limit - at)))
        return found.ljust(size_bytes, b"\0")

    def zeros_from(self, at: int, size_bytes: int) -> int:
        """Return how many bytes from ``at`` of the range are known to be zero without reading them."""
        if self._content is not None:
            return self._content.zeros_from(at) if at < self._content.size_bytes else size_bytes
        if self._path is None:
            return size_bytes
        start, limit = (self._piece.kept_offset, self._piece.size_bytes) if self._piece else (0, at + size_bytes)
        data = self._cache.next_data(self._path, start + at)
        return size_bytes if data is None or data - start >= limit else data - start - at

    def close(self) -> None:
        self._cache.close()


def _is_mixture(real: Path, start: int, size_bytes: int, sources: list[_Source]) -> bool:
    """Return True if each byte of a range, up to the file's end, equals that byte of one of the sources."""
    try:
        at = 0
        for run in runs(real, start, size_bytes):
            end = at + (run.size_bytes if isinstance(run, Hole) else len(run))
            while at < end:
                if isinstance(run, Hole) and (zeros := max(source.zeros_from(at, end - at) for source in sources)):
                    at += min(zeros, end - at)
                    continue
                length = min(end - at, WINDOW_SIZE_BYTES)
                part = bytes(length) if isinstance(run, Hole) else run
                if not _come_from(part, [source.read(at, length) for source in sources]):
                    return False
                at += length
        return True
    finally:
        for source in sources:
            source.close()


def _come_from(found: bytes, candidates: list[bytes]) -> bool:
    if found in candidates:
        return True
    for at in range(0, len(found), _SECTOR_SIZE_BYTES):
        sector = found[at : at + _SECTOR_SIZE_BYTES]
        options = [candidate[at : at + _SECTOR_SIZE_BYTES] for candidate in candidates]
        if sector not in options and not all(byte in column for byte, *column in zip(sector, *options, strict=True)):
            return False
    return True


def _digest(change: Change, path: str) -> Digest | None:
    real = change.writer.path(path)
    return digest_file(real) if real.is_file() and not real.is_symlink() else None


def _digest_of(new: Staged) -> Digest:
    return Digest(new.crc32c, new.size_bytes)
