"""The proof that pieces join: each begins with the frame at which the one in front ended, or is done again so that it does.

A split that starts inside a segment finds its first frame by itself. It is right if that is where the last frame in front
of it ends; then what it met before is the rest of that frame. Otherwise there is damage at the border, or a body that looks
like records: the stretch is walked again from the last proven end, as the whole log would be. So rows and findings do
not depend on where a log is split.
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
    """A piece as it counts. ``head_counts``: what lies in front of its first frame is its own, no rest of another piece."""

    piece: Piece
    head_counts: bool = True


def join_pieces(plan: SegmentPlan, pieces: Sequence[Piece], redo: Redo) -> list[Joined]:
    """The pieces of one plan in order, without gap or overlap; ``redo`` exports a split that starts at a proven place."""
    if not pieces:
        return []
    joined = [Joined(pieces[0])]
    at = _end_of(pieces[0])
    for piece in pieces[1:]:
        if at is None:  # no frame at all so far, and no segment's start to count from
            joined.append(Joined(piece))
            at = piece.next_phy_offset
            continue
        first = piece.first_phy_offset
        if first is not None and at < first:
            at = _bridge(joined, at, first, redo)
        if at == first:
            joined.append(Joined(piece, head_counts=False))
            at = piece.next_phy_offset or at
        # Else it is left out: a record in front covers it, or it is damage, or began with what only looked like a frame.
        # What of it counts is walked by the next bridge.
    reached = _through_zeros(joined[-1].piece, pieces) if joined else 0
    if at is not None and max(at, reached) < plan.end_phy_offset:
        _go_on(joined, Split(at, plan.end_phy_offset, exact=True), redo)
    return joined


def _through_zeros(last: Piece, pieces: Sequence[Piece]) -> int:
    """Where what the last piece answers for ends; it takes over the zeros that are all there is up to the plan's end.

    A segment that a broker has made in advance is zeros for the most part: they need not be read a second time.
    """
    reached = last.split.stop_phy_offset
    behind = [piece for piece in pieces if piece.split.start_phy_offset >= reached]
    ranges = last.tail if last.has_messages else last.head
    ends_in_zeros = bool(ranges) and ranges[-1].kind == FrameKind.ZEROS and ranges[-1].end_phy_offset == reached
    if behind and ends_in_zeros and all(map(_is_zeros, behind)):
        reached = behind[-1].split.stop_phy_offset
        ranges[-1] = ranges[-1]._replace(size_bytes=reached - ranges[-1].phy_offset)
    return reached


def _is_zeros(piece: Piece) -> bool:
    """Whether there is nothing else in a split."""
    if len(piece.head) != 1:
        return False
    [found] = piece.head
    is_whole = (found.phy_offset, found.size_bytes) == (piece.split.start_phy_offset, piece.split.size_bytes)
    return found.kind == FrameKind.ZEROS and is_whole


def walk_on(plan: SegmentPlan, joined: list[Joined], redo: Redo) -> None:
    """Walk from the last proven end of a plan to its end, where frames are still to come."""
    at = _end_of(joined[-1].piece) if joined else None
    if at is not None and at < plan.end_phy_offset:
        _go_on(joined, Split(at, plan.end_phy_offset, exact=True), redo)


def _bridge(joined: list[Joined], at: int, first: int, redo: Redo) -> int:
    """Walk from the last proven end to the next piece's first frame; gives where that leads: ``first`` if both join."""
    end = _go_on(joined, Split(at, first, exact=True), redo)
    if joined[-1].piece.ran_over:  # what is no frame goes on behind ``first``: there is none
        joined.pop()
        return at
    return max(end, first)


def _go_on(joined: list[Joined], split: Split, redo: Redo) -> int:
    """Export a split that starts at the last proven end; gives where its frames end."""
    if joined:
        piece = joined[-1].piece
        piece.tail = []  # the same bytes are walked again, as far as they go
        if not piece.has_messages:  # all that is no frame is its head
            piece.head = [found for found in piece.head if found.phy_offset < split.start_phy_offset]
        if piece.next_phy_offset is None:
            joined.pop()
    joined.append(Joined(redo(split)))
    return _end_of(joined[-1].piece) or split.start_phy_offset


def _end_of(piece: Piece) -> int | None:
    """Where the last frame of a piece ends; its start if that is where frames end, None if nobody knows."""
    if piece.next_phy_offset is not None:
        return piece.next_phy_offset
    return piece.split.start_phy_offset if piece.split.exact else None
