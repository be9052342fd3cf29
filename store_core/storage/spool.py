"""Keep data that is too large for memory in an unnamed file of a folder that the caller gives."""

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
    """An unnamed file that vanishes with its last descriptor. Positions are bytes from its start; unwritten bytes are 0.

    A thread writes, so that the kernel allocates pages while the caller continues. The caller must not change data that it
    has passed.
    """

    def __init__(self, folder: Path | None = None) -> None:
        """Make the file in ``folder``, by default in the system's folder for temporary files. Raises FailedError if it cannot."""
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
        """Close the file after the write in progress; waiting writes are dropped."""
        self._thread.shutdown(cancel_futures=True)
        self._file.close()

    def append(self, data: bytes | memoryview) -> int:
        """Write at the end and return the position. Raises FailedError, for a full disk too, as ``write``."""
        at = self.size_bytes
        self.write(at, data)
        return at

    def write(self, at: int, data: bytes | memoryview) -> None:
        """Write at a position. Raises FailedError, for a full disk too; the error may be that of an earlier write."""
        view = memoryview(data).cast("B")
        self.size_bytes = max(self.size_bytes, at + len(view))
        if len(self._waiting) >= _MOST_WAITING:
            self._waiting.popleft().result()
        self._waiting.append(self._thread.submit(self._write, at, view))

    def _write(self, at: int, view: memoryview) -> None:
        """Write all bytes; runs in the thread."""
        done = 0
        try:
            while done < len(view):
                done += os.pwrite(self._file.fileno(), view[done:], at + done)
        except OSError as error:
            raise _failed(self._folder, error) from error

    def read(self, at: int, size_bytes: int) -> bytes:
        """Return the bytes at a position; fewer at the end. Raises FailedError, also for an earlier write."""
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
