"""Restrict writes to the store root and the log folders outside it that the caller named."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from store_core.errors import FailedError, UsageError
from store_core.layout.paths import OURS

_REMEMBERED: Final = 4096  # appends write to the same few files again and again
_FOLDERS_REMEMBERED: Final = 1 << 16  # each queue has a folder, and a broker may have so many queues


class Places:
    """A resolver that turns the paths of plans and journals into real ones and refuses those that lead elsewhere.

    A path is relative to the store root, or absolute below one of ``writable_roots``. Links in folders are followed
    before the check, so a link inside the store does not lead out of it.
    """

    def __init__(self, root: Path | str, writable_roots: Sequence[Path | str] = ()) -> None:
        self.root = Path(os.path.realpath(root))
        self.writable_roots = tuple(Path(os.path.realpath(path)) for path in writable_roots)
        outside = [path for path in self.writable_roots if not path.is_relative_to(self.root)]
        self.areas = tuple(dict.fromkeys([self.root / OURS, *(path.parent / OURS for path in outside)]))
        self._allowed = tuple(map(str, (self.root, *self.writable_roots, *self.areas)))
        self._exact_places = {*self._allowed, *(str(area.parent) for area in self.areas)}
        self._root = str(self.root)
        self._resolved: dict[str, Path] = {}
        self._real_folders: dict[str, str] = {}
        self._plain_folders: set[str] = set()  # paths below the root without a link

    def resolve(self, path: str) -> Path:
        """Return the real path; a link in its last part is not followed. Raises UsageError if it lies in no allowed place."""
        known = self._resolved.get(path)
        if known is None:
            if len(self._resolved) >= _REMEMBERED:
                self._resolved.clear()
            known = self._resolved[path] = self._resolve(path)
        return known

    def _resolve(self, path: str) -> Path:
        if self._is_plain(path):
            return Path(f"{self._root}/{path}")
        real = self._resolve_unknown(path)
        above, slash, _ = path.rpartition("/")
        if slash and str(real) == f"{self._root}/{path}":
            if len(self._plain_folders) >= _FOLDERS_REMEMBERED:
                self._plain_folders.clear()
            self._plain_folders.add(above)
        return real

    def _is_plain(self, path: str) -> bool:
        """Return True if the folder of a path lies below the root and is known to have no link in its path."""
        above, _, name = path.rpartition("/")
        return above in self._plain_folders and name not in ("", ".", "..") and "\0" not in name

    def _resolve_unknown(self, path: str) -> Path:
        parts = path.split("/")
        if ".." in parts or "\0" in path:
            raise UsageError("a path that leads upwards is not written to", path=path)
        joined = self._joined(path)
        if joined == self._root:
            return self.root
        folder, name = os.path.split(joined)
        real_folder = self._real_folder(folder)
        real = os.path.join(real_folder, name)
        if OURS in parts and real != joined:
            raise FailedError(
                "a link leads to or from rmqctl's own files", path=joined, to_do="move it out of the store"
            )
        if real in self._exact_places or any(_is_in(real_folder, place) for place in self._allowed):
            return Path(real)
        raise UsageError(
            "lies outside the store and is not written to",
            path=path,
            to_do="name the log folder with --commitlog PATH if it belongs to this store",
        )

    def _joined(self, path: Path | str) -> str:
        """Return an absolute path without ``//``, ``.`` and trailing slash; unlike ``os.path.normpath``, ``..`` stays."""
        joined = os.path.join(self._root, path)
        is_plain = isinstance(path, Path) or not ("//" in joined or joined.endswith("/") or "." in joined.split("/"))
        return joined if is_plain else str(Path(joined))

    def name(self, path: Path | str) -> str:
        """Return the path as plans and journals write it: relative below the root, absolute elsewhere."""
        if isinstance(path, str) and self._is_plain(path):
            return path
        joined, root = self._joined(path), self._root
        if joined == root:
            return ""
        folder, name = os.path.split(joined)
        real = os.path.join(self._real_folder(folder), name)
        return real[len(root) + 1 :] if _is_in(real, root) else real

    def exact(self, path: str) -> Path:
        """Return the real path of one that a plan or journal names. It must have no link in it: rmqctl writes none.

        Raises UsageError if it lies in no allowed place, FailedError for a link or another name of the same place.
        """
        real = self.resolve(path)
        if self.name(path) != path or real.is_symlink():
            raise FailedError("a link leads there, or the path is not a plain one", path=path)
        return real

    def _real_folder(self, folder: str) -> str:
        """Return a folder with links followed. Each folder is looked up once."""
        known = self._real_folders.get(folder)
        if known is None:
            above, name = os.path.split(folder)
            known = os.path.join(self._real_folder(above), name) if name else folder
            if name == ".." or os.path.islink(known):
                known = os.path.realpath(folder)
            if len(self._real_folders) >= _REMEMBERED:
                self._real_folders.clear()
            self._real_folders[folder] = known
        return known

    def area_for(self, path: str) -> Path:
        """Return the ``.rmqctl`` folder on the file system of ``path``; the root's own if there is none."""
        if len(self.areas) == 1:
            return self.areas[0]
        device = _device(self.resolve(path).parent)
        for area in self.areas:
            if _device(area) == device:
                return area
        return self.areas[0]


def _is_in(path: str, place: str) -> bool:
    return path.startswith(place) and path[len(place) : len(place) + 1] in ("", "/")


def _device(path: Path) -> int:
    """Return the device of a path, or of its nearest parent that exists."""
    while True:
        try:
            return os.stat(path).st_dev
        except FileNotFoundError:
            path = path.parent
