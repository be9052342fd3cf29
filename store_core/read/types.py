"""Entries of a store's root that are folders where files belong, or the other way round (store format 1)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from store_core.findings import Finding, finding
from store_core.layout import paths
from store_core.storage.store import Store

QUEUE_TREES: Final = (paths.CONSUMEQUEUE, paths.BATCHCONSUMEQUEUE, paths.CONSUMEQUEUE_EXT)
_FOLDERS: Final = (*QUEUE_TREES, paths.INDEX, paths.CONFIG, paths.TIMERLOG, paths.COMPACTION)
_FILES: Final = (paths.CHECKPOINT, paths.LOCK, paths.TIMERWHEEL, paths.ABORT)


def wrong_types(store: Store) -> Iterator[Finding]:
    """S008 for each folder that is a file, the other way round, and for what is neither."""
    wanted = [(store.root / name, True) for name in _FOLDERS] + [(store.root / name, False) for name in _FILES]
    wanted += [(folder, True) for folder in store.settings.commitlog_paths]
    for path, is_folder in wanted:
        if path.exists() and not (path.is_dir() if is_folder else path.is_file()):
            found = "a folder" if path.is_dir() else "a file" if path.is_file() else "a pipe or a device"
            what = f"{found} where a {'folder' if is_folder else 'file'} belongs"
            yield finding("S008", what, file=store.relative(path))
