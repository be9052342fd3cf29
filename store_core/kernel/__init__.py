"""The hot pass over a window: a compiled kernel where one could be built, else the reference in Python.

``scan_window`` cuts a window of the log into frames and returns them as WindowColumns. Both kernels return the same.
RMQCTL_KERNEL=python in the environment takes the reference even where the compiled kernel is there.
"""

from __future__ import annotations

import os
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from store_core.kernel.columns import WindowColumns
    from store_core.kernel.file import FileReader

__all__ = ["WindowScan", "is_native", "scan_window", "window_scan"]

KERNEL_VARIABLE = "RMQCTL_KERNEL"


@cache
def _kernel() -> ModuleType:
    if os.environ.get(KERNEL_VARIABLE) != "python":
        try:
            from store_core.kernel import native
        except ImportError:
            pass  # no compiler when this was installed
        else:
            return native
    from store_core.kernel.reference import scan

    return scan


def is_native() -> bool:
    """Whether the compiled kernel does the work."""
    return _kernel().__name__.endswith(".native")


def scan_window(
    window: Any, window_phy_offset: int, at: int, segment_end_phy_offset: int, state: int, flags: int
) -> WindowColumns:
    """Cut the part of a segment that ``window`` holds into frames, from index ``at`` on.

    ``window``: bytes-like and C-contiguous; its first byte lies at ``window_phy_offset`` of the log. It may end in
    front of the segment, whose end is ``segment_end_phy_offset``. ``state``: a ScanState, CHAINED at the segment's
    start, then the previous call's ``next_state``. ``flags``: ScanFlag. The next window has to begin at ``next_at``,
    with ``need_bytes`` bytes or more if that is not 0. Raises ValueError when the numbers do not fit each other.
    """
    found: WindowColumns = _kernel().scan_window(window, window_phy_offset, at, segment_end_phy_offset, state, flags)
    return found


class WindowScan(Protocol):
    """``scan_window`` for a window that is still being read."""

    def go_on(self, window: Any) -> None:
        """The window as far as it is there: what was given before, and what has been read behind it."""

    def read_on(self, file: FileReader, window: memoryview, have: int, position: int, /) -> tuple[int, int]:
        """Fill the window, of which ``have`` bytes are there, from a file in which it begins at ``position``, and go on.

        Returns how many bytes are there then, fewer than fit at the file's end and where it cannot be read; and the
        number of the system's error there, else 0.
        """

    def read_through(self, file: FileReader, size_bytes: int, position: int, /) -> tuple[int, int]:
        """As ``read_on`` for a window of this length that nobody wants to look at: none of it is kept."""

    def columns(self) -> WindowColumns:
        """What ``scan_window`` gives for the last that was given. To be asked for once."""


def window_scan(
    window_phy_offset: int, at: int, segment_end_phy_offset: int, state: int, flags: int, size_bytes: int
) -> WindowScan:
    """A scan that walks what of a window is there while the processor's cache still holds it.

    ``size_bytes``: about how long the window will be; all else as ``scan_window`` takes it, and the same errors.
    """
    scan: WindowScan = _kernel().WindowScan(window_phy_offset, at, segment_end_phy_offset, state, flags, size_bytes)
    return scan
