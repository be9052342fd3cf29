"""Turn an OSError into a FailedError that says what to do about it."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from store_core.errors import FailedError
from store_core.storage.files import DISK_FAILS, NO_FILE

_READ_ONLY = "the file system is read-only: work on a copy, or mount it for writing"
_NOT_ALLOWED = "run as the user that owns the store"
_FULL = "make room on that file system and {then}"
_FULL_OF_FILES = "that file system has room but can hold no more files: remove some and {then}"
_IN_THE_WAY = "something else stands there: move it out of the way, and {then}"

_TO_DO: Final = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: "raise the limit of file sizes (ulimit -f), or take a file system that holds larger files, and {then}",
    errno.EROFS: _READ_ONLY,
    errno.EACCES: _NOT_ALLOWED,
    errno.EPERM: _NOT_ALLOWED,
    errno.ENOENT: "something else changes this store: stop it and {then}",
    errno.EEXIST: _IN_THE_WAY,
    errno.ENOTDIR: _IN_THE_WAY,
    errno.ELOOP: "it is a symbolic link: put the file itself there",
    errno.EIO: DISK_FAILS,
    errno.EISDIR: NO_FILE,
}


def failed(error: OSError, doing: str, *, state: str = "", then: str = "run the command again") -> FailedError:
    """Return the error for a system call that was refused while ``doing``.

    ``state`` says how the store was left, ``then`` what to do once the cause is removed.
    """
    reason = error.strerror or type(error).__name__
    advice = _TO_DO.get(error.errno or 0, "see what the system says and {then}")
    if is_full_of_files(error):
        advice = _FULL_OF_FILES
    what = f"{doing}: {reason}" + (f"; {state}" if state else "")
    return FailedError(what, path=str(error.filename) if error.filename else None, to_do=advice.format(then=then))


def is_full_of_files(error: OSError) -> bool:
    """Return True if a full file system lacks inodes, not bytes. Some file systems have no limit of inodes."""
    if error.errno == errno.ENOSPC and error.filename:
        path = Path(os.fsdecode(error.filename))
        with suppress(OSError):
            info = os.statvfs(next(folder for folder in (path, *path.absolute().parents) if folder.exists()))
            return info.f_files > 0 == info.f_favail and info.f_bavail > 0
    return False
