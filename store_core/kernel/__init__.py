"""Cut windows of the log into frames, in a compiled kernel where it was built, else in the Python reference.

``scan_window`` returns the frames of a window as WindowColumns. Both kernels return the same. RMQCTL_KERNEL=python in the environment selects the
reference even where the compiled kernel exists.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, cast

from store_core.kernel.codes import ScanFlag

if TYPE_CHECKING:
    from store_core.kernel.columns import WindowColumns

KERNEL_VARIABLE: Final = "RMQCTL_KERNEL"
# The flags of storage.files.open_read_only; the second is used only where the system allows it.
OPEN_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
NOATIME: Final = getattr(os, "O_NOATIME", 0)


def selected_kernel() -> ModuleType:
    """Return the kernel's module: the compiled one, or the reference."""
    return _kernel_of(os.environ.get(KERNEL_VARIABLE))


@cache
def _kernel_of(choice: str | None) -> ModuleType:
    if choice != "python":
        try:
            from store_core.kernel import native
        except ImportError:
            pass  # no compiler when this was installed
        else:
            return native
    from store_core.kernel.reference import scan

    return scan


def compiled_kernel() -> ModuleType | None:
    """Return the compiled kernel as it is, without numpy; None where it was not built or the reference is selected."""
    return _compiled_kernel(os.environ.get(KERNEL_VARIABLE))


@cache
def _compiled_kernel(choice: str | None) -> ModuleType | None:
    if choice == "python":
        return None
    try:
        from store_core.kernel import _native
    except ImportError:
        return None  # no compiler when this was installed
    return _native


def _reading_kernel() -> ModuleType:
    """Return the kernel of ``selected_kernel`` for callers without numpy."""
    if (compiled := compiled_kernel()) is not None:
        return compiled
    from store_core.kernel.reference import scan

    return scan


def is_native() -> bool:
    """Return True if the compiled kernel is used."""
    return compiled_kernel() is not None


def scan_window(
    window: Any, window_phy_offset: int, at: int, segment_end_phy_offset: int, state: int, flags: int
) -> WindowColumns:
    """Cut the part of a segment in ``window`` into frames, from index ``at`` on.

    The next window must start at ``next_at`` of the result, with at least ``need_bytes`` bytes if that is not 0.

    Args:
        window: Bytes-like and C-contiguous; its first byte is at ``window_phy_offset`` of the log. It may end before the segment.
        segment_end_phy_offset: The segment's end.
        state: A ScanState: CHAINED at the segment's start, then the previous call's ``next_state``.
        flags: ScanFlag.

    Raises:
        ValueError: The numbers do not fit each other.
    """
    found: WindowColumns = selected_kernel().scan_window(
        window, window_phy_offset, at, segment_end_phy_offset, state, flags
    )
    return found


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


class WindowScan(Protocol):
    """A ``scan_window`` for a window that is still being read."""

    def go_on(self, window: Any) -> None:
        """Walk the window as far as it has been read: the earlier bytes and new ones after them."""

    def read_on(self, file: FileReader, window: memoryview, have: int, position: int, /) -> tuple[int, int]:
        """Fill the window from a file, in which it starts at ``position``, and walk it; ``have`` of its bytes are present.

        Returns how many bytes are present then, and the system's error number, else 0. There are fewer bytes than fit at the file's end and at an
        unreadable place.
        """

    def read_through(self, file: FileReader, size_bytes: int, position: int, /) -> tuple[int, int]:
        """Do the same as ``read_on`` for a window of this length whose bytes the caller does not need: none is kept."""

    def columns(self) -> WindowColumns:
        """Return the columns of ``scan_window`` for the window so far. May be called once."""

    def rows(self) -> tuple[list[tuple[Any, ...]], int, int, int, int]:
        """Return the fields of ``WindowRows``, with plain tuples for its rows. May be called once, instead of ``columns``."""


def window_scan(
    window_phy_offset: int, at: int, segment_end_phy_offset: int, state: int, flags: int, size_bytes: int
) -> WindowScan:
    """Return a scan that walks each part of a window while it is in the processor's cache.

    ``size_bytes``: the approximate length of the window. Other arguments and errors are those of ``scan_window``.
    """
    scan: WindowScan = selected_kernel().WindowScan(
        window_phy_offset, at, segment_end_phy_offset, state, flags, size_bytes
    )
    return scan


def open_reader(path: Path) -> FileReader:
    """Open a file for ``WindowScan.read_on``. Raises OSError as ``storage.files.open_read_only``."""
    kernel = _reading_kernel()
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
    kernel = _reading_kernel() if reads_file else selected_kernel()
    flags |= ScanFlag.RUNS | ScanFlag.NO_PROPERTIES
    return cast(WindowScan, kernel.WindowScan(phy_offset, 0, segment_end, state, int(flags), size_bytes, to_phy_offset))


def window_rows(scan: WindowScan) -> WindowRows:
    """Return the named result of ``WindowScan.rows``."""
    rows, *numbers = scan.rows()
    return WindowRows(list(map(FrameRow._make, rows)), *numbers)
