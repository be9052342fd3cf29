"""Allocate memory that files are read into and written from, and return it to the kernel."""

from __future__ import annotations

from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from threading import Lock
from typing import Final

_M_ARENA_MAX: Final = -8  # the number in <malloc.h>


def new_pages(size_bytes: int) -> mmap:
    """Return zeroed, page-aligned memory, which the kernel gets back as soon as it is dropped.

    Memory from malloc starts 16 bytes after a page boundary, where copies from the page cache are slower.
    """
    return mmap(-1, size_bytes, MAP_PRIVATE | MAP_ANONYMOUS)


class Buffers:
    """Buffers that the windows of one segment leave to those of the next. The kernel would have to clear fresh memory."""

    def __init__(self) -> None:
        self._free: list[mmap] = []
        self._lock = Lock()

    def take(self, size_bytes: int) -> mmap:
        """Return a buffer of that length; its content is undefined."""
        with self._lock:
            for number, buffer in enumerate(self._free):
                if len(buffer) == size_bytes:
                    return self._free.pop(number)
            self._free.clear()  # windows of another length: the old ones will not fit any more
        return new_pages(size_bytes)

    def give_back(self, *buffers: mmap) -> None:
        """Return buffers that the caller no longer uses."""
        with self._lock:
            self._free += buffers


# The buffers that one task of an export leaves to the next task of the same process.
KEPT: Final = Buffers()


def share_one_heap() -> None:
    """Have the C library serve all threads that start from now on from one heap.

    By default each thread gets a heap of its own, and no other thread can use what it frees: successive walks by many threads
    then hold more memory. Does nothing without glibc.
    """
    _glibc("mallopt", _M_ARENA_MAX, 1)


def give_freed_memory_back() -> None:
    """Have the C library return free memory to the kernel. Does nothing without glibc."""
    _glibc("malloc_trim", 0)


def _glibc(function: str, *arguments: int) -> None:
    import ctypes  # slow to load

    try:
        call = getattr(ctypes.CDLL(None), function)
    except (OSError, AttributeError):
        return
    call(*arguments)
