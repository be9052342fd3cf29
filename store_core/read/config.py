"""Convert config files to plain JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import PurePosixPath
from typing import Any

from store_core.storage.config_files import ConfigFile, ConfigFiles

_NS_IN_MS = 1_000_000


def files_as_json(config: ConfigFiles) -> dict[str, dict[str, Any]]:
    """Return for each file name its source and content; files that do not exist are left out.

    ``source`` is ``main``, ``bak`` or ``none`` (neither can be used). ``broker_loads``: a broker starts with the file.
    """
    shown = {
        PurePosixPath(file.name).name: _file(file) for file in config.files if file.source != "none" or file.findings
    }
    if config.timer_check is not None:
        shown["timercheck"] = {"source": "main", "broker_loads": True, **asdict(config.timer_check)}
    return shown


def entries(file: ConfigFile) -> int:
    """Return the number of entries in the largest table of a file."""
    tables = (part for name, part in file.value.items() if name != "data_version" and isinstance(part, dict | list))
    return max(map(len, tables), default=0)


def _file(file: ConfigFile) -> dict[str, Any]:
    return {
        "source": file.source,
        "broker_loads": file.loads,
        "entries": entries(file),
        "size_bytes": file.size_bytes,
        "modified_timestamp_ms": file.modified_ns // _NS_IN_MS if file.modified_ns else None,
        **plain(file.value),
    }


def plain(value: Any) -> Any:
    """Return the value with every key as text."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value
