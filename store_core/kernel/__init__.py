"""The hot pass over a window: a compiled kernel where one could be built, else its readable Python twin.

``scan_window`` cuts a window of the log into frames and returns them as WindowColumns. Both kernels return the same.
RMQCTL_KERNEL=python in the environment takes the twin even where the compiled kernel is there.
"""

from __future__ import annotations

import os
from functools import cache
from types import ModuleType
from typing import Any

from store_core.kernel.columns import WindowColumns

__all__ = ["WindowColumns", "cut_records", "is_native", "scan_window"]

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
    from store_core.kernel import twin

    return twin


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


def cut_records(window: Any, at: Any, phy_offset: Any, size_bytes: Any, flags: int) -> WindowColumns:
    """The records at known places, a row each, in their order; arrays of int64 of one length.

    ``at``: indices into ``window``; ``phy_offset``: where in the log that is; ``size_bytes``: how long the record should
    be. Where no well-formed record of that length stands the row is DAMAGE, and its code says why. ``flags``: those of
    ScanFlag that say what to look at in a record. Raises ValueError when the arrays differ in length.
    """
    found: WindowColumns = _kernel().cut_records(window, at, phy_offset, size_bytes, flags)
    return found
