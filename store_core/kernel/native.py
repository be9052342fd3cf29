"""Give the compiled kernel the interface of ``reference.scan``. Importing it fails where the kernel was not built."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from store_core.kernel import _native
from store_core.kernel.arrow import ArrowColumns, Texts, Words
from store_core.kernel.columns import WindowColumns

Ints = NDArray[Any]
_LARGER_THAN_ANY_COLUMN_BYTES: Final = 16 << 20


def _let_columns_reuse_memory() -> None:
    """Make the C library keep freed columns for the next window's.

    glibc returns large freed blocks to the system at once, and new ones are cleared pages, which slows the pass. Freeing one larger block, whose
    pages were never touched, raises its limit for large blocks.
    """
    bytes(_LARGER_THAN_ANY_COLUMN_BYTES)


_let_columns_reuse_memory()
# The first array loads numpy's interface and panics if interrupted then; an import is not interrupted.
_native.WindowScan(0, 0, 0, 0, 0, 0).go_on(np.empty(0, dtype=np.uint8))


def scan_window(
    window: Any, window_phy_offset: int, at: int, segment_end_phy_offset: int, state: int, flags: int
) -> WindowColumns:
    """Return the columns of ``reference.scan.scan_window``. The window is not copied, and other threads run meanwhile."""
    scan = WindowScan(window_phy_offset, at, segment_end_phy_offset, state, flags, len(window))
    scan.go_on(window)
    return scan.columns()


class WindowScan:
    """The compiled ``reference.scan.WindowScan``. Each part is walked at once and not copied; other threads run meanwhile."""

    def __init__(self, *numbers: int) -> None:
        self._scan = _native.WindowScan(*numbers)

    def go_on(self, window: Any) -> None:
        self._scan.go_on(_bytes(window))

    def read_on(self, file: Any, window: Any, have: int, position: int) -> tuple[int, int]:
        found: tuple[int, int] = self._scan.read_on(file, _bytes(window), have, position)
        return found

    def read_through(self, file: Any, size_bytes: int, position: int) -> tuple[int, int]:
        found: tuple[int, int] = self._scan.read_through(file, size_bytes, position)
        return found

    def columns(self) -> WindowColumns:
        return WindowColumns(**self._scan.take())

    def rows(self) -> tuple[list[tuple[Any, ...]], int, int, int, int]:
        return self._scan.rows()


def arrow_columns(window: Any, at: Ints, size_bytes: Ints, wanted: int) -> ArrowColumns:
    """Return the columns of ``reference.arrow.arrow_columns``."""
    at, size_bytes = (np.ascontiguousarray(column, np.int64) for column in (at, size_bytes))
    return _columns(_native.arrow_columns(_bytes(window), at, size_bytes, wanted))


class Collector:
    """The compiled ``reference.arrow.Collector``."""

    def __init__(self, wanted: int, expected_bytes: int) -> None:
        self._collector = _native.Collector(wanted, expected_bytes)

    def add(self, window: Any, at: Ints, size_bytes: Ints, group: Ints) -> None:
        at, size_bytes = (np.ascontiguousarray(column, np.int64) for column in (at, size_bytes))
        self._collector.add(_bytes(window), at, size_bytes, np.ascontiguousarray(group, np.uint32))

    @property
    def size_bytes(self) -> int:
        return self._collector.size_bytes

    def take(self, group: int) -> ArrowColumns:
        return _columns(self._collector.take(group))


def _bytes(window: Any) -> NDArray[np.uint8]:
    return np.frombuffer(window, dtype=np.uint8) if len(window) else np.empty(0, dtype=np.uint8)


def _columns(parts: dict[str, Any]) -> ArrowColumns:
    columns: dict[str, Any] = {name: _column(part) for name, part in parts.items()}
    return ArrowColumns(**columns)


def _column(part: Any) -> Any:
    if not isinstance(part, tuple):
        return part
    first, second, valid = part
    return Words(first, Texts(*second), valid) if isinstance(second, tuple) else Texts(*part)
