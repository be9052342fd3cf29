"""The checkpoint as a broker moves it on when log, queues and index have grown (store behaviour 5.5; store format 8)."""

from __future__ import annotations

import os

from store_core.engine.files import LiveFiles
from store_core.errors import FailedError
from store_core.layout import paths
from store_core.layout.checkpoint import CHECKPOINT, FILE_SIZE_BYTES
from store_core.storage.store import Store


class CheckpointWriter:
    """Its times, which only grow. Where a store with records has no checkpoint there will be none: that makes a broker
    look at everything after a crash, and nobody knows why it was taken away.
    """

    def __init__(self, store: Store, files: LiveFiles, *, may_make: bool) -> None:
        self._files = files
        path = store.root / paths.CHECKPOINT
        self._exists = path.is_file()
        if not self._exists and os.path.lexists(path):
            raise FailedError(
                "no broker would start on this store: its checkpoint is not a file",
                path=str(path),
                to_do="move it out of the way, and run `rmqctl checkpoint --rebuild`",
            )
        self._may_make = may_make
        data = store.cache.read(path, 0, CHECKPOINT.size_bytes) if self._exists else b""
        self._fields = CHECKPOINT.read(data.ljust(CHECKPOINT.size_bytes, b"\0"))

    def move_on(self, *, log_ms: int, queues_ms: int, index_ms: int) -> None:
        """Raise the three times, ms; 0 leaves one as it is. Raises OSError."""
        new = {
            "physic_msg_timestamp_ms": log_ms,
            "logics_msg_timestamp_ms": queues_ms,
            "index_msg_timestamp_ms": index_ms,
        }
        self._fields |= {name: max(self._fields[name], value) for name, value in new.items()}
        if not self._exists:
            if not self._may_make:
                return
            self._files.make_file(paths.CHECKPOINT, FILE_SIZE_BYTES)
            self._exists = True
        end = CHECKPOINT.end_of("index_msg_timestamp_ms")  # what later releases keep behind is theirs
        self._files.write(paths.CHECKPOINT, 0, CHECKPOINT.struct.pack(*self._fields.values())[:end])
