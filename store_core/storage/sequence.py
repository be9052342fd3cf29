"""List and read segment sequences: files named by the offset of their first byte (store format, section 1.1)."""

from __future__ import annotations

import itertools
import stat
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from store_core.layout.paths import parse_segment_name
from store_core.storage.files import FileCache, unreadable
from store_core.storage.remote_path import is_remote, is_there, scan_folder

_MOST_MISSING_FILES: Final = 1 << 16  # consecutive ones
_MAX_OFFSET: Final = (1 << 63) - 1
_PAGE_BYTES: Final = 4096
_TAIL_BYTES: Final = 256 << 10  # read at a time, from the end on


@dataclass(frozen=True, slots=True)
class Segment:
    """One file of a sequence. ``phy_offset`` is its first byte's offset in the sequence, ``size_bytes`` its length."""

    path: Path
    phy_offset: int
    size_bytes: int
    mtime_ns: int = 0

    @property
    def end_phy_offset(self) -> int:
        return self.phy_offset + self.size_bytes

    @property
    def name(self) -> str:
        return self.path.name


@dataclass(frozen=True, slots=True)
class Stray:
    """An entry of a sequence's folder that is no segment."""

    path: Path
    is_folder: bool
    size_bytes: int
    duplicate_of: Path | None = None
    mtime_ns: int = 0


@dataclass(frozen=True, slots=True)
class Gap:
    """A range of the sequence whose file is missing or too short."""

    phy_offset: int
    size_bytes: int


def list_folder(folder: Path) -> tuple[list[Segment], list[Stray]]:
    """Return the segments of one folder in order of their offsets, and its other entries. A missing folder is empty.

    Raises FailedError if the folder cannot be listed.
    """
    segments: list[Segment] = []
    strays: list[Stray] = []
    try:
        with scan_folder(folder) as entries:
            for entry in entries:
                try:
                    info = entry.stat()
                except OSError:
                    if not is_there(folder / entry.name):
                        continue  # vanished meanwhile
                    info = None  # a dangling link
                offset = parse_segment_name(entry.name)
                if info is not None and offset is not None and stat.S_ISREG(info.st_mode):
                    segments.append(Segment(folder / entry.name, offset, info.st_size, info.st_mtime_ns))
                else:
                    is_folder = info is not None and stat.S_ISDIR(info.st_mode)
                    size, mtime_ns = (info.st_size, info.st_mtime_ns) if info is not None else (0, 0)
                    strays.append(Stray(folder / entry.name, is_folder, size, mtime_ns=mtime_ns))
    except FileNotFoundError:
        return [], []
    except NotADirectoryError:
        return [], [Stray(folder, False, 0)]
    except OSError as error:
        raise unreadable(folder, error) from error
    segments.sort(key=lambda s: (s.phy_offset, s.name))
    strays.sort(key=lambda s: s.path)
    return segments, strays


def derive_file_size_bytes(groups: Iterable[list[Segment]], unit_bytes: int = 1) -> int | None:
    """Return the file size that fits names and lengths of one or several sequences best, None if they have none.

    The candidates are compared by, in this order:

    * a multiple of ``unit_bytes``
    * the most files with that length or that distance, so that one cut or foreign file does not decide
    * the most names that are multiples of it
    * the largest, for files are cut rather than grown
    """
    sizes = proven_file_sizes(groups, unit_bytes)
    return sizes[0] if sizes else None


def proven_file_sizes(groups: Iterable[list[Segment]], unit_bytes: int = 1) -> list[int]:
    """Return the sizes that fit equally well and better than all others, the largest first; see ``derive_file_size_bytes``."""
    lengths: Counter[int] = Counter()
    steps: Counter[int] = Counter()
    offsets: list[int] = []
    for segments in groups:
        lengths.update(s.size_bytes for s in segments if s.size_bytes)
        offsets += [s.phy_offset for s in segments]
        steps.update(b.phy_offset - a.phy_offset for a, b in itertools.pairwise(segments))

    def fit(size: int) -> tuple[bool, int, int]:
        return size % unit_bytes == 0, lengths[size] + steps[size], sum(offset % size == 0 for offset in offsets)

    candidates = sorted((size for size in {*lengths, *steps} if size > 0), reverse=True)
    best = max(map(fit, candidates), default=None)
    return [size for size in candidates if fit(size) == best]


class SegmentSequence:
    """The files of one log or queue, in order, and reads by offset over them. Reads never cross a file's end."""

    def __init__(
        self,
        folders: Iterable[Path],
        cache: FileCache,
        file_size_bytes: int | None = None,
        listed: tuple[list[Segment], list[Stray]] | None = None,
        choices: Mapping[int, Path] | None = None,
    ) -> None:
        """``choices``: by offset, the folder that counts for a segment that several folders have; by default the first folder."""
        self.folders = tuple(folders)
        self._cache = cache
        self._choices = choices or {}
        segments, self.strays = listed if listed is not None else self._list(self._choices)
        self.segments: tuple[Segment, ...] = tuple(self._without_duplicates(segments))
        self.configured_file_size_bytes = file_size_bytes
        self._used_ends: dict[int, int] = {}
        self._size_sources: tuple[Segment, ...] = self.segments
        self.segments = tuple(self._within_reach(self._on_the_grid(self.segments)))

    @property
    def cache(self) -> FileCache:
        """The cache that reads the sequence's files."""
        return self._cache

    def holding(self, segment: Segment) -> SegmentSequence:
        """Return a sequence that reads a file's own bytes: this one, or the file alone if it overlaps these files."""
        place = bisect_right(self._starts, segment.phy_offset) - 1
        if place >= 0 and self.segments[place].path == segment.path:
            return self
        return self.alone(segment)

    def alone(self, segment: Segment) -> SegmentSequence:
        """Return a sequence of this one file."""
        return SegmentSequence([], self._cache, segment.size_bytes, listed=([segment], []))

    def apart(self) -> SegmentSequence:
        """Return a view of the same files with a cache of its own, for another thread. Views are never listed again.

        Threads walk segments concurrently, each with such a view: they share the listing of the files.
        """
        other = copy(self)
        other._cache, other._starts = self._cache.apart(), self._starts
        other.folders, other.strays, other._used_ends = (), [], {}
        return other

    def relisted(self) -> SegmentSequence:
        """Return the sequence as listed now, for files that a broker adds or removes; views and object stores return themselves."""
        if not self.folders or any(map(is_remote, self.folders)):
            return self
        return SegmentSequence(self.folders, self._cache, self.file_size_bytes or None, choices=self._choices)

    def is_plain(self, segment: Segment) -> bool:
        """Return True if a segment is a local file that holds just what reads return. Other code may then read it directly."""
        return self._cache.is_plain(segment.path)

    def _list(self, choices: Mapping[int, Path]) -> tuple[list[Segment], list[Stray]]:
        segments: list[Segment] = []
        strays: list[Stray] = []
        for folder in self.folders:
            found, others = list_folder(folder)
            segments += found
            strays += others
        if len(self.folders) > 1:  # a single folder is sorted
            segments.sort(key=lambda s: (s.phy_offset, s.path.parent != choices.get(s.phy_offset, s.path.parent)))
        return segments, strays

    def _on_the_grid(self, segments: Sequence[Segment]) -> Iterator[Segment]:
        """Yield the segments; files with digits for a name that are none become strays.

        Such a file starts at no multiple of the size. In addition, it has another length, overlaps a segment, or joins none.
        """
        size = self.file_size_bytes
        if not size or (len(segments) == 1 and segments[0].phy_offset % size == 0):
            yield from segments
            return
        starts = {s.phy_offset for s in segments if s.phy_offset % size == 0}
        all_starts, all_ends = {s.phy_offset for s in segments}, {s.end_phy_offset for s in segments}
        for segment in segments:
            below = segment.phy_offset - segment.phy_offset % size
            is_over_one = below in starts or below + size in starts
            joins = segment.phy_offset in all_ends or segment.end_phy_offset in all_starts or not starts
            if below != segment.phy_offset and (segment.size_bytes != size or is_over_one or not joins):
                self.strays.append(Stray(segment.path, False, segment.size_bytes, mtime_ns=segment.mtime_ns))
            else:
                yield segment

    def _within_reach(self, segments: Iterable[Segment]) -> Iterator[Segment]:
        """Yield the segments within reach; the others become strays.

        Their names must be wrong: they start too far after the file before, or end beyond the largest offset.
        """
        last: Segment | None = None
        reach = _MOST_MISSING_FILES * self.file_size_bytes
        for segment in segments:
            is_wild = last is not None and segment.phy_offset - last.end_phy_offset > reach > 0
            if is_wild or segment.phy_offset + max(segment.size_bytes, self.file_size_bytes) > _MAX_OFFSET:
                self.strays.append(Stray(segment.path, False, segment.size_bytes, mtime_ns=segment.mtime_ns))
            else:
                last = segment
                yield segment

    def _without_duplicates(self, segments: list[Segment]) -> Iterator[Segment]:
        last: Segment | None = None
        for segment in segments:
            if last is not None and segment.phy_offset == last.phy_offset:
                self.strays.append(Stray(segment.path, False, segment.size_bytes, duplicate_of=last.path))
                continue
            last = segment
            yield segment

    @cached_property
    def derived_file_size_bytes(self) -> int | None:
        """The size derived from names and lengths of the files; None if they give none."""
        return derive_file_size_bytes([list(self._size_sources)])

    @property
    def file_size_bytes(self) -> int:
        """The size that every file should have; 0 if it is unknown."""
        return self.configured_file_size_bytes or self.derived_file_size_bytes or 0

    @cached_property
    def _starts(self) -> list[int]:
        return [s.phy_offset for s in self.segments]

    @property
    def min_phy_offset(self) -> int:
        """Offset of the first byte; 0 without files."""
        return self.segments[0].phy_offset if self.segments else 0

    @property
    def max_phy_offset(self) -> int:
        """Offset after the last byte; 0 without files."""
        return max((s.end_phy_offset for s in self.segments), default=0)

    @property
    def size_bytes(self) -> int:
        return sum(s.size_bytes for s in self.segments)

    def find(self, phy_offset: int) -> Segment | None:
        """Return the file that holds this offset, None if there is none."""
        place = bisect_right(self._starts, phy_offset) - 1
        if place < 0:
            return None
        segment = self.segments[place]
        return segment if phy_offset < segment.end_phy_offset else None

    def preceding(self, segment: Segment) -> Segment | None:
        """Return the file before another, whether or not it joins."""
        place = bisect_left(self._starts, segment.phy_offset)
        return self.segments[place - 1] if place else None

    def following(self, segment: Segment) -> Segment | None:
        """Return the file after another, whether or not it joins."""
        place = bisect_right(self._starts, segment.phy_offset)
        return self.segments[place] if place < len(self.segments) else None

    def gaps(self) -> list[Gap]:
        """Return the ranges between the first and the last file that no file covers."""
        found: list[Gap] = []
        for segment, following in zip(self.segments, self.segments[1:], strict=False):
            if segment.end_phy_offset < following.phy_offset:
                found.append(Gap(segment.end_phy_offset, following.phy_offset - segment.end_phy_offset))
        return found

    def read(self, phy_offset: int, size_bytes: int) -> bytes:
        """Return the bytes from an offset, at most to the end of their file; empty if there is no file.

        Raises FailedError if the file exists and cannot be read.
        """
        place = bisect_right(self._starts, phy_offset) - 1  # as find, inlined for the speed of point reads
        if place < 0 or size_bytes <= 0:
            return b""
        segment = self.segments[place]
        at = phy_offset - segment.phy_offset
        room = segment.size_bytes - at
        return self._cache.read(segment.path, at, size_bytes if size_bytes < room else room) if room > 0 else b""

    def read_into(self, phy_offset: int, buffer: memoryview) -> int:
        """Read as ``read`` into a buffer; return the number of bytes read."""
        segment = self.find(phy_offset)
        if segment is None:
            return 0
        room = min(len(buffer), segment.end_phy_offset - phy_offset)
        return self._cache.read_into(segment.path, phy_offset - segment.phy_offset, buffer[:room])

    def used_end(self, phy_offset: int) -> int:
        """Return the offset after the last non-zero byte of the file at ``phy_offset``.

        If all bytes are zero, that is the file's start. The result is remembered, so for a file that another process is writing
        it may be out of date.
        """
        segment = self.find(phy_offset)
        if segment is None:
            return phy_offset
        known = self._used_ends.get(segment.phy_offset)
        if known is None:
            known = self._used_ends[segment.phy_offset] = self._find_used_end(segment)
        return known

    def _find_used_end(self, segment: Segment) -> int:
        end = segment.end_phy_offset
        while end > segment.phy_offset:
            start = max(end - _TAIL_BYTES, segment.phy_offset)
            if self._is_hole(start, end):
                end = self._near_hole_start(segment.phy_offset, start, end)
            elif data := self.read(start, end - start).rstrip(b"\0"):
                return start + len(data)
            else:
                end = start
        return segment.phy_offset

    def _near_hole_start(self, low: int, high: int, end: int) -> int:
        """Return where the hole that holds [high, end) starts, or up to a page after that; not below ``low``.

        The search takes doubled steps, then halves: a queue's file may have a few entries at its start, and any file any size.
        """
        if self._is_hole(low, end):
            return low
        step = _PAGE_BYTES
        while not self._is_hole(min(low + step, high), end):
            low, step = low + step, step * 2
        high = min(low + step, high)
        while high - low > _PAGE_BYTES:
            middle = (low + high) // 2
            low, high = (low, middle) if self._is_hole(middle, end) else (middle, high)
        return high

    def _is_hole(self, start: int, end: int) -> bool:
        data_at = self.next_data(start)
        return data_at is None or data_at >= end

    def next_data(self, phy_offset: int) -> int | None:
        """Return the first offset >= ``phy_offset`` in the same file and in no hole, None if only holes follow."""
        segment = self.find(phy_offset)
        if segment is None:
            return None
        at = self._cache.next_data(segment.path, phy_offset - segment.phy_offset)
        return None if at is None else segment.phy_offset + at
