"""Carry out a prepared change, or take it back. Each operation can be repeated, whatever state an earlier run left."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from typing import Final

from store_core.layout.paths import ABORT
from store_core.recovery.apply.originals import Left, Original, OriginalFolder, Records, records_of, to_entry
from store_core.recovery.apply.prepare import PLAN_FILE, RESERVE_FILE
from store_core.recovery.plans.plan import RANGES, Content, Op, Plan, Step, is_in_place
from store_core.recovery.plans.plan_json import LARGEST_PLAN_BYTES, plan_from_bytes
from store_core.storage.digest import Hole, digest_file, runs, windows
from store_core.storage.journal import Journal, State, is_empty, read_ours
from store_core.storage.sync_batch import SyncBatch
from store_core.storage.writer import Ownership, Writer

Advance = Callable[[int], None]
_SAFE_BITS: Final = 0o755  # group and others may write only if they may in the parent folder


class Change:
    """The plan and the file records of one journal, with the operations on them. All methods raise OSError."""

    def __init__(
        self,
        writer: Writer,
        journal: Journal,
        plan: Plan,
        records: Records,
        advance: Advance = lambda size_bytes: None,
    ) -> None:
        self.writer = writer
        self.journal = journal
        self.plan = plan
        self.records = records
        self._advance = advance
        self._syncs = SyncBatch(writer)

    @classmethod
    def read(cls, writer: Writer, journal: Journal, advance: Advance = lambda size_bytes: None) -> Change:
        """Read the plan and the records of a change that an earlier run prepared.

        Raises:
            FailedError, UsageError: the files have content that rmqctl does not write.
        """
        file = writer.path(f"{journal.folder}/{PLAN_FILE}")
        plan = plan_from_bytes(read_ours(file, LARGEST_PLAN_BYTES, "the plan beside the undo journal"), journal.folder)
        return cls(writer, journal, plan, records_of(journal), advance)

    @property
    def kept_size_bytes(self) -> int:
        return sum(original.kept_size_bytes for original in self.records.originals.values())

    def forward(self) -> None:
        """Carry the change out durably, and record in the journal the state that it leaves in the store."""
        for path, steps in self.plan.by_path.items():
            if path == ABORT:
                self._sync_folders()  # without `abort` a broker assumes a clean stop, so all else must be durable first
            if is_in_place(steps):
                self._write_in_place(path, steps)
            elif steps[0].op is Op.REMOVE_FILE:
                self._unlink(path)
            elif steps[0].op is Op.REMOVE_FOLDER:
                self._rmdir(path)
            else:
                self._put_new_file(path)
        self._sync_folders()
        self.journal.append(self.writer, map(to_entry, self._present_state()))

    def back(self, keep_times: Collection[str] = ()) -> None:
        """Restore bytes, lengths, names and times durably, and mark the journal as undone.

        ``keep_times``: folders whose times stay as they are.
        """
        self._unlink(f"{self.journal.folder}/{RESERVE_FILE}")
        for path, steps in reversed(list(self.plan.by_path.items())):
            original = self.records.originals[path]
            if is_in_place(steps):
                self._restore_in_place(original)
            elif steps[0].op is Op.REMOVE_FOLDER:
                self._make_folder(self.records.folders[path])
            elif original.existed:
                self._restore_whole(original)
            else:
                self._unlink(path)
        self._remove_made_folders()
        for path in self.records.folders:
            if self.records.folders[path].existed and path not in keep_times:
                self.writer.set_mtime_ns(path, self.records.folders[path].mtime_ns)
        self._sync_folders()
        self.journal.mark(self.writer, State.UNDONE)

    def _write_in_place(self, path: str, steps: Sequence[Step]) -> None:
        for step in steps:
            if step.op in RANGES:
                self._write_range(step)
            elif step.op is Op.SET_LENGTH:
                self._set_length(path, step.size_bytes or 0)
        self.writer.set_mtime_ns(path, self.records.originals[path].mtime_ns)
        self._syncs.add_file(path)

    def _write_range(self, step: Step) -> None:
        at = step.offset or 0
        for run in new_runs(self.writer, self.records, step):
            if isinstance(run, Hole):
                at += self._clear(step.path, at, run.size_bytes)
                continue
            self._put(step.path, at, run)
            at += len(run)
            self._advance(len(run))

    def _put(self, path: str, at: int, data: bytes) -> None:
        """Write ``data`` at a position of a file, unless the file has these bytes there already (zeros in a hole)."""
        real = self.writer.path(path)
        if real.stat().st_size < at + len(data):
            self.writer.set_length(path, at + len(data))
        if b"".join(windows(real, at, len(data))) != data:
            self.writer.write_range(path, at, data)

    def _set_length(self, path: str, size_bytes: int) -> None:
        if self.writer.path(path).stat().st_size != size_bytes:
            self.writer.set_length(path, size_bytes)

    def _put_new_file(self, path: str) -> None:
        new = self.records.new_files[path]
        if self._exists(new.staged):
            self._make_missing_folders(path)
            self._move(new.staged, path)

    def _move(self, source: str, path: str) -> None:
        """Rename an own file of rmqctl to ``path``, or copy it if ``path`` is on another file system."""
        try:
            self.writer.rename(source, path)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            real = self.writer.path(source)
            info = real.stat()
            self._unlink(path)
            self.writer.create(path, runs(real, 0, info.st_size), ownership=Ownership.of(info))
            self.writer.set_mtime_ns(path, info.st_mtime_ns)
            self._syncs.add_file(path)

    def _restore_in_place(self, original: Original) -> None:
        kept = self.writer.path(original.kept or "")
        self._set_length(original.path, original.size_bytes)
        for piece in original.ranges:
            at = piece.offset
            for run in runs(kept, piece.kept_offset, piece.size_bytes):
                if isinstance(run, Hole):
                    at += self._clear(original.path, at, run.size_bytes)
                    continue
                self._put(original.path, at, run)
                at += len(run)
                self._advance(len(run))
        self.writer.set_mtime_ns(original.path, original.mtime_ns)
        self._syncs.add_file(original.path)

    def _clear(self, path: str, offset: int, size_bytes: int) -> int:
        """Write zeros over a range of a file, except in its holes. Return the range's length in bytes."""
        at = offset
        if self.writer.path(path).stat().st_size < offset + size_bytes:
            self.writer.set_length(path, offset + size_bytes)
        for run in runs(self.writer.path(path), offset, size_bytes):
            length = run.size_bytes if isinstance(run, Hole) else len(run)
            if not isinstance(run, Hole):
                self._put(path, at, bytes(length))
            at += length
            self._advance(length)
        return size_bytes

    def _restore_whole(self, original: Original) -> None:
        kept = original.kept or ""
        if self._exists(kept) and not self._is_same(kept, original.path):
            self._move(kept, original.path)
        self._advance(original.size_bytes)

    def _is_same(self, first: str, second: str) -> bool:
        with suppress(FileNotFoundError):
            return self.writer.path(first).samefile(self.writer.path(second))
        return False

    def _make_missing_folders(self, path: str) -> None:
        missing: list[OriginalFolder] = []
        real = os.path.dirname(self.writer.path(path))
        while not os.path.exists(real):
            missing.append(self.records.folders[self.writer.places.name(real)])
            real = os.path.dirname(real)
        for folder in reversed(missing):
            self._make_folder(folder)

    def _make_folder(self, folder: OriginalFolder) -> None:
        real = self.writer.path(folder.path)
        above = os.stat(os.path.dirname(real)).st_mode
        mode = folder.mode & (_SAFE_BITS | stat.S_IMODE(above))  # the journal of an untrusted store may name any mode
        ownership = replace(folder.ownership, mode=mode)
        if self._exists(folder.path):
            self.writer.set_ownership(folder.path, ownership)
        else:
            self.writer.mkdir(folder.path, ownership=ownership)

    def _remove_made_folders(self) -> None:
        """Remove the folders that the change made, the deepest first. A folder that is no longer empty stays."""
        made = [folder.path for folder in self.records.folders.values() if not folder.existed]
        for _, paths in groupby(sorted(made, key=_depth, reverse=True), _depth):
            empty_folders = [path for path in paths if self._exists(path) and is_empty(self.writer.path(path))]
            for path in empty_folders:
                self._syncs.add_folder(path)  # after a crash, a folder that comes back must be empty
            self._syncs.run()
            for path in empty_folders:
                self.writer.rmdir(path)

    def _unlink(self, path: str) -> None:
        if self._exists(path):
            self.writer.unlink(path)

    def _rmdir(self, path: str) -> None:
        if self._exists(path):
            self.writer.sync_folder(path)  # after a crash, a folder that comes back must be empty
            self.writer.rmdir(path)

    def _exists(self, path: str) -> bool:
        return os.path.lexists(self.writer.path(path))

    def _sync_folders(self) -> None:
        """Make all written files durable, and the names in all folders that the change touches."""
        for path in self.records.folders:
            if self._exists(path):
                self._syncs.add_folder(path)
        self._syncs.run()

    def _present_state(self) -> Iterator[Left]:
        """Yield the present state of the plan's paths: length and digest of each file, the times of folders."""
        for path in self.plan.by_path:
            real, new = self.writer.path(path), self.records.new_files.get(path)
            if new is not None:
                yield Left(path, new.size_bytes, new.crc32c)
            elif real.is_file():
                found = digest_file(real)
                yield Left(path, found.size_bytes, found.crc32c)
            elif path not in self.records.folders:
                yield Left(path)
        for path in self.records.folders:
            with suppress(FileNotFoundError):
                yield Left(path, mtime_ns=os.stat(self.writer.path(path)).st_mtime_ns)
                continue
            yield Left(path)


def _depth(path: str) -> int:
    return path.count("/")


def new_runs(writer: Writer, records: Records, step: Step) -> Iterator[bytes | Hole]:
    """Yield the new bytes of a step's range, a window at a time; a long run of zeros is one hole."""
    if step.op is Op.ZERO_RANGE:
        yield Hole(step.size_bytes or 0)
    elif isinstance(step.content, Content):
        yield from step.content.runs()
    else:
        staged = records.new_ranges[step.path, step.offset or 0]
        yield from runs(writer.path(staged.staged), 0, staged.size_bytes)
