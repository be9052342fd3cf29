"""Read files as they would be after a change: some bytes are replaced in memory, none on disk."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final

from store_core.errors import FailedError
from store_core.storage.files import FileCache
from store_core.storage.sequence import Segment, SegmentSequence

_MOST_AT_ONCE: Final = 256 << 10


@dataclass(frozen=True, slots=True)
class Patch:
    """New bytes [start, end) of a file: ``parts`` at rising positions inside, zeros elsewhere."""

    start: int
    end: int
    parts: tuple[tuple[int, bytes], ...] = ()

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes [start, end) of the file; the range lies inside the patch."""
        data = bytearray(end - start)
        first = max(bisect_right(self.parts, start - self.start, key=_position) - 1, 0)
        for at, part in islice(self.parts, first, None):
            if self.start + at >= end:
                break
            from_, to = max(self.start + at, start), min(self.start + at + len(part), end)
            if from_ < to:
                data[from_ - start : to - start] = part[from_ - self.start - at : to - self.start - at]
        return bytes(data)

    def apart(self, logs: dict[int, SegmentSequence]) -> Patch:
        """Return this patch for another thread. ``logs`` holds that thread's own logs, by the ``id`` of the logs that they replace."""
        return self

    def part(self, start: int, end: int) -> Patch:
        """Return the patch of [start, end) of the file alone. Only for a patch without ``parts``."""
        assert not self.parts
        return Patch(start, end)


def _start(patch: Patch) -> int:
    return patch.start


def _position(part: tuple[int, bytes]) -> int:
    return part[0]


@dataclass(frozen=True, slots=True)
class Borrowed(Patch):
    """New bytes of a file that another log holds, from ``phy_offset`` on; they are read there each time, never held.

    ``origin`` is the root of the store that has the log, and ``config`` its properties file. If the bytes come from another
    file of the same store, ``path`` and ``mtime_ns`` are that file's instead, and ``log`` is that file alone.
    """

    log: SegmentSequence | None = None
    phy_offset: int = 0
    origin: str = ""
    config: str = ""
    path: Path | None = None
    mtime_ns: int = 0

    def part(self, start: int, end: int) -> Patch:
        return replace(self, start=start, end=end, phy_offset=self.phy_offset + start - self.start)

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes [start, end) of the file. Raises FailedError if the other log no longer holds them."""
        assert self.log is not None  # None only because the fields before have defaults
        at, data, done = self.phy_offset + start - self.start, bytearray(end - start), 0
        while done < len(data):
            read = self.log.read_into(at + done, memoryview(data)[done:])
            if not read:
                raise FailedError(
                    f"nothing can be read at offset {at + done} any more",
                    path=self.origin or str(self.path or ""),
                    to_do="make the plan again",
                )
            done += read
        return bytes(data)

    def apart(self, logs: dict[int, SegmentSequence]) -> Patch:
        assert self.log is not None
        if id(self.log) not in logs:
            logs[id(self.log)] = self.log.apart()
        return replace(self, log=logs[id(self.log)])


def around(base: Patch, others: Iterable[Patch]) -> Iterator[Patch]:
    """Yield the parts of a patch that no other patch overlaps."""
    at = base.start
    for other in sorted(others, key=lambda patch: patch.start):
        if at < min(other.start, base.end):
            yield base.part(at, min(other.start, base.end))
        at = max(at, other.end)
    if at < base.end:
        yield base.part(at, base.end)


class OverlayCache(FileCache):
    """A file cache whose reads show patches over the real files. A missing file reads as zeros.

    ``beneath`` are patches that all others hide, also those of a log laid over this one: the content that is to be repaired.
    """

    def __init__(
        self,
        patches: Mapping[Path, Sequence[Patch]],
        sizes: Mapping[Path, int],
        beneath: Mapping[Path, Patch] | None = None,
    ) -> None:
        super().__init__()
        self.beneath = beneath or {}
        shown = {**dict.fromkeys(self.beneath, ()), **patches}
        under = {path: list(around(patch, shown[path])) for path, patch in self.beneath.items()}
        self._patches = {path: sorted([*found, *under.get(path, ())], key=_start) for path, found in shown.items()}
        self._starts = {path: [p.start for p in found] for path, found in self._patches.items()}
        self._sizes = sizes
        self._thread_patches = self._patches  # the patches that this thread reads
        self._logs: dict[int, SegmentSequence] = {}  # shared by the patches: they are many, the logs few

    def apart(self) -> OverlayCache:
        other = OverlayCache({}, self._sizes)
        other.beneath, other._patches, other._starts = self.beneath, self._patches, self._starts
        other._thread_patches = {}  # filled by need, for a segment's walk reads one file of many
        return other

    def _patches_of(self, path: Path) -> Sequence[Patch]:
        found = self._thread_patches.get(path)
        if found is None:
            found = self._thread_patches[path] = [patch.apart(self._logs) for patch in self._patches.get(path, ())]
        return found

    def is_plain(self, path: Path) -> bool:
        return path not in self._sizes

    def read(self, path: Path, at: int, size_bytes: int) -> bytes:
        if path not in self._sizes:
            return super().read(path, at, size_bytes)
        buffer = bytearray(max(min(size_bytes, self._sizes[path] - at), 0))
        self.read_into(path, at, memoryview(buffer))
        return bytes(buffer)

    def read_into(self, path: Path, at: int, buffer: memoryview) -> int:
        if path not in self._sizes:
            return super().read_into(path, at, buffer)
        size = max(min(len(buffer), self._sizes[path] - at), 0)
        done = super().read_into(path, at, buffer[:size])
        if done < size:  # after the real file's end
            buffer[done:size] = bytes(size - done)
        found = self._patches_of(path)
        place = max(bisect_right(self._starts[path], at) - 1, 0) if found else 0
        for patch in found[place:]:
            if patch.start >= at + size:
                break
            start, end = max(patch.start, at), min(patch.end, at + size)
            for part in range(start, end, _MOST_AT_ONCE):
                part_end = min(part + _MOST_AT_ONCE, end)
                buffer[part - at : part_end - at] = patch.read(part, part_end)
        return size

    def next_data(self, path: Path, at: int) -> int | None:
        return at if path in self._sizes else super().next_data(path, at)


def overlaid(
    log: SegmentSequence, patches: Mapping[Path, Sequence[Patch]], segments: Iterable[Segment]
) -> SegmentSequence:
    """Return a log of these segments (real, longer than the real ones, or not made yet), read through patches."""
    listed = sorted(segments, key=lambda s: s.phy_offset)
    beneath = log.cache.beneath if isinstance(log.cache, OverlayCache) else {}
    real = set(log.segments)
    sizes = {s.path: s.size_bytes for s in listed if s.path in patches or s.path in beneath or s not in real}
    cache = OverlayCache(patches, sizes, {path: patch for path, patch in beneath.items() if path in sizes})
    return SegmentSequence(log.folders, cache, log.file_size_bytes or None, listed=(listed, []))


def zeros_after(files: SegmentSequence, end: int) -> dict[Path, Patch]:
    """Return patches, by file, that show zeros from offset ``end`` on, even if a broker writes there later."""
    segments = (s for s in files.segments if s.end_phy_offset > end)
    return {s.path: Patch(max(end - s.phy_offset, 0), s.size_bytes) for s in segments}


def read_through(files: SegmentSequence, cache: FileCache) -> SegmentSequence:
    """Return a sequence of the same files, read through another cache."""
    listed = list(files.segments), list(files.strays)
    return SegmentSequence(files.folders, cache, files.configured_file_size_bytes, listed=listed)
