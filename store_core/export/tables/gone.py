"""Report files that are removed or cut while they are read.

A broker removes expired files, and folders in object stores can be deleted.
"""

from __future__ import annotations

from pathlib import Path

from store_core.errors import FailedError
from store_core.kernel.codes import FrameKind, HoleCode
from store_core.scan.frames import FrameTable
from store_core.storage.remote_path import RemotePath, is_there
from store_core.storage.sequence import Segment


def refuse_gone(path: Path) -> None:
    """Raise FailedError if a listed file is gone: its content would be missing without any message.

    Call it where bytes are missing, since a read of a missing file returns none.
    """
    if isinstance(path, RemotePath):
        path.parent.forget()
    if not is_there(path):
        raise _gone(path, "went away")


def refuse_cut(segment: Segment, table: FrameTable) -> None:
    """Raise FailedError if a table of a segment's scan ends with bytes that were stored when the segment was listed."""
    if not len(table) or table.phy_offset[-1] >= segment.end_phy_offset:
        return
    if table.kind[-1] == FrameKind.HOLE and table.code[-1] == HoleCode.NO_FILE:
        raise _gone(segment.path, "was cut" if is_there(segment.path) else "went away")


def _gone(path: Path, what: str) -> FailedError:
    return FailedError(
        f"a file of the store {what} while it was read",
        path=str(path),
        to_do="run the command again; a broker removes what has expired",
    )
