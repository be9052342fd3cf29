"""A layer under the writer that lists every primitive, stops at any of them, and replays them as a crash would leave them."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from store_core.storage.syscalls import Buffer, FileOps


class Killed(BaseException):
    """The process is dead: nothing that it would still do happens."""


@dataclass(frozen=True)
class Primitive:
    """One call of ``FileOps``: paths relative to the base, other arguments, which file it is, and the folders' times after it."""

    name: str
    paths: tuple[str, ...]
    arguments: tuple[Any, ...]
    file: object
    folder_times: dict[str, int] = field(default_factory=dict)


DATA = {"write", "truncate", "set_times", "set_owner"}
NAMES = {"create", "rename", "link", "unlink", "mkdir", "rmdir"}


class RecordingOps(FileOps):
    """Does what ``FileOps`` does (without waiting for a disk) and lists it.

    ``kill_after``: so many primitives happen; then the process is dead; with ``torn`` half of the write that is next happens too.
    ``kill_when(primitive)``: that one still happens, then the process is dead.
    ``together``: the file system can be synced as a whole, as that of a broker's host can.
    ``fault(primitive)``: an error to raise instead of doing it; a write is then done by half.
    """

    def __init__(
        self,
        base: Path,
        *,
        kill_after: int | None = None,
        torn: bool = False,
        kill_when: Callable[[Primitive], bool] = lambda primitive: False,
        fault: Callable[[Primitive], OSError | None] = lambda primitive: None,
        free_bytes: int = 1 << 50,
        together: bool = False,
    ) -> None:
        super().__init__()
        self.base = Path(os.path.realpath(base))
        self.primitives: list[Primitive] = []
        self._kill_after = kill_after
        self._torn = torn
        self._kill_when = kill_when
        self._fault = fault
        self._free_bytes = free_bytes
        self._together = together
        self._files: dict[str, object] = {}
        self._new_file = count()
        self._dead = False
        self._one_at_a_time = threading.RLock()

    def create(self, path: Path, mode: int) -> None:
        self._do("create", (path,), (mode,), lambda: FileOps.create(self, path, mode))

    def write(self, path: Path, offset: int, data: Buffer) -> None:
        data = bytes(data)
        self._do("write", (path,), (offset, data), lambda: FileOps.write(self, path, offset, data))

    def truncate(self, path: Path, size_bytes: int) -> None:
        self._do("truncate", (path,), (size_bytes,), lambda: FileOps.truncate(self, path, size_bytes))

    def allocate(self, path: Path, size_bytes: int) -> None:
        self.truncate(path, size_bytes)

    def rename(self, old: Path, new: Path) -> None:
        self._do("rename", (old, new), (), lambda: FileOps.rename(self, old, new))

    def link(self, old: Path, new: Path) -> None:
        self._do("link", (old, new), (), lambda: FileOps.link(self, old, new))

    def unlink(self, path: Path) -> None:
        self._do("unlink", (path,), (), lambda: FileOps.unlink(self, path))

    def mkdir(self, path: Path, mode: int) -> None:
        self._do("mkdir", (path,), (mode,), lambda: FileOps.mkdir(self, path, mode))

    def rmdir(self, path: Path) -> None:
        self._do("rmdir", (path,), (), lambda: FileOps.rmdir(self, path))

    def set_times(self, path: Path, atime_ns: int, mtime_ns: int) -> None:
        self._do("set_times", (path,), (atime_ns, mtime_ns), lambda: FileOps.set_times(self, path, atime_ns, mtime_ns))

    def set_owner(self, path: Path, mode: int, uid: int, gid: int) -> None:
        self._do("set_owner", (path,), (mode, uid, gid), lambda: FileOps.set_owner(self, path, mode, uid, gid))

    def sync_file(self, path: Path, data_only: bool = False) -> None:
        self._do("sync_file", (path,), (), lambda: None if path.is_file() else path.stat())

    def sync_folder(self, path: Path) -> None:
        self._do("sync_folder", (path,), (), lambda: None if path.is_dir() else path.stat())

    def watch_file_system(self, folder: Path) -> bool:
        return self._together

    def sync_file_system(self, folder: Path) -> None:
        self._do("sync_file_system", (folder,), (), lambda: None if folder.is_dir() else folder.stat())

    def free_bytes(self, path: Path) -> int:
        return self._free_bytes

    def _do(self, name: str, paths: Sequence[Path], arguments: tuple[Any, ...], act: Callable[[], object]) -> None:
        with self._one_at_a_time:
            self._do_now(name, paths, arguments, act)

    def _do_now(self, name: str, paths: Sequence[Path], arguments: tuple[Any, ...], act: Callable[[], object]) -> None:
        if self._dead:
            raise Killed
        names = tuple(os.path.relpath(path, self.base) for path in paths)
        primitive = Primitive(name, names, arguments, self._file(names[0]))
        if len(self.primitives) == self._kill_after:
            self._dead = True
            if self._torn and name == "write":
                FileOps.write(self, paths[0], arguments[0], arguments[1][: len(arguments[1]) // 2])
            raise Killed
        if error := self._fault(primitive):
            if name == "write":
                FileOps.write(self, paths[0], arguments[0], arguments[1][: len(arguments[1]) // 2])
            raise error
        act()
        self._follow(name, names)
        if name in NAMES:
            for path in paths:
                primitive.folder_times[os.path.relpath(path.parent, self.base)] = path.parent.stat().st_mtime_ns
        self.primitives.append(primitive)
        self._dead = self._kill_when(primitive)

    def _file(self, name: str) -> object:
        """What stays the same when a file is renamed or linked."""
        return self._files.setdefault(name, name)

    def _follow(self, name: str, names: tuple[str, ...]) -> None:
        if name in ("create", "mkdir"):
            self._files[names[0]] = next(self._new_file)
        elif name in ("rename", "link"):
            self._files[names[1]] = self._file(names[0])
        if name in ("rename", "unlink", "rmdir"):
            self._files.pop(names[0], None)
            if name != "rename":
                self._files[names[0]] = object()


def unsynced(primitives: Sequence[Primitive]) -> tuple[set[int], set[int]]:
    """Positions of what a power cut right after the last primitive may undo: (bytes and times, names)."""
    data, names = set(), set()
    synced_files: set[object] = set()
    synced_folders: set[str] = set()
    for at in reversed(range(len(primitives))):
        primitive = primitives[at]
        if primitive.name == "sync_file_system":
            break
        if primitive.name == "sync_file":
            synced_files.add(primitive.file)
        elif primitive.name == "sync_folder":
            synced_folders.add(primitive.paths[0])
        elif primitive.name in DATA:
            if primitive.file not in synced_files and primitive.paths[0] not in synced_folders:
                data.add(at)
        elif (os.path.dirname(primitive.paths[-1]) or ".") not in synced_folders:
            names.add(at)
    return data, names


def replay(primitives: Sequence[Primitive], start: Path, onto: Path, skip: Iterable[int] = ()) -> None:
    """Make ``onto`` a copy of ``start`` with the primitives done, but for ``skip`` and what needs those."""
    if onto.exists():
        shutil.rmtree(onto)
    copy_tree(start, onto)
    ops, skipped = FileOps(), set(skip)
    for at, primitive in enumerate(primitives):
        if at not in skipped and primitive.name in DATA | NAMES:
            with suppress(OSError):
                getattr(ops, primitive.name)(*(onto / path for path in primitive.paths), *primitive.arguments)
                for folder, mtime_ns in primitive.folder_times.items():
                    os.utime(onto / folder, ns=(mtime_ns, mtime_ns))
    ops.close()


def copy_tree(start: Path, onto: Path) -> None:
    """A copy with all times."""
    shutil.copytree(start, onto, symlinks=True)
    for folder, _, _ in os.walk(start, topdown=False):
        info = os.stat(folder)
        os.utime(onto / os.path.relpath(folder, start), ns=(info.st_atime_ns, info.st_mtime_ns))


def tree(root: Path) -> dict[str, tuple[object, ...]]:
    """Everything below a store root but ``.rmqctl``: mode, modification time and bytes; the root itself is ``.``."""
    found: dict[str, tuple[object, ...]] = {}
    for folder, folders, files in os.walk(root):
        if ".rmqctl" in folders:
            folders.remove(".rmqctl")
        for path in [Path(folder), *(Path(folder) / name for name in files)]:
            info = path.lstat()
            data = path.read_bytes() if path.is_file() else None
            found[os.path.relpath(path, root)] = (info.st_mode, info.st_mtime_ns, data)
    return found
