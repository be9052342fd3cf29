"""Explain why a destination cannot take a new export of the requested format."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from store_core.errors import FailedError, UsageError
from store_core.export.dest.manifest import is_of_export
from store_core.export.dest.parts import RESULT_FOLDERS
from store_core.export.dest.task_destination import is_made_here
from store_core.storage.objects import Objects
from store_core.storage.publish import MANIFEST


def not_empty(objects: Objects, address: str, asked: str) -> UsageError:
    """Return the error for a place with files, where an export of format ``asked`` was requested."""
    with suppress(FailedError):
        names = [name for folder in RESULT_FOLDERS for name in objects.names(folder)]
        found = "parquet" if is_of_export(objects.read(MANIFEST) or b"") else _format_of(names)
        if found is not None and found != asked:
            to_do = f"give --format {found} to go on with it, or name another folder"
            return UsageError(f"an export of format {found} is there", path=address, to_do=to_do)
        if any(map(is_made_here, names)):
            return UsageError(
                "files of an export are there, beside what is none of its",
                path=address,
                to_do="name another folder, or bring its manifest or log back",
            )
    return UsageError("the folder is not empty", path=address, to_do="name a new or an empty folder")


def _format_of(names: Iterable[str]) -> str | None:
    for name in names:
        if "/_delta_log/" in name:
            return "delta"
        if name.endswith(".metadata.json"):
            return "iceberg"
    return None
