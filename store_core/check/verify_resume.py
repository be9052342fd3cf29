"""Store the rest of an unfinished verification outside the store: reading never writes there."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from store_core.errors import FailedError
from store_core.scan.windows import Piece, nominal_end
from store_core.storage.files import read_whole
from store_core.storage.remote_path import real_path
from store_core.storage.store import Store
from store_core.storage.user_state import forget_state, save_state, state_folder

_FORMAT: Final = 1


def default_state_file(store: Store) -> Path:
    """Return the path of ``verify-crc-….json`` in rmqctl's state folder, one for each store root."""
    import hashlib  # slow to load

    digest = hashlib.sha256(os.fsencode(str(real_path(store.root)))).hexdigest()[:16]
    return state_folder() / f"verify-crc-{digest}.json"


def save_left(path: Path, store: Store, left: Sequence[Piece]) -> None:
    """Save the rest of a verification; without a rest, remove the file. Raises FailedError."""
    document = {
        "format": _FORMAT,
        "store": str(real_path(store.root)),
        "left": [[piece.from_phy_offset, piece.to_phy_offset, piece.chained] for piece in left],
    }
    try:
        if not left:
            forget_state(path)
        else:
            save_state(path, json.dumps(document).encode() + b"\n")
    except OSError as error:
        raise FailedError(
            f"cannot write: {error.strerror}", path=str(path), to_do="name another file with --state"
        ) from error


def load_left(path: Path, store: Store) -> list[Piece] | None:
    """Return the rest of the verification that wrote the file; None without a file.

    Segments that have expired since are left out. Raises FailedError for a file that is unreadable or belongs to
    another store.
    """
    try:
        document = json.loads(read_whole(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise FailedError(f"cannot read: {error}", path=str(path), to_do="remove it and start again") from error
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise FailedError("not what verify-crc keeps", path=str(path), to_do="remove it and start again")
    if document.get("store") != str(real_path(store.root)):
        to_do = "name the file of this store with --state, or start again"
        raise FailedError(f"the file is about {document.get('store')}", path=str(path), to_do=to_do)
    try:
        return [piece for entry in document["left"] if (piece := _piece(store, *entry)) is not None]
    except (KeyError, TypeError, ValueError) as error:
        raise FailedError("not what verify-crc keeps", path=str(path), to_do="remove it and start again") from error


def _piece(store: Store, start: Any, stop: Any, chained: Any) -> Piece | None:
    start, stop = int(start), int(stop)
    segment = store.log.find(start)
    if segment is None:
        return None
    return Piece(segment, start, min(stop, nominal_end(store.log, segment)), bool(chained))
