"""Decide which message has which number of a queue (store behaviour 7 and 15, rows 6 to 9).

A queue is built by queue offset, not by arrival. Where numbers go back at a higher physical offset, a topic was deleted
and created again, or a broker that had lost the queue's tail gave the same numbers again. The later messages count; the earlier
ones keep only the lower numbers. It is not a new start, but records written over others, such as a page of an older log, if

* a single record has a number that fits neither neighbour: it is damaged;
* the records are older than the ones before them;
* the numbers continue after them as if they did not exist.

If the queue has entries for these numbers, the records that they point to decide.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from operator import attrgetter
from typing import Any, Final, NamedTuple

from numpy.typing import NDArray

from store_core.layout import queue, record

RowAt = Callable[[int], Any]  # a ``kernel.derive.ROW`` by its number
Standing = Callable[[int], int | None]
# A gap of numbers is taken for damage if it exceeds what the lost bytes can explain by more than this.
_UNEXPLAINED_GAP: Final = 1 << 16
_MOST_STRAYS: Final = 1 << 10
_LOOK_AHEAD: Final = 16  # pieces
_USUAL_SPACING: Final = 8  # records may be so many times closer to each other than next to a gap
LARGEST_QUEUE_OFFSET: Final = (1 << 62) // queue.ENTRY.size_bytes


@dataclass(frozen=True, slots=True)
class Stretch:
    """A range of consecutive numbers [queue_offset, queue_offset + count), of the rows from ``row`` on."""

    queue_offset: int
    row: int
    count: int

    @property
    def end(self) -> int:
        return self.queue_offset + self.count


class Misnumbered(NamedTuple):
    """A record with an impossible number; ``placed_at`` is the number it must have, None if that is taken."""

    row: int
    phy_offset: int
    queue_offset: int
    placed_at: int | None


class Stray(NamedTuple):
    """A single record whose number goes back, or is the last after a gap; accepted, as no later record disproves it."""

    phy_offset: int
    queue_offset: int


@dataclass(slots=True)
class Numbering:
    """The ranges of a queue in order of their numbers.

    ``superseded``: rows whose numbers other rows have; ``repeated``: those of them for which the queue did not start again at 0.
    ``strays``: the first few.
    """

    stretches: list[Stretch] = field(default_factory=list)
    misnumbered: list[Misnumbered] = field(default_factory=list)
    strays: list[Stray] = field(default_factory=list)
    superseded: int = 0
    repeated: int = 0
    generations: int = 1

    @property
    def first_queue_offset(self) -> int:
        return self.stretches[0].queue_offset if self.stretches else 0

    @property
    def end_queue_offset(self) -> int:
        return self.stretches[-1].end if self.stretches else 0

    @property
    def entries(self) -> int:
        return sum(s.count for s in self.stretches)

    def row_of(self, queue_offset: int) -> int | None:
        """Return the row of the message at a number, or None."""
        at = bisect_right(self.stretches, queue_offset, key=attrgetter("queue_offset")) - 1
        if at < 0 or queue_offset >= self.stretches[at].end:
            return None
        return self.stretches[at].row + queue_offset - self.stretches[at].queue_offset

    def nth(self, ordinal: int) -> tuple[int, int]:
        """Return number and row of the message that has ``ordinal`` messages before it.

        Raises:
            IndexError: there are not so many messages.
        """
        for stretch in self.stretches:
            if ordinal < stretch.count:
                return stretch.queue_offset + ordinal, stretch.row + ordinal
            ordinal -= stretch.count
        raise IndexError(ordinal)

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """(first missing number, count) of each gap between the first and the last message."""
        return [(a.end, b.queue_offset - a.end) for a, b in pairwise(self.stretches) if b.queue_offset > a.end]


class _Piece(NamedTuple):
    """A range of numbers with the offsets of its first and last record."""

    stretch: Stretch
    phy_offset: int
    last_phy_offset: int


def number_rows(
    chunks: Iterable[NDArray[Any]],
    row_at: RowAt | None = None,
    standing: Standing | None = None,
) -> Numbering:
    """Number a queue's rows.

    Args:
        chunks: the rows in log order, as arrays of ``kernel.derive.STRETCH`` that may end anywhere.
        row_at: returns a row by its number.
        standing: returns the offset in the queue's entry at a number, None without an entry.
    """
    numbering = Numbering()
    pieces = iter(_joined(_pieces(chunks)))
    ahead = deque(islice(pieces, _LOOK_AHEAD + 1))
    before: _Piece | None = None  # the piece placed last
    while ahead:
        piece = ahead.popleft()
        ahead.extend(islice(pieces, 1))
        expected = numbering.end_queue_offset
        if before is not None and _decreases(expected, piece, ahead):
            is_new = _from_queue_entries(numbering, piece, row_at, standing)
            if is_new is None:
                is_new = not _continues_after(expected, before, piece, ahead) and not _is_older(before, piece, row_at)
        else:
            is_new = True
        if not is_new:
            numbering.superseded += piece.stretch.count
            numbering.repeated += piece.stretch.count
            continue
        _place(numbering, piece, ahead[0] if ahead else None)
        before = piece
    return numbering


def _decreases(expected: int, piece: _Piece, ahead: Sequence[_Piece]) -> bool:
    """Return True if numbers go back, and not only because a single record has a wrong number."""
    stretch = piece.stretch
    is_alone = stretch.count == 1 and ahead and ahead[0].stretch.queue_offset in (expected, expected + 1)
    return 0 <= stretch.queue_offset < expected and not is_alone


def _from_queue_entries(
    numbering: Numbering, piece: _Piece, row_at: RowAt | None, standing: Standing | None
) -> bool | None:
    """Return True if the queue's entries for the piece's first or last number point to the piece: it is a new start.

    False if they point to the rows that have had these numbers so far; None if they point to neither.
    """
    if standing is None or row_at is None:
        return None
    stretch = piece.stretch
    numbers = {stretch.queue_offset: piece.phy_offset, stretch.end - 1: piece.last_phy_offset}
    targets = {number: standing(number) for number in numbers}
    if any(targets[number] == phy_offset for number, phy_offset in numbers.items()):
        return True
    rows = {number: row for number in numbers if (row := numbering.row_of(number)) is not None}
    return False if any(targets[number] == int(row_at(row)["phy_offset"]) for number, row in rows.items()) else None


def _continues_after(expected: int, before: _Piece, piece: _Piece, ahead: Sequence[_Piece]) -> bool:
    """Return True if a later piece continues where the queue ended before ``piece``, which is then no new start.

    A later piece belongs to a new start if the messages missing between them fit in the bytes between them.
    """
    last_begun = piece
    for later in ahead:
        number = later.stretch.queue_offset
        if number < last_begun.stretch.end:  # goes back again
            continue
        if _fit_between(last_begun, later, number - last_begun.stretch.end, _spacing(before, piece, later)):
            last_begun = later
        elif number >= expected:
            return _fit_between(before, later, number - expected, record.MIN_RECORD_SIZE_BYTES)
    return False


def _is_older(before: _Piece, piece: _Piece, row_at: RowAt | None) -> bool:
    """Return True if a piece also goes back in time: a new start is younger. One damaged time proves nothing, so two count."""
    if row_at is None:
        return False
    previous, stretch = before.stretch, piece.stretch
    end = previous.row + previous.count
    previous_ms = min(int(row_at(row)["store_timestamp_ms"]) for row in range(max(end - 2, previous.row), end))
    rows = stretch.row, stretch.row + stretch.count - 1
    return all(int(row_at(row)["store_timestamp_ms"]) <= previous_ms for row in rows)


def _fit_between(earlier: _Piece, later: _Piece, messages: int, size_bytes: int) -> bool:
    return messages * size_bytes <= later.phy_offset - earlier.last_phy_offset


def _spacing(*pieces: _Piece) -> int:
    """Return the smallest plausible distance between a queue's records, in bytes."""
    found = [
        (piece.last_phy_offset - piece.phy_offset) // (piece.stretch.count - 1)
        for piece in pieces
        if piece.stretch.count > 1
    ]
    return max(min(found, default=0) // _USUAL_SPACING, record.MIN_RECORD_SIZE_BYTES)


def _pieces(chunks: Iterable[NDArray[Any]]) -> Iterable[_Piece]:
    row = 0
    for stretches in chunks:
        for queue_offset, rows, phy_offset, last_phy_offset in stretches.tolist():
            yield _Piece(Stretch(queue_offset, row, rows), phy_offset, last_phy_offset)
            row += rows


def _joined(pieces: Iterable[_Piece]) -> Iterable[_Piece]:
    """Join pieces that continue across a chunk's end."""
    open_piece: _Piece | None = None
    for piece in pieces:
        if open_piece is not None and open_piece.stretch.end == piece.stretch.queue_offset:
            whole = replace(open_piece.stretch, count=open_piece.stretch.count + piece.stretch.count)
            open_piece = _Piece(whole, open_piece.phy_offset, piece.last_phy_offset)
            continue
        if open_piece is not None:
            yield open_piece
        open_piece = piece
    if open_piece is not None:
        yield open_piece


def _place(numbering: Numbering, piece: _Piece, following: _Piece | None) -> None:
    """Add a piece to the numbering, with a corrected number if its own is impossible."""
    stretch, stack = piece.stretch, numbering.stretches
    expected = numbering.end_queue_offset
    fits = 0 <= stretch.queue_offset <= LARGEST_QUEUE_OFFSET
    if stack and stretch.queue_offset != expected:
        room = (piece.phy_offset // record.MIN_RECORD_SIZE_BYTES) + _UNEXPLAINED_GAP
        fits = fits and stretch.queue_offset - expected <= room
        if following is not None and stretch.count == 1 and following.stretch.queue_offset in (expected, expected + 1):
            fits = False  # its neighbours agree with each other
    if not fits:
        free = stack and stretch.count == 1 and (following is None or following.stretch.queue_offset != expected)
        if following is None and stretch.queue_offset >= 0 and stretch.queue_offset < expected:
            free = False
        placed = expected if free else None
        numbering.misnumbered.append(Misnumbered(stretch.row, piece.phy_offset, stretch.queue_offset, placed))
        if placed is None:
            return
        stretch = replace(stretch, queue_offset=placed)
    elif (
        stack
        and stretch.count == 1
        and (stretch.queue_offset < expected or (following is None and stretch.queue_offset > expected))
    ):
        numbering.strays.append(Stray(piece.phy_offset, stretch.queue_offset))
        del numbering.strays[_MOST_STRAYS:]
    if stack and stretch.queue_offset < expected:
        numbering.generations += 1
    before = numbering.superseded
    while stack and stack[-1].queue_offset >= stretch.queue_offset:
        numbering.superseded += stack.pop().count
    if stack and stack[-1].end > stretch.queue_offset:
        numbering.superseded += stack[-1].end - stretch.queue_offset
        stack[-1] = replace(stack[-1], count=stretch.queue_offset - stack[-1].queue_offset)
    if stretch.queue_offset > 0:
        numbering.repeated += numbering.superseded - before
    if stack and stack[-1].end == stretch.queue_offset and stack[-1].row + stack[-1].count == stretch.row:
        stack[-1] = replace(stack[-1], count=stack[-1].count + stretch.count)
    else:
        stack.append(stretch)
