"""Tune a process's memory while its tasks make and write batches."""

from __future__ import annotations

import ctypes
import gc
from functools import cache
from typing import Final

# Parameters of malloc.h: the free bytes kept at the heap's end, and the least length of a block that gets its own mapping.
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_OBJECTS_BETWEEN_COLLECTIONS: Final = 50_000
_KEPT_BYTES: Final = 512 << 20
_LARGEST_MMAP_THRESHOLD_BYTES: Final = 32 << 20


@cache
def keep_freed_memory() -> None:
    """Make this process keep the freed memory of a written row group for the next one.

    glibc returns such blocks to the kernel at once and takes cleared pages for the next ones, which costs as much as
    decoding. The maximum resident memory of a task is the same. Without glibc nothing is done.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
    mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD_BYTES)


@cache
def settle() -> None:
    """Set up a process in which Spark runs tasks, once all modules that they need are loaded.

    Spark makes Python collect garbage after every task, which is slow with many objects.
    """
    keep_freed_memory()
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    gc.freeze()
