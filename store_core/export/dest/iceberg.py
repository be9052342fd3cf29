"""Add files to Iceberg tables in one snapshot, which also contains the export's state.

The tables are ``rmqctl.messages``, ``rmqctl.quarantine`` and so on in an SQL catalog; the default catalog is the file
``catalog.db`` next to their files. The deciding snapshot is chosen as in ``dest.delta``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from store_core.errors import FailedError, UsageError
from store_core.export.dest.missing_library import told
from store_core.export.dest.object_dest import LooseDestination
from store_core.export.dest.parquet import WrittenFile, refuse_missing
from store_core.export.dest.parts import Part
from store_core.export.dest.state import Commit, ExportState
from store_core.export.dest.tables import MESSAGES, State, TableSet, WholeState, in_order, standing_as, state_in_commit
from store_core.export.rows import schema
from store_core.extras import assert_installed

CATALOG: Final = "catalog.db"
NAMESPACE: Final = "rmqctl"
_FILE_ACCESS: Final = "store_core.export.dest.iceberg_io."
_LATER_METADATA: Final = re.compile(r"/0*[1-9]\d*-[^/]*\.metadata\.json$")
_STATE: Final = "rmqctl.export"
_NUMBER: Final = "rmqctl.commit"
# Else the library would repeat a refused commit on top of the other export's snapshot: every record twice.
_RETRIES: Final = "commit.retry.num-retries"
# Only columns with bounds in the files keep them: for the others the library would warn about each file.
_METRICS: Final = "write.metadata.metrics"
_PROPERTIES: Final = {
    f"{_METRICS}.default": "none",
    **{f"{_METRICS}.column.{name}": "full" for name in (*schema.STATISTICS_PATHS, *schema.QUARANTINE.names)},
}


class IcebergDestination(LooseDestination):
    """``Destination`` for Iceberg tables below a folder or an address. Needs the extra ``lake``.

    ``catalog``: an SQLAlchemy address of a catalog; without one, in a local folder, an SQLite file next to the data.
    """

    format = "iceberg"
    flat = True
    table_folder = "metadata/"

    def __init__(
        self,
        path: Path,
        catalog: str | None = None,
        *,
        overwrite: bool = False,
        incremental: bool = False,
        tables: TableSet = MESSAGES,
    ) -> None:
        assert_installed("pyiceberg", "--format iceberg")
        assert_installed("sqlalchemy", "--format iceberg")
        super().__init__(path, overwrite=overwrite, incremental=incremental, tables=tables)
        if catalog is None and self.path is None:
            raise UsageError(
                "an Iceberg catalog cannot be a file in an object store",
                path=self.address,
                to_do="name one with --catalog, like sqlite:////data/catalog.db or postgresql://…",
            )
        if catalog is not None:
            _assert_catalog(catalog)
        self._uri = catalog or f"sqlite:///{os.path.abspath(path / CATALOG)}"
        self._is_own_catalog = catalog is None
        self._catalog: Any = None
        self._began_with = 0
        self._gone: dict[str, str] = {}  # missing metadata files, by table

    def standing(self) -> ExportState | WholeState | None:
        if not self._has_catalog():
            self.refuse_foreign()
        elif not self._incremental:  # an incremental export may have nothing to add
            with told(self.address, "opening the Iceberg catalog"):
                self._assert_writable()
        with told(self.address, "reading the Iceberg catalog"):
            for name in self.tables.folders:
                self._refuse_table_of_others(name)
            table = self._table(self.tables.main)
            if table is None:
                self._refuse_lost_tables()
            self._began_with = self._number(table)
            if table is None or self._began_with == 0:
                if not self._is_own_catalog:
                    self.refuse_foreign()
                return None
            written = self._written(table)
            if self._replaces:
                return standing_as(written)
            if written is None:
                raise FailedError(
                    "the table no longer shows how far it was exported",
                    path=self.address,
                    to_do="export to another place, and expire no snapshot that is the newest of an export",
                )
            return ExportState.from_json(written["state"], self.address)

    def _assert_writable(self) -> None:
        """Send the catalog an update that changes nothing, so that a read-only one fails before any file is written."""
        from pyiceberg.catalog.sql import IcebergTables
        from sqlalchemy import false, update

        nothing = update(IcebergTables).where(false()).values(table_name=IcebergTables.table_name)
        with self._opened().engine.begin() as connection:
            connection.execute(nothing)

    def _refuse_lost_tables(self) -> None:
        """Raise UsageError for metadata that a catalog once knew and this one does not know."""
        for name, folder in self.tables.folders.items():
            names = self.objects.names(f"{folder}/{self.table_folder}") if self._table(name) is None else ()
            if any(map(_LATER_METADATA.search, names)):
                raise UsageError(
                    "a table is there that the catalog does not know",
                    path=self.address,
                    to_do=f"bring {CATALOG} back, name the table's catalog with --catalog, or export to another place",
                )

    def _refuse_table_of_others(self, name: str) -> None:
        """Raise UsageError for a table of another program or of another destination.

        An export's own table is stored where its files go, and is empty if the export was interrupted before filling
        it.
        """
        table = self._table(name)
        if table is None:
            return
        is_here = table.location() == self.objects.address_of(self.tables.folders[name])
        if self._number(table) and not is_here:
            raise UsageError(
                f"the catalog's tables are those of an export to {table.location().rpartition('/')[0]}",
                path=self.address,
                to_do="export to there, or name another catalog with --catalog",
            )
        if not self._number(table) and (table.snapshots() or not is_here):
            raise UsageError(
                "a table that is none of an export is there",
                path=f"{NAMESPACE}.{name} in the catalog",
                to_do="name another catalog with --catalog",
            )

    @property
    def stands_as(self) -> int:
        return self._began_with

    def commit(self, parts: Sequence[WrittenFile], commit: Commit, state: State) -> None:
        refuse_missing(parts, self.objects.sizes(part.path for part in parts), self.address)
        told_state = {_STATE: json.dumps(state_in_commit(self.tables, parts, state, replaces=self._replaces))}
        with told(self.address, "committing to the Iceberg table"):
            if self._number(self._table(self.tables.main)) != self._began_with:
                raise self._overtaken()
            for name in in_order(self.tables):
                parts_of_table = [part for part in parts if part.table == name]
                properties = told_state if name == self.tables.main else {}
                self._add(name, self._began_with + 1, parts_of_table, state, properties, replaces=self._replaces)

    def _add(
        self,
        name: str,
        number: int,
        parts: Sequence[WrittenFile],
        state: State,
        properties: Mapping[str, str],
        *,
        replaces: bool,
    ) -> None:
        from pyiceberg.exceptions import CommitFailedException
        from pyiceberg.expressions import AlwaysTrue

        table = self._table(name)
        if table is None:
            table = self._made(name)
        if not self._is_wanted(name, number, self._number(table)):
            return
        table.metadata.properties[_RETRIES] = "0"  # only in this copy of the metadata
        told_properties = {**properties, _NUMBER: str(number)}
        paths = [self.objects.address_of(part.path) for part in parts]
        try:
            with table.transaction() as transaction:
                if replaces and _has_files(table):
                    transaction.delete(AlwaysTrue(), snapshot_properties={_NUMBER: str(number)})
                if replaces or not _has_files(table):
                    _partition(transaction, table, state.layout["partition_by"] if name == "messages" else None)
                if paths:
                    transaction.add_files(paths, snapshot_properties=told_properties)
                else:
                    with transaction.update_snapshot(snapshot_properties=told_properties).fast_append():
                        pass
        except CommitFailedException as error:
            raise self._overtaken() from error

    def complete(self) -> None:
        """Add the quarantine's files that the last snapshot of the messages names."""
        if not self.tables.adds:
            return
        with told(self.address, "committing to the Iceberg table"):
            written = self._written(self._table("messages"))
            if written is not None and self._number(self._table("quarantine")) < self._began_with:
                state = ExportState.from_json(written["state"], self.address)
                parts = [Part.from_json(fields) for fields in written["quarantine"]]
                self._add("quarantine", self._began_with, parts, state, {}, replaces=bool(written.get("replaces")))

    def _opened(self) -> Any:
        from pyiceberg.catalog.sql import SqlCatalog

        if self._catalog is None:
            access = "SyncedFileIO" if self.path is not None else "ObjectFileIO"
            options = {"uri": self._uri, "warehouse": self.address, "py-io-impl": _FILE_ACCESS + access}
            self._catalog = SqlCatalog(NAMESPACE, **options)
            self._catalog.create_namespace_if_not_exists(NAMESPACE)
        return self._catalog

    def _has_catalog(self) -> bool:
        return not self._is_own_catalog or self.objects.read(CATALOG) is not None

    def _table(self, name: str) -> Any:
        """Return the present table, or None if there is none or its missing metadata may be replaced. Makes no
        catalog.
        """
        from pyiceberg.exceptions import NoSuchTableError

        if not self._has_catalog():
            return None
        try:
            return self._opened().load_table((NAMESPACE, name))
        except NoSuchTableError:
            return None
        except FileNotFoundError as error:
            self._gone[name] = self._metadata_address(name)
            self._refuse_gone(name, error)
            return None

    def _refuse_gone(self, name: str, error: FileNotFoundError) -> None:
        """Raise UsageError for a table whose metadata is missing, unless the export may replace it.

        It may if it replaces tables and all metadata of the table was stored here and is removed. If the deciding
        table is missing, the metadata of the other tables must be removed too, as its number counts the commits.
        """
        folders = self.tables.folders
        is_here = self._gone[name].startswith(f"{self.objects.address_of(folders[name])}/")
        removed = folders.values() if name == self.tables.main else [folders[name]]
        is_removed = is_here and not any(self.objects.names(f"{folder}/{self.table_folder}") for folder in removed)
        if not (is_removed and self._replaces):
            or_else = "make the table again with --overwrite" if is_removed else "name another catalog with --catalog"
            raise UsageError(
                "the catalog names a table that is not there",
                path=self._gone[name],
                to_do=f"bring it back, or {or_else}",
            ) from error

    def _metadata_address(self, name: str) -> str:
        """Return the address of a table's metadata from the catalog."""
        from pyiceberg.catalog.sql import IcebergTables
        from sqlalchemy import select

        with self._opened().engine.connect() as connection:
            return str(connection.scalar(select(IcebergTables.metadata_location).where(*_entry_of(name))))

    def _forget(self, name: str) -> None:
        """Remove a missing table from the catalog, but not one that another export has made since."""
        from pyiceberg.catalog.sql import IcebergTables
        from sqlalchemy import delete

        entry = delete(IcebergTables).where(*_entry_of(name), IcebergTables.metadata_location == self._gone.pop(name))
        with self._opened().engine.begin() as connection:
            connection.execute(entry)

    def _made(self, name: str) -> Any:
        from pyiceberg.exceptions import TableAlreadyExistsError
        from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC

        if name in self._gone:
            self._forget(name)
        try:
            return self._opened().create_table(
                (NAMESPACE, name),
                self.tables.columns[name],
                location=self.objects.address_of(self.tables.folders[name]),
                partition_spec=UNPARTITIONED_PARTITION_SPEC,
                properties=_PROPERTIES if self.tables.adds else {},
            )
        except TableAlreadyExistsError as error:
            raise self._overtaken() from error

    def _number(self, table: Any) -> int:
        """Return the number of the newest commit by an export to a table."""
        if table is None:
            return 0
        return max((int(found.summary.get(_NUMBER) or 0) for found in table.snapshots() if found.summary), default=0)

    def _written(self, table: Any) -> dict[str, Any] | None:
        """Return the state in the newest commit by an export to the deciding table."""
        for snapshot in reversed(table.snapshots()):
            text = snapshot.summary.get(_STATE) if snapshot.summary else None
            if text is not None:
                found: dict[str, Any] = json.loads(text)
                return found
        return None


def _assert_catalog(address: str) -> None:
    """Raise UsageError for an address that no catalog can have, FailedError where a driver is missing."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(address)
        url.get_dialect().import_dbapi()
    except (ArgumentError, ValueError) as error:  # its text may hold the password
        raise UsageError(
            "--catalog is no address of an SQL database that SQLAlchemy knows",
            to_do="give one like sqlite:////data/catalog.db or postgresql://USER@HOST/NAME",
        ) from error
    except ImportError as error:
        what = f"module {error.name}" if error.name else f"driver, which does not load: {error}"
        raise FailedError(
            f"the catalog's database needs the {what}", to_do="install SQLAlchemy's driver for it"
        ) from error
    if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
        raise UsageError(
            "a catalog in memory is gone when the export is over",
            to_do="name a file, such as sqlite:////data/catalog.db",
        )


def _entry_of(name: str) -> tuple[Any, ...]:
    """Return the conditions that select a table's row in the catalog's own table."""
    from pyiceberg.catalog.sql import IcebergTables

    columns = IcebergTables
    return columns.catalog_name == NAMESPACE, columns.table_namespace == NAMESPACE, columns.table_name == name


def _partition(transaction: Any, table: Any, by: str | None) -> None:
    """Set the partitions of a table without files: by topic, day or nothing. It may have had others, or none yet."""
    found = [field.name for field in table.spec().fields]
    if found != ([by] if by is not None else []):
        with transaction.update_spec() as update:
            for name in found:
                update.remove_field(name)
            if by is not None:
                update.add_field(*(("topic", "identity", "topic") if by == "topic" else ("store_time", "day", "day")))


def _has_files(table: Any) -> bool:
    snapshot = table.current_snapshot()
    return snapshot is not None and int(snapshot.summary.get("total-data-files") or 0) > 0
