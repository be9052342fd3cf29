"""Memory that files are read into."""

from __future__ import annotations

from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap


class Buffers:
    """Buffers that one segment's windows leave to the next one's: fresh memory has to be cleared by the system first."""

    def __init__(self) -> None:
        self._free: list[mmap] = []

    def take(self, size_bytes: int) -> mmap:
        """One of that length, with anything in it.

        It begins with a page. What malloc gives begins 16 bytes behind one, and copying from the page cache to there
        takes a third longer (measured).
        """
        for number, buffer in enumerate(self._free):
            if len(buffer) == size_bytes:
                return self._free.pop(number)
        self._free.clear()  # windows of another length: the old ones will not fit any more
        return mmap(-1, size_bytes, MAP_PRIVATE | MAP_ANONYMOUS)

    def give_back(self, *buffers: mmap) -> None:
        """Nobody looks at them any more."""
        self._free += buffers
