"""Destinations whose files are written under their final names: what they share. A file belongs to nothing by being there."""

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
    """``Destination`` but for two things: ``standing``, the state of the last commit, and ``commit``, a new one.

    Both are for the kinds of destination to tell. Where no lock can be taken, in object stores, two exports at once are
    told apart when they commit: the second one fails there.
    """

    format = "parquet"
    flat = False
    never_empty = False
    untidy = ""
    table_folder = (
        ""  # where a table keeps its own files, below its folder: some are filled in front of the one that tells of all
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
        self.is_untold = self.is_published = self._keeps_all = False
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
            with suppress(StoreError):  # what is wrong has been said
                self._is_over = not self.objects.names(UNFINISHED)
                self._leave()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(*((StoreError,) if any(error) else ())):  # what is wrong has been said
            self._leave()

    def gone(self) -> list[str]:
        return []  # a table's own files tell what belongs to it

    def begin(self, plan: str) -> bool:
        told = self.objects.read(_BEGUN)
        begun = Begun.from_bytes(told)
        if told and begun is None:
            # Taken for none, it would be cleared away, and with it what tells that a result is ours.
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
            self.complete()  # whose it was may no longer know it: in an object store, a rival has begun meanwhile
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
        except StoreError as error:  # the result stands; the next export does what could not be done
            self.untidy = error.what
        self._is_over = True

    @abstractmethod
    def standing(self) -> ExportState | WholeState | None:
        """The state that the last commit left, None without one. Raises UsageError where something else is there."""

    @property
    @abstractmethod
    def stands_as(self) -> int:
        """What tells the commit that ``standing`` found from any other one; 0 without one."""

    @abstractmethod
    def commit(self, parts: Sequence[WrittenFile], commit: Commit, state: State) -> None:
        """Make parts visible in one step; in place of all others where nothing is to be added to."""

    @property
    def _replaces(self) -> bool:
        """Whether a commit puts its files in place of all that the tables hold."""
        return self._overwrite or not self.tables.adds

    def _is_wanted(self, name: str, number: int, found: int) -> bool:
        """Whether a commit to a table, whose newest one has number ``found``, is still to be made. Where it is added to one
        state of the table alone, nothing comes in between. Raises StoreInUseError if another export has been there first."""
        if name == self.tables.main:
            if found != number - 1:
                raise self._overtaken()
        elif self.tables.adds and found >= number:
            return False  # whoever came after the commit that decides has made it
        return True

    def _overtaken(self) -> StoreInUseError:
        anew = self._incremental or self._replaces
        to_do = "run the command again" if anew else "add to it with --incremental, or name another folder"
        return StoreInUseError("another export has been published here meanwhile", path=self.address, to_do=to_do)

    def refuse_foreign(self) -> None:
        """Raise UsageError where there is anything but what exports that did not end have left."""
        if not all(map(self._may_be_left, self.objects.names(""))):
            raise not_empty(self.objects, self.address, self.format)

    def complete(self) -> None:
        """Do what the last commit decided, and whoever made it may not have come to."""
        return

    def tidy(self) -> None:
        """Remove what belongs to no result any more."""
        return

    def _leave(self) -> None:
        """Whoever has not begun anything leaves what others have."""
        try:
            has_own = self._has_begun and not self.is_untold
            if self._is_over or (not self._noted and (has_own or not self.objects.read(_BEGUN))):
                self._clear()
        finally:
            if self._lock is not None:
                unlock_file(self._lock)
                self._lock = None

    def _clear(self) -> None:
        """What is left of the work goes; what was begun last, so that a rerun knows its own result."""
        there = self.objects.names(UNFINISHED)
        last = [name for name in there if name in (_BEGUN, _LOCK)]
        self._discard(name for name in there if name not in last)
        for name in last:
            self._discard([name])
        if self.path is not None:
            remove_empty(self.path / UNFINISHED, self.path)
        elif there:
            self.objects.remove_folder(UNFINISHED)

    def _discard(self, names: Iterable[str]) -> None:
        """Remove notes. Where nothing may be removed, empty ones tell as little as none; asked once, as a refusal may take long."""
        names = sorted(names)
        if not self._keeps_all:
            try:
                self.objects.remove_all(names)
                return
            except StoreError:
                if self.path is not None:
                    raise
                self._keeps_all = True
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

    def _may_be_left(self, name: str) -> bool:
        folder, _, rest = name.partition("/")
        if folder in RESULT_FOLDERS:
            return is_made_here(name) or (self.table_folder != "" and rest.startswith(self.table_folder))
        return folder == UNFINISHED
