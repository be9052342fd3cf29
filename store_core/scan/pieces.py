"""Parts of the log, and what only the file system knows of them: where segments end, what a short file lacks, holes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from store_core.kernel.codes import FrameCode, FrameKind
from store_core.layout.record import MIN_BLANK_SIZE_BYTES, PREFIX
from store_core.storage.remote_path import RemotePath
from store_core.storage.sequence import Segment, SegmentSequence

MAY_GO_ON: Final = (FrameKind.DAMAGE, FrameKind.ZEROS, FrameKind.STALE)  # in the next window or block


class Piece(NamedTuple):
    """A part of a segment: the frames whose first byte lies in [from, to).

    ``chained`` says that a frame ends at ``from_phy_offset``; at the segment's start it does anyway.
    """

    segment: Segment
    from_phy_offset: int
    to_phy_offset: int
    chained: bool = False


def nominal_end(log: SegmentSequence, segment: Segment) -> int:
    """Where a segment ends by the sequence's file size, whatever its length; never behind the next segment's start."""
    end = segment.phy_offset + (log.file_size_bytes or segment.size_bytes)
    following = log.following(segment)
    return min(end, following.phy_offset) if following is not None else end


def missing_end(
    log: SegmentSequence, segment: Segment, at: int, stop: int
) -> Iterator[tuple[FrameKind, FrameCode, int, int]]:
    """What the last bytes of a short file hold, and what it lacks: kind, code, offset and size.

    A file that was removed or cut since it was listed lacks what a walk did not find there any more.
    """
    end = segment.end_phy_offset
    if at < min(end, stop):
        end = max(end_now(log, segment), at)
    if at < min(end, stop):
        yield FrameKind.DAMAGE, FrameCode.SIZE, at, min(end, stop) - at
    if end < stop:
        at = max(at, end)
        yield FrameKind.HOLE, FrameCode.OK, at, stop - at


def end_now(log: SegmentSequence, segment: Segment) -> int:
    """Where a file ends, if it is shorter than it was when it was listed, or gone."""
    if isinstance(segment.path, RemotePath):
        segment.path.parent.forget()
    elif not log.is_plain(segment):
        return segment.end_phy_offset
    try:
        size_bytes = segment.path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        size_bytes = 0
    except OSError:
        return segment.end_phy_offset  # it is there
    return segment.phy_offset + min(size_bytes, segment.size_bytes)


def skip_hole(log: SegmentSequence, segment: Segment, at: int) -> int:
    """Where the sparse hole at ``at`` ends, or a little in front; ``at`` if it is in none."""
    data = log.next_data(at)
    # The first frame behind it may begin in it: sizes begin with zeros.
    end = segment.end_phy_offset if data is None else data - PREFIX.size_bytes
    # Less than a frame's prefix is left to the kernel, which knows what the end of a segment may hold.
    return end if end - at >= MIN_BLANK_SIZE_BYTES else at
