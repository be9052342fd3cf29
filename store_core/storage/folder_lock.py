"""Locks of folders that results are written to."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

_FILE_MODE: Final = 0o644
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


def lock_at(path: Path, make_folder: Callable[[], None]) -> int | None:
    """Lock a file, which is made where there is none, for this process; its descriptor, None if another one has locked it.

    Whoever had the lock may remove the file and its folder meanwhile: then both are made anew.
    """
    while True:
        make_folder()
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        except FileNotFoundError:
            continue
        if not lock_file(descriptor):
            return None
        if _is_same_file(descriptor, path):
            return descriptor
        unlock_file(descriptor)


def _is_same_file(descriptor: int, path: Path) -> bool:
    """Whether a path still leads to an open file."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    return False


def unlock_file(descriptor: int) -> None:
    _HELD.discard(descriptor)
    os.close(descriptor)


def _give_up() -> None:
    for descriptor in _HELD:
        with suppress(OSError):
            os.close(descriptor)
    _HELD.clear()


os.register_at_fork(after_in_child=_give_up)
