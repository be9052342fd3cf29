"""Make many files durable with one sync of their file system instead of one for each file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from store_core.storage.writer import Writer

FEW: Final = 64  # a sync of the file system also waits for writes of other processes, so it pays for many files only


class SyncBatch:
    """A collection of files and folders that ``run`` makes durable, in no order. Make it before the first of them is written to.

    More than ``FEW`` on one file system are synced with it as a whole, if that is as safe (``FileOps.watch_file_system``).
    """

    def __init__(self, writer: Writer) -> None:
        self._ops = writer.ops
        self._writer = writer
        places = writer.places
        roots = {places.root, *places.writable_roots, *(area.parent for area in places.areas)}
        self._watched = {root.stat().st_dev: root for root in sorted(roots) if root.is_dir() and self._watch(root)}
        self._waiting: dict[int, dict[tuple[Path, bool], None]] = {}  # by device: path, is a folder

    def _watch(self, root: Path) -> bool:
        return self._ops.watch_file_system(root)

    def add_file(self, path: str) -> None:
        """Sync a file's bytes, length, mode and times with the batch."""
        real = self._writer.path(path)
        self._add(real, os.path.dirname(real), False)

    def add_folder(self, path: str) -> None:
        """Sync the names in a folder, and its times, with the batch."""
        real = self._writer.path(path)
        self._add(real, real, True)

    def _add(self, real: Path, folder: Path | str, is_folder: bool) -> None:
        device = os.stat(folder).st_dev
        waiting = self._waiting.setdefault(device, {})
        if device not in self._watched or len(waiting) <= FEW:  # more are synced with the file system
            waiting[real, is_folder] = None

    def run(self) -> None:
        """Make all added files and folders durable and forget them. Raises OSError; then all of them wait for the next run."""
        for device, waiting in self._waiting.items():
            if device in self._watched and len(waiting) > FEW:
                self._ops.sync_file_system(self._watched[device])
                continue
            for real, is_folder in self._files_first(waiting):
                if is_folder:
                    self._ops.sync_folder(real)
                else:
                    self._ops.sync_file(real)
        self._waiting.clear()

    @staticmethod
    def _files_first(waiting: dict[tuple[Path, bool], None]) -> Iterator[tuple[Path, bool]]:
        """Return the files, then the folders, so that a durable name leads to durable bytes."""
        return iter(sorted(waiting, key=lambda entry: entry[1]))
