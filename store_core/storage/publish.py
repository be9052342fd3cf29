"""A folder of result files that appears whole or not at all: parts are written aside, then renamed in, the manifest last.

While a folder is unfinished it holds ``_unfinished/``, which readers of Parquet folders pass over. The manifest stands
only over complete data: it is the first thing an overwrite removes and the last thing a publication writes.
"""

from __future__ import annotations

import fcntl
import io
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from crc32c import crc32c

from store_core.errors import FailedError, StoreInUseError, UsageError
from store_core.storage.failure import failed
from store_core.storage.writer import save_file

MANIFEST: Final = "manifest.json"
UNFINISHED: Final = "_unfinished"
_MARK: Final = "lock"
_MARK_TEXT: Final = b"An rmqctl export that is not finished. Run it again, or remove this folder.\n"


class PartFile(io.RawIOBase):
    """A new file, written from front to end, that knows its length and CRC-32C; synced when it is closed.

    Raises FailedError where the system refuses, for a full disk too. ``discard`` removes it; what a library still writes
    into it then goes nowhere.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size_bytes = 0
        self.crc32c = 0
        self._dropped = False
        with _told("writing a result file"):
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size_bytes

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        done = len(view) if self._dropped else 0
        with _told("writing a result file"):
            while done < len(view):
                done += os.write(self._fd, view[done:])
        self.crc32c = crc32c(view, self.crc32c)
        self.size_bytes += len(view)
        return len(view)

    def close(self) -> None:
        if not self.closed:
            super().close()
            with _told("writing a result file"):
                try:
                    os.fsync(self._fd)
                finally:
                    os.close(self._fd)

    def drop(self) -> None:
        """From now on nothing is written."""
        self._dropped = True

    def discard(self) -> None:
        self.drop()
        with suppress(FailedError):
            self.close()
        self.path.unlink(missing_ok=True)


class ResultFolder:
    """``with ResultFolder(path) as folder``: parts go to ``folder.staging``, then ``publish``; leaving without it removes them.

    Entering raises UsageError where the path holds something else, or a finished result and ``overwrite`` is not set;
    StoreInUseError where another process is writing the same folder; FailedError where the system refuses.
    """

    def __init__(self, path: Path, *, overwrite: bool = False) -> None:
        self.path = path
        self.staging = path / UNFINISHED
        self._overwrite = overwrite
        self._lock: int | None = None
        self._made: Path | None = None  # the topmost folder that was not there before

    def __enter__(self) -> ResultFolder:
        entries = self._entries()
        if entries and MANIFEST not in entries and UNFINISHED not in entries:
            raise UsageError("the folder is not empty", path=str(self.path), to_do="name a new or an empty folder")
        if MANIFEST in entries and not self._overwrite:
            raise UsageError(
                "a finished export is there", path=str(self.path), to_do="name another folder, or --overwrite"
            )
        with _told("making the folder for results"):
            self._made = _topmost_missing(self.path)
            self.staging.mkdir(parents=True, exist_ok=True)
            self._take_lock()
            self._clear_staging()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            with suppress(OSError):
                if not (self.path / MANIFEST).exists():  # also what a publication that broke off has moved in
                    self._clear_results()
                self._clear_staging()
                (self.staging / _MARK).unlink(missing_ok=True)
                self.staging.rmdir()
                if self._made is not None:  # rmdir stops at the first one that holds something
                    for folder in (self.path, *self.path.parents):
                        folder.rmdir()
                        if folder == self._made:
                            break
        finally:
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def publish(self, parts: Iterable[tuple[str, str]], manifest: bytes) -> None:
        """Move parts in, (name in ``staging``, name below the folder) each, and write the manifest over them.

        What an earlier export left goes. Killed anywhere in between there is no manifest, and the next run starts anew.
        """
        with _told("publishing results"):
            (self.path / MANIFEST).unlink(missing_ok=True)
            _sync_folder(self.path)
            self._clear_results()
            folders = {self.path}
            for staged, final in parts:
                target = self.path / final
                if target.parent not in folders:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    folders.add(target.parent)
                os.rename(self.staging / staged, target)
            for folder in folders:
                _sync_folder(folder)
            save_file(self.path / MANIFEST, manifest)
            _sync_folder(self.path)

    def _entries(self) -> set[str]:
        try:
            return set(os.listdir(self.path))
        except FileNotFoundError:
            return set()
        except NotADirectoryError as error:
            raise UsageError("a file is there", path=str(self.path), to_do="name a folder") from error
        except OSError as error:
            raise failed(error, "looking at the folder for results") from error

    def _take_lock(self) -> None:
        lock = os.open(self.staging / _MARK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            raise StoreInUseError(
                "another export is writing to this folder",
                path=str(self.path),
                to_do="wait for it, or name another folder",
            ) from error
        if os.fstat(lock).st_size == 0:
            os.write(lock, _MARK_TEXT)
        self._lock = lock

    def _clear_staging(self) -> None:
        for name in os.listdir(self.staging):
            if name != _MARK:
                (self.staging / name).unlink()

    def _clear_results(self) -> None:
        for name in os.listdir(self.path):
            if name not in (UNFINISHED, MANIFEST):
                shutil.rmtree(self.path / name) if (self.path / name).is_dir() else (self.path / name).unlink()


def save_program(path: Path, text: str) -> None:
    """Write a small program for the user's own use, with its folders. Raises FailedError."""
    with _told("writing a helper program"):
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(path, text.encode())
        os.chmod(path, 0o755)


@contextmanager
def _told(doing: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise failed(error, doing) from error


def _topmost_missing(path: Path) -> Path | None:
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    return missing[-1] if missing else None


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
