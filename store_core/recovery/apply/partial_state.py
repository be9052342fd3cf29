"""Check that an interrupted change can be finished or taken back.

Each byte of its files must be the old or the new one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from store_core.errors import FailedError, PlanOutOfDateError
from store_core.recovery.apply.execute import Change
from store_core.recovery.apply.originals import KeptRange, Original, Staged
from store_core.recovery.plans.content import Content
from store_core.recovery.plans.disk_space import Room, allocated_bytes, device_of
from store_core.recovery.plans.expect import is_in_place
from store_core.recovery.plans.plan import RANGES, Op, Step
from store_core.storage.digest import (
    WINDOW_SIZE_BYTES,
    Digest,
    Hole,
    data_bytes,
    digest_file,
    digest_range,
    runs,
)
from store_core.storage.files import FileCache

_SECTOR_SIZE_BYTES: Final = 512


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
