"""Python's collector of garbage. Modules and parsers are made of very many objects that stay; looking through them again and
again finds nothing."""

from __future__ import annotations

import gc

_OBJECTS_BETWEEN_COLLECTIONS = 50_000


def look_rarely() -> None:
    """Have this process look for garbage after every 50,000 objects, not after every 700."""
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)


def spare_what_is_there() -> None:
    """Have this process never look through what it holds now."""
    gc.freeze()
