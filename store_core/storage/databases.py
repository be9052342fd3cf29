"""Read which RocksDB library last opened a store's databases, and nothing else of them (store format, section 1)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from store_core.layout import paths
from store_core.storage.files import open_read_only
from store_core.storage.remote_path import names_of

if TYPE_CHECKING:
    from store_core.storage.store import Store

_OPTIONS: Final = re.compile(r"OPTIONS-(\d{1,19})")
_VERSION: Final = re.compile(rb"^\s*rocksdb_version=(\d{1,4})\.(\d{1,4})\.(\d{1,4})\s*$", re.MULTILINE)
_LONGEST_OPTIONS_BYTES: Final = 1 << 20
LIBRARY_OF_55: Final = (8, 4, 4)  # that of 5.5.0 and 5.5.1; 5.4.0 has 8.4.0
_FIRST_OF_55: Final = [5, 5]


def database_options(folder: Path) -> bytes:
    """Return the newest options file of the database in ``folder``, b"" if there is none. Each opening writes a new one."""
    try:
        found = {int(match[1]): name for name in names_of(folder) if (match := _OPTIONS.fullmatch(name))}
        if not found or not (folder / found[max(found)]).is_file():
            return b""
        with open(open_read_only(folder / found[max(found)]), "rb") as file:
            return file.read(_LONGEST_OPTIONS_BYTES)
    except OSError:
        return b""


def library_of(options: bytes) -> tuple[int, int, int] | None:
    """Return the version of the RocksDB library that wrote these options; None if they do not name it."""
    found = _VERSION.search(options)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def ran_under_55(root: Path) -> bool:
    """Return True if a broker of 5.5 or later was the last to start on the store at ``root``."""
    library = library_of(database_options(root / paths.ROCKSDBSTORE))
    return library is not None and library >= LIBRARY_OF_55


def runs_under_55(store: Store) -> bool:
    """Return True if the release named for the store, by default the last one that ran, is 5.5 or later."""
    if store.settings.broker_version is not None:
        return [*map(int, re.findall(r"\d+", store.settings.broker_version))][:2] >= _FIRST_OF_55
    return ran_under_55(store.root)
