"""Which store a report is about, and in which state."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from store_core.layout import paths
from store_core.recovery.loss_report.model import StoreIdentity
from store_core.storage.store import Store


def identity_of(store: Store) -> StoreIdentity:
    """Path, size and a digest over the list of files; log folders outside the root are listed with their full paths."""
    digest, files, size_bytes = hashlib.sha256(), 0, 0
    for name, info in _listed(store):
        digest.update(os.fsencode(f"{name}\t{info.st_size}\t{info.st_mtime_ns}\n"))
        files += 1
        size_bytes += info.st_size
    return StoreIdentity(str(store.root), files, size_bytes, digest.hexdigest())


def _listed(store: Store) -> Iterator[tuple[str, os.stat_result]]:
    for root in (store.root, *sorted(store.settings.outside_paths)):
        for folder, folders, names in os.walk(root):
            if folder == str(store.root) and paths.OURS in folders:
                folders.remove(paths.OURS)
            folders.sort()
            for name in sorted(names):
                path = Path(folder, name)
                try:
                    yield store.relative(path), path.lstat()
                except OSError:  # gone meanwhile
                    continue
