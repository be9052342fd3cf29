"""What to say where something stands that is no place for a new export of the kind that was asked for."""

from __future__ import annotations

from typing import Final

from store_core.errors import UsageError
from store_core.export.dest.manifest import is_of_export
from store_core.export.dest.parts import RESULT_FOLDERS
from store_core.export.dest.place import is_made_here
from store_core.storage.objects import Objects
from store_core.storage.publish import MANIFEST

_LOGS: Final = {"delta": "_delta_log", "iceberg": "metadata"}


def not_empty(objects: Objects, address: str, asked: str) -> UsageError:
    """The error for a place in which something is, where an export of a format was ``asked`` for."""
    found = _format_of(objects)
    if found is not None and found != asked:
        to_do = f"give --format {found} to go on with it, or name another folder"
        return UsageError(f"an export of format {found} is there", path=address, to_do=to_do)
    if any(is_made_here(name) for folder in RESULT_FOLDERS for name in objects.names(folder)):
        return UsageError(
            "files of an export are there, and nothing that tells of it",
            path=address,
            to_do="run the command again, bring its manifest or log back, or name another folder",
        )
    return UsageError("the folder is not empty", path=address, to_do="name a new or an empty folder")


def _format_of(objects: Objects) -> str | None:
    manifest = objects.read(MANIFEST)
    if manifest is not None and is_of_export(manifest):
        return "parquet"
    logs = _LOGS.items()
    return next(
        (name for name, log in logs if any(objects.names(f"{folder}/{log}") for folder in RESULT_FOLDERS)), None
    )
