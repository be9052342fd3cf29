"""Prove that pieces join: each starts with the frame at which the previous piece ended, or is walked again.

A split that starts inside a segment finds its first frame by itself. That frame is right if the last frame before it
ends there; then the bytes that the split met earlier are the rest of that frame. Otherwise there is damage at the
border, or a body that looks like records: the range is walked again from the last proven end, as a walk over the
whole log would do. So rows and findings do not depend on where a log is split.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from store_core.export.splits.plan import SegmentPlan, Split
from store_core.export.splits.split_task import Piece
from store_core.kernel.codes import FrameKind

Redo = Callable[[Split], Piece]


@dataclass(frozen=True, slots=True)
class Joined:
    """A piece as it counts. ``head_counts``: the bytes before its first frame are its own, and no rest of another
    piece.
    """

    piece: Piece
    head_counts: bool = True


def join_pieces(plan: SegmentPlan, pieces: Sequence[Piece], redo: Redo) -> list[Joined]:
    """Return the pieces of one plan in order, without gap or overlap.

    ``redo`` exports a split that starts at a proven place.
    """
    if not pieces:
        return []
    joined = [Joined(pieces[0])]
    at = _end_of(pieces[0])
    for piece in pieces[1:]:
        if at is None:  # no frame so far, and no segment's start to count from
            joined.append(Joined(piece))
            at = piece.next_phy_offset
            continue
        first = piece.first_phy_offset
        if first is not None and at < first:
            at = _bridge(joined, at, first, redo)
        if at == first:
            joined.append(Joined(piece, head_counts=False))
            at = piece.next_phy_offset or at
        # Else a record before the piece covers it, or it is damage, or its first frame only looked like one.
        # The next bridge walks the part of it that counts.
    reached = _through_zeros(joined[-1].piece, pieces) if joined else 0
    if at is not None and max(at, reached) < plan.end_phy_offset:
        _go_on(joined, Split(at, plan.end_phy_offset, exact=True), redo)
    return joined


def _through_zeros(last: Piece, pieces: Sequence[Piece]) -> int:
    """Return the end of the last piece's range, after extending it over zeros that reach the plan's end.

    A segment that a broker has made in advance is mostly zeros: they need not be read a second time.
    """
    reached = last.split.stop_phy_offset
    following = [piece for piece in pieces if piece.split.start_phy_offset >= reached]
    ranges = last.tail if last.has_messages else last.head
    ends_in_zeros = bool(ranges) and ranges[-1].kind == FrameKind.ZEROS and ranges[-1].end_phy_offset == reached
    if following and ends_in_zeros and all(map(_is_zeros, following)):
        reached = following[-1].split.stop_phy_offset
        ranges[-1] = ranges[-1]._replace(size_bytes=reached - ranges[-1].phy_offset)
    return reached


def _is_zeros(piece: Piece) -> bool:
    """Return True if a split holds zeros only."""
    if len(piece.head) != 1:
        return False
    [found] = piece.head
    is_whole = (found.phy_offset, found.size_bytes) == (piece.split.start_phy_offset, piece.split.size_bytes)
    return found.kind == FrameKind.ZEROS and is_whole


def walk_on(plan: SegmentPlan, joined: list[Joined], redo: Redo) -> None:
    """Walk from the last proven end of a plan to its end, if frames are still to come."""
    at = _end_of(joined[-1].piece) if joined else None
    if at is not None and at < plan.end_phy_offset:
        _go_on(joined, Split(at, plan.end_phy_offset, exact=True), redo)


def _bridge(joined: list[Joined], at: int, first: int, redo: Redo) -> int:
    """Walk from the last proven end to the next piece's first frame.

    Returns the end of the bridge's frames: ``first`` if both join.
    """
    end = _go_on(joined, Split(at, first, exact=True), redo)
    if joined[-1].piece.ran_over:  # damage or zeros continue after ``first``, so no frame starts there
        joined.pop()
        return at
    return max(end, first)


def _go_on(joined: list[Joined], split: Split, redo: Redo) -> int:
    """Export a split that starts at the last proven end, and return the end of its frames."""
    if joined:
        piece = joined[-1].piece
        piece.tail = []  # the same bytes are walked again
        if not piece.has_messages:  # then all its ranges are its head
            piece.head = [found for found in piece.head if found.phy_offset < split.start_phy_offset]
        if piece.next_phy_offset is None:
            joined.pop()
    joined.append(Joined(redo(split)))
    return _end_of(joined[-1].piece) or split.start_phy_offset


def _end_of(piece: Piece) -> int | None:
    """Return the end of a piece's last frame; without frames its start if that is exact, else None."""
    if piece.next_phy_offset is not None:
        return piece.next_phy_offset
    return piece.split.start_phy_offset if piece.split.exact else None
