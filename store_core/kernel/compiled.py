"""Import the compiled kernel for callers without numpy; None where it was not built or the reference is selected."""

from __future__ import annotations

import os

from store_core.kernel import KERNEL_VARIABLE

__all__ = ["compiled"]

try:
    if os.environ.get(KERNEL_VARIABLE) == "python":
        raise ImportError
    from store_core.kernel import _native as compiled
except ImportError:
    compiled = None  # type: ignore[assignment]  # no compiler at installation, or the reference is selected
