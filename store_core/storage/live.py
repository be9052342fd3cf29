"""Detect a broker at work on a store, by its lock and the files it holds open (behaviour, section 1.2)."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from store_core.errors import StoreInUseError
from store_core.layout.paths import LOCK
from store_core.storage.files import open_read_only
from store_core.storage.remote_path import RemotePath

# struct flock of Linux: type, whence, start, length, pid; padded to the size of its longest member.
_FLOCK: Final = struct.Struct("@hhlli0l")
_LOCK_START: Final = 0
_LOCK_LENGTH: Final = 1
_PROC: Final = Path("/proc")

# The inodes of lock files that this process holds: opening and closing such a file would release the lock.
held_inodes: Final[set[tuple[int, int]]] = set()


@dataclass(frozen=True, slots=True)
class Process:
    """A process by its number and command line; the number is 0 if the kernel does not report it."""

    pid: int
    command: str

    def __str__(self) -> str:
        return f"process {self.pid}, {self.command}" if self.pid else "an unknown process"


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A file of the store that another process holds open or mapped."""

    pid: int
    command: str
    path: str
    writable: bool


@dataclass(frozen=True, slots=True)
class LiveState:
    """The lock holder and the open files of other processes at work on a store."""

    lock_holder: Process | None
    open_files: tuple[OpenFile, ...]

    @property
    def live(self) -> bool:
        """True if another process holds the lock or has a file open for writing. Readers (a backup, say) do not count."""
        return self.lock_holder is not None or any(file.writable for file in self.open_files)


def is_live(root: Path | str, writable_roots: Sequence[Path | str] = ()) -> LiveState:
    """Look for a broker or another writer on a store, without a lock or a write. Object stores have none."""
    if isinstance(root, RemotePath):
        return LiveState(None, ())
    return LiveState(lock_holder(Path(root) / LOCK), tuple(processes_with_files_open(root, writable_roots)))


def is_locked(root: Path | str) -> bool:
    """Return True if another process has the store's lock, as a broker that takes messages does. Fast, unlike ``is_live``."""
    return not isinstance(root, RemotePath) and lock_holder(Path(root) / LOCK) is not None


def assert_not_live(root: Path | str, writable_roots: Sequence[Path | str] = ()) -> None:
    """Raise StoreInUseError if another process could be writing to files of the store.

    A broker takes the lock only after its recovery; until then only its open files show it. An open lock file does not
    count: a process that fails to lock it must not stop the one that holds the lock.
    """
    for file in processes_with_files_open(root, writable_roots):
        if file.writable and os.path.basename(file.path) != LOCK:
            raise StoreInUseError(
                f"files of the store are open for writing in {Process(file.pid, file.command)}",
                path=file.path,
                to_do="stop it and run the command again",
            )


def lock_holder(path: Path) -> Process | None:
    """Return the other process that holds byte 0 of a lock file, None if there is none. Read-only."""
    with suppress(OSError):
        info = os.stat(path)
        if (info.st_dev, info.st_ino) in held_inodes:
            return None
        fd = open_read_only(path)
        try:
            return holder_of_descriptor(fd)
        finally:
            os.close(fd)
    return None


def holder_of_descriptor(fd: int) -> Process | None:
    """Return the other process that holds byte 0 of an open lock file, None if there is none."""
    request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _LOCK_START, _LOCK_LENGTH, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, request))
    if kind == fcntl.F_UNLCK:
        return None
    return Process(max(pid, 0), command_line(pid))


def command_line(pid: int) -> str:
    """Return the command line of a process, shortened; empty if it cannot be read."""
    with suppress(OSError):
        words = (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        return words.strip()[:200]
    return ""


def processes_with_files_open(root: Path | str, writable_roots: Sequence[Path | str] = ()) -> list[OpenFile]:
    """Return the files of a store that other processes have open or mapped, each once for each process.

    Found by path, and by inode if a process sees the store under another path (in a container). Processes that the caller
    may not inspect are skipped.
    """
    places = _Inodes([root, *writable_roots])
    found: list[OpenFile] = []
    with suppress(OSError):
        for name in os.listdir(_PROC):
            if name.isdecimal() and int(name) != os.getpid():
                found += _open_in(int(name), places)
    return found


class _Inodes:
    """The folders of a store, and the inodes of everything below them, listed on first use."""

    def __init__(self, roots: Iterable[Path | str]) -> None:
        self._roots = [os.path.realpath(root) for root in roots]
        self._inodes: frozenset[tuple[int, int]] | None = None
        self._mapped: dict[tuple[str, str, str], bool] = {}  # most processes map the same libraries, part by part

    def has_path(self, path: str) -> bool:
        return any(path.startswith(root + "/") for root in self._roots)

    def has_inode(self, device: int, inode: int) -> bool:
        if self._inodes is None:
            self._inodes = frozenset(_inodes_below(self._roots))
        return (device, inode) in self._inodes

    def has_mapped(self, device: str, inode: str, path: str) -> bool:
        """Return True if a file is in the store, given as /proc/PID/maps names it: device and inode as text."""
        mapping = (device, inode, path)
        found = self._mapped.get(mapping)
        if found is None:
            major, minor = (int(part, 16) for part in device.split(":"))
            found = self.has_path(path) or self.has_inode(os.makedev(major, minor), int(inode))
            self._mapped[mapping] = found
        return found


def _inodes_below(roots: Iterable[str]) -> Iterator[tuple[int, int]]:
    for root in roots:
        for folder, _, names in os.walk(root):
            for name in names:
                with suppress(OSError):
                    info = os.stat(os.path.join(folder, name), follow_symlinks=False)
                    yield info.st_dev, info.st_ino


def _open_in(pid: int, places: _Inodes) -> list[OpenFile]:
    writable: dict[str, bool] = {}
    for path, can_write in [*_descriptors(pid, places), *_mappings(pid, places)]:
        writable[path] = writable.get(path, False) or can_write
    command = command_line(pid) if writable else ""
    return [OpenFile(pid, command, path, can_write) for path, can_write in sorted(writable.items())]


def _descriptors(pid: int, places: _Inodes) -> Iterator[tuple[str, bool]]:
    folder = f"{_PROC}/{pid}/fd"
    with suppress(OSError):
        for name in os.listdir(folder):
            with suppress(OSError):
                path = os.readlink(f"{folder}/{name}")
                if path.startswith("/") and (places.has_path(path) or _is_store_file(f"{folder}/{name}", places)):
                    yield path, _opened_for_writing(pid, name)


def _is_store_file(link: str, places: _Inodes) -> bool:
    info = os.stat(link)
    return places.has_inode(info.st_dev, info.st_ino)


def _opened_for_writing(pid: int, fd: str) -> bool:
    for line in (_PROC / str(pid) / "fdinfo" / fd).read_text().splitlines():
        if line.startswith("flags:"):
            return int(line.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY
    return True


def _mappings(pid: int, places: _Inodes) -> Iterator[tuple[str, bool]]:
    """Yield the mapped files and whether they can be written. A broker closes a segment's descriptor and keeps it mapped ``rw-s``."""
    with suppress(OSError), (_PROC / str(pid) / "maps").open(encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            words = line.rstrip("\n").split(maxsplit=5)
            if len(words) == 6 and words[5].startswith("/") and places.has_mapped(words[3], words[4], words[5]):
                yield words[5], "w" in words[1] and words[1].endswith("s")
