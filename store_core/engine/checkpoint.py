"""Advance the checkpoint once log, queues and index are on the disk (store behaviour 5.5; store format 8)."""

from __future__ import annotations

import os

from store_core.engine.files import LiveFiles
from store_core.errors import FailedError
from store_core.layout import paths
from store_core.layout.checkpoint import CHECKPOINT, FILE_SIZE_BYTES
from store_core.storage.store import Store


class CheckpointWriter:
    """Writes the checkpoint's times, which only grow.

    A store that has records but no checkpoint gets none: the reason for its removal is unknown, and without it a broker checks everything after a
    crash. With ``keeps_queue_offset`` (5.5), or if the checkpoint has one, the queues' time has the offset of its record beside it.
    """

    def __init__(self, store: Store, files: LiveFiles, *, may_make: bool, keeps_queue_offset: bool) -> None:
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
        self._keeps_queue_offset = keeps_queue_offset or self._fields["logics_phy_offset"] != 0

    def save(self, *, log_ms: int, queues_ms: int, queues_phy_offset: int, index_ms: int) -> None:
        """Raise the three times, in ms, and make the file durable; 0 leaves a time unchanged. Raises OSError.

        The caller has synced what they name. ``queues_phy_offset``: of the record with ``queues_ms``.
        """
        new = {
            "physic_msg_timestamp_ms": log_ms,
            "logics_msg_timestamp_ms": queues_ms,
            "index_msg_timestamp_ms": index_ms,
        }
        if self._keeps_queue_offset:
            new["logics_phy_offset"] = queues_phy_offset
        fields = {name: max(self._fields[name], value) for name, value in new.items()}
        if fields.items() <= self._fields.items():
            return
        self._fields |= fields
        if not self._exists:
            if not self._may_make:
                return
            self._files.make_file(paths.CHECKPOINT, FILE_SIZE_BYTES)
            self._exists = True
        # Later fields belong to later releases.
        end = CHECKPOINT.size_bytes if self._keeps_queue_offset else CHECKPOINT.end_of("index_msg_timestamp_ms")
        self._files.write(paths.CHECKPOINT, 0, CHECKPOINT.struct.pack(*self._fields.values())[:end])
        self._files.sync_file(paths.CHECKPOINT)
