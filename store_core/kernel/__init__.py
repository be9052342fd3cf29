"""Cut windows of the log into frames, in a compiled kernel where it was built, else in the Python reference.

``scan_window`` returns the frames of a window as WindowColumns. Both kernels return the same. RMQCTL_KERNEL=python in the environment selects the
reference even where the compiled kernel exists.
"""

from __future__ import annotations

import os
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from store_core.kernel.columns import WindowColumns
    from store_core.kernel.file import FileReader

__all__ = ["WindowScan", "is_native", "scan_window", "selected_kernel", "window_scan"]

KERNEL_VARIABLE = "RMQCTL_KERNEL"


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


def is_native() -> bool:
    """Return True if the compiled kernel is used."""
    return selected_kernel().__name__.endswith(".native")


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
        """Return the fields of ``file.WindowRows``, with plain tuples for its rows. May be called once, instead of ``columns``."""


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
