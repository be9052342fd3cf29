"""Write Parquet files to an object store: unique final names, no rename, and a manifest over them."""

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
    """``Destination`` for Parquet files below an address, with a manifest that one request replaces.

    Object stores offer no lock. Just before the manifest is written, this export checks that it is still the one from
    its start, and that all new files exist. Another export that ends between the check and the write is not noticed.
    After the commit, files that belong to no manifest are removed, but newer ones only by a rerun.
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
        """Remove files of unfinished and replaced exports.

        Only files that existed when this export was published go: an export that started later will still publish its
        own. A rerun removes whatever exists now.
        """
        names = self._names() if self._is_done else self._there
        written = self.objects.read(MANIFEST)
        paths = paths_of(written, self.address) if written is not None else set[str]()
        self.objects.remove_all([name for name in sorted(names - paths) if is_made_here(name)] if paths else [])

    def _read(self) -> bytes | None:
        """Return the present manifest.

        Azure empties a file when a write to it starts. If the writer was killed then, the new manifest is in
        ``_NEXT``.
        """
        found = self.objects.read(MANIFEST)
        if found == b"":
            found = self.objects.read(_NEXT) or None
            if found is not None:
                self.objects.write(MANIFEST, found)
        return found

    def _names(self) -> set[str]:
        return {name for folder in RESULT_FOLDERS for name in self.objects.names(folder)}
