"""Walk over a segment's file in one call, for commands that only need to know what is good.

Most of the kernel's passes take a window that Python has read. If only good and bad is wanted, passing windows through Python and memory would cost
as much as the walk itself. So the kernel reads the file here: blocks that fit into the processor's cache, each walked as any window, their rows
joined. It reads by position and never maps, so that a failing disk is an error and not a signal.

Needs neither numpy nor a window: rows are few, and are tuples. A caller that needs all columns lets a ``WindowScan`` read its window, for the same
reason.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from store_core.kernel import KERNEL_VARIABLE, is_native

# The flags of storage.files.open_read_only; the second is used only where the system allows it.
OPEN_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
NOATIME: Final = getattr(os, "O_NOATIME", 0)
Failure = tuple[int, int, int]  # error number, position in the file, number of bytes wanted there
Told = tuple[Sequence[tuple[Any, ...]], int, int, int, bool, Failure | None]


class FrameRow(NamedTuple):
    """A run of good messages, a message that is not good, or a range of another kind.

    Fields after ``size_bytes`` are 0 and empty, except for messages that are not good.
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
    """The result of a call: consecutive rows, and where the next call must continue.

    ``is_over``: the file ends, and the rest of it cannot be judged. ``failure``: reading failed; error number, position in the file, and number of
    bytes wanted there.
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
        """Return the fields of ``Walked``, with plain tuples for its rows.

        The call ends at ``to``, where zeros start (a hole to skip may follow), after many rows, and after about ``seconds``, but not before it has
        made progress.

        Args:
            at: The offset in the log where the walk starts in ``state``.
            to: Frames that start at this offset or after it have no rows.
            flags: CHECK_CRC and CHECK_PROPERTY_CRC; rows are always runs.

        Raises:
            ValueError: The numbers do not fit each other.
        """

    def close(self) -> None:
        """Close the file."""


class FileReader(Protocol):
    """An open file that a ``WindowScan`` of the same kernel reads."""

    def close(self) -> None:
        """Close the file."""


def open_reader(path: Path) -> FileReader:
    """Open a file for ``WindowScan.read_on``. Raises OSError as ``storage.files.open_read_only``."""
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
    """Open the file of a segment that starts at ``phy_offset`` of the log and should end at ``segment_end``.

    No byte at or after ``readable_end`` is read. Blocks have ``block_bytes``; with ``reads_ahead`` a thread reads them while others are walked.
    Raises OSError as ``storage.files.open_read_only``, ValueError for numbers that do not fit.
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
    """Return the named result of ``FileWalk.walk``."""
    rows, message_count, next_phy_offset, next_state, is_over, failure = file.walk(at, to, state, flags, seconds)
    return Walked(list(map(FrameRow._make, rows)), message_count, next_phy_offset, next_state, is_over, failure)
