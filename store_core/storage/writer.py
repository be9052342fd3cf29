"""Change files of a store; no other code of this library writes to one."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from store_core.closing import Closing
from store_core.storage.digest import WINDOW_SIZE_BYTES, Hole
from store_core.storage.prefetch import made_ahead
from store_core.storage.syscalls import Buffer, FileOps
from store_core.storage.write_scope import Places

SPARSE_BLOCK_BYTES: Final = 64 << 10  # only whole blocks of zeros are left as holes
_ZERO_BLOCK: Final = bytes(SPARSE_BLOCK_BYTES)
_NEW_FILE_MODE: Final = 0o644
_NEW_FOLDER_MODE: Final = 0o755


@dataclass(frozen=True, slots=True)
class Ownership:
    """Mode bits, user and group of a file or folder."""

    mode: int
    uid: int
    gid: int

    @classmethod
    def of(cls, info: os.stat_result) -> Ownership:
        return cls(stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid)


class Writer(Closing):
    """A writer of files below a store root (and ``writable_roots``). Every call is one or few primitives of ``ops``.

    Paths are those of ``Places``. All methods raise OSError if the kernel refuses, UsageError for a path that lies
    elsewhere. Nothing is durable before ``sync_file`` (bytes, length, times) or ``sync_folder`` (names).
    """

    def __init__(
        self, root: Path | str, *, writable_roots: Sequence[Path | str] = (), ops: FileOps | None = None
    ) -> None:
        self.places = Places(root, writable_roots)
        self.ops = ops or FileOps()
        info = os.stat(self.root) if self.root.exists() else None
        self._owner = (info.st_uid, info.st_gid) if info else None

    @property
    def root(self) -> Path:
        return self.places.root

    def path(self, path: str) -> Path:
        """Return the real path of one that a plan or journal names. Raises UsageError."""
        return self.places.resolve(path)

    def write_range(self, path: str, offset: int, data: Buffer) -> None:
        """Write bytes into an existing file, which grows if they end after its end. Keeps no old bytes: the journal itself uses this."""
        self.ops.write(self.path(path), offset, data)

    def write_sparse(self, path: str, offset: int, data: bytes) -> None:
        """Write bytes into a range that holds only zeros or lies after the file's end; zero blocks stay holes."""
        real = self.path(path)
        for at, block in dense_runs(data):
            self.ops.write(real, offset + at, block)

    def create(
        self,
        path: str,
        data: bytes | Iterable[bytes | Hole] = b"",
        *,
        mode: int = _NEW_FILE_MODE,
        size_bytes: int = 0,
        ownership: Ownership | None = None,
    ) -> int:
        """Make a new file with these bytes, padded with zeros to at least ``size_bytes``; return its length.

        Raises FileExistsError if there is one. Blocks of zeros are left as holes, and holes too. The file gets ``ownership``,
        else ``mode`` and the owner of the store's root.
        """
        real = self.path(path)
        self.ops.create(real, ownership.mode if ownership else mode)
        self._give_to_owner(real, ownership)
        end = written = 0
        for chunk in [data] if isinstance(data, bytes) else _made_ahead_if_large(data):
            if isinstance(chunk, Hole):
                end += chunk.size_bytes
                continue
            for at, block in dense_runs(chunk):
                self.ops.write(real, end + at, block)
                written = end + at + len(block)
            end += len(chunk)
        if max(end, size_bytes) > written:
            self.ops.truncate(real, max(end, size_bytes))
        return max(end, size_bytes)

    def set_length(self, path: str, size_bytes: int) -> None:
        """Cut a file or extend it by zeros."""
        self.ops.truncate(self.path(path), size_bytes)

    def allocate(self, path: str, size_bytes: int) -> None:
        """Extend a file by zeros for which room is reserved."""
        self.ops.allocate(self.path(path), size_bytes)

    def rename(self, old: str, new: str) -> None:
        """Give a file another name; a file that has the name is replaced atomically."""
        self.ops.rename(self.path(old), self.path(new))

    def link(self, old: str, new: str) -> None:
        """Give a file a second name."""
        self.ops.link(self.path(old), self.path(new))

    def unlink(self, path: str) -> None:
        self.ops.unlink(self.path(path))

    def mkdir(self, path: str, *, mode: int = _NEW_FOLDER_MODE, ownership: Ownership | None = None) -> None:
        """Make a folder; it gets ``ownership``, else ``mode`` and the owner of the store's root."""
        real = self.path(path)
        self.ops.mkdir(real, ownership.mode if ownership else mode)
        self._give_to_owner(real, ownership)

    def _give_to_owner(self, real: Path, ownership: Ownership | None) -> None:
        """Give a new file or folder its owner, group and mode, as far as this process may."""
        made = Ownership.of(os.stat(real, follow_symlinks=False))
        wanted = ownership or Ownership(made.mode, *(self._owner or (made.uid, made.gid)))
        if made != wanted:
            self.ops.set_owner(real, wanted.mode, wanted.uid, wanted.gid)

    def rmdir(self, path: str) -> None:
        self.ops.rmdir(self.path(path))

    def set_mtime_ns(self, path: str, mtime_ns: int) -> None:
        """Set the modification time of a file or folder if it differs; the access time stays."""
        real = self.path(path)
        info = os.stat(real, follow_symlinks=False)
        if info.st_mtime_ns != mtime_ns:
            self.ops.set_times(real, info.st_atime_ns, mtime_ns)

    def set_ownership(self, path: str, wanted: Ownership) -> None:
        """Give a file or folder this mode and owner if they differ."""
        real = self.path(path)
        if Ownership.of(os.stat(real, follow_symlinks=False)) != wanted:
            self.ops.set_owner(real, wanted.mode, wanted.uid, wanted.gid)

    def sync_file(self, path: str, *, data_only: bool = False) -> None:
        """Make a file's bytes, length and (unless ``data_only``) times durable."""
        self.ops.sync_file(self.path(path), data_only)

    def sync_folder(self, path: str) -> None:
        """Make the names in a folder durable, and its times."""
        self.ops.sync_folder(self.path(path))

    @contextmanager
    def keeping_folder_mtime(self, path: str) -> Iterator[None]:
        """Restore a folder's modification time after names were made or removed directly in it."""
        before = os.stat(self.path(path)).st_mtime_ns
        yield
        self.set_mtime_ns(path, before)

    def close(self) -> None:
        self.ops.close()


def save_file(path: Path | str, data: bytes) -> None:
    """Write a file outside any store atomically. Raises OSError."""
    target = Path(os.path.realpath(path))
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    ops = FileOps()
    try:
        ops.create(part, _NEW_FILE_MODE)
        ops.write(part, 0, data)
        ops.sync_file(part)
        ops.rename(part, target)
    except BaseException as error:
        ops.forget(part)
        with suppress(OSError):  # a read-only file system refuses this, too
            part.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)  # the caller's path, not that of the temporary file
        raise
    finally:
        ops.close()


def _made_ahead_if_large(chunks: Iterable[bytes | Hole]) -> Iterator[bytes | Hole]:
    """Yield the same chunks, made ahead by a thread if the first is large. A small file is written before a thread starts."""
    source = iter(chunks)
    for first in source:
        yield first
        is_large = not isinstance(first, Hole) and len(first) >= WINDOW_SIZE_BYTES
        yield from made_ahead(source) if is_large else source


def dense_runs(data: bytes) -> Iterator[tuple[int, Buffer]]:
    """Yield the ranges of ``data`` between whole blocks of zeros: (position, bytes)."""
    view = memoryview(data)
    start: int | None = None
    for at in range(0, len(data), SPARSE_BLOCK_BYTES):
        if data.startswith(_ZERO_BLOCK[: len(data) - at], at):
            if start is not None:
                yield start, view[start:at]
            start = None
        elif start is None:
            start = at
    if start is not None:
        yield start, view[start:]
