"""Read-only files: opened without touching access times, kept in a small cache, read by position."""

from __future__ import annotations

import errno
import os
import stat
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from store_core.errors import UnreadableError
from store_core.storage.remote_path import RemotePath

if TYPE_CHECKING:
    from store_core.storage.object_store import RemoteFile

MORE_FILES = "raise the limit of open files (ulimit -n) and run the command again"
DISK_FAILS = "the disk fails: copy the store with ddrescue to a good one first, and work on the copy"
NO_FILE = "a folder stands where a file belongs: move it out of the store, and run the command again"
_NO_PIPE = "move it away, or mount the disk that it is a link to, and run the command again"
_MOST_NEAR = 256
_NOATIME = getattr(os, "O_NOATIME", 0)


def open_read_only(path: Path, *, follow: bool = True) -> int:
    """A descriptor for reading a regular file; access times stay untouched where the system allows it.

    With ``follow`` False a link is refused (ELOOP).
    A remote file is fetched into an unnamed one first. Raises OSError, also for a folder, a pipe or a device: none of
    them may keep a reader waiting.
    """
    if isinstance(path, RemotePath):
        from store_core.storage.object_store import fetch

        return fetch(path)
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    try:
        fd = os.open(path, flags | _NOATIME)
    except PermissionError:
        fd = os.open(path, flags)
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise OSError(errno.EINVAL, "a pipe or a device, no file", str(path))
    return fd


def read_whole(path: Path) -> bytes:
    """All bytes of a regular file. Raises OSError, as ``open_read_only``."""
    with open(open_read_only(path), "rb") as file:
        return file.read()


class LocalFile:
    """One open file, read by position. Safe for several threads. Raises OSError where it cannot be opened."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = open_read_only(path)

    def read_into(self, at: int, buffer: memoryview) -> int:
        """Fill a buffer from a position; gives the number of bytes read, fewer only at the end of the file.

        Raises FailedError where it cannot be read.
        """
        return _fill(self._path, self._descriptor, at, buffer)

    def close(self) -> None:
        os.close(self._descriptor)


def open_file(path: Path) -> LocalFile | RemoteFile:
    """A file by itself, for a thread that reads ahead. Raises OSError, FailedError."""
    if isinstance(path, RemotePath):
        from store_core.storage.object_store import RemoteFile

        return RemoteFile(path)
    return LocalFile(path)


def file_cache(folders: Iterable[Path]) -> FileCache:
    """What keeps the files below some folders open: a cache for descriptors, or one that object stores answer too."""
    if any(isinstance(folder, RemotePath) for folder in folders):
        from store_core.storage.object_store import RemoteCache

        return RemoteCache()
    return FileCache()


def _fill(path: Path, descriptor: int, at: int, buffer: memoryview) -> int:
    done = 0
    try:
        while done < len(buffer):
            count = os.preadv(descriptor, [buffer[done:]], at + done)
            if count == 0:
                break
            done += count
    except OSError as error:
        raise unreadable(path, error, at + done, len(buffer) - done) from error
    return done


class FileCache:
    """Open descriptors, least recently used ones closed first. Not for use by several threads at once."""

    def __init__(self, capacity: int = 64) -> None:
        self._capacity = capacity
        self._open: OrderedDict[Path, int] = OrderedDict()
        # The same by the path's id (and the path, lest another one gets the id): a path's hash takes as long as a read.
        self._near: dict[int, tuple[int, Path]] = {}

    def descriptor(self, path: Path) -> int:
        near = self._near.get(id(path))
        if near is not None:
            return near[0]
        fd = self._open.get(path)
        if fd is None:
            if len(self._open) >= self._capacity:
                os.close(self._open.popitem(last=False)[1])
                self._near.clear()
            fd = self._open[path] = open_read_only(path)
        else:
            self._open.move_to_end(path)
        if len(self._near) >= _MOST_NEAR:
            self._near.clear()
        self._near[id(path)] = fd, path
        return fd

    def read(self, path: Path, at: int, size_bytes: int) -> bytes:
        """Bytes at a position; fewer at the end of the file, none if the file has vanished.

        Raises FailedError where the file is there and cannot be read.
        """
        near = self._near.get(id(path))
        try:
            descriptor = self.descriptor(path) if near is None else near[0]
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise unreadable(path, error, at) from error
        try:
            return os.pread(descriptor, size_bytes, at)
        except OSError as error:
            with suppress(OSError):  # a disk that fails may not tell that either
                size_bytes = min(size_bytes, max(os.fstat(descriptor).st_size - at, 0))
            raise unreadable(path, error, at, size_bytes) from error

    def read_into(self, path: Path, at: int, buffer: memoryview) -> int:
        """Fill a buffer from a position; gives the number of bytes read, fewer only at the end of the file."""
        try:
            descriptor = self.descriptor(path)
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise unreadable(path, error, at) from error
        return _fill(path, descriptor, at, buffer)

    def next_data(self, path: Path, at: int) -> int | None:
        """First position >= ``at`` that is not in a hole of a sparse file; None if only holes follow."""
        try:
            return os.lseek(self.descriptor(path), at, os.SEEK_DATA)
        except OSError as error:
            return None if error.errno == errno.ENXIO else at

    def is_plain(self, path: Path) -> bool:
        """Whether reads give what the local file holds; not of views, which say for themselves."""
        return type(self) is FileCache

    def apart(self) -> FileCache:
        """One that shows the same bytes and shares no descriptor."""
        return FileCache(self._capacity)

    def close(self) -> None:
        """Close all; a later read opens anew."""
        self._near.clear()
        while self._open:
            os.close(self._open.popitem()[1])

    def __del__(self) -> None:
        if hasattr(self, "_near"):  # else a signal came amid the constructor
            self.close()  # views of a log (overlays, logs of several folders) have caches that nobody else knows


def reading_advice(error: OSError) -> str:
    """What to do where a file cannot be read."""
    advice = {
        errno.EIO: DISK_FAILS,
        errno.EISDIR: NO_FILE,
        errno.EINVAL: _NO_PIPE,
        errno.EMFILE: MORE_FILES,
        errno.ENFILE: MORE_FILES,
    }
    return advice.get(error.errno or 0, "check permissions and the disk")


def unreadable(path: Path, error: OSError, at: int | None = None, size_bytes: int | None = None) -> UnreadableError:
    """The error for a file that is there and cannot be read, there where the range is known."""
    reason = error.strerror or type(error).__name__
    what = "cannot read" + (f" {size_bytes} bytes at {at} of the file" if size_bytes and at is not None else "")
    found = UnreadableError(f"{what}: {reason}", path=str(path), to_do=reading_advice(error))
    found.number, found.at = error.errno or 0, at or 0
    return found
