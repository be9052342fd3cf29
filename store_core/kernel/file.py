"""The walk over a segment's file in one call: what a verification needs, for which windows would cost more than the walk.

Most of the kernel's passes know no files: they take a window that Python has read. Where only good and bad is asked for,
the walk itself is so quick that a window's way through Python, and through memory, costs as much again. So here
the kernel reads: blocks that stay in the processor's cache, each walked as any window is, their rows joined. It reads by
position and never maps: a disk that fails is an error, not a signal.

Neither numpy nor a window is involved: rows are few, and come as tuples. Who needs all columns has a ``WindowScan`` read
its window itself, for the same reason.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from store_core.kernel import KERNEL_VARIABLE, is_native

# How storage.files.open_read_only opens files: the second only where the system allows it.
OPEN_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
NOATIME: Final = getattr(os, "O_NOATIME", 0)
Failure = tuple[int, int, int]  # the number of the error, the position in the file, how many bytes were wanted there
Told = tuple[Sequence[tuple[Any, ...]], int, int, int, bool, Failure | None]


class FrameRow(NamedTuple):
    """A run of good messages, one message that is not good, or a stretch of another kind; bytes of the log.

    What follows ``size_bytes`` is 0 and empty but for messages that are not good.
    """

    kind: int  # FrameKind
    code: int  # FrameCode
    phy_offset: int
    size_bytes: int
    own_phy_offset: int = 0
    queue_id: int = 0
    queue_offset: int = 0
    topic: bytes = b""

    @property
    def end_phy_offset(self) -> int:
        return self.phy_offset + self.size_bytes


class Walked(NamedTuple):
    """What one call tells: rows that lie back to back, and where the next call has to go on.

    ``is_over``: the file ends, and nothing more can be said of what it holds from there on. ``failure``: reading failed;
    the system's error number, the position in the file, and how many bytes were wanted there.
    """

    rows: list[FrameRow]
    message_count: int  # in runs or one by one
    next_phy_offset: int
    next_state: int  # ScanState
    is_over: bool = False
    failure: Failure | None = None


class FileWalk(Protocol):
    """An open file of a segment."""

    def walk(self, at: int, to: int, state: int, flags: int, seconds: float, /) -> Told:
        """The fields of ``Walked``, with plain tuples for its rows.

        ``at`` is the offset in the log where the walk begins in ``state``; there are no rows of frames that begin at ``to``
        or behind it. ``flags``: CHECK_CRC and CHECK_PROPERTY_CRC; rows are always runs. The call ends at ``to``, where
        zeros begin (there may be a hole to skip), where rows are many, and after about ``seconds``; not without having got
        on. Raises ValueError when the numbers do not fit each other.
        """

    def close(self) -> None:
        """Close the file."""


class FileReader(Protocol):
    """An open file that a ``WindowScan`` of the same kernel reads."""

    def close(self) -> None:
        """Close the file."""


def open_reader(path: Path) -> FileReader:
    """A file for ``WindowScan.read_on``. Raises OSError as ``storage.files.open_read_only``."""
    if is_native():
        from store_core.kernel import _native

        return _native.FileReader(path, OPEN_FLAGS, NOATIME)
    from store_core.kernel.reference.file import FileReader as Reference

    return Reference(path)


def open_walk(
    path: Path,
    phy_offset: int,
    readable_end: int,
    segment_end: int,
    *,
    block_bytes: int,
    reads_ahead: bool,
) -> FileWalk:
    """The file of a segment that begins at ``phy_offset`` of the log and should end at ``segment_end``.

    Nothing is read at ``readable_end`` or behind it. Blocks have ``block_bytes``; with ``reads_ahead`` a thread reads them
    while others are walked. Raises OSError as ``storage.files.open_read_only``, ValueError for numbers that do not fit.
    """
    numbers = phy_offset, readable_end, segment_end, block_bytes
    if os.environ.get(KERNEL_VARIABLE) != "python":
        try:
            from store_core.kernel import _native
        except ImportError:
            pass  # no compiler when this was installed
        else:
            return _native.FileWalk(path, OPEN_FLAGS, NOATIME, *numbers, reads_ahead)
    from store_core.kernel.reference.file import FileWalk as Reference

    return Reference(path, *numbers)


def walk(file: FileWalk, at: int, to: int, state: int, flags: int, seconds: float) -> Walked:
    """``FileWalk.walk`` with names."""
    rows, message_count, next_phy_offset, next_state, is_over, failure = file.walk(at, to, state, flags, seconds)
    return Walked(list(map(FrameRow._make, rows)), message_count, next_phy_offset, next_state, is_over, failure)
