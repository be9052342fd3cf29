"""Define parts of the log, and find their ends, missing ends and holes from the file system."""

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

    ``chained``: a frame ends at ``from_phy_offset``; at the segment's start this makes no difference.
    """

    segment: Segment
    from_phy_offset: int
    to_phy_offset: int
    chained: bool = False


def nominal_end(log: SegmentSequence, segment: Segment) -> int:
    """Return the end of a segment by the sequence's file size, not its own length, up to the next segment's start."""
    end = segment.phy_offset + (log.file_size_bytes or segment.size_bytes)
    following = log.following(segment)
    return min(end, following.phy_offset) if following is not None else end


def missing_end(
    log: SegmentSequence, segment: Segment, at: int, stop: int
) -> Iterator[tuple[FrameKind, FrameCode, int, int]]:
    """Yield kind, code, offset and size of the rows for a short file's last bytes and for its missing end.

    If the file was removed or cut since it was listed, the missing end starts where the walk found no more bytes.
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
    """Return the present end of a file, which may have been cut or removed since it was listed."""
    if isinstance(segment.path, RemotePath):
        segment.path.parent.forget()
    elif not log.is_plain(segment):
        return segment.end_phy_offset
    try:
        size_bytes = segment.path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        size_bytes = 0
    except OSError:
        return segment.end_phy_offset  # other errors do not mean that the file is missing
    return segment.phy_offset + min(size_bytes, segment.size_bytes)


def skip_hole(log: SegmentSequence, segment: Segment, at: int) -> int:
    """Return the end of the sparse hole at ``at``, or an offset shortly before it; ``at`` if there is no hole."""
    data = log.next_data(at)
    # The first frame after the hole may start in it, because sizes start with zero bytes.
    end = segment.end_phy_offset if data is None else data - PREFIX.size_bytes
    # The kernel handles less than a frame's prefix, because it knows the rules for the end of a segment.
    return end if end - at >= MIN_BLANK_SIZE_BYTES else at
