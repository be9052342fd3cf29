"""Open files read-only without touching access times, keep them in a small cache, read them by position."""

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
_MOST_BY_ID = 256
_NOATIME = getattr(os, "O_NOATIME", 0)


def open_read_only(path: Path, *, follow: bool = True) -> int:
    """Open a regular file for reading and return its descriptor; the access time stays untouched where the kernel allows it.

    With ``follow`` False a link is refused (ELOOP). A remote file is first fetched into an unnamed local one. Raises OSError,
    also for a folder, a pipe or a device: the reader must not block on them.
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
    """Return all bytes of a regular file. Raises OSError, as ``open_read_only``."""
    with open(open_read_only(path), "rb") as file:
        return file.read()


class LocalFile:
    """An open file, read by position. Safe for several threads. Raises OSError if it cannot be opened."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = open_read_only(path)

    def read_into(self, at: int, buffer: memoryview) -> int:
        """Fill a buffer from a position; return the number of bytes read, fewer only at the end of the file.

        Raises FailedError if the file cannot be read.
        """
        return _fill(self._path, self._descriptor, at, buffer)

    def close(self) -> None:
        os.close(self._descriptor)


def open_file(path: Path) -> LocalFile | RemoteFile:
    """Open one file outside any cache, for a thread that reads ahead. Raises OSError, FailedError."""
    if isinstance(path, RemotePath):
        from store_core.storage.object_store import RemoteFile

        return RemoteFile(path)
    return LocalFile(path)


def file_cache(folders: Iterable[Path]) -> FileCache:
    """Return a cache for the files below some folders; one that also reads object stores if a folder is remote."""
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
    """A cache of open descriptors that closes the least recently used first. Not safe for several threads at once."""

    def __init__(self, capacity: int = 64) -> None:
        self._capacity = capacity
        self._open: OrderedDict[Path, int] = OrderedDict()
        # The same by the path's id, for a path's hash takes as long as a read; the path is kept so that its id stays its own.
        self._by_id: dict[int, tuple[int, Path]] = {}

    def descriptor(self, path: Path) -> int:
        cached = self._by_id.get(id(path))
        if cached is not None:
            return cached[0]
        fd = self._open.get(path)
        if fd is None:
            if len(self._open) >= self._capacity:
                os.close(self._open.popitem(last=False)[1])
                self._by_id.clear()
            fd = self._open[path] = open_read_only(path)
        else:
            self._open.move_to_end(path)
        if len(self._by_id) >= _MOST_BY_ID:
            self._by_id.clear()
        self._by_id[id(path)] = fd, path
        return fd

    def read(self, path: Path, at: int, size_bytes: int) -> bytes:
        """Return the bytes at a position; fewer at the end of the file, none if the file has vanished.

        Raises FailedError if the file exists and cannot be read.
        """
        cached = self._by_id.get(id(path))
        try:
            descriptor = self.descriptor(path) if cached is None else cached[0]
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise unreadable(path, error, at) from error
        try:
            return os.pread(descriptor, size_bytes, at)
        except OSError as error:
            with suppress(OSError):  # a failing disk may not report the length either
                size_bytes = min(size_bytes, max(os.fstat(descriptor).st_size - at, 0))
            raise unreadable(path, error, at, size_bytes) from error

    def read_into(self, path: Path, at: int, buffer: memoryview) -> int:
        """Fill a buffer from a position; return the number of bytes read, fewer only at the end of the file."""
        try:
            descriptor = self.descriptor(path)
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise unreadable(path, error, at) from error
        return _fill(path, descriptor, at, buffer)

    def next_data(self, path: Path, at: int) -> int | None:
        """Return the first position >= ``at`` that is in no hole of a sparse file; None if only holes follow."""
        try:
            return os.lseek(self.descriptor(path), at, os.SEEK_DATA)
        except OSError as error:
            return None if error.errno == errno.ENXIO else at

    def is_plain(self, path: Path) -> bool:
        """Return True if reads return what the local file holds. Subclasses answer for themselves."""
        return type(self) is FileCache

    def apart(self) -> FileCache:
        """Return a cache that shows the same bytes with file descriptors of its own."""
        return FileCache(self._capacity)

    def close(self) -> None:
        """Close all descriptors; a later read opens its file again."""
        self._by_id.clear()
        while self._open:
            os.close(self._open.popitem()[1])

    def __del__(self) -> None:
        if hasattr(self, "_by_id"):  # else a signal interrupted the constructor
            self.close()  # views of a log (overlays, logs of several folders) have caches that no other object closes


def reading_advice(error: OSError) -> str:
    """Return what to do about a file that cannot be read."""
    advice = {
        errno.EIO: DISK_FAILS,
        errno.EISDIR: NO_FILE,
        errno.EINVAL: _NO_PIPE,
        errno.EMFILE: MORE_FILES,
        errno.ENFILE: MORE_FILES,
    }
    return advice.get(error.errno or 0, "check permissions and the disk")


def unreadable(path: Path, error: OSError, at: int | None = None, size_bytes: int | None = None) -> UnreadableError:
    """Return the error for a file that exists and cannot be read; it names the range if that is known."""
    reason = error.strerror or type(error).__name__
    what = "cannot read" + (f" {size_bytes} bytes at {at} of the file" if size_bytes and at is not None else "")
    found = UnreadableError(f"{what}: {reason}", path=str(path), to_do=reading_advice(error))
    found.number, found.at = error.errno or 0, at or 0
    return found
