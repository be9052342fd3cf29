"""Prepare a change: keep the bytes it will overwrite or remove, build the new ones, and make both durable."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from pathlib import Path, PurePosixPath
from typing import Final

from store_core.errors import FailedError, PlanOutOfDateError
from store_core.recovery.apply.originals import KeptRange, Original, OriginalFolder, Records, Staged, to_entry
from store_core.recovery.plans.plan import (
    NEW_FILES,
    RANGES,
    Building,
    Built,
    Chunk,
    Contents,
    Op,
    Plan,
    Step,
    builder_named,
    expected_range,
    is_in_place,
)
from store_core.recovery.plans.plan_json import assert_not_too_large, plan_blocks
from store_core.storage.digest import WINDOW_SIZE_BYTES, Digest, Hole, crc32c, crc32c_after_zeros, digest_file, runs
from store_core.storage.journal import OUR_FILE_MODE, UNDO_FOLDER, Journal, State, make_our_folders
from store_core.storage.prefetch import made_ahead
from store_core.storage.sync_batch import SyncBatch
from store_core.storage.writer import Ownership, Writer

PLAN_FILE: Final = "plan.json"
RESERVE_FILE: Final = "reserve"  # removed first by an undo, so that a full disk has room for the journal's mark
_RESERVE: Final = b"\n" * (64 << 10)
FILE_BITS: Final = 0o666
_CHUNK_COSTS: Final = 200  # bytes that a chunk's Python object takes
_NO_LINKS: Final = (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)

Advance = Callable[[int], None]


class Preparation:
    """Fills a change's folder. The store itself is not touched; a failure leaves only that folder."""

    def __init__(
        self, plan: Plan, writer: Writer, journal: Journal, advance: Advance, made: Contents | None = None
    ) -> None:
        self._plan = plan
        self._made = made or {}
        self._writer = writer
        self._journal = journal
        self._advance = advance
        self._numbers = count()
        self._folders: dict[tuple[str, Path], str] = {}  # folders of kept and new files, by kind and area
        self._missing: dict[str, Ownership] = {}  # mode and owner that missing folders will get
        self._syncs = SyncBatch(writer)

    def run(self) -> Records:
        """Keep, build, sync, and mark the journal as prepared. Raises OSError, FailedError, PlanOutOfDateError."""
        plan_file = f"{self._journal.folder}/{PLAN_FILE}"
        size_bytes = self._writer.create(plan_file, plan_blocks(self._plan), mode=OUR_FILE_MODE)
        assert_not_too_large(size_bytes)
        self._syncs.add_file(plan_file)
        self._writer.create(f"{self._journal.folder}/{RESERVE_FILE}", _RESERVE, mode=OUR_FILE_MODE)
        originals = [self._keep(path, steps) for path, steps in self._plan.by_path.items()]
        staged = [*self._stage_contents(), *self._stage_built()]
        folders = self._folders_before()
        self._syncs.add_folder(self._journal.folder)
        self._syncs.run()
        records: Iterator[Original | Staged | OriginalFolder] = chain(originals, staged, folders)
        self._journal.append(self._writer, map(to_entry, records))
        self._journal.mark(self._writer, State.PREPARED)
        return Records.of(originals, folders, staged)

    def _new_path(self, kind: str, path: str) -> str:
        """Return a new name in ``kept/`` or ``staged/``, on the file system of ``path`` if an area there is writable."""
        area = self._writer.places.area_for(path).parent
        name = self._folders.get((kind, area))
        if name is None:
            name = self._writer.places.name(area / UNDO_FOLDER / self._journal.id / kind)
            make_our_folders(self._writer, name)
            self._folders[kind, area] = name
            for folder in _own_parents(PurePosixPath(name)):
                self._syncs.add_folder("" if folder == PurePosixPath() else folder.as_posix())
        return f"{name}/{next(self._numbers)}"

    def _keep(self, path: str, steps: Sequence[Step]) -> Original:
        op = steps[0].op
        if op is Op.CREATE_FILE or op is Op.REMOVE_FOLDER:
            return Original(path, existed=op is Op.REMOVE_FOLDER)
        info = os.stat(self._writer.path(path), follow_symlinks=False)
        crc: int | None = None
        ranges: list[KeptRange] = []
        kept = self._new_path("kept", path)
        if is_in_place(steps):
            self._writer.create(kept, self._copied(path, steps, ranges), mode=OUR_FILE_MODE)
            self._syncs.add_file(kept)
        else:
            crc = steps[0].expect_crc32c
            self._keep_whole(path, kept, info, crc)
        owner = Ownership.of(info)
        return Original(
            path, True, info.st_size, info.st_mtime_ns, owner.mode, owner.uid, owner.gid, crc, kept, tuple(ranges)
        )

    def _copied(self, path: str, steps: Sequence[Step], ranges: list[KeptRange]) -> Iterator[bytes | Hole]:
        """Yield the bytes that steps in place will overwrite or cut off, and add their ranges to ``ranges``."""
        end = 0
        for step in steps:
            start, size_bytes = expected_range(step)
            if not size_bytes:
                continue
            crc, done = 0, 0
            for run in runs(self._writer.path(path), start, size_bytes):
                if isinstance(run, Hole):
                    crc, length = crc32c_after_zeros(crc, run.size_bytes), run.size_bytes
                else:
                    crc, length = crc32c(run, crc), len(run)
                done += length
                yield run
                self._advance(length)
            if (crc, done) != (step.expect_crc32c, size_bytes):
                raise _changed_meanwhile(path)
            ranges.append(KeptRange(start, size_bytes, crc, end))
            end += size_bytes

    def _keep_whole(self, path: str, kept: str, info: os.stat_result, crc: int | None) -> None:
        """Keep a whole file by a hard link, or by a copy if the file system allows no link."""
        try:
            self._writer.link(path, kept)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            copied = runs(self._writer.path(path), 0, info.st_size)
            self._writer.create(kept, copied, ownership=Ownership.of(info))
            self._writer.set_mtime_ns(kept, info.st_mtime_ns)
            if digest_file(self._writer.path(kept)).crc32c != crc:
                raise _changed_meanwhile(path) from error
        self._syncs.add_file(kept)
        self._advance(info.st_size)

    def _stage_contents(self) -> Iterator[Staged]:
        for step in self._plan.steps:
            if step.op in NEW_FILES and step.content is not None and not isinstance(step.content, Built):
                staged = self._new_path("staged", step.path)
                self._writer.create(staged, step.content.runs(), ownership=self._ownership_of_new(step))
                yield self._finish_staged(step, staged, digest_file(self._writer.path(staged)))

    def _stage_built(self) -> Iterator[Staged]:
        """Run each builder once for all files that it makes with the same arguments."""
        calls: dict[str, list[Step]] = {}
        for step in self._plan.steps:
            if isinstance(step.content, Built):
                call = json.dumps([step.content.builder, step.content.arguments], sort_keys=True)
                calls.setdefault(call, []).append(step)
        for steps in calls.values():
            yield from self._build(steps)

    def _build(self, steps: Sequence[Step]) -> Iterator[Staged]:
        built = steps[0].content
        assert isinstance(built, Built)
        by_path = {step.path: step for step in steps}
        if len(by_path) < len(steps):
            raise FailedError("a builder can make one thing for a path", path=steps[0].path, to_do="report this")
        files = {path: self._new_path("staged", path) for path in by_path}
        digests = self._write_chunks(self._built_chunks(built, tuple(by_path)), by_path, files)
        for path, step in by_path.items():
            yield self._finish_staged(step, files[path], digests[path])

    def _built_chunks(self, built: Built, paths: Sequence[str]) -> Iterable[Chunk]:
        """Return a builder's chunks, from the files made during planning if these have all paths."""
        if all(path in self._made for path in paths):
            return (Chunk(path, data) for path in paths for data in self._made[path]())
        return builder_named(built.builder)(Building(self._writer.root, self._plan, built.arguments, paths))

    def _write_chunks(
        self, chunks: Iterable[Chunk], steps: Mapping[str, Step], files: Mapping[str, str]
    ) -> Mapping[str, Digest]:
        """Write a builder's chunks into new files. Return their digests."""
        ends: dict[str, int] = {}
        sums: dict[str, int] = {}  # CRCs of files that are written in order
        for batch in made_ahead(_batches(chunks)):
            for chunk in batch:
                path, staged = chunk.path, files[chunk.path]
                if path not in ends:
                    self._create_staged(steps[path], staged)
                    ends[path] = sums[path] = 0
                at = ends[path] if chunk.offset is None else chunk.offset
                wanted = steps[path].size_bytes
                if at == ends[path] and path in sums:
                    sums[path] = _crc32c_after(sums[path], chunk.data)
                else:
                    sums.pop(path, None)
                ends[path] = max(ends[path], at + len(chunk.data))
                if wanted is not None and ends[path] > wanted:
                    raise _build_differs(path)
                if isinstance(chunk.data, Hole):
                    continue
                if chunk.offset is None:
                    self._writer.write_sparse(staged, at, chunk.data)
                else:
                    self._writer.write_range(staged, at, chunk.data)
        return {
            path: self._end_of_staged(steps[path], staged, ends.get(path), sums.get(path))
            for path, staged in files.items()
        }

    def _create_staged(self, step: Step, staged: str) -> None:
        ownership = self._ownership_of_new(step) if step.op in NEW_FILES else None
        self._writer.create(staged, mode=OUR_FILE_MODE, ownership=ownership, size_bytes=step.size_bytes or 0)

    def _end_of_staged(self, step: Step, staged: str, end: int | None, crc: int | None) -> Digest:
        """Set a built file's length, which adds zeros at its end. Return its digest."""
        if end is None:
            self._create_staged(step, staged)
            end = crc = 0
        if step.size_bytes is None:
            self._writer.set_length(staged, end)
        size_bytes = step.size_bytes or end
        if crc is None:
            return digest_file(self._writer.path(staged))
        return Digest(crc32c_after_zeros(crc, size_bytes - end), size_bytes)

    def _finish_staged(self, step: Step, staged: str, found: Digest) -> Staged:
        """Check the digest of new bytes, set the file's time, and add it to the files to sync."""
        built = step.content
        if isinstance(built, Built) and built.crc32c not in (None, found.crc32c):
            raise _build_differs(step.path)
        if step.op in NEW_FILES and step.mtime_ns is not None:
            self._writer.set_mtime_ns(staged, step.mtime_ns)
        self._syncs.add_file(staged)
        self._advance(found.size_bytes)
        offset = step.offset if step.op in RANGES else None
        return Staged(step.path, staged, offset, found.size_bytes, found.crc32c)

    def _ownership_of_new(self, step: Step) -> Ownership:
        real = self._writer.path(step.path)
        if step.op is Op.REPLACE_FILE:
            return Ownership.of(os.stat(real, follow_symlinks=False))
        folder = self._folder_like(os.path.dirname(real))
        return Ownership(folder.mode & FILE_BITS, folder.uid, folder.gid)

    def _folder_like(self, folder: str) -> Ownership:
        """Return what ``folder_like`` does, computed once for each missing folder."""
        found = self._missing.get(folder)
        if found is not None:
            return found
        try:
            return Ownership.of(os.stat(folder))
        except (FileNotFoundError, NotADirectoryError):
            found = self._missing[folder] = self._folder_like(os.path.dirname(folder))
            return found

    def _folders_before(self) -> list[OriginalFolder]:
        """Return the root, the folders in which names will change, missing folders, and folders to remove."""
        names: dict[str, None] = {"": None}
        seen: set[str] = set()
        for path, steps in self._plan.by_path.items():
            if is_in_place(steps):
                continue
            parent = os.path.dirname(self._writer.path(path))
            if parent not in seen:
                seen.add(parent)
                names |= dict.fromkeys(self._missing_above(parent))
                names[self._writer.places.name(parent)] = None
            if steps[0].op is Op.REMOVE_FOLDER:
                names[path] = None
        return [self._folder_before(name) for name in names]

    def _missing_above(self, folder: str) -> Iterator[str]:
        """Yield ``folder`` and its parents up to the first one that exists, inclusive."""
        while not os.path.exists(folder):
            yield self._writer.places.name(folder)
            folder = os.path.dirname(folder)
        yield self._writer.places.name(folder)

    def _folder_before(self, name: str) -> OriginalFolder:
        real = self._writer.path(name)
        try:
            info = os.stat(real)
        except (FileNotFoundError, NotADirectoryError):
            owner = self._folder_like(str(real))
            return OriginalFolder(name, False, 0, owner.mode, owner.uid, owner.gid)
        owner = Ownership.of(info)
        mtime_ns = self._journal.last("begin")["root_mtime_ns"] if name == "" else info.st_mtime_ns
        return OriginalFolder(name, True, mtime_ns, owner.mode, owner.uid, owner.gid)


def _crc32c_after(crc: int, data: bytes | Hole) -> int:
    return crc32c_after_zeros(crc, len(data)) if isinstance(data, Hole) else crc32c(data, crc)


def _batches(chunks: Iterable[Chunk]) -> Iterator[list[Chunk]]:
    """Yield chunks in lists of about a window: passing small chunks singly between threads costs more than making them."""
    batch: list[Chunk] = []
    size_bytes = 0
    for chunk in chunks:
        batch.append(chunk)
        size_bytes += _CHUNK_COSTS + (0 if isinstance(chunk.data, Hole) else len(chunk.data))
        if size_bytes >= WINDOW_SIZE_BYTES:
            yield batch
            batch, size_bytes = [], 0
    if batch:
        yield batch


def folder_like(real: Path) -> Ownership:
    """Return mode and owner of a folder, or of its nearest existing parent if it is missing."""
    while not real.exists():
        real = real.parent
    return Ownership.of(real.stat())


def _own_parents(folder: PurePosixPath) -> Iterator[PurePosixPath]:
    """Yield a folder inside ``.rmqctl``, its parents up to ``.rmqctl``, and the folder that contains this."""
    yield folder
    for parent in folder.parents:
        yield parent if parent.parts else PurePosixPath()
        if not set(parent.parts) & {PurePosixPath(UNDO_FOLDER).parts[0]}:
            return


def _changed_meanwhile(path: str) -> PlanOutOfDateError:
    return PlanOutOfDateError("the file changed while it was read", path=path, to_do="make the plan again")


def _build_differs(path: str) -> PlanOutOfDateError:
    return PlanOutOfDateError(
        "what was built differs from what was planned: the store has changed", path=path, to_do="make the plan again"
    )
