"""Refuse stores that no command may change, because their brokers read other files than rmqctl writes."""

from __future__ import annotations

import os
from typing import Final

from store_core.errors import FailedError, UsageError
from store_core.layout import paths
from store_core.read.log_files import refuse_partial_log
from store_core.storage.store import Store

_FOLDERS: Final = (
    paths.CONSUMEQUEUE,
    paths.BATCHCONSUMEQUEUE,
    paths.CONSUMEQUEUE_EXT,
    paths.INDEX,
    paths.CONFIG,
    paths.OURS,
)
_DLEDGER_FOLDER: Final = "dledger-"


def refuse_foreign_store(store: Store) -> None:
    """Refuse a store whose queues or log have a form that rmqctl cannot write.

    Raises:
        FailedError: RocksDB queues, a DLedger log, a part of the log is missing, or other files have the names of folders or
            segments.
        UsageError: the configured segment size is not that of the log's files.
    """
    where = str(store.root)
    for tree in _FOLDERS:
        if os.path.lexists(store.root / tree) and not os.path.isdir(store.root / tree):
            raise FailedError(f"{tree} is no folder", path=str(store.root / tree), to_do="move it away first")
    _refuse_false_segments(store)
    if store.queues_in_rocksdb:
        raise FailedError(
            "the queues are kept in a RocksDB database",
            path=where,
            to_do="let its own broker recover it; verify-crc, log, get and export work",
        )
    refuse_dledger(store)
    refuse_partial_log(store)
    _refuse_sizes(
        store, "mappedFileSizeCommitLog", store.log.configured_file_size_bytes, store.log.derived_file_size_bytes
    )


def _refuse_false_segments(store: Store) -> None:
    """Raise FailedError if something else has a segment's name: it may be the only trace of that segment."""
    for stray in store.log.strays:
        offset = paths.parse_segment_name(stray.path.name)
        if offset is None or stray.duplicate_of is not None:
            continue
        if stray.path.is_file():
            if not store.log.file_size_bytes or stray.size_bytes != store.log.file_size_bytes:
                continue
            if offset % store.log.file_size_bytes or offset < store.log.max_phy_offset:
                continue
            what, to_do = "a segment so far beyond the others that its name must be wrong", "rename it or move it out"
        elif stray.path.is_symlink() and not stray.path.exists():
            what, to_do = "a link that leads nowhere", "mount the disk that it leads to, or remove it"
        else:
            what, to_do = "a folder, a pipe or a device has a segment's name", "move it out of the store"
        raise FailedError(what, path=str(stray.path), to_do=f"{to_do}, and run the command again")


def refuse_dledger(store: Store) -> None:
    """Raise FailedError if DLedger keeps the log: its brokers read DLedger's own files."""
    is_dledger = store.settings.flag("enableDLegerCommitLog") or any(
        name.startswith(_DLEDGER_FOLDER) for name in os.listdir(store.root)
    )
    if is_dledger:
        raise FailedError(
            "the log is kept by DLedger, in part or wholly",
            path=str(store.root),
            to_do="only its own brokers may write to it; verify-crc, log, get and export work",
        )


def _refuse_sizes(store: Store, name: str, configured: int | None, derived: int | None) -> None:
    if configured is None or derived is None or configured == derived:
        return
    lengths = {segment.size_bytes for segment in store.log.segments}
    if lengths == {derived}:
        raise UsageError(
            f"the configuration says {name}={configured}, and all files of {paths.COMMITLOG} are {derived} bytes long",
            path=str(store.root),
            to_do="name the properties file of this store's own broker with -c",
        )
