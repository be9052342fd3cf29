"""Make a destination from the address that the operator names."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from store_core.errors import UsageError
from store_core.export.dest.bucket import BucketDestination
from store_core.export.dest.delta import DeltaDestination
from store_core.export.dest.destination import Destination
from store_core.export.dest.folder import FolderDestination
from store_core.export.dest.iceberg import IcebergDestination
from store_core.export.dest.tables import MESSAGES, TableSet
from store_core.storage.remote_path import is_remote, path_of

Format = Literal["parquet", "delta", "iceberg"]


def destination_of(
    address: str | Path,
    format: Format = "parquet",
    *,
    catalog: str | None = None,
    overwrite: bool = False,
    incremental: bool = False,
    tables: TableSet = MESSAGES,
) -> Destination:
    """Return the destination at a local path, or at a URL of an object store (s3, gs, abfss).

    Raises UsageError for an address or options that do not fit each other, FailedError where a library is missing.
    """
    if overwrite and incremental:
        raise UsageError("--incremental adds and --overwrite replaces", to_do="give one of them")
    if catalog is not None and format != "iceberg":
        raise UsageError("--catalog is for --format iceberg", to_do="give that too, or leave it out")
    if not str(address).strip():
        raise UsageError("no destination is named", to_do="name a folder, or an address like s3://BUCKET/FOLDER")
    path = path_of(address).expanduser()
    if format == "iceberg":
        return IcebergDestination(path, catalog, overwrite=overwrite, incremental=incremental, tables=tables)
    kind = DeltaDestination if format == "delta" else BucketDestination if is_remote(path) else FolderDestination
    return kind(path, overwrite=overwrite, incremental=incremental, tables=tables)
