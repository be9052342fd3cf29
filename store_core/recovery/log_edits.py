"""Edit the log as data: regions closed, the tail clean, files of the right length, nothing after the end."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, Final

from store_core.layout import paths, record
from store_core.read.records import read_message
from store_core.recovery.damage_scan import Ranges
from store_core.recovery.damaged_region import ClosedRegion
from store_core.recovery.plans.draft import Draft
from store_core.recovery.plans.plan import Built, Zeros
from store_core.recovery.plans.plan import Piece as ContentPiece
from store_core.recovery.replica import BUILDER as SIBLING_BUILDER
from store_core.recovery.tombstones import Piece, TombstoneRun
from store_core.scan.log import nominal_end
from store_core.storage.digest import Hole, digest_of
from store_core.storage.overlay import Borrowed, Patch, around, overlaid
from store_core.storage.sequence import Segment, SegmentSequence, Stray
from store_core.storage.settings import Settings
from store_core.storage.store import Store

_WINDOW_SIZE_BYTES: Final = 1 << 20
_MOST_JOINED_BYTES: Final = 4 << 20
_MOST_RANGES: Final = 1 << 10  # ranges of a file that are steps of their own
_NS_PER_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Entombed(Patch):
    """New bytes of a file, made when they are read: a region closed by ``pieces``, in log order."""

    pieces: tuple[Piece | TombstoneRun, ...] = ()

    def read(self, start: int, end: int) -> bytes:
        by = self.pieces[0].phy_offset - self.start
        first = max(bisect_right(self.pieces, start + by, key=_phy_offset) - 1, 0)
        return b"".join(
            piece.read(max(start + by, piece.phy_offset), min(end + by, piece.phy_offset + piece.size_bytes))
            for piece in takewhile(lambda piece: piece.phy_offset < end + by, islice(self.pieces, first, None))
        )


def _phy_offset(piece: Piece | TombstoneRun) -> int:
    return piece.phy_offset


@dataclass(slots=True)
class EditedLog:
    """Changes to a log, as data.

    ``segments`` are those afterwards, with their new lengths; ``patches`` are by file; ``created`` files are new; ``lengths`` are
    new lengths; ``removed`` hold nothing readable. ``placed`` are bytes of whole files, under the patches.
    """

    before: SegmentSequence
    segments: list[Segment] = field(default_factory=list)
    patches: dict[Path, list[Patch]] = field(default_factory=dict)
    created: dict[Path, int] = field(default_factory=dict)
    lengths: dict[Path, int] = field(default_factory=dict)
    removed: list[Segment] = field(default_factory=list)
    strays: list[Stray] = field(default_factory=list)
    placed: dict[Path, Patch] = field(default_factory=dict)

    @property
    def log(self) -> SegmentSequence:
        """The log with the changes: reads see them, nothing is written."""
        return overlaid(self.before, self.all_patches, self.segments)

    @property
    def all_patches(self) -> dict[Path, list[Patch]]:
        """The patches by file, with the parts of ``placed`` that they do not cover."""
        return with_placed(self.placed, self.patches)

    def add_patch(self, path: Path, start: int, data: bytes) -> None:
        """Add a patch of a few bytes that no other patch covers."""
        self.patches.setdefault(path, []).append(Patch(start, start + len(data), ((0, data),)))

    def add_to(self, draft: Draft, built: Built | None = None) -> None:
        """Add the changes to a plan as steps: whole files first, then lengths, then ranges.

        ``built`` names the builder of the bytes that ``made`` returns.
        """
        made = self._made_ranges()
        for segment in self.removed:
            draft.remove_file(segment.path, why="nothing readable after the end of the log")
        for stray in self.strays:
            if stray.is_folder:
                draft.remove_folder(stray.path, why="a broker may refuse to start with it")
            else:
                draft.remove_file(stray.path, why="a broker refuses to start with it")
        all_patches, log = self.all_patches, self.log
        segments = {segment.path: segment for segment in self.segments}
        for path, size_bytes in self.created.items():
            patches, mtime_ns = all_patches.get(path, []), self._written_until_ns(log, segments[path])
            if path in made:
                assert built is not None  # only policy keep closes holes
                for_file = replace(built, size_bytes=size_bytes)
                draft.create_file(path, built=for_file, mtime_ns=mtime_ns, why="a missing segment")
            elif any(isinstance(patch, Borrowed) for patch in patches):
                for_file = _borrowed(draft, patches, size_bytes, partial(self._chunks, path))
                why = "a segment gets its own name back" if path in self.placed else "a missing segment, from a sibling"
                draft.create_file(path, built=for_file, mtime_ns=mtime_ns, why=why)
            else:
                draft.create_file(path, *_whole(patches, size_bytes), mtime_ns=mtime_ns, why="a missing segment")
        for path, size_bytes in self.lengths.items():
            draft.set_length(path, size_bytes, why="the segment size")
        for path, patches in all_patches.items():
            if path in made and path not in self.created:
                assert built is not None  # as above
                start, end = made[path]
                draft.write_range(path, start, built=replace(built, size_bytes=end - start), why="a hole is closed")
            for patch in () if path in self.created else patches:
                if path in made and made[path][0] <= patch.start < made[path][1]:
                    continue
                if isinstance(patch, Borrowed):
                    moved = replace(patch, start=0, end=patch.end - patch.start)
                    size = patch.end - patch.start
                    for_range = _borrowed(draft, [moved], size, partial(_windows, moved.read, 0, size))
                    why = (
                        "a segment gets its own place back" if path in self.placed else "records go back to their place"
                    )
                    draft.write_range(
                        path, patch.start, built=for_range, why="taken from a sibling" if patch.origin else why
                    )
                elif patch.parts:
                    draft.write_range(path, patch.start, *_pieces(patch), why="a hole is closed")
                else:
                    draft.zero_range(path, patch.start, patch.end - patch.start, why="left-overs after the end")

    def _written_until_ns(self, log: SegmentSequence, segment: Segment) -> int | None:
        """Return when a new segment would have been written last: when the next one started. None without a record there.

        Expiry uses this time and stops at the first file that is not due, so a file with the current time would keep all files
        after it. A file that gets its name back keeps its own time.
        """
        if isinstance(placed := self.placed.get(segment.path), Borrowed):
            return placed.mtime_ns
        following = log.following(segment)
        message = read_message(log, (following or segment).phy_offset)
        return message.store_timestamp_ms * _NS_PER_MS if message is not None else None

    def made(self) -> dict[Path, Callable[[], Iterator[bytes | Hole]]]:
        """Return readers, by file, of the range that a plan does not hold itself, because it has many parts."""
        return {path: partial(self._chunks, path, start, end) for path, (start, end) in self._made_ranges().items()}

    def _made_ranges(self) -> dict[Path, tuple[int, int]]:
        """Return the range of each file that is made of many tombstones or patches; all of a new file."""
        ranges = {}
        for path, patches in self.patches.items():
            new = [patch for patch in patches if patch.parts]
            found = [patch for patch in patches if isinstance(patch, Entombed)]
            if found := [*found, *(new if len(new) > _MOST_RANGES else ())]:
                ranges[path] = (min(patch.start for patch in found), max(patch.end for patch in found))
            if path in ranges and path in self.created:
                ranges[path] = (0, self.created[path])
        return ranges

    def _chunks(self, path: Path, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield the bytes that a file will hold."""
        log = self.log
        segment = next(segment for segment in self.segments if segment.path == path)
        end = segment.size_bytes if end is None else end
        yield from _windows(lambda a, b: log.read(segment.phy_offset + a, b - a), start, end)


Restored = Mapping[int, Patch]  # by log offset, at which the patch's own position 0 is


def apart_from(patches: Restored, taken: Ranges) -> dict[int, Patch]:
    """Return the parts of patches outside ``taken`` ranges; a patch that holds bytes itself is kept whole or dropped."""
    found: dict[int, Patch] = {}
    for at, patch in patches.items():
        if not taken.overlap(at, at + patch.end):
            found[at] = patch
        elif not patch.parts:
            for start, end in taken.outside(at, at + patch.end):
                found[start] = replace(patch.part(start - at, end - at), start=0, end=end - start)
    return found


def with_placed(placed: Mapping[Path, Patch], patches: Mapping[Path, list[Patch]]) -> dict[Path, list[Patch]]:
    """Return patches by file, with the parts of ``placed`` that they do not cover."""
    under = {path: [*around(base, patches.get(path, ()))] for path, base in placed.items()}
    return {path: [*under.get(path, ()), *patches.get(path, ())] for path in {**under, **patches}}


def edited_log(
    store: Store,
    closed_regions: Iterable[ClosedRegion],
    end_phy_offset: int,
    *,
    restored: Restored | None = None,
    placed: Restored | None = None,
    cut: bool = False,
) -> EditedLog:
    """Return the log closed by ``closed_regions`` and clean after ``end_phy_offset``, the end of its last record.

    ``restored``: recovered bytes by log offset; ``placed``: contents of files that had wrong names, under all other changes.
    ``cut``: readable records after the end go too, and a segment that starts exactly there stays, emptied. Raises FailedError
    where a file cannot be read.
    """
    log = store.log
    size = log.file_size_bytes
    edited = EditedLog(log)
    kept = _kept_segments(log, end_phy_offset + 1 if cut else _room_end(log, end_phy_offset), edited)
    segments = {segment.phy_offset: segment for segment in kept}
    for phy_offset, patch in (placed or {}).items():
        holder = _holder(store, phy_offset, segments)
        if holder.phy_offset not in segments:
            edited.created[holder.path] = size
        segments[holder.phy_offset] = holder
        edited.placed[holder.path] = patch
    closing = [patch for closed_region in closed_regions for patch in _as_patches(closed_region.pieces)]
    closed = Ranges((at, at + patch.end) for at, patch in closing)  # a closed region may need the room next to it
    for phy_offset, patch in [*apart_from(restored or {}, closed).items(), *closing]:
        holder = _holder(store, phy_offset, segments)
        if holder.phy_offset not in segments:
            edited.created[holder.path] = size
        segments[holder.phy_offset] = holder
        edited.patches.setdefault(holder.path, []).append(_moved(patch, phy_offset - holder.phy_offset))
    for segment in list(segments.values()):
        nominal = nominal_end(log, segment) - segment.phy_offset if segment.path not in edited.created else size
        if segment.size_bytes != nominal:
            edited.lengths[segment.path] = nominal
            segments[segment.phy_offset] = replace(segment, size_bytes=nominal)
    _clean_tail(log, kept, end_phy_offset, edited, cut=cut)
    edited.strays = [s for s in log.strays if s.duplicate_of is None and _may_go(s)]
    edited.segments = list(segments.values())
    return edited


def new_segment_path(settings: Settings, phy_offset: int, file_size_bytes: int) -> Path:
    """Return where a broker creates a new segment: it takes several log folders in turn by number (store format 1.2)."""
    folders = sorted(settings.writable_commitlog_paths or settings.commitlog_paths)
    folder = folders[phy_offset // file_size_bytes % len(folders)] if file_size_bytes else folders[0]
    return folder / paths.segment_name(phy_offset)


def _kept_segments(log: SegmentSequence, end_phy_offset: int, edited: EditedLog) -> list[Segment]:
    kept: list[Segment] = []
    for segment in log.segments:
        if segment.phy_offset >= end_phy_offset and kept:
            edited.removed.append(segment)
        else:
            kept.append(segment)
    return kept


def _room_end(log: SegmentSequence, end_phy_offset: int) -> int:
    """Return the offset from which segments are of no use: the log's end, or one segment of zeros later.

    A segment of zeros stays if the one before it is full, because a broker continues there.
    """
    full = log.find(end_phy_offset)
    following = log.find(nominal_end(log, full)) if full is not None else None
    if (
        full is None
        or following is None
        or following.phy_offset != nominal_end(log, full)
        or not _blank_at(log, end_phy_offset, following.phy_offset)
        or _last_used(log, following.phy_offset, following.end_phy_offset) > following.phy_offset
    ):
        return end_phy_offset
    return following.phy_offset + 1


def _holder(store: Store, phy_offset: int, segments: Mapping[int, Segment]) -> Segment:
    """Return the segment that holds an offset: one of ``segments`` (by their starts), or a new one."""
    size = store.log.file_size_bytes
    start = phy_offset - phy_offset % size if size else phy_offset
    present = store.log.find(phy_offset)
    if present is not None and phy_offset >= nominal_end(store.log, present):
        present = None  # only its wrong length reaches here
    holder = segments.get(present.phy_offset if present is not None else start)
    return holder or Segment(new_segment_path(store.settings, start, size), start, size)


def as_long_as_they_are(log: SegmentSequence) -> SegmentSequence:
    """Return the log without bytes after a segment's nominal length, which may reach into the place of a missing one."""
    clipped = [replace(s, size_bytes=min(s.size_bytes, nominal_end(log, s) - s.phy_offset)) for s in log.segments]
    return log if clipped == list(log.segments) else overlaid(log, {}, clipped)


def restored_log(store: Store, restored: Restored, placed: Restored | None = None) -> SegmentSequence:
    """Return the log with recovered bytes and no other change; missing segments that receive bytes are whole."""
    segments = {segment.phy_offset: segment for segment in as_long_as_they_are(store.log).segments}
    patches: dict[Path, list[Patch]] = {}
    under: dict[Path, Patch] = {}
    for phy_offset, patch in (placed or {}).items():
        holder = _holder(store, phy_offset, segments)
        segments[holder.phy_offset] = replace(holder, size_bytes=max(holder.size_bytes, patch.end))
        under[holder.path] = patch
    for phy_offset, patch in restored.items():
        holder = _holder(store, phy_offset, segments)
        moved = _moved(patch, phy_offset - holder.phy_offset)
        segments[holder.phy_offset] = replace(holder, size_bytes=max(holder.size_bytes, moved.end))
        patches.setdefault(holder.path, []).append(moved)
    return overlaid(store.log, with_placed(under, patches), segments.values())


def _as_patches(pieces: Sequence[Piece | TombstoneRun]) -> Iterator[tuple[int, Patch]]:
    """Yield the pieces of one region as patches by log offset; adjacent pieces become one up to a size limit.

    Regions are not joined, because the next one may start directly after it in the next segment.
    """
    start = end = -1
    parts: list[tuple[int, bytes]] = []
    if any(isinstance(piece, TombstoneRun) for piece in pieces):
        start, end = pieces[0].phy_offset, pieces[-1].phy_offset + pieces[-1].size_bytes
        yield start, Entombed(0, end - start, (), tuple(pieces))
        return
    for piece in pieces:
        assert isinstance(piece, Piece)
        if len(pieces) == 1:
            yield piece.phy_offset, Patch(0, piece.size_bytes, piece.parts)
            return
        if piece.phy_offset != end or end + piece.size_bytes - start > _MOST_JOINED_BYTES:
            if parts:
                yield start, Patch(0, end - start, tuple(parts))
            start, parts = piece.phy_offset, []
        parts += [(piece.phy_offset - start + at, data) for at, data in piece.parts]
        end = piece.phy_offset + piece.size_bytes
    if parts:
        yield start, Patch(0, end - start, tuple(parts))


def _moved(patch: Patch, by: int) -> Patch:
    return replace(patch, start=patch.start + by, end=patch.end + by)


def _borrowed(
    draft: Draft, patches: Iterable[Patch], size_bytes: int, chunks: Callable[[], Iterator[bytes | Hole]]
) -> Built:
    """Return the content of a file or range whose bytes are read elsewhere when the plan is applied."""
    parts: list[Any] = []
    files: list[Any] = []
    literals: list[Any] = []
    for patch in patches:
        if isinstance(patch, Borrowed) and patch.path is not None:
            files.append([patch.start, draft.places.name(patch.path), patch.phy_offset, patch.end - patch.start])
        elif isinstance(patch, Borrowed):
            where = [patch.start, patch.origin, patch.phy_offset, patch.end - patch.start]
            parts.append([*where, patch.config] if patch.config else where)
        else:
            literals += [[patch.start + at, part.hex()] for at, part in patch.parts]
    arguments = {"parts": parts, "bytes": literals, **({"files": files} if files else {})}
    return Built(SIBLING_BUILDER, arguments, size_bytes, digest_of(chunks()).crc32c)


def _windows(read: Callable[[int, int], bytes], start: int, end: int) -> Iterator[bytes]:
    for at in range(start, end, _WINDOW_SIZE_BYTES):
        yield read(at, min(at + _WINDOW_SIZE_BYTES, end))


def _clean_tail(
    log: SegmentSequence, kept: list[Segment], end_phy_offset: int, edited: EditedLog, *, cut: bool
) -> None:
    """Add zeros after the last record, unless a blank follows it."""
    if not kept:
        return
    last = kept[-1]
    end = max(end_phy_offset, last.phy_offset)
    file_end = min(last.end_phy_offset, nominal_end(log, last))
    if not cut and _blank_at(log, end, nominal_end(log, last)):
        return
    used = _last_used(log, end, file_end)
    if used > end:
        start = end - last.phy_offset
        edited.patches.setdefault(last.path, []).append(Patch(start, used - last.phy_offset))


def _blank_at(log: SegmentSequence, at: int, segment_end: int) -> bool:
    prefix = log.read(at, record.PREFIX.size_bytes)
    if len(prefix) < record.PREFIX.size_bytes:
        return False
    found = record.PREFIX.read(prefix)
    return bool(found["magic"] == record.MAGIC_BLANK and found["size_bytes"] == segment_end - at)


def _last_used(log: SegmentSequence, at: int, end: int) -> int:
    """Return the offset after the last byte of [at, end) that is not zero; ``at`` if there is none."""
    used = at
    while at < end:
        data_at = log.next_data(at)
        if data_at is None or data_at >= end:
            break
        at = max(at, data_at)
        data = log.read(at, min(_WINDOW_SIZE_BYTES, end - at))
        if not data:
            break
        if data != bytes(len(data)):  # comparing is faster than stripping only zeros
            used = at + len(data.rstrip(b"\0"))
        at += len(data)
    return used


def _may_go(stray: Stray) -> bool:
    return not stray.is_folder or not any(stray.path.iterdir())


def _pieces(patch: Patch) -> Iterator[ContentPiece]:
    at = 0
    for position, part in patch.parts:
        if position > at:
            yield Zeros(position - at)
        yield part
        at = position + len(part)
    if at < patch.end - patch.start:
        yield Zeros(patch.end - patch.start - at)


def _whole(patches: list[Patch], size_bytes: int) -> Iterator[ContentPiece]:
    at = 0
    for patch in sorted(patches, key=lambda p: p.start):
        if patch.start > at:
            yield Zeros(patch.start - at)
        yield from _pieces(patch)
        at = patch.end
    if at < size_bytes:
        yield Zeros(size_bytes - at)
