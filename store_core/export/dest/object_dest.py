"""Share the code of destinations whose files are written under their final names.

A file there belongs to a result only if a commit names it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from store_core.errors import FailedError, StoreError, StoreInUseError, UsageError
from store_core.export.dest.foreign_files import not_empty
from store_core.export.dest.parquet import WrittenFile
from store_core.export.dest.parts import RESULT_FOLDERS
from store_core.export.dest.state import Begun, Commit, ExportState
from store_core.export.dest.tables import MESSAGES, State, TableSet, WholeState
from store_core.export.dest.task_destination import FinalPlace, is_made_here
from store_core.storage.folder_lock import unlock_file
from store_core.storage.objects import LocalObjects, objects_at
from store_core.storage.publish import UNFINISHED, remove_empty
from store_core.storage.remote_path import absolute_path, is_remote

_NOTE: Final = ".note"
_BEGUN: Final = f"{UNFINISHED}/begun.json"
_LOCK: Final = f"{UNFINISHED}/lock"


class LooseDestination(ABC):
    """``Destination`` without two methods: ``standing`` returns the state of the last commit, ``commit`` makes a new
    one.

    Subclasses define both. In object stores no lock can be taken; of two exports at once, the second one fails when
    it commits.
    """

    format = "parquet"
    flat = False
    never_empty = False
    untidy = ""
    table_folder = (
        ""  # the folder of a table's own files, below its folder, some of which are written before the commit
    )

    def __init__(
        self, path: Path, *, overwrite: bool = False, incremental: bool = False, tables: TableSet = MESSAGES
    ) -> None:
        self.address = str(path)
        self.path: Path | None = None if is_remote(path) else path
        self.objects = objects_at(absolute_path(path))  # tasks may run in another folder
        self._overwrite, self._incremental, self.tables = overwrite, incremental, tables
        self._last: ExportState | WholeState | None = None
        self._noted: dict[str, Sequence[WrittenFile]] = {}
        self._lock: int | None = None
        self.is_untold = self.is_published = self._cannot_remove = False
        self._is_finished = self._has_begun = self._is_done = self._is_over = False

    @property
    def place(self) -> FinalPlace:
        return FinalPlace(self.objects, self.flat)

    @property
    def last(self) -> ExportState | None:
        return self._last if self._incremental and isinstance(self._last, ExportState) else None

    @property
    def notes_kept(self) -> int:
        return len(self._noted)

    def __enter__(self) -> Self:
        self._take_lock()
        try:
            self._last = self.standing()
            if self._last is not None and self._incremental:
                self.complete()
            elif self._last is not None and not self._overwrite:
                self._is_finished = True
                if not self.objects.read(_BEGUN):
                    raise self.tables.refusal(self.address)
        except BaseException:
            with suppress(StoreError):  # the first error is raised
                self._is_over = not self.objects.names(UNFINISHED)
                self._leave()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(*((StoreError,) if any(error) else ())):  # the first error is raised
            self._leave()

    def gone(self) -> list[str]:
        return []  # a table's own files name the files that belong to it

    def begin(self, plan: str) -> bool:
        data = self.objects.read(_BEGUN)
        begun = Begun.from_bytes(data)
        if data and begun is None:
            # A damaged note must not be cleared: it is the proof that a result is this export's own.
            raise FailedError(
                "the note of what was begun here is cut short",
                path=self.objects.address_of(_BEGUN),
                to_do="run the command again; if it says so again, remove that note",
            )
        id = self._last.id if self._last is not None else None
        self.is_untold = begun is not None and begun.is_untold(self.stands_as, id)
        now = Begun(plan, self.stands_as, self.is_untold)
        self._is_done = begun is not None and begun.is_done(plan, self.stands_as, id)
        if self._is_finished and not self._is_done:
            self._is_over = True
            self.complete()  # in an object store, another export may have overwritten the note of its author
            raise self.tables.refusal(self.address)
        if not self._is_done and begun != now:
            self.objects.write(_BEGUN, now.as_bytes())
        self._has_begun = True
        return self._is_done

    def noted(self) -> dict[str, bytes]:
        names = [name for name in self.objects.names(UNFINISHED) if name.endswith(_NOTE)]
        found = self.objects.read_all(names)
        return {name.rpartition("/")[2].removesuffix(_NOTE): data for name, data in found.items() if data}

    def holds(self, part: WrittenFile) -> bool:
        return self.objects.holds(part.path, part.size_bytes, part.crc32c)

    def keep(self, notes: Mapping[str, Sequence[WrittenFile]]) -> None:
        self._discard(f"{UNFINISHED}/{key}{_NOTE}" for key in self.noted().keys() - notes.keys())
        self._noted = dict(notes)

    def note(self, key: str, data: bytes, parts: Sequence[WrittenFile]) -> None:
        self.objects.write(f"{UNFINISHED}/{key}{_NOTE}", data)
        self._noted[key] = parts

    def finish(self) -> None:
        self._is_over = True

    def publish(self, parts: Sequence[WrittenFile], commit: Commit, state: State) -> None:
        if self._is_done:
            self.complete()
        else:
            self.commit(parts, commit, state)
        self.is_published = True
        try:
            self.tidy()
        except StoreError as error:  # the result is published; the next export repeats the cleanup
            self.untidy = error.what
        self._is_over = True

    @abstractmethod
    def standing(self) -> ExportState | WholeState | None:
        """Return the state that the last commit left, None without one. Raises UsageError where foreign files are
        stored.
        """

    @property
    @abstractmethod
    def stands_as(self) -> int:
        """A number that identifies the commit that ``standing`` found; 0 without one."""

    @abstractmethod
    def commit(self, parts: Sequence[WrittenFile], commit: Commit, state: State) -> None:
        """Make parts visible in one step; they replace all others unless the export adds to the last commit."""

    @property
    def _replaces(self) -> bool:
        """True if a commit replaces all files of the tables."""
        return self._overwrite or not self.tables.adds

    def _is_wanted(self, name: str, number: int, found: int) -> bool:
        """Return True if a commit to a table is still to be made; ``found`` is its newest commit's number.

        A commit to the deciding table follows exactly one state. Raises StoreInUseError if another export was
        published first.
        """
        if name == self.tables.main:
            if found != number - 1:
                raise self._overtaken()
        elif self.tables.adds and found >= number:
            return False  # a later export has completed it
        return True

    def _overtaken(self) -> StoreInUseError:
        repeats = self._incremental or self._replaces
        to_do = "run the command again" if repeats else "add to it with --incremental, or name another folder"
        return StoreInUseError("another export has been published here meanwhile", path=self.address, to_do=to_do)

    def refuse_foreign(self) -> None:
        """Raise UsageError for files other than the remains of unfinished exports."""
        if not all(map(self._is_remnant, self.objects.names(""))):
            raise not_empty(self.objects, self.address, self.format)

    def complete(self) -> None:
        """Complete the last commit, if its author was interrupted before updating all tables."""
        return

    def tidy(self) -> None:
        """Remove files that belong to no result any more."""
        return

    def _leave(self) -> None:
        """Remove the notes if the work is over; an export that has started nothing leaves the notes of others."""
        try:
            has_own = self._has_begun and not self.is_untold
            if self._is_over or (not self._noted and (has_own or not self.objects.read(_BEGUN))):
                self._clear()
        finally:
            if self._lock is not None:
                unlock_file(self._lock)
                self._lock = None

    def _clear(self) -> None:
        """Remove the notes of the work, the note of the plan last: by it a rerun recognises its own result."""
        names = self.objects.names(UNFINISHED)
        last = [name for name in names if name in (_BEGUN, _LOCK)]
        self._discard(name for name in names if name not in last)
        for name in last:
            self._discard([name])
        if self.path is not None:
            remove_empty(self.path / UNFINISHED, self.path)
        elif names:
            self.objects.remove_folder(UNFINISHED)

    def _discard(self, names: Iterable[str]) -> None:
        """Remove notes, or empty them where nothing may be removed; an empty note counts as none.

        A refusal may take long, so removal is tried once only.
        """
        names = sorted(names)
        if not self._cannot_remove:
            try:
                self.objects.remove_all(names)
                return
            except StoreError:
                if self.path is not None:
                    raise
                self._cannot_remove = True
        sizes = self.objects.sizes(names)
        for name in names:
            if sizes.get(name):
                self.objects.write(name, b"")

    def _take_lock(self) -> None:
        if isinstance(self.objects, LocalObjects) and self.path is not None:
            if self.path.exists() and not self.path.is_dir():
                raise UsageError("a file is there", path=self.address, to_do="name a folder")
            self._lock = self.objects.lock(_LOCK)
            if self._lock is None:
                raise StoreInUseError(
                    "another export is writing to this folder",
                    path=self.address,
                    to_do="wait for it, or name another folder",
                )

    def _is_remnant(self, name: str) -> bool:
        folder, _, rest = name.partition("/")
        if folder in RESULT_FOLDERS:
            return is_made_here(name) or (self.table_folder != "" and rest.startswith(self.table_folder))
        return folder == UNFINISHED
