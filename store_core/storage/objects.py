"""Write, read and remove named files below an address, on a disk or in an object store; none is renamed.

A file appears whole or not at all; only small files are ever overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from store_core.errors import FailedError, NotAStoreError, StoreError
from store_core.storage.digest import crc32c
from store_core.storage.folder_lock import lock_at
from store_core.storage.part_file import PartFile, ResultFile
from store_core.storage.publish import checksum_of, result_problem
from store_core.storage.remote_call import asked, call_again
from store_core.storage.remote_errors import pauses_of, told
from store_core.storage.remote_path import RemotePath
from store_core.storage.syscalls import FileOps
from store_core.storage.writer import save_file

Answer = TypeVar("Answer")
_FEW: Final = 64  # up to so many files are asked for singly, for their folder may hold thousands of others


class Objects(Protocol):
    """Named files below an address. Can be pickled. Names have slashes. All methods raise FailedError if the disk or server refuses."""

    def create(self, name: str) -> Any:
        """Make a new file, written from start to end; it appears when it is closed; see ``part_file.PartFile``."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Write a small file; an old one is replaced."""
        ...

    def read(self, name: str) -> bytes | None:
        """Return the bytes of a small file; None if it is missing."""
        ...

    def read_all(self, names: Sequence[str]) -> dict[str, bytes]:
        """Return the bytes of those small files that exist, by name."""
        ...

    def sizes(self, names: Iterable[str]) -> dict[str, int]:
        """Return the lengths in bytes of those files that exist, by name; other files of their folders may be included."""
        ...

    def names(self, folder: str) -> list[str]:
        """Return all names below a folder, sorted."""
        ...

    def holds(self, name: str, size_bytes: int, checksum: int) -> bool:
        """Return True if a file is as it was written. Checks the checksum, or the length where files cannot be torn."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        ...

    def remove_all(self, names: Sequence[str]) -> None:
        """Remove files in no order. If one cannot be removed, others may be gone or not."""
        ...

    def remove_folder(self, name: str) -> None:
        """Remove a folder that has no files; errors are ignored."""
        ...

    def address_of(self, name: str) -> str:
        """Return the full address of a file."""
        ...


@dataclass(frozen=True, slots=True)
class LocalObjects:
    """``Objects`` below a folder of this machine; writes are synced."""

    folder: Path

    def create(self, name: str) -> PartFile:
        with result_problem("writing a result file"):
            self._make(name)
        return PartFile(self.folder / name)

    def write(self, name: str, data: bytes) -> None:
        with result_problem("writing a result file"):
            self._make(name)
            save_file(self.folder / name, data)
            _sync((self.folder / name).parent)

    def read(self, name: str) -> bytes | None:
        with result_problem("looking at the folder for results"), suppress(FileNotFoundError):
            return (self.folder / name).read_bytes()
        return None

    def read_all(self, names: Sequence[str]) -> dict[str, bytes]:
        return {name: data for name in names if (data := self.read(name)) is not None}

    def sizes(self, names: Iterable[str]) -> dict[str, int]:
        found: dict[str, int] = {}
        with result_problem("looking at the folder for results"):
            for name in names:
                with suppress(FileNotFoundError, NotADirectoryError):
                    found[name] = (self.folder / name).stat().st_size
        return found

    def names(self, folder: str) -> list[str]:
        found = (path for path in (self.folder / folder).rglob("*") if path.is_file())
        with result_problem("looking at the folder for results"):
            return sorted(path.relative_to(self.folder).as_posix() for path in found)

    def holds(self, name: str, size_bytes: int, checksum: int) -> bool:
        path = self.folder / name
        with suppress(OSError):
            return path.stat().st_size == size_bytes and checksum_of(path) == checksum
        return False

    def remove(self, name: str) -> None:
        with result_problem("clearing what is not finished"), suppress(FileNotFoundError):
            (self.folder / name).unlink()

    def remove_all(self, names: Sequence[str]) -> None:
        for name in names:
            self.remove(name)

    def remove_folder(self, name: str) -> None:
        with suppress(OSError):
            (self.folder / name).rmdir()

    def address_of(self, name: str) -> str:
        return str(self.folder / name)

    def lock(self, name: str) -> int | None:
        """Lock a file, made if missing; as ``folder_lock.lock_at``."""
        with result_problem("making the folder for results"):
            return lock_at(self.folder / name, lambda: self._make(name))

    def sync(self, folder: str) -> None:
        """Sync a folder and the two files with the last names in it, which another process has written."""
        found = sorted((self.folder / folder).iterdir())
        with result_problem("writing a result file"):
            for path in found[-2:]:
                ops = FileOps()
                if path.is_file():
                    ops.sync_file(path)
                ops.close()
            _sync(self.folder / folder)

    def _make(self, name: str) -> None:
        ops = FileOps()
        missing = [folder for folder in (self.folder / name).parents if not folder.exists()]
        for folder in reversed(missing):
            with suppress(FileExistsError):
                ops.mkdir(folder, 0o755)
            ops.sync_folder(folder.parent)


@dataclass(frozen=True, slots=True)
class RemoteObjects:
    """``Objects`` below an address of an object store, where a file appears once its last byte is stored."""

    folder: RemotePath

    def create(self, name: str) -> RemotePart:
        return RemotePart(self._path(name))

    def write(self, name: str, data: bytes) -> None:
        with RemotePart(self._path(name)) as part:
            part.write(data)

    def read(self, name: str) -> bytes | None:
        path = self._path(name)
        with told(path), suppress(FileNotFoundError):
            return call_again(pauses_of, _read_all, _files(path), _key(path))
        return None

    def read_all(self, names: Sequence[str]) -> dict[str, bytes]:
        found = zip(names, _concurrently(self.read, names), strict=True)
        return {name: data for name, data in found if data is not None}

    def sizes(self, names: Iterable[str]) -> dict[str, int]:
        names = list(names)
        if len(names) <= _FEW:
            found = zip(names, _concurrently(self._size_of, names), strict=True)
            return {name: size for name, size in found if size is not None}
        folders = dict.fromkeys(name.partition("/")[0] for name in names)
        return {name: size for folder in folders for name, size in self._listed(folder).items()}

    def names(self, folder: str) -> list[str]:
        return sorted(self._listed(folder))

    def _listed(self, folder: str) -> dict[str, int]:
        from pyarrow.fs import FileSelector, FileType

        path = self._path(folder)
        with told(path):
            selector = FileSelector(_key(path), recursive=True, allow_not_found=True)
            found = call_again(pauses_of, _files(path).get_file_info, selector)
        start = len(_key(self.folder)) + 1
        return {info.path[start:]: info.size for info in found if info.type == FileType.File}

    def holds(self, name: str, size_bytes: int, checksum: int) -> bool:
        return self._size_of(name) == size_bytes

    def _size_of(self, name: str) -> int | None:
        path = self._path(name)
        with told(path):
            [info] = call_again(pauses_of, _files(path).get_file_info, [_key(path)])
        return info.size if info.is_file else None

    def remove(self, name: str) -> None:
        path = self._path(name)
        with told(path), suppress(FileNotFoundError):
            call_again(pauses_of, _files(path).delete_file, _key(path))

    def remove_all(self, names: Sequence[str]) -> None:
        """Remove the first file before the others: if the server denies that, the others stay."""
        for some in (names[:1], names[1:]):
            list(_concurrently(self.remove, some))

    def remove_folder(self, name: str) -> None:
        """Remove the empty object that clients make for a folder when they remove its last file."""
        path = self._path(name)
        with suppress(StoreError, FileNotFoundError), told(path):
            if not self._listed(name):
                asked(_files(path).delete_dir, _key(path))

    def address_of(self, name: str) -> str:
        return str(self._path(name))

    def _path(self, name: str) -> RemotePath:
        return RemotePath(self.folder, *name.split("/"))


class RemotePart(ResultFile):
    """A result file in an object store, as ``PartFile``. If the process is killed before it is closed, it never appears."""

    def __init__(self, path: RemotePath) -> None:
        super().__init__()
        self._path = path
        self._is_in_use = False
        with told(path), _no_bucket(path):
            self._stream = call_again(pauses_of, _files(path).open_output_stream, _key(path))

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        if not self._dropped:
            with told(self._path), _still_known(self._path):
                self._ask(self._stream.write, view)
        self.crc32c = crc32c(view, self.crc32c)
        self.size_bytes += len(view)
        return len(view)

    def close(self) -> None:
        if not self.closed:
            super().close()
            if not self._is_in_use:
                with told(self._path), _still_known(self._path):
                    self._ask(self._stream.close)

    def _ask(self, call: Callable[..., object], *words: object) -> None:
        """Call a method of the stream. After an interruption the stream is left to the thread that still waits, for two must not use it."""
        self._is_in_use = True
        try:
            asked(call, *words)
            self._is_in_use = False
        except Exception:
            self._is_in_use = False
            raise

    def discard(self) -> None:
        """Close and remove the file: the client would otherwise complete it when the stream is collected."""
        self.drop()
        with suppress(StoreError):
            self.close()
        with suppress(StoreError, FileNotFoundError), told(self._path):
            asked(_files(self._path).delete_file, _key(self._path))


def _read_all(files: Any, key: str) -> bytes:
    with files.open_input_stream(key) as stream:
        data: bytes = stream.read()
        return data


def _concurrently(call: Callable[[str], Answer], names: Sequence[str]) -> Iterator[Answer]:
    """Yield ``call(name)`` for each name, in order. The calls run concurrently, for most of their time is latency.

    When an error is raised, no call is under way any more.
    """
    from store_core.storage.object_store import connections

    answers = [connections().submit(call, name) for name in names]
    try:
        for answer in answers:
            yield answer.result()
    except Exception:
        wait([answer for answer in answers if not answer.cancel()])
        raise


def objects_at(path: Path) -> Objects:
    """Return the ``Objects`` below a path, local or remote."""
    return RemoteObjects(path) if isinstance(path, RemotePath) else LocalObjects(path)


def _files(path: RemotePath) -> Any:
    from store_core.storage.object_store import client_of

    return client_of(path)[0]


def _key(path: RemotePath) -> str:
    from store_core.storage.object_store import client_of

    return client_of(path)[1]


@contextmanager
def _no_bucket(path: RemotePath) -> Iterator[None]:
    """Raise NotAStoreError if a new file cannot be made for lack of its bucket, FailedError if the bucket exists."""
    try:
        yield
    except FileNotFoundError as error:
        if _has_bucket(path):
            what = "the object store does not answer as it should"
            raise FailedError(what, path=str(path), to_do="check the endpoint, and run the command again") from error
        raise NotAStoreError("no such bucket", path=str(path), to_do="make it, or name another one") from error


def _has_bucket(path: RemotePath) -> bool:
    """Return True if the server says that the bucket exists; False also if the caller may not ask."""
    from pyarrow.fs import FileType

    with suppress(Exception):
        [info] = asked(_files(path).get_file_info, [_key(path).partition("/")[0]])
        return bool(info.type != FileType.NotFound)
    return False


@contextmanager
def _still_known(path: RemotePath) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        what = "the object store no longer knows of what is being written"
        raise FailedError(what, path=str(path), to_do="run the command again") from error


def sync_written(path: Path) -> None:
    """Make a file that another process has written durable, with its folder and the one above, which may be new."""
    ops = FileOps()
    ops.sync_file(path)
    ops.close()
    for folder in (path.parent, path.parent.parent):
        ops.sync_folder(folder)


def _sync(folder: Path) -> None:
    FileOps().sync_folder(folder)
