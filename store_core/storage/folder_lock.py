"""Locks of folders that results are written to."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from typing import Final

_HELD: Final[set[int]] = set()


def lock_file(descriptor: int) -> bool:
    """Lock an open file for this process, until ``unlock_file``; False, and closed, if another one has locked it.

    Copies of this process do not have the lock: it goes with this one, even if they live on for a moment.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return False
    _HELD.add(descriptor)
    return True


def unlock_file(descriptor: int) -> None:
    _HELD.discard(descriptor)
    os.close(descriptor)


def _give_up() -> None:
    for descriptor in _HELD:
        with suppress(OSError):
            os.close(descriptor)
    _HELD.clear()


os.register_at_fork(after_in_child=_give_up)
