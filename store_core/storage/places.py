"""Where writing is allowed: below the store root, and below log folders outside it that were named."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from store_core.errors import FailedError, UsageError
from store_core.layout.paths import OURS

_REMEMBERED: Final = 4096  # appends write to the same few files again and again


class Places:
    """Turns the paths of plans and journals into real ones, and refuses those that lead elsewhere.

    A path is relative to the store root, or absolute below one of ``writable_roots``. Links in folders are followed
    before the question is asked, so a link inside the store does not lead out of it.
    """

    def __init__(self, root: Path | str, writable_roots: Sequence[Path | str] = ()) -> None:
        self.root = Path(os.path.realpath(root))
        self.writable_roots = tuple(Path(os.path.realpath(path)) for path in writable_roots)
        outside = [path for path in self.writable_roots if not path.is_relative_to(self.root)]
        self.areas = tuple(dict.fromkeys([self.root / OURS, *(path.parent / OURS for path in outside)]))
        self._allowed = (self.root, *self.writable_roots, *self.areas)
        self._area_parents = frozenset(area.parent for area in self.areas)
        self._resolved: dict[str, Path] = {}
        self._real_folders: dict[str, str] = {}

    def resolve(self, path: str) -> Path:
        """The real path; its last part is not followed. Raises UsageError where it lies in no allowed place."""
        known = self._resolved.get(path)
        if known is None:
            if len(self._resolved) >= _REMEMBERED:
                self._resolved.clear()
            known = self._resolved[path] = self._resolve(path)
        return known

    def _resolve(self, path: str) -> Path:
        words = PurePosixPath(path)
        if ".." in words.parts or "\0" in path:
            raise UsageError("a path that leads upwards is not written to", path=path)
        joined = self.root / words
        if joined == self.root:
            return joined
        real = Path(self._real_folder(joined)) / joined.name
        if OURS in words.parts and real != joined:
            raise FailedError(
                "a link leads to or from rmqctl's own files", path=str(joined), to_do="move it out of the store"
            )
        if real in self._area_parents or any(real.is_relative_to(place) for place in self._allowed):
            return real
        raise UsageError(
            "lies outside the store and is not written to",
            path=path,
            to_do="name the log folder with --commitlog PATH if it belongs to this store",
        )

    def name(self, path: Path | str) -> str:
        """The path as plans and journals write it: relative below the root, absolute elsewhere."""
        joined = self.root / path
        real = Path(self._real_folder(joined)) / joined.name if joined != self.root else joined
        if real.is_relative_to(self.root):
            return "" if real == self.root else real.relative_to(self.root).as_posix()
        return real.as_posix()

    def exact(self, path: str) -> Path:
        """The real path of one that a plan or journal names, which has no link in it, as none has that rmqctl wrote.

        Raises UsageError where it lies in no allowed place, FailedError for a link or another name of the same place.
        """
        real = self.resolve(path)
        if self.name(path) != path or real.is_symlink():
            raise FailedError("a link leads there, or the path is not a plain one", path=path)
        return real

    def _real_folder(self, path: Path) -> str:
        """The folder of a path, links followed. Each folder is looked at once."""
        folder = os.path.dirname(path)
        known = self._real_folders.get(folder)
        if known is None:
            if len(self._real_folders) >= _REMEMBERED:
                self._real_folders.clear()
            known = self._real_folders[folder] = os.path.realpath(folder)
        return known

    def area_for(self, path: str) -> Path:
        """The ``.rmqctl`` folder whose file system is that of ``path``; the root's own where none is."""
        device = _device(self.resolve(path).parent)
        for area in self.areas:
            if _device(area) == device:
                return area
        return self.areas[0]


def _device(path: Path) -> int:
    """The file system of a path, or of its nearest parent that exists."""
    while True:
        try:
            return os.stat(path).st_dev
        except FileNotFoundError:
            path = path.parent
