"""Write files of the live store, and track which are not durable yet and which owner they get."""

from __future__ import annotations

import os
import threading
from pathlib import PurePosixPath

from store_core.errors import FailedError
from store_core.storage.syscalls import Buffer
from store_core.storage.writer import Ownership, Writer


class LiveFiles:
    """Writes through a ``Writer`` and tracks what ``sync`` must make durable. Paths are the writer's.

    New files and folders get the owner of their parent folder, so that a broker can write to them whichever user ran this program. All methods raise
    OSError. Several threads may call them. ``changes`` counts files that were made, removed or replaced.
    """

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.changes = 0
        self._names = threading.RLock()  # while files and folders are made
        self._files: dict[str, None] = {}
        self._folders: dict[str, None] = {}

    def assert_place(self, folder: str) -> None:
        """Raise UsageError if a link leads to a forbidden place, FailedError if a part of the path is no folder."""
        self.writer.path(f"{folder}/file")
        places = (self.writer.path(part.as_posix()) for part in (PurePosixPath(folder), *PurePosixPath(folder).parents))
        for place in places:
            if os.path.lexists(place) and not place.is_dir():
                raise FailedError(
                    "a file stands where a folder is needed",
                    path=str(place),
                    to_do="move it out of the way, and run the command again",
                )

    def write(self, path: str, offset: int, data: Buffer) -> None:
        self.writer.write_range(path, offset, data)
        self._files[path] = None  # only now: a sync that runs meanwhile may miss these bytes

    def make_file(self, path: str, size_bytes: int = 0, data: bytes = b"", *, reserved: bool = False) -> None:
        """Make a new file of this length, with ``data`` at its start; missing folders are made. The rest is sparse, unless it is to be ``reserved``."""
        folder = PurePosixPath(path).parent.as_posix()
        with self._names:
            self.make_folder(folder)
            self.writer.create(path, data, size_bytes=0 if reserved else size_bytes)
            if reserved:
                self.writer.allocate(path, size_bytes)
            self._set_owner(path, folder)
            self._files[path] = self._folders[folder] = None
            self.changes += 1

    def make_folder(self, path: str) -> None:
        if self.writer.path(path).is_dir():
            return
        parent = PurePosixPath(path).parent.as_posix()
        self.make_folder(parent)
        self.writer.mkdir(path)
        self._set_owner(path, parent)
        self._folders[parent] = None

    def remove(self, path: str) -> None:
        self.writer.unlink(path)
        self.changes += 1
        self._files.pop(path, None)
        self._folders[PurePosixPath(path).parent.as_posix()] = None

    def replace(self, path: str, data: bytes) -> None:
        """Replace a file's content in one step, by a file next to it and a rename."""
        part = f"{path}.tmp"
        if os.path.lexists(self.writer.path(part)):
            self.writer.unlink(part)
        self.make_file(part, data=data)
        if self.writer.path(path).exists():
            self.writer.set_ownership(part, Ownership.of(os.stat(self.writer.path(path))))
        self.sync_file(part)
        self.writer.rename(part, path)
        self._folders[PurePosixPath(path).parent.as_posix()] = None

    def sync_file(self, path: str, *, data_only: bool = False) -> None:
        """Make a file durable now: its bytes and, if it is new, its name. ``data_only``: not its times."""
        self._files.pop(path, None)
        self.writer.sync_file(path, data_only=data_only)
        self.sync_folder(PurePosixPath(path).parent.as_posix())

    def sync_folder(self, path: str) -> None:
        if path in self._folders:
            del self._folders[path]
            self.writer.sync_folder(path)

    def sync(self) -> None:
        """Make everything durable, in the order in which it was first written."""
        for path in list(self._files):
            self._files.pop(path, None)
            self.writer.sync_file(path)
        for folder in list(self._folders):
            self.sync_folder(folder)

    def _set_owner(self, path: str, folder: str) -> None:
        made, above = os.stat(self.writer.path(path)), os.stat(self.writer.path(folder))
        if (made.st_uid, made.st_gid) != (above.st_uid, above.st_gid):
            mode = Ownership.of(made).mode
            self.writer.set_ownership(path, Ownership(mode, above.st_uid, above.st_gid))
