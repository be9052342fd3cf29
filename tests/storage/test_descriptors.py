"""No descriptor outlives what it was opened for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tests.conftest import DamagedStore
from tests.recovery.recovering import Opener


def open_files(root: Path) -> list[str]:
    folder = Path("/proc/self/fd")
    links = [os.readlink(link) for link in folder.iterdir() if link.is_symlink() and os.path.lexists(link)]
    return [link for link in links if link.startswith(str(root))]


def test_a_recovery_closes_what_it_opened(damaged: DamagedStore, settings_of: Callable[[str], Path]) -> None:
    root = damaged("load-533", "zero-page-mid", "crash")
    Opener(settings_of("load-533"), "5.3.3").recover(root)
    assert open_files(root) == []
