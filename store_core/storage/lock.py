"""Take the store's lock: byte 0 of ``lock``, the byte that a broker locks (behaviour, section 1.2)."""

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
_PATIENCE_SECONDS: Final = 5.0  # for another rmqctl that is just making the file and taking the lock
_PAUSE_SECONDS: Final = 0.002


class StoreLock:
    """A lock that keeps brokers and other rmqctl processes from a store while it is held; ``with StoreLock(root):``.

    A POSIX record lock, as Java takes. It vanishes when the process closes any descriptor of the file, so exactly one is
    kept and nothing in the process may open ``lock`` meanwhile. Raises StoreInUseError at once if another process has it,
    FailedError if the file cannot be opened for writing.
    """

    def __init__(self, root: Path | str, *, writer: Writer | None = None) -> None:
        self._writer = writer or Writer(root)
        self._path = self._writer.path(LOCK)
        self._fd: int | None = None
        self._inode = (0, 0)
        self.created = False  # True if the store had no lock file and rmqctl made it

    @property
    def held(self) -> bool:
        return self._fd is not None

    def acquire(self) -> Self:
        """Take the lock; make the file if the store has none."""
        try:
            with self._excluding_others():
                while not self._try():
                    pass  # the file was replaced between opening and locking it
        except OSError as error:
            raise failed(error, "cannot lock the store") from error
        return self

    def release(self) -> None:
        """Release the lock."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            held_inodes.discard(self._inode)
            os.close(fd)

    def remove_file(self) -> None:
        """Remove the file while the lock is held, for a store that had none. Raises OSError."""
        with self._excluding_others(), self._writer.keeping_folder_mtime(""):
            self._writer.unlink(LOCK)
        self._writer.sync_folder("")
        self.created = False

    def __enter__(self) -> Self:
        return self if self.held else self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    @contextmanager
    def _excluding_others(self) -> Iterator[None]:
        """Keep other rmqctl processes from making or locking the file, so that the process that made it locks it first.

        Otherwise a second process could lock the new file, take it for the store's own, and not remove it. The kernel holds
        this lock on the root folder, which no broker locks, and drops it with the process. On file systems without such
        locks there is none.
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
        """Return True once locked, False if the file no longer has that name."""
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
            self.created = True  # a process that started meanwhile made it: the store had none
        except OSError:
            with suppress(OSError):  # no half-made file stays
                self._writer.unlink(LOCK)
            raise
        finally:
            self._writer.ops.forget(self._path)


def _flocked(folder: int) -> bool:
    """Lock a folder; return False if another process has it locked. True also where the file system has no such locks."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
