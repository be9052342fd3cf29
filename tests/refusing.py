"""Files that the system refuses to read: calls that answer as a failing disk does, and a process that really may not."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from store_core.kernel.file import FileReader
from store_core.scan import windows
from tests.rmqctl.calls import ROOT, Result, command, environment

PAGE_BYTES: Final = 4096
SEGMENT: Final = 2  # of eight, each of 128 KiB
# In each segment's own bytes. The last one ends where its file does.
BAD: Final = {
    "a page": [(40_960, 45_056)],
    "the first page": [(0, 4096)],
    "some bytes": [(50_001, 50_013)],
    "several": [(4096, 8192), (12_288, 20_480), (110_592, 131_072)],
    "the whole file": [(0, 131_072)],
}
_WITHOUT_PRIVILEGES: Final = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")


@contextmanager
def failing_disk(path: Path, ranges: Iterable[tuple[int, int]]) -> Iterator[None]:
    """Within it a file's bytes in [start, end) are not to be had: a read gives what stands in front, and is refused there."""
    bad = list(ranges)

    def is_it(descriptor: int) -> bool:
        return os.readlink(f"/proc/self/fd/{descriptor}") == str(path)

    def readable(descriptor: int, at: int, size_bytes: int) -> int:
        """How many bytes are to be had at a position."""
        if not is_it(descriptor):
            return size_bytes
        if any(start <= at < end for start, end in bad):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return min([size_bytes, *(start - at for start, end in bad if start > at)])

    def preadv(descriptor: int, buffers: Sequence[memoryview], at: int) -> int:
        [buffer] = buffers
        return real_preadv(descriptor, [buffer[: readable(descriptor, at, len(buffer))]], at)

    def pread(descriptor: int, size_bytes: int, at: int) -> bytes:
        return real_pread(descriptor, readable(descriptor, at, size_bytes), at)

    def open_reader(opened: Path) -> FileReader:
        if opened == path:
            raise FileNotFoundError  # so that not the kernel reads the file, whose calls cannot be replaced
        return real_open_reader(opened)

    real_open_reader = windows.open_reader
    real_preadv: Callable[..., int] = os.preadv
    real_pread: Callable[..., bytes] = os.pread
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "preadv", preadv)
        patch.setattr(os, "pread", pread)
        patch.setattr(windows, "open_reader", open_reader)
        yield


@contextmanager
def forbidden(*paths: Path) -> Iterator[None]:
    """Within it nobody has a right to these files; whoever is root still may, but for ``call_without_privileges``."""
    modes = [path.stat().st_mode for path in paths]
    try:
        for path in paths:
            path.chmod(0)
        yield
    finally:
        for path, mode in zip(paths, modes, strict=True):
            path.chmod(mode)


def call_without_privileges(*words: Any) -> Result:
    """Run rmqctl as this user with the rights that modes give, root or not."""
    prefix = _WITHOUT_PRIVILEGES if os.geteuid() == 0 else ()
    done = subprocess.run(
        [*prefix, *command(*words)], cwd=ROOT, env=environment(), capture_output=True, timeout=120, check=False
    )
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())
