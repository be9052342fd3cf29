"""Read which broker a store belongs to (store format, section 9.8)."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from store_core.layout import paths
from store_core.storage.files import open_read_only

_SEPARATOR: Final = "#"
_LONGEST_BYTES: Final = 4096


class BrokerIdentity(NamedTuple):
    """The identity that a broker in controller mode writes to a file; the id is 0 if it has none."""

    cluster: str
    broker: str
    broker_id: int


def broker_identity(root: Path) -> BrokerIdentity | None:
    """Return the broker that a store belongs to; None if the store does not name it. Raises FailedError for a remote store only."""
    path = root / paths.BROKER_IDENTITY
    try:
        if not path.is_file():
            return None
        with open(open_read_only(path), "rb") as file:
            words = file.read(_LONGEST_BYTES).decode("utf-8", "replace").strip().split(_SEPARATOR)
    except OSError:
        return None
    if len(words) != len(BrokerIdentity._fields) or not words[1] or not words[2].isdecimal():
        return None
    return BrokerIdentity(words[0], words[1], int(words[2]))
