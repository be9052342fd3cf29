"""Scratch files: what is too large for memory is kept in an unnamed file of a folder the caller gives."""

from __future__ import annotations

import errno
import os
import tempfile
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

from store_core.closing import Closing
from store_core.errors import FailedError

_MOST_WAITING: Final = 2  # writes, of 2.5 MB at most


class Spool(Closing):
    """An unnamed file that vanishes with its last descriptor. Positions are bytes from its start; what was never written is 0.

    A thread does the writing, so that new pages are taken from the system while the caller goes on. What is given to be
    written must not be changed afterwards.
    """

    def __init__(self, folder: Path | None = None) -> None:
        """Without ``folder`` it lies in the system's own for such files. Raises FailedError where it cannot take a file."""
        folder = folder or Path(tempfile.gettempdir())
        try:
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115  # closed by close()
        except OSError as error:
            raise _failed(folder, error) from error
        self._folder = folder
        self.size_bytes = 0
        self._thread = ThreadPoolExecutor(1, "spool")
        self._waiting: deque[Future[None]] = deque()

    def close(self) -> None:
        """Wait for the thread; what has not been written is not missed."""
        self._thread.shutdown(cancel_futures=True)
        self._file.close()

    def append(self, data: bytes | memoryview) -> int:
        """Write behind the end; gives the position. Raises FailedError, for a full disk too."""
        at = self.size_bytes
        self.write(at, data)
        return at

    def write(self, at: int, data: bytes | memoryview) -> None:
        """Write at a position. Raises FailedError, for a full disk too: of this write or of one before."""
        view = memoryview(data).cast("B")
        self.size_bytes = max(self.size_bytes, at + len(view))
        if len(self._waiting) >= _MOST_WAITING:
            self._waiting.popleft().result()
        self._waiting.append(self._thread.submit(self._write, at, view))

    def _write(self, at: int, view: memoryview) -> None:
        """Runs in the thread."""
        done = 0
        try:
            while done < len(view):
                done += os.pwrite(self._file.fileno(), view[done:], at + done)
        except OSError as error:
            raise _failed(self._folder, error) from error

    def read(self, at: int, size_bytes: int) -> bytes:
        """Bytes of a position; fewer at the end. Raises FailedError, of a write before too."""
        while self._waiting:
            self._waiting.popleft().result()
        try:
            return os.pread(self._file.fileno(), size_bytes, at)
        except OSError as error:
            raise _failed(self._folder, error) from error


def _failed(folder: Path, error: OSError) -> FailedError:
    reason = error.strerror or type(error).__name__
    to_do = (
        "raise the limit of file sizes (ulimit -f)"
        if error.errno == errno.EFBIG
        else "give more room or another folder"
    )
    return FailedError(f"scratch file: {reason}", path=str(folder), to_do=to_do)
