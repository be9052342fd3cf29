"""Stores that must not be mended: what would be written there would not be what a broker reads."""

from __future__ import annotations

import os
from typing import Final

from store_core.errors import FailedError, UsageError
from store_core.layout import paths
from store_core.storage.store import Store

_DLEDGER_FOLDER: Final = "dledger-"


def refuse_foreign_store(store: Store) -> None:
    """Raise FailedError where queues or log are kept in a form that mending does not know, UsageError for wrong sizes."""
    where = str(store.root)
    for tree in (paths.CONSUMEQUEUE, paths.BATCHCONSUMEQUEUE, paths.CONSUMEQUEUE_EXT, paths.INDEX):
        if os.path.lexists(store.root / tree) and not os.path.isdir(store.root / tree):
            raise FailedError(f"{tree} is no folder", path=str(store.root / tree), to_do="move it away first")
    if store.queues_in_rocksdb:
        raise FailedError(
            "the queues are kept in a RocksDB database",
            path=where,
            to_do="let its own broker recover it; verify-crc, log, get and export work",
        )
    refuse_dledger(store)
    _refuse_sizes(
        store, "mappedFileSizeCommitLog", store.log.configured_file_size_bytes, store.log.derived_file_size_bytes
    )


def refuse_dledger(store: Store) -> None:
    """Raise FailedError where DLedger keeps the log: its own files are what its brokers read."""
    is_dledger = store.settings.flag("enableDLegerCommitLog") or any(
        name.startswith(_DLEDGER_FOLDER) for name in os.listdir(store.root)
    )
    if is_dledger:
        raise FailedError(
            "the log is kept by DLedger, in part or wholly",
            path=str(store.root),
            to_do="only its own brokers may write to it; verify-crc, log, get and export work",
        )


def _refuse_sizes(store: Store, name: str, configured: int | None, told: int | None) -> None:
    if configured is None or told is None or configured == told:
        return
    lengths = {segment.size_bytes for segment in store.log.segments}
    if lengths == {told}:
        raise UsageError(
            f"the configuration says {name}={configured}, and all files of {paths.COMMITLOG} are {told} bytes long",
            path=str(store.root),
            to_do="name the properties file of this store's own broker with -c",
        )
