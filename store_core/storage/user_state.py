"""Keep small files of rmqctl outside any store: under ``$XDG_STATE_HOME/rmqctl``, or where the operator says."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from store_core.storage.writer import save_file

_NAME: Final = "rmqctl"


def state_folder() -> Path:
    """Return ``$XDG_STATE_HOME/rmqctl``, by default ``~/.local/state/rmqctl``. It need not exist."""
    named = os.environ.get("XDG_STATE_HOME", "")
    return (Path(named) if os.path.isabs(named) else Path.home() / ".local" / "state") / _NAME


def save_state(path: Path, data: bytes) -> None:
    """Write a state file atomically, with its folders. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(path, data)


def forget_state(path: Path) -> None:
    """Remove a state file if it exists. Raises OSError."""
    path.unlink(missing_ok=True)
