"""Config files for people and scripts: each with its typed content as plain JSON values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from dataclasses import fields, is_dataclass
from pathlib import PurePosixPath
from typing import Any

from store_core.storage.config_files import ConfigFile, ConfigFiles

_NS_IN_MS = 1_000_000


def files_as_json(config: ConfigFiles) -> dict[str, dict[str, Any]]:
    """File name to what it is and holds; files that are not there at all are left out.

    ``source`` is ``main``, ``bak`` or ``none`` (neither can be used), ``broker_loads`` whether a broker starts with it.
    """
    shown = {
        PurePosixPath(file.name).name: _file(file) for file in config.files if file.source != "none" or file.findings
    }
    if config.timer_check is not None:
        shown["timercheck"] = {"source": "main", "broker_loads": True, **plain(config.timer_check)}
    return shown


def entries(file: ConfigFile[Any]) -> int:
    """How many things a file tells of: its largest table."""
    return max((len(part) for part in _tables(file.value)), default=0)


def _tables(value: Any) -> Iterator[Sized]:
    for field in fields(value):
        part = getattr(value, field.name)
        if isinstance(part, Mapping | tuple):
            yield part


def _file(file: ConfigFile[Any]) -> dict[str, Any]:
    return {
        "source": file.source,
        "broker_loads": file.loads,
        "entries": entries(file),
        "size_bytes": file.size_bytes,
        "modified_timestamp_ms": file.modified_ns // _NS_IN_MS if file.modified_ns else None,
        **plain(file.value),
    }


def plain(value: Any) -> Any:
    """Dataclasses as objects, tuples as lists, and every key as text."""
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
