"""Lock folders that results are written to."""

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
    """Lock an open file for this process until ``unlock_file``; close it and return False if another process has locked it.

    Forked children do not inherit the lock: it ends with this process, even if they outlive it.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return False
    _HELD.add(descriptor)
    return True


def lock_at(path: Path, make_folder: Callable[[], None]) -> int | None:
    """Lock a file, made if missing, for this process; return its descriptor, None if another process has locked it.

    The last holder may remove the file and its folder meanwhile: then both are made again.
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
    """Return True if a path still leads to an open file."""
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
