"""Which kernel is taken, and that nobody pays for it before it is used."""

from __future__ import annotations

import os
import subprocess
import sys

from store_core import kernel
from tests.kernel.driver import KERNELS

PROBE = """
import sys
import store_core.kernel as kernel
from store_core.kernel.reference.record import check_record
before = "numpy" in sys.modules
print(before, kernel.is_native(), len(kernel.scan_window(bytes(100), 0, 0, 100, 0, 0).kind))
"""


def probe(choice: str) -> str:
    environment = {**os.environ, kernel.KERNEL_VARIABLE: choice}
    return subprocess.run(
        [sys.executable, "-c", PROBE], env=environment, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_the_compiled_kernel_is_taken_where_it_is() -> None:
    assert probe("") == f"False {'native' in KERNELS} 1"


def test_the_twin_can_be_asked_for() -> None:
    assert probe("python") == "False False 1"
