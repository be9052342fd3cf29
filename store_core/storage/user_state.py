"""Small files that rmqctl keeps for itself, outside any store: under ``$XDG_STATE_HOME/rmqctl``, or where a person says."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from store_core.storage.writer import save_file

_NAME: Final = "rmqctl"


def state_folder() -> Path:
    """``$XDG_STATE_HOME/rmqctl``, by default ``~/.local/state/rmqctl``. It need not be there."""
    named = os.environ.get("XDG_STATE_HOME", "")
    return (Path(named) if os.path.isabs(named) else Path.home() / ".local" / "state") / _NAME


def save_state(path: Path, data: bytes) -> None:
    """Write a state file in one go, with the folders it needs. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(path, data)


def forget_state(path: Path) -> None:
    """Remove a state file, if it is there. Raises OSError."""
    path.unlink(missing_ok=True)
