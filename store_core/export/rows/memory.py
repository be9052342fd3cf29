"""What a process does with memory while its tasks make and write batches."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Final

from store_core.garbage import look_rarely, spare_what_is_there

# Of malloc.h: what may stay free at the heap's end, and how long a block must be to be mapped by itself.
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 512 << 20
_LARGEST_MMAP_THRESHOLD_BYTES: Final = 32 << 20


@cache
def keep_freed_memory() -> None:
    """Have this process keep what a written row group frees for the next one.

    glibc gives such blocks back at once and takes cleared pages for the next ones, which costs as much as decoding
    (measured: 0.4 us a record). The most memory that a task has resident is the same. Elsewhere nothing is done.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
    mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD_BYTES)


@cache
def settle() -> None:
    """Set up a process in which Spark has tasks done, one after the other, once all that they need is loaded.

    Spark has Python look for garbage behind every task, which costs nearly a tenth of a read (measured).
    """
    keep_freed_memory()
    look_rarely()
    spare_what_is_there()
