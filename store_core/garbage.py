"""Make Python's garbage collector run less often: the many objects of modules and parsers stay, so scanning them finds nothing."""

from __future__ import annotations

import gc

_OBJECTS_BETWEEN_COLLECTIONS = 50_000


def look_rarely() -> None:
    """Have this process collect garbage after 50,000 new objects instead of Python's default of 700."""
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)


def spare_what_is_there() -> None:
    """Exclude the objects that this process holds now from all later collections."""
    gc.freeze()
