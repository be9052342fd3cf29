"""Scratch files: what is too large for memory is kept in an unnamed file of a folder the caller gives."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from store_core.errors import FailedError


class Spool:
    """An unnamed file that vanishes with its last descriptor. Positions are bytes from its start; what was never written is 0."""

    def __init__(self, folder: Path) -> None:
        """Raises FailedError where the folder cannot take a file."""
        try:
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115  # closed by close()
        except OSError as error:
            raise _failed(folder, error) from error
        self._folder = folder
        self.size_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def append(self, data: bytes | memoryview) -> int:
        """Write behind the end; gives the position. Raises FailedError, for a full disk too."""
        at = self.size_bytes
        self.write(at, data)
        return at

    def write(self, at: int, data: bytes | memoryview) -> None:
        """Write at a position. Raises FailedError, for a full disk too."""
        view = memoryview(data).cast("B")
        done = 0
        try:
            while done < len(view):
                done += os.pwrite(self._file.fileno(), view[done:], at + done)
        except OSError as error:
            raise _failed(self._folder, error) from error
        self.size_bytes = max(self.size_bytes, at + len(view))

    def read(self, at: int, size_bytes: int) -> bytes:
        """Bytes of a position; fewer at the end."""
        try:
            return os.pread(self._file.fileno(), size_bytes, at)
        except OSError as error:
            raise _failed(self._folder, error) from error


def _failed(folder: Path, error: OSError) -> FailedError:
    reason = error.strerror or type(error).__name__
    return FailedError(f"scratch file: {reason}", path=str(folder), to_do="give more room or another folder")
