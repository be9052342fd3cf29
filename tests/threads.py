"""Which threads run: a test looks for its own by name, since others of the same process leave theirs behind."""

from __future__ import annotations

import threading


def running(prefix: str) -> int:
    """How many threads have a name that begins so."""
    return sum(thread.name.startswith(prefix) for thread in threading.enumerate())
