"""Change the file system by primitives of one system call each, the layer under the writer that tests replace."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import threading
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Final

Buffer = bytes | bytearray | memoryview

_OPEN_FLAGS: Final = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # opening a pipe must not block
_OPEN_FILES: Final = 32
_NOT_RESERVED: Final = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
_SYNCED_AS_A_WHOLE: Final = frozenset({"btrfs", "ext2", "ext3", "ext4", "f2fs", "tmpfs", "xfs"})
_SYNCFS_SAYS: Final = (5, 8)  # an older Linux does not report in syncfs(2) that bytes could not be written


class FileOps:
    """The primitives. They take absolute paths and raise OSError. A few written files stay open until renamed, removed or closed.

    Several threads may call them; writes wait for each other, and no write waits for a sync.

    Never use them on the store's ``lock`` file while the lock is held: closing any descriptor of it would release the lock.
    """

    def __init__(self) -> None:
        self._open: OrderedDict[Path, int] = OrderedDict()
        self._lock = threading.Lock()  # for the open files: no other thread may close a descriptor in use
        self._watched: dict[int, int] = {}  # by device: an open folder of the file system

    def create(self, path: Path, mode: int) -> None:
        """Make an empty file that did not exist."""
        fd = os.open(path, _OPEN_FLAGS | os.O_CREAT | os.O_EXCL, mode)
        with self._lock:
            self._remember(path, fd)

    def write(self, path: Path, offset: int, data: Buffer) -> None:
        """Write at an absolute position of an existing file; all of it, or OSError after a part."""
        rest = memoryview(data)
        try:
            with self._lock:
                fd = self._descriptor(path)
                while rest:
                    done = os.pwrite(fd, rest, offset)
                    rest, offset = rest[done:], offset + done
        except OSError as error:
            error.filename = str(path)  # errors on a descriptor name no file
            raise

    def write_directly(self, path: Path, wanted: bool) -> bool:
        """Switch writes past the page cache on or off, and return True if they bypass it from now on.

        The file system may refuse. Memory address, position and length of each direct write must be multiples of a page.
        """
        with self._lock:
            fd = self._descriptor(path)
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        try:
            fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT if wanted else flags & ~os.O_DIRECT)
        except OSError:
            return False
        return wanted

    def truncate(self, path: Path, size_bytes: int) -> None:
        with self._lock:
            os.ftruncate(self._descriptor(path), size_bytes)

    def allocate(self, path: Path, size_bytes: int) -> None:
        """Extend a file by zeros for which the file system has reserved room, if it can reserve any."""
        with self._lock:
            fd = self._descriptor(path)
            try:
                os.posix_fallocate(fd, 0, size_bytes)
            except OSError as error:
                if error.errno not in _NOT_RESERVED:
                    raise
                os.ftruncate(fd, size_bytes)

    def rename(self, old: Path, new: Path) -> None:
        self.forget(old)
        self.forget(new)
        os.rename(old, new)

    def link(self, old: Path, new: Path) -> None:
        os.link(old, new, follow_symlinks=False)

    def unlink(self, path: Path) -> None:
        self.forget(path)
        os.unlink(path)

    def mkdir(self, path: Path, mode: int) -> None:
        os.mkdir(path, mode)

    def rmdir(self, path: Path) -> None:
        os.rmdir(path)

    def set_times(self, path: Path, atime_ns: int, mtime_ns: int) -> None:
        os.utime(path, ns=(atime_ns, mtime_ns), follow_symlinks=False)

    def set_owner(self, path: Path, mode: int, uid: int, gid: int) -> None:
        """Set the mode, and the owner as far as this process may give files away. A link is refused (ELOOP)."""
        fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if stat.S_ISLNK(os.fstat(fd).st_mode):
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
            opened = f"/proc/self/fd/{fd}"  # the open file, even if its name now leads elsewhere
            with suppress(PermissionError):
                os.chown(opened, uid, gid)
            os.chmod(opened, mode)
        finally:
            os.close(fd)

    def sync_file(self, path: Path, data_only: bool = False) -> None:
        with self._lock:
            fd = os.dup(self._descriptor(path))
        try:
            if data_only:
                os.fdatasync(fd)
            else:
                os.fsync(fd)
        finally:
            os.close(fd)

    def watch_file_system(self, folder: Path) -> bool:
        """Prepare ``sync_file_system`` for a folder's file system; it then reports writes that fail from now on.

        Return False if a sync as a whole is not known to make everything durable there, or to report failures.
        """
        device = os.stat(folder).st_dev
        if device not in self._watched:
            if not _syncs_as_a_whole(device):
                return False
            self._watched[device] = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return True

    def sync_file_system(self, folder: Path) -> None:
        """Make all writes of every process to a watched file system durable: bytes, lengths, times, names."""
        import ctypes

        fd = self._watched[os.stat(folder).st_dev]
        if ctypes.CDLL(None, use_errno=True).syncfs(fd):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(folder))

    def sync_folder(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def free_bytes(self, path: Path) -> int:
        """Return how many bytes this process may still write on the file system of an existing path."""
        info = os.statvfs(path)
        return (info.f_bavail if os.geteuid() else info.f_bfree) * info.f_frsize

    def forget(self, path: Path) -> None:
        """Close the descriptor of a path if it is open."""
        with self._lock:
            fd = self._open.pop(path, None)
            if fd is not None:
                os.close(fd)

    def close(self) -> None:
        for opened in (self._open, self._watched):
            while opened:
                os.close(opened.popitem()[1])

    def _descriptor(self, path: Path) -> int:
        fd = self._open.get(path)
        if fd is None:
            fd = os.open(path, _OPEN_FLAGS)
            self._remember(path, fd)
        else:
            self._open.move_to_end(path)
        return fd

    def _remember(self, path: Path, fd: int) -> None:
        if len(self._open) >= _OPEN_FILES:
            os.close(self._open.popitem(last=False)[1])
        self._open[path] = fd


def _syncs_as_a_whole(device: int) -> bool:
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if release is None or tuple(map(int, release.groups())) < _SYNCFS_SAYS:
        return False
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with suppress(OSError), open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            mount, _, what = line.partition(" - ")
            if mount.split()[2] == wanted:
                return what.split()[0] in _SYNCED_AS_A_WHOLE
    return False
