"""Keep the modes of files made from a store no wider than the store's own."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from store_core.layout import paths
from store_core.storage.remote_path import is_remote

_CLASSES: Final = (3, 0)  # of users, by the position of their bits: the group's, others'
_READ, _SEARCH, _ALL = 0o4, 0o1, 0o7
_WRITE_BITS: Final = 0o022


@contextmanager
def no_wider_than(roots: Iterable[Path]) -> Iterator[None]:
    """Have this process make files and folders that group and others can read only if they can read the stores."""
    mask = _WRITE_BITS
    for root in roots:
        if not is_remote(root):
            mask |= _hidden_bits(root)
    before = os.umask(mask)
    os.umask(before | mask)
    try:
        yield
    finally:
        os.umask(before)


def _hidden_bits(root: Path) -> int:
    """Return all bits of the user classes that cannot read the root, the log's folder or its first file."""
    log = root / paths.COMMITLOG
    looked_at = [root, log]
    with suppress(OSError):
        looked_at += sorted(log.iterdir())[:1]
    hidden = 0
    for path in looked_at:
        with suppress(OSError):
            info = path.stat()
            needed = _READ | (_SEARCH if stat.S_ISDIR(info.st_mode) else 0)
            hidden |= sum(_ALL << place for place in _CLASSES if info.st_mode >> place & needed != needed)
    return hidden
