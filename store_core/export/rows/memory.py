"""Set up Python's garbage collector in a process in which Spark runs tasks."""

from __future__ import annotations

import gc
from functools import cache
from typing import Final

_OBJECTS_BETWEEN_COLLECTIONS: Final = 50_000


@cache
def settle() -> None:
    """Exclude the objects of loaded modules from garbage collection, and make collections rare.

    Spark makes Python collect garbage after every task, which is slow with many objects.
    """
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    gc.freeze()
