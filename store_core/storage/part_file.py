"""Write result files from start to end, past the page cache."""

from __future__ import annotations

import errno
import io
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from store_core.errors import FailedError
from store_core.storage.buffers import KEPT
from store_core.storage.digest import crc32c
from store_core.storage.failure import failed
from store_core.storage.syscalls import FileOps

_FILE_MODE: Final = 0o644
_BLOCK_SIZE_BYTES: Final = 4 << 20
THREAD: Final = "rmqctl-part"


class ResultFile(io.RawIOBase):
    """A file written from start to end that knows its length and, once it is closed, its CRC-32C."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self.crc32c = 0
        self._dropped = False

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size_bytes

    def drop(self) -> None:
        """Write nothing from now on."""
        self._dropped = True


class PartFile(ResultFile):
    """A new file, synced when it is closed.

    A thread writes one block while the next is filled. Writes bypass the page cache where the file system allows it: that
    saves a copy and leaves the cache to the log. Raises FailedError if the kernel refuses, for a full disk too. ``discard``
    removes the file; what a library still writes into it then is dropped.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self._is_direct = False
        self._blocks = [KEPT.take(_BLOCK_SIZE_BYTES)]  # the block being filled; later also the one being written
        self._filled_bytes = 0  # of the first one
        self._thread: ThreadPoolExecutor | None = None
        self._pending_write: Future[None] | None = None
        self._ops = FileOps()
        with self._reporting_errors():
            self._ops.create(path, _FILE_MODE)

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        rest = view
        while rest:
            piece = rest[: _BLOCK_SIZE_BYTES - self._filled_bytes]
            end = self._filled_bytes + len(piece)
            self._blocks[0][self._filled_bytes : end] = piece
            self._filled_bytes, rest = end, rest[len(piece) :]
            self.size_bytes += len(piece)
            if end == _BLOCK_SIZE_BYTES:
                self._send_block()
        return len(view)

    def close(self) -> None:
        if not self.closed:
            super().close()
            with self._reporting_errors():
                try:
                    self._wait()
                    self._store(memoryview(self._blocks[0])[: self._filled_bytes], self.size_bytes - self._filled_bytes)
                    if not self._dropped:
                        self._ops.sync_file(self.path)
                finally:
                    self._end_thread()
                    self._ops.close()
                    KEPT.give_back(*self._blocks)

    def discard(self) -> None:
        self.drop()
        with suppress(FailedError):
            self.close()
        with suppress(OSError):
            self._ops.unlink(self.path)

    def _send_block(self) -> None:
        """Have the thread write the full block; the other block, which is written by now, is filled next."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, THREAD)
            self._blocks.append(KEPT.take(_BLOCK_SIZE_BYTES))
            self._is_direct = self._ops.write_directly(self.path, True)
        with self._reporting_errors():
            self._wait()
        offset = self.size_bytes - _BLOCK_SIZE_BYTES
        self._pending_write = self._thread.submit(self._store, memoryview(self._blocks[0]), offset)
        self._blocks.reverse()
        self._filled_bytes = 0

    def _wait(self) -> None:
        if self._pending_write is not None:
            pending, self._pending_write = self._pending_write, None
            pending.result()

    def _store(self, data: memoryview, offset: int) -> None:
        self.crc32c = crc32c(data, self.crc32c)
        if self._dropped:
            return
        if self._is_direct and len(data) < _BLOCK_SIZE_BYTES:
            self._is_direct = self._ops.write_directly(self.path, False)  # direct writes need whole blocks
        try:
            self._ops.write(self.path, offset, data)
        except OSError as error:
            if not self._is_direct or error.errno != errno.EINVAL:
                raise
            self._is_direct = self._ops.write_directly(
                self.path, False
            )  # the file system accepted the flag but cannot do it
            self._ops.write(self.path, offset, data)

    def _end_thread(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    @contextmanager
    def _reporting_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            error.filename = error.filename or str(self.path)  # an error of a write names no file
            raise failed(error, "writing a result file") from error
