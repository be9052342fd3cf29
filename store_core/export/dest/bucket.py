"""Parquet files in an object store as a destination: unique final names, never a rename, and a manifest over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from store_core.export.dest.manifest import Manifest, id_of, manifest_after, paths_of, refuse_foreign
from store_core.export.dest.object_dest import LooseDestination
from store_core.export.dest.parquet import WrittenFile
from store_core.export.dest.parts import RESULT_FOLDERS
from store_core.export.dest.state import Commit, ExportState
from store_core.export.dest.tables import State, WholeState
from store_core.export.dest.task_destination import is_made_here
from store_core.storage.digest import crc32c
from store_core.storage.publish import MANIFEST, UNFINISHED

_NEXT: Final = f"{UNFINISHED}/{MANIFEST}"


class BucketDestination(LooseDestination):
    """``Destination`` for Parquet files below an address, with a manifest that is replaced by one request.

    Object stores offer no lock. Just before the manifest is written it is seen that it is still the one that this export
    began with, and that nobody has removed its files; between that and the writing, another export that ends in the same
    moment is not noticed. What belongs to none is removed behind it, and but for a rerun nothing that is newer.
    """

    never_empty = True

    def standing(self) -> ExportState | WholeState | None:
        self._began_with = self._read()
        self._manifest: Manifest | None = None
        self._there = set[str]()
        if self._began_with is None:
            self.refuse_foreign()
            return None
        refuse_foreign(self._began_with, f"{self.address}/{MANIFEST}")
        if self._overwrite:
            return None
        if not self.tables.adds:
            return WholeState({}, id_of(self._began_with) or "")
        self._manifest = Manifest.from_bytes(self._began_with, f"{self.address}/{MANIFEST}")
        return self._manifest.state

    @property
    def stands_as(self) -> int:
        return crc32c(self._began_with) if self._began_with is not None else 0

    def gone(self) -> list[str]:
        return self._manifest.gone(self.objects) if self._incremental and self._manifest is not None else []

    def commit(self, parts: Sequence[WrittenFile], commit: Commit, state: State) -> None:
        before = self._manifest if self._incremental else None
        manifest = manifest_after(before, parts, commit, state)
        self._there = self._names()
        if self.objects.read(MANIFEST) != self._began_with or not self._there.issuperset(part.path for part in parts):
            raise self._overtaken()
        self.objects.write(_NEXT, manifest)
        self.objects.write(MANIFEST, manifest)

    def tidy(self) -> None:
        """Remove what was written by exports that did not end, or belonged to the one that was replaced: of what was there when
        this one was published, for whoever has begun since will publish. A rerun takes what is there now."""
        there = self._names() if self._is_done else self._there
        written = self.objects.read(MANIFEST)
        paths = paths_of(written, self.address) if written is not None else set[str]()
        self.objects.remove_all([name for name in sorted(there - paths) if is_made_here(name)] if paths else [])

    def _read(self) -> bytes | None:
        """The manifest as it stands. Azure empties a file when writing it begins: whoever was killed then has left the new one."""
        found = self.objects.read(MANIFEST)
        if found == b"":
            found = self.objects.read(_NEXT) or None
            if found is not None:
                self.objects.write(MANIFEST, found)
        return found

    def _names(self) -> set[str]:
        return {name for folder in RESULT_FOLDERS for name in self.objects.names(folder)}
