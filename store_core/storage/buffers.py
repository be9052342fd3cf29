"""Memory that files are read into and written from."""

from __future__ import annotations

import ctypes
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from threading import Lock
from typing import Final

_M_ARENA_MAX: Final = -8  # as <malloc.h> has it


def new_pages(size_bytes: int) -> mmap:
    """Zeros that begin with a page, and which the system has back as soon as they go.

    What malloc gives begins 16 bytes behind a page, and copying from the page cache to there takes a third longer (measured).
    """
    return mmap(-1, size_bytes, MAP_PRIVATE | MAP_ANONYMOUS)


class Buffers:
    """Buffers that one segment's windows leave to the next one's: fresh memory has to be cleared by the system first."""

    def __init__(self) -> None:
        self._free: list[mmap] = []
        self._lock = Lock()

    def take(self, size_bytes: int) -> mmap:
        """One of that length, with anything in it."""
        with self._lock:
            for number, buffer in enumerate(self._free):
                if len(buffer) == size_bytes:
                    return self._free.pop(number)
            self._free.clear()  # windows of another length: the old ones will not fit any more
        return new_pages(size_bytes)

    def give_back(self, *buffers: mmap) -> None:
        """Nobody looks at them any more."""
        with self._lock:
            self._free += buffers


# What one task of an export leaves to the next one of the same process.
KEPT: Final = Buffers()


def share_one_heap() -> None:
    """Have the C library serve all threads that begin from now on from one heap.

    Else each gets one of its own, and what one of them frees no other can use; walks of many threads, one after the other,
    held a quarter more (measured). Elsewhere than under glibc nothing is done.
    """
    _glibc("mallopt", _M_ARENA_MAX, 1)


def give_freed_memory_back() -> None:
    """Have the C library give the system what is free. Elsewhere than under glibc nothing is done."""
    _glibc("malloc_trim", 0)


def _glibc(function: str, *arguments: int) -> None:
    try:
        call = getattr(ctypes.CDLL(None), function)
    except (OSError, AttributeError):
        return
    call(*arguments)
