"""Read queue files with names off the grid of file sizes, or not in a broker's format, as it does (behaviour 2, 11.3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from store_core.storage.sequence import Segment, SegmentSequence


class OffGridFiles:
    """The files of a queue as a sequence each, because files may overlap."""

    def __init__(self, found: SegmentSequence, segments: Sequence[Segment]) -> None:
        self._files = {segment.phy_offset: found.alone(segment) for segment in segments}

    def at(self, start: int) -> SegmentSequence:
        """Return the file that starts at ``start`` as a sequence whose reads by offset give its bytes."""
        return self._files[start]


def off_grid(found: SegmentSequence, segments: Sequence[Segment], file_size_bytes: int) -> OffGridFiles | None:
    """Return the files that a broker maps if one is not where the queue's sequence looks for it, else None."""
    is_usual = [*segments] == [*found.segments[: len(segments)]]
    if is_usual and all(segment.phy_offset % file_size_bytes == 0 for segment in segments):
        return None
    return OffGridFiles(found, segments)


def in_turn(found: SegmentSequence, segments: Sequence[Segment], file_size_bytes: int) -> SegmentSequence:
    """Return the files that a broker maps as a sequence, as if their names followed each other."""
    renamed = [Segment(file.path, n * file_size_bytes, file.size_bytes) for n, file in enumerate(segments)]
    return SegmentSequence([], found.cache, file_size_bytes, listed=(renamed, []))


def looked_up(
    start: int, count: int, width: int, starts: Sequence[int], size: int
) -> Iterator[tuple[int, int, int, int]]:
    """Yield where a broker looks up ``count`` entries from ``start`` on, a multiple of ``width`` bytes.

    The file is the one with the position's number counted from the first file, else the first one that covers the position.
    The byte in it is the remainder of the position divided by the size (``findMappedFileByOffset``).

    Yields:
        The file's start, the first byte in the file, and the range [first, stop) of entries; later tuples prevail.
    """
    end = start + count * width
    overlapping = [s for s in starts if s < end and start < s + size]
    for cell in range(start - start % size, end, size):
        place = cell // size - starts[0] // size
        in_turn = [starts[place]] if 0 <= place < len(starts) else []
        for file in (*reversed(overlapping), *in_turn):
            low = max(start, cell, file + -file % width)
            high = min(end, cell + size, file + size + -(file + size) % width)
            if low < high:
                yield file, low - cell, (low - start) // width, (high - start) // width
