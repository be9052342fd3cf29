"""The store's lock: byte 0 of ``lock``, the byte that a broker locks (behaviour, section 1.2)."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Self

from store_core.errors import StoreInUseError
from store_core.layout.paths import LOCK, LOCK_TEXT
from store_core.storage.failure import failed
from store_core.storage.live import held_inodes, holder_of_descriptor
from store_core.storage.writer import Writer

_REFUSED: Final = (errno.EACCES, errno.EAGAIN)
_TO_DO: Final = "stop it and run the command again"
_PATIENCE_SECONDS: Final = 5.0  # for who makes the file and takes the lock right now
_PAUSE_SECONDS: Final = 0.002


class StoreLock:
    """Keeps brokers and other rmqctl from a store while it is held; ``with StoreLock(root):``.

    A POSIX record lock, for that is what Java takes. It vanishes when the process closes any descriptor of the file,
    so exactly one is kept and nothing in the process may open ``lock`` meanwhile. Raises StoreInUseError at once
    where somebody else has it, FailedError where the file cannot be opened for writing.
    """

    def __init__(self, root: Path | str, *, writer: Writer | None = None) -> None:
        self._writer = writer or Writer(root)
        self._path = self._writer.path(LOCK)
        self._fd: int | None = None
        self._inode = (0, 0)
        self.created = False  # by us, because the store had none

    @property
    def held(self) -> bool:
        return self._fd is not None

    def acquire(self) -> Self:
        """Take the lock, making the file where the store has none."""
        try:
            with self._alone():
                while not self._try():
                    pass  # the file was replaced between opening and locking it
        except OSError as error:
            raise failed(error, "cannot lock the store") from error
        return self

    def release(self) -> None:
        """Give the lock up."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            held_inodes.discard(self._inode)
            os.close(fd)

    def remove_file(self) -> None:
        """Remove the file while the lock is held, for a store that had none. Raises OSError."""
        with self._alone(), self._writer.keeping_folder_mtime(""):
            self._writer.unlink(LOCK)
        self._writer.sync_folder("")
        self.created = False

    def __enter__(self) -> Self:
        return self if self.held else self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No other rmqctl makes the file or takes the lock meanwhile, so that who made the file has the lock first.

        Else one could lock the file that another one had just made, take it for the store's own, and leave it behind.
        Held on the root folder, which no broker locks; goes with the process. Where the file system knows no such locks
        everybody goes on without.
        """
        folder = os.open(self._writer.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            last = time.monotonic() + _PATIENCE_SECONDS
            while not _flocked(folder):
                if time.monotonic() > last:
                    raise StoreInUseError(
                        "another process is about to lock the store", path=str(self._writer.root), to_do=_TO_DO
                    )
                time.sleep(_PAUSE_SECONDS)
            yield
        finally:
            os.close(folder)

    def _try(self) -> bool:
        """True once locked, false where the file is not the one of that name any more."""
        self._make_if_missing()
        try:
            seen = os.stat(self._path, follow_symlinks=False)
            if (seen.st_dev, seen.st_ino) in held_inodes:
                raise StoreInUseError("the store is locked by this process", path=str(self._path))
            fd = os.open(self._path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        if not self._locked(fd):
            os.close(fd)
            return False
        self._fd = fd
        held_inodes.add(self._inode)
        return True

    def _locked(self, fd: int) -> bool:
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            holder = holder_of_descriptor(fd) if error.errno in _REFUSED else None
            os.close(fd)
            if error.errno not in _REFUSED:
                raise
            raise StoreInUseError(
                f"the store is locked by {holder or 'another process'}", path=str(self._path), to_do=_TO_DO
            ) from error
        opened = os.fstat(fd)
        self._inode = (opened.st_dev, opened.st_ino)
        try:
            named = os.stat(self._path)
        except FileNotFoundError:
            return False
        return (named.st_dev, named.st_ino) == self._inode

    def _make_if_missing(self) -> None:
        if self._path.exists():
            return
        try:
            with self._writer.keeping_folder_mtime(""):
                self._writer.create(LOCK, LOCK_TEXT)
            self.created = True
        except FileExistsError:
            self.created = True  # another one that begins has made it: the store had none
        except OSError:
            with suppress(OSError):  # no half-made file stays
                self._writer.unlink(LOCK)
            raise
        finally:
            self._writer.ops.forget(self._path)


def _flocked(folder: int) -> bool:
    """Whether nobody else has the folder locked now; True as well where nobody can lock it."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
