"""Where the kernel could not be built there is nothing to compare the twin with."""

from __future__ import annotations

import pytest

pytest.importorskip("store_core.kernel._native", reason="the compiled kernel was not built: no cargo when installing")
