"""Files that go away while a table is read: a broker removes what has expired, and folders in object stores can be deleted."""

from __future__ import annotations

from pathlib import Path

from store_core.errors import FailedError
from store_core.storage.remote_path import RemotePath, is_there


def refuse_gone(path: Path) -> None:
    """Raise FailedError if a file that was listed is not there any more: what it held would be missing without a word.

    For where bytes are missing, since reading what is not there gives none.
    """
    if isinstance(path, RemotePath):
        path.parent.forget()
    if not is_there(path):
        raise FailedError(
            "a file of the store went away while it was read",
            path=str(path),
            to_do="run the command again; a broker removes what has expired",
        )
