"""Publish a folder of result files whole or not at all: parts are written aside, then renamed, the manifest last.

While a folder is unfinished it holds ``_unfinished/``, which readers of Parquet folders skip: the parts so far, a note
about each finished piece of work, and a description of the work. A process that starts the same work again finds the notes.
A manifest exists only for complete data, and is replaced in one step.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from store_core.errors import NotEmptyError, StoreInUseError, UsageError
from store_core.storage.digest import crc32c
from store_core.storage.failure import failed
from store_core.storage.folder_lock import lock_at, unlock_file
from store_core.storage.syscalls import FileOps
from store_core.storage.writer import save_file

MANIFEST: Final = "manifest.json"
UNFINISHED: Final = "_unfinished"
_MARK: Final = "lock"
_MARK_TEXT: Final = b"An rmqctl export that is not finished. Run it again, or remove this folder.\n"
_BEGUN: Final = "begun.json"
_REMOVABLE: Final = "files.txt"
_NOTE: Final = ".note"
_NEW: Final = ".new"
_FILE_MODE: Final = 0o644
_FOLDER_MODE: Final = 0o755
_CHUNK_SIZE_BYTES: Final = 4 << 20
# The advice concerns the folder for results, not a store, so it is not about the store's owner.
_TO_DO: Final = {
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "name a folder that may be written to"),
    errno.ENOENT: "there is no such folder, and none can be made there: name another one",
}


class ResultFolder:
    """A folder for results: ``with ResultFolder(path) as folder``, parts go to ``folder.staging``, then ``publish``.

    Leaving without ``publish`` keeps the noted parts for the next process and removes the rest; all if nothing is noted.
    ``tables`` are the folders below the path that belong to the result: nothing else there is ever touched. Entering raises
    NotEmptyError or UsageError if the path holds something else, StoreInUseError if another process is writing the same
    folder, FailedError if the system refuses.
    """

    def __init__(self, path: Path, tables: Sequence[str]) -> None:
        self.path = path
        self.staging = path / UNFINISHED
        self.noted: dict[str, frozenset[str]] = {}  # by note: names of its parts in ``staging``
        self._tables = tuple(tables)
        self._ops = FileOps()
        self._lock: int | None = None
        self._made: Path | None = None  # the topmost folder that did not exist before
        self._published = False
        self._has_begun = self._keeps_begun = False

    def __enter__(self) -> ResultFolder:
        entries = self._entries()
        if entries and MANIFEST not in entries and UNFINISHED not in entries:
            raise NotEmptyError("the folder is not empty", path=str(self.path), to_do="name a new or an empty folder")
        try:
            with result_problem("making the folder for results", self.path):
                self._made = _topmost_missing(self.path)
                self._make_staging()
                self._take_lock()
        except BaseException:
            if self._lock is not None:
                self.__exit__()
            else:
                remove_empty(self.staging, *self._made_folders())
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            with suppress(OSError):
                if self.noted and not self._published:
                    self.keep(self.noted)
                elif self._published or self.begun() is None or (self._has_begun and not self._keeps_begun):
                    self._clear()
        finally:
            self._ops.close()
            if self._lock is not None:
                unlock_file(self._lock)
                self._lock = None

    # Reading

    def manifest(self) -> bytes | None:
        """Return the current manifest, None if there is none."""
        return self._read(self.path / MANIFEST)

    def begun(self) -> bytes | None:
        """Return the description that ``begin`` saved for work that is not finished, None if there is none."""
        return self._read(self.staging / _BEGUN)

    def notes(self) -> dict[str, bytes]:
        """Return the notes by name, of this process or an earlier one."""
        with result_problem("looking at the folder for results"):
            names = sorted(name for name in os.listdir(self.staging) if name.endswith(_NOTE))
        found = {name.removesuffix(_NOTE): self._read(self.staging / name) for name in names}
        return {name: data for name, data in found.items() if data is not None}

    def holds(self, staged: str, final: str, size_bytes: int, checksum: int) -> bool:
        """Return True if a part with these bytes is in ``staging`` or has been moved to its final name."""
        for path in (self.staging / staged, self.path / final):
            with suppress(OSError):
                if path.stat().st_size == size_bytes:
                    return checksum_of(path) == checksum
        return False

    # Working

    def begin(self, data: bytes, *, keep: bool = False) -> None:
        """Save a description of the work for the next process; ``keep``: also if no work is noted.

        A process that does not call this leaves an earlier description.
        """
        if self.begun() != data:
            with result_problem("making the folder for results", self.path):
                self._save(self.staging / _BEGUN, data)
        self._has_begun, self._keeps_begun = True, keep

    def note(self, name: str, data: bytes, parts: Iterable[str]) -> None:
        """Note a piece of work whose parts are in ``staging``; durable when this returns."""
        with result_problem("noting what is done"):
            self._ops.sync_folder(self.staging)  # the parts' own names
            self._save(self.staging / (name + _NOTE), data)
        self.noted[name] = frozenset(parts)

    def keep(self, notes: dict[str, frozenset[str]]) -> None:
        """Remove all but these notes and their parts from ``staging``."""
        kept = {
            _MARK,
            _BEGUN,
            _REMOVABLE,
            *(name + _NOTE for name in notes),
            *(part for parts in notes.values() for part in parts),
        }
        with result_problem("clearing what is not finished"):
            for name in sorted(os.listdir(self.staging)):
                if name not in kept:
                    self._ops.unlink(self.staging / name)
        self.noted = notes

    def publish(
        self,
        parts: Iterable[tuple[str, str]],
        manifest: bytes,
        standing: Iterable[str] = (),
        replaced: Iterable[str] = (),
    ) -> None:
        """Move parts, each (name in ``staging``, name below the folder), to their final names, then write the manifest.

        ``standing`` names the files of an earlier result that stay. If it is empty, that result is removed, its manifest first,
        then its files, which ``replaced`` names. After a kill anywhere in between, the same call completes the work: parts
        moved already stay where they are. Files that no call named are never touched.
        """
        moves, standing = list(parts), set(standing)
        with result_problem("publishing results"):
            self._note_removable({*replaced, *(final for _, final in moves)})
            if not standing and (self.path / MANIFEST).exists():
                self._ops.unlink(self.path / MANIFEST)
                self._ops.sync_folder(self.path)
            self._clear_results(standing | {final for _, final in moves})
            folders = {self.path}
            for staged, final in moves:
                target = self.path / final
                self._make_folders(target.parent, folders)
                if (self.staging / staged).exists():
                    self._ops.rename(self.staging / staged, target)
            for folder in sorted(folders):
                self._ops.sync_folder(folder)
            self._save(self.path / MANIFEST, manifest)
        self._published = True

    def finish(self) -> None:
        """Keep the result as it is; the remains of the work are removed on exit."""
        self._published = True

    # Helpers

    def _entries(self) -> set[str]:
        try:
            return set(os.listdir(self.path))
        except FileNotFoundError:
            return set()
        except NotADirectoryError as error:
            raise UsageError("a file is there", path=str(self.path), to_do="name a folder") from error
        except OSError as error:
            raise failed(error, "looking at the folder for results") from error

    def _read(self, path: Path) -> bytes | None:
        with result_problem("looking at the folder for results"):
            try:
                return path.read_bytes()
            except FileNotFoundError:
                return None

    def _save(self, path: Path, data: bytes) -> None:
        """Write a small file that is whole or, after a crash, as before."""
        new = self.staging / (path.name + _NEW)
        with suppress(FileNotFoundError):
            self._ops.unlink(new)
        self._ops.create(new, _FILE_MODE)
        self._ops.write(new, 0, data)
        self._ops.sync_file(new)
        self._ops.rename(new, path)
        self._ops.sync_folder(path.parent)

    def _make_folders(self, folder: Path, made: set[Path]) -> None:
        """Make a folder below the result's and its parents; ``made`` collects the folders to be synced."""
        if folder not in made:
            self._make_folders(folder.parent, made)
            made.add(folder)
            if not folder.exists():
                self._ops.mkdir(folder, _FOLDER_MODE)

    def _make_staging(self) -> None:
        missing = [folder for folder in (self.staging, *self.staging.parents) if not folder.exists()]
        for folder in reversed(missing):
            with suppress(FileExistsError):
                self._ops.mkdir(folder, _FOLDER_MODE)
            self._ops.sync_folder(folder.parent)

    def _take_lock(self) -> None:
        self._lock = lock_at(self.staging / _MARK, self._make_staging)
        if self._lock is None:
            raise StoreInUseError(
                "another export is writing to this folder",
                path=str(self.path),
                to_do="wait for it, or name another folder",
            )
        if os.fstat(self._lock).st_size == 0:
            os.write(self._lock, _MARK_TEXT)

    def _clear(self) -> None:
        """Remove all but a finished result; without a manifest, also the parts that a publication has moved."""
        if not (self.path / MANIFEST).exists():
            self._clear_results(set())
        last = (_BEGUN, _MARK)  # while the first of them exists, a rerun knows that the result is its own
        for name in sorted(os.listdir(self.staging), key=lambda name: (name in last, name)):
            self._ops.unlink(self.staging / name)
        self._ops.rmdir(self.staging)
        for folder in self._made_folders():  # rmdir raises at the first folder that is not empty
            self._ops.rmdir(folder)

    def _made_folders(self) -> list[Path]:
        """Return the folder and its parents that did not exist before, the innermost first."""
        if self._made is None:
            return []
        found = [self.path, *self.path.parents]
        return found[: found.index(self._made) + 1]

    def _clear_results(self, standing: set[str]) -> None:
        """Remove the files of publications from the result's folders that no longer belong to the result."""
        gone = self._removable() - standing
        for table in self._tables if gone else ():
            for folder, _, names in os.walk(self.path / table, topdown=False):
                of_it = [name for name in sorted(names) if self._name_of(Path(folder) / name) in gone]
                for name in of_it:
                    self._ops.unlink(Path(folder) / name)
                if not os.listdir(folder) and any(name.startswith(self._name_of(Path(folder)) + "/") for name in gone):
                    self._ops.rmdir(Path(folder))

    def _name_of(self, path: Path) -> str:
        return path.relative_to(self.path).as_posix()

    def _removable(self) -> set[str]:
        """Return the names of files that this result, or an earlier one, may remove."""
        noted = self._read(self.staging / _REMOVABLE)
        return set(noted.decode(errors="surrogateescape").split("\n")) - {""} if noted else set()

    def _note_removable(self, names: set[str]) -> None:
        """Save the names of the files of a publication, for a killed one leaves no manifest that names them."""
        known = self._removable()
        if not names <= known:
            text = "".join(f"{name}\n" for name in sorted(known | names))
            self._save(self.staging / _REMOVABLE, text.encode(errors="surrogateescape"))


def remove_part(path: Path) -> None:
    """Remove a part that is no longer needed; errors are ignored."""
    with suppress(OSError):
        path.unlink()


def remove_empty(*folders: Path) -> None:
    """Remove those folders that are empty."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def save_program(path: Path, text: str) -> None:
    """Write a small program for the user's own use, with its folders. Raises FailedError."""
    with result_problem("writing a helper program"):
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(path, text.encode())
        os.chmod(path, 0o755)


@contextmanager
def result_problem(doing: str, path: Path | None = None) -> Iterator[None]:
    """Turn an OSError into a FailedError about the folder for results; ``path`` is used if the error names none."""
    try:
        yield
    except OSError as error:
        failure = failed(error, doing)
        if path is not None and failure.path is None:
            failure.where = failure.path = str(path)
        failure.to_do = _TO_DO.get(error.errno or 0, failure.to_do)
        raise failure from error


def _topmost_missing(path: Path) -> Path | None:
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    return missing[-1] if missing else None


def checksum_of(path: Path) -> int:
    found = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_SIZE_BYTES):
            found = crc32c(chunk, found)
    return found
