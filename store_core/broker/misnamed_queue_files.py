"""A queue's files whose names are no multiples of the files' size, or not as a broker writes them: what it reads where (behaviour 2, 11.3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from store_core.storage.sequence import Segment, SegmentSequence


class OffGridFiles:
    """Each file by itself, as files may lie over each other."""

    def __init__(self, found: SegmentSequence, segments: Sequence[Segment]) -> None:
        self._files = {segment.phy_offset: found.alone(segment) for segment in segments}

    def at(self, start: int) -> SegmentSequence:
        """The file that begins at ``start``, where reads by offset give its bytes."""
        return self._files[start]


def off_grid(found: SegmentSequence, segments: Sequence[Segment], file_size_bytes: int) -> OffGridFiles | None:
    """The files of a queue that a broker maps, if one of them is not where the queue's sequence looks for it."""
    is_usual = [*segments] == [*found.segments[: len(segments)]]
    if is_usual and all(segment.phy_offset % file_size_bytes == 0 for segment in segments):
        return None
    return OffGridFiles(found, segments)


def in_turn(found: SegmentSequence, segments: Sequence[Segment], file_size_bytes: int) -> SegmentSequence:
    """Return the files that a broker maps one after the other, as if their names followed each other."""
    apart = [Segment(each.path, n * file_size_bytes, each.size_bytes) for n, each in enumerate(segments)]
    return SegmentSequence([], found.cache, file_size_bytes, listed=(apart, []))


def looked_up(
    start: int, count: int, width: int, starts: Sequence[int], size: int
) -> Iterator[tuple[int, int, int, int]]:
    """Where a broker looks up ``count`` entries from ``start`` on, a multiple of ``width``: a file's start, the first byte in it,
    and from and to which entry; later ones count.

    The file whose turn it is if the first one begins on the grid, else the first one over that place; in it, the byte that is
    left of the place when it is divided by the size (``findMappedFileByOffset``).
    """
    end = start + count * width
    over = [s for s in starts if s < end and start < s + size]
    for cell in range(start - start % size, end, size):
        place = cell // size - starts[0] // size
        in_turn = [starts[place]] if 0 <= place < len(starts) else []
        for file in (*reversed(over), *in_turn):
            low = max(start, cell, file + -file % width)
            high = min(end, cell + size, file + size + -(file + size) % width)
            if low < high:
                yield file, low - cell, (low - start) // width, (high - start) // width
