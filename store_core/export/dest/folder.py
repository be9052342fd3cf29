"""Write an export to a local folder of Parquet files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from store_core.errors import FailedError, NotEmptyError
from store_core.export.dest.foreign_files import not_empty
from store_core.export.dest.manifest import Manifest, id_of, manifest_after, paths_of, refuse_foreign
from store_core.export.dest.parquet import WrittenFile, refuse_missing
from store_core.export.dest.parts import RESULT_FOLDERS
from store_core.export.dest.state import Begun, Commit, ExportState
from store_core.export.dest.tables import MESSAGES, State, TableSet
from store_core.export.dest.task_destination import StagingFolder
from store_core.storage.digest import crc32c
from store_core.storage.objects import LocalObjects
from store_core.storage.publish import MANIFEST, ResultFolder
from store_core.storage.remote_path import absolute_path


class FolderDestination:
    """``Destination`` for Parquet files below a folder, with a manifest; see ``storage.publish``."""

    never_empty = True
    untidy = ""

    def __init__(
        self, path: Path, *, overwrite: bool = False, incremental: bool = False, tables: TableSet = MESSAGES
    ) -> None:
        self.address = str(path)
        self.path: Path | None = path
        self._folder = ResultFolder(path, RESULT_FOLDERS)
        self._overwrite, self._incremental, self._tables = overwrite, incremental, tables
        self._manifest: Manifest | None = None
        self._earlier_files: set[str] = set()  # files of an earlier export
        self._is_finished = False  # a manifest exists, and this export may not add to it
        self.is_untold = self.is_published = self._is_done = False

    @property
    def place(self) -> StagingFolder:
        return StagingFolder(absolute_path(self._folder.staging))  # tasks may run in another folder

    def __enter__(self) -> Self:
        try:
            self._folder.__enter__()
        except NotEmptyError as error:
            raise not_empty(LocalObjects(self._folder.path), self.address, "parquet") from error
        try:
            manifest = self._folder.manifest()
            if manifest is not None:
                refuse_foreign(manifest, str(self._folder.path / MANIFEST))
                with suppress(FailedError):  # a manifest may name no files
                    self._earlier_files = paths_of(manifest, str(self._folder.path / MANIFEST))
            if manifest is not None and self._incremental:
                self._manifest = Manifest.from_bytes(manifest, str(self._folder.path / MANIFEST))
            elif manifest is not None and not self._overwrite:
                self._is_finished = True
                if self._folder.begun() is None:
                    raise self._tables.refusal(self.address)
        except BaseException:
            self._folder.finish()
            self._folder.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._folder.__exit__()

    @property
    def last(self) -> ExportState | None:
        return self._manifest.state if self._manifest is not None else None

    def gone(self) -> list[str]:
        return self._manifest.gone(LocalObjects(self._folder.path)) if self._manifest is not None else []

    def begin(self, plan: str) -> bool:
        manifest = self._folder.manifest()
        begun = Begun.from_bytes(self._folder.begun())
        number = crc32c(manifest) if manifest is not None else 0
        self.is_untold = begun is not None and begun.is_untold(number, id_of(manifest))
        now = Begun(plan, number, self.is_untold)
        self._is_done = begun is not None and begun.is_done(plan, number, id_of(manifest))
        if self._is_finished and not self._is_done:
            self._folder.finish()
            raise self._tables.refusal(self.address)
        if not self._is_done:
            self._folder.begin(now.as_bytes(), keep=self.is_untold)
        return self._is_done

    def noted(self) -> dict[str, bytes]:
        return self._folder.notes()

    def holds(self, part: WrittenFile) -> bool:
        return self._folder.holds(part.staged, part.path, part.size_bytes, part.crc32c)

    def keep(self, notes: Mapping[str, Sequence[WrittenFile]]) -> None:
        self._folder.keep({key: frozenset(part.staged for part in parts) for key, parts in notes.items()})

    def note(self, key: str, data: bytes, parts: Sequence[WrittenFile]) -> None:
        self._folder.note(key, data, [part.staged for part in parts])

    @property
    def notes_kept(self) -> int:
        return len(self._folder.noted)

    def finish(self) -> None:
        self._folder.finish()

    def publish(self, parts: Sequence[WrittenFile], commit: Commit, state: State) -> None:
        if self._is_done:
            self.is_published = True
            self._folder.finish()
            return
        manifest = manifest_after(self._manifest, parts, commit, state)
        kept_paths = self._manifest.paths if self._manifest is not None else ()
        replaced = self._earlier_files - set(kept_paths)
        new = {part.path for part in parts}
        if len(new) < len(parts) or not new.isdisjoint(kept_paths):
            raise FailedError("two files of the result have one name", path=self.address, to_do="please report it")
        moved, staged = (LocalObjects(folder).sizes for folder in (self._folder.path, self._folder.staging))
        waiting = staged(part.staged for part in parts)
        found = {part.path: waiting[part.staged] for part in parts if part.staged in waiting}
        refuse_missing(parts, moved(new - found.keys()) | found, self.address)
        self._folder.publish([(part.staged, part.path) for part in parts], manifest, kept_paths, replaced)
        self.is_published = True
