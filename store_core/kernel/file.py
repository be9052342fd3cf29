"""Let the kernel read and walk windows of a file, and return their frames as a few rows.

For commands that only need to know what is good: passing windows through Python and memory would cost as much as the walk itself. The kernel reads by
position and never maps, so that a failing disk is an error and not a signal. Needs no numpy: rows are few, and are tuples.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple, Protocol, cast

from store_core.kernel import KERNEL_VARIABLE, WindowScan, selected_kernel
from store_core.kernel.codes import ScanFlag

# The flags of storage.files.open_read_only; the second is used only where the system allows it.
OPEN_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
NOATIME: Final = getattr(os, "O_NOATIME", 0)


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


class WindowRows(NamedTuple):
    """The frames of a window as rows; the other fields are those of ``WindowColumns``."""

    rows: list[FrameRow]
    message_count: int  # in runs or one by one
    next_at: int
    next_state: int  # ScanState
    need_bytes: int


class FileReader(Protocol):
    """An open file that a ``WindowScan`` of the same kernel reads."""

    def close(self) -> None:
        """Close the file."""


def open_reader(path: Path) -> FileReader:
    """Open a file for ``WindowScan.read_on``. Raises OSError as ``storage.files.open_read_only``."""
    kernel = _reading_kernel(os.environ.get(KERNEL_VARIABLE))
    return cast(FileReader, kernel.FileReader(path, OPEN_FLAGS, NOATIME))


def row_scan(
    phy_offset: int,
    segment_end: int,
    state: int,
    flags: int,
    size_bytes: int,
    to_phy_offset: int,
    *,
    reads_file: bool,
) -> WindowScan:
    """Return a scan, in runs, of a window at ``phy_offset``; other arguments are those of ``window_scan``.

    Frames that start at ``to_phy_offset`` or after it have no rows. With ``reads_file`` the kernel reads the window, and no numpy is needed.
    """
    kernel = _reading_kernel(os.environ.get(KERNEL_VARIABLE)) if reads_file else selected_kernel()
    flags |= ScanFlag.RUNS | ScanFlag.NO_PROPERTIES
    return cast(WindowScan, kernel.WindowScan(phy_offset, 0, segment_end, state, int(flags), size_bytes, to_phy_offset))


def window_rows(scan: WindowScan) -> WindowRows:
    """Return the named result of ``WindowScan.rows``."""
    rows, *numbers = scan.rows()
    return WindowRows(list(map(FrameRow._make, rows)), *numbers)


@cache
def _reading_kernel(choice: str | None) -> ModuleType:
    """Return the kernel that ``kernel.window_scan`` uses, without what needs numpy."""
    if choice != "python":
        try:
            from store_core.kernel import _native
        except ImportError:
            pass  # no compiler when this was installed
        else:
            return _native
    from store_core.kernel.reference import scan

    return scan
