"""Add files to Delta tables in one commit, which also contains the export's state.

Each folder below DEST is a table. Of messages and quarantine, the commit of the messages decides. It names the
quarantine's files, and the next export adds them if this one is interrupted before that. Other tables are replaced,
the deciding one last. A commit contains its number as an application transaction, so no commit is made twice.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from store_core.errors import FailedError, UsageError
from store_core.export.dest.missing_library import told
from store_core.export.dest.object_dest import LooseDestination
from store_core.export.dest.parquet import WrittenFile, refuse_missing
from store_core.export.dest.parts import Part
from store_core.export.dest.state import Commit, ExportState
from store_core.export.dest.tables import MESSAGES, State, TableSet, WholeState, in_order, standing_as, state_in_commit
from store_core.extras import assert_installed
from store_core.storage.objects import LocalObjects, RemoteObjects
from store_core.storage.remote_call import asked
from store_core.storage.remote_path import RemotePath

if TYPE_CHECKING:
    import pyarrow as pa


def storage_options(path: RemotePath) -> dict[str, str]:
    """Return options of ``DeltaTable``. Raises UsageError where an Azure address names no account."""
    match path.scheme:
        case "s3":
            return _s3()
        case "gs":
            return _google()
        case _:
            # A process that has the clients makes no copies of itself.
            from store_core.storage.object_store import account_of

            return _azure(account_of(path))


def _s3() -> dict[str, str]:
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    return {"AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": _is_plain(endpoint)} if endpoint else {}


def _google() -> dict[str, str]:
    emulator = os.environ.get("STORAGE_EMULATOR_HOST", "")
    if not urlsplit(emulator).netloc:
        return {}
    empty_credentials = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
    account = {
        "gcs_base_url": emulator,
        "disable_oauth": True,
        **empty_credentials,
    }  # the library reads an emulator's address here
    return {"google_service_account_key": json.dumps(account), "allow_http": _is_plain(emulator)}


def _azure(account: str) -> dict[str, str]:
    options = {
        "azure_storage_account_name": account,
        "azure_storage_account_key": os.environ.get("AZURE_STORAGE_KEY", ""),
        "azure_storage_sas_token": os.environ.get("AZURE_STORAGE_SAS_TOKEN", ""),
    }
    endpoint = urlsplit(os.environ.get("AZURE_STORAGE_BLOB_ENDPOINT", ""))
    if "AZURITE_BLOB_STORAGE_URL" in os.environ:  # the library reads it itself; an emulator lists differently
        options["azure_storage_use_emulator"] = "true"
    elif endpoint.netloc:  # such an endpoint has the account in its path
        options["azure_storage_endpoint"] = f"{endpoint.scheme}://{endpoint.netloc}/{account}"
        options["allow_http"] = _is_plain(f"{endpoint.scheme}:")
    return {name: value for name, value in options.items() if value}


def _is_plain(url: str) -> str:
    return str(url.startswith("http:")).lower()


_EPOCH: Final = datetime.fromtimestamp(0, UTC).replace(tzinfo=None)


def delta_statistics(part: WrittenFile) -> str:
    """Return the statistics of an add action of Delta's protocol as JSON."""
    smallest: dict[str, Any] = {"store": part.store} if part.store else {}
    largest = dict(smallest)
    if isinstance(part, Part):
        _add_bounds(part, smallest, largest)
    return json.dumps({"numRecords": part.rows, "minValues": smallest, "maxValues": largest, "nullCount": {}})


def _add_bounds(part: Part, smallest: dict[str, Any], largest: dict[str, Any]) -> None:
    smallest["phy_offset"], largest["phy_offset"] = part.first_phy_offset, part.last_phy_offset
    if part.topics is not None and not (part.partition and part.partition[0] == "topic"):
        smallest["topic"], largest["topic"] = part.topics
    if part.store_times_ms is not None:
        smallest["store_time"], largest["store_time"] = (_time(time) for time in part.store_times_ms)


def _time(time_ms: int) -> str:
    return (_EPOCH + timedelta(milliseconds=time_ms)).isoformat(timespec="milliseconds") + "Z"


_APPLICATION: Final = "rmqctl-export"
_STATE: Final = "rmqctl.export"
_NEWEST: Final = 10  # commits


class DeltaDestination(LooseDestination):
    """``Destination`` for Delta tables below a folder or an address. Needs the extra ``lake``."""

    never_empty = False
    format = "delta"
    table_folder = "_delta_log/"

    def __init__(
        self, path: Path, *, overwrite: bool = False, incremental: bool = False, tables: TableSet = MESSAGES
    ) -> None:
        assert_installed("deltalake", "--format delta")
        os.environ.setdefault("RUST_LOG", "error")  # else the library writes warnings to stderr
        super().__init__(path, overwrite=overwrite, incremental=incremental, tables=tables)

    def standing(self) -> ExportState | WholeState | None:
        with told(self.address, "reading the Delta table"):
            table = self._table(self.tables.main)
            self._began_with = self._number(table)
            if table is None:
                self.refuse_foreign()
                return None
            if self._began_with == 0:
                raise UsageError(
                    "a table that is none of an export is there",
                    path=self._address(self.tables.main),
                    to_do="name another folder",
                )
            written = self._written(table)
            if self._replaces:
                return standing_as(written)
            if written is None:
                raise FailedError(
                    "the table's log no longer shows how far it was exported",
                    path=self.address,
                    to_do="export again with --overwrite, and keep the table's log longer than the time between exports",
                )
            return ExportState.from_json(written["state"], self.address)

    @property
    def stands_as(self) -> int:
        return self._began_with

    def commit(self, parts: Sequence[WrittenFile], commit: Commit, state: State) -> None:
        refuse_missing(parts, self.objects.sizes(part.path for part in parts), self.address)
        told_state = state_in_commit(self.tables, parts, state, replaces=self._replaces)
        with told(self.address, "committing to the Delta table"):
            if self._number(self._table(self.tables.main)) != self._began_with:
                raise self._overtaken()
            for name in in_order(self.tables):
                parts_of_table = [part for part in parts if part.table == name]
                told_here = told_state if name == self.tables.main else {}
                self._add(name, self._began_with + 1, parts_of_table, state, told_here, replaces=self._replaces)

    def _add(
        self,
        name: str,
        number: int,
        parts: Sequence[WrittenFile],
        state: State,
        told_state: Mapping[str, Any],
        *,
        replaces: bool,
    ) -> None:
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError, DeltaError
        from deltalake.transaction import create_table_with_add_actions

        partition_by = [state.layout["partition_by"]] if name == "messages" and state.layout["partition_by"] else None
        table = self._table(name)
        if not self._is_wanted(name, number, self._number(table)):
            return
        properties = CommitProperties(
            custom_metadata={_STATE: json.dumps(told_state)} if told_state else {},
            app_transactions=[Transaction(_APPLICATION, number)],
            max_commit_retries=0,
        )
        actions = [_action(part) for part in parts]
        columns = _columns(self.tables.columns[name], partition_by)
        try:
            if table is None:
                create_table_with_add_actions(
                    self._address(name), columns, actions, "error", partition_by,
                    storage_options=self._options(), commit_properties=properties,
                )  # fmt: skip
            elif replaces and table.metadata().partition_columns != (partition_by or []):
                # A transaction that replaces files keeps the table's old partitions, so the table is made again.
                metadata = table.metadata()
                create_table_with_add_actions(
                    self._address(name), columns, actions, "overwrite", partition_by,
                    name=metadata.name, description=metadata.description, configuration=metadata.configuration,
                    storage_options=self._options(), commit_properties=properties,
                )  # fmt: skip
                self._assert_next(name, table, told_state)
            else:
                mode = "overwrite" if replaces else "append"
                table.create_write_transaction(actions, mode, columns, partition_by, commit_properties=properties)
        except (DeltaError, OSError) as error:
            if not self._has(name, number, parts, told_state):
                if isinstance(error, CommitFailedError) or "already exists" in str(error):
                    raise self._overtaken() from error
                raise
        if isinstance(self.objects, LocalObjects):
            self.objects.sync(f"{self.tables.folders[name]}/_delta_log")

    def _assert_next(self, name: str, before: Any, told_state: Mapping[str, Any]) -> None:
        """Raise StoreInUseError where another commit came between the check and this commit, which replaced the
        table.

        Delta accepts such a commit, but would refuse the other commits of this export, so the export must start
        again.
        """
        own_state = json.loads(json.dumps(told_state))
        for entry in _newest_first(self._table(name)):
            if _STATE in entry and json.loads(entry[_STATE]) == own_state:
                if entry["version"] != before.version() + 1:
                    self._is_over = True
                    raise self._overtaken()
                return

    def complete(self) -> None:
        """Add the quarantine's files that the last commit of the messages names."""
        if not self.tables.adds:
            return
        with told(self.address, "committing to the Delta table"):
            messages = self._table("messages")
            written, number = self._written(messages), self._number(messages)
            if written is not None and self._number(self._table("quarantine")) < number:
                state = ExportState.from_json(written["state"], self.address)
                parts = [Part.from_json(fields) for fields in written["quarantine"]]
                self._add("quarantine", number, parts, state, {}, replaces=bool(written.get("replaces")))

    def _table(self, name: str) -> Any:
        """Return the table, or None if there is none yet."""
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:  # DeltaTable.is_deltatable would block all threads, and so signals, until it returns
            return asked(partial(DeltaTable, self._address(name), storage_options=self._options()))
        except TableNotFoundError:
            return None

    def _has(self, name: str, number: int, parts: Sequence[WrittenFile], told_state: Mapping[str, Any]) -> bool:
        """Return True if a commit exists although it raised.

        If the first answer is lost, the library's retry fails because the first attempt succeeded.
        """
        table = self._table(name)
        if self._number(table) != number or (told_state and self._written(table) != json.loads(json.dumps(told_state))):
            return False
        names = {uri.rpartition("/")[2] for uri in table.file_uris()}
        return names.issuperset(part.path.rpartition("/")[2] for part in parts)

    def _number(self, table: Any) -> int:
        return int(table.transaction_version(_APPLICATION) or 0) if table is not None else 0

    def _written(self, table: Any) -> dict[str, Any] | None:
        """Return the state in the newest commit by an export to a table."""
        for entry in _newest_first(table):
            if _STATE in entry:
                found: dict[str, Any] = json.loads(entry[_STATE])
                return found
        return None

    def _address(self, name: str) -> str:
        return self.objects.address_of(self.tables.folders[name])

    def _options(self) -> dict[str, str] | None:
        folder = self.objects.folder if isinstance(self.objects, RemoteObjects) else None
        return storage_options(folder) or None if folder is not None else None


def _newest_first(table: Any) -> Iterator[dict[str, Any]]:
    """Yield the entries of a table's history, newest first.

    Each costs a file to read. The wanted ones are among the newest, unless other programs commit here.
    """
    newest = asked(partial(table.history, _NEWEST))
    yield from newest
    if len(newest) == _NEWEST:
        yield from asked(table.history)[_NEWEST:]


def _action(part: WrittenFile) -> Any:
    from deltalake.transaction import AddAction

    partition = part.partition if isinstance(part, Part) else None
    values = {partition[0]: partition[1]} if partition is not None else {}
    name = part.path.partition("/")[2]
    return AddAction(name, part.size_bytes, values, 0, True, delta_statistics(part))


def _columns(columns: pa.Schema, by: Sequence[str] | None) -> Any:
    import pyarrow as pa
    from deltalake import Schema

    if by and by[0] not in columns.names:
        columns = columns.append(pa.field(by[0], pa.date32()))
    elif by:  # the format has no empty partition, so an empty topic is null
        at = columns.names.index(by[0])
        columns = columns.set(at, columns.field(at).with_nullable(True))
    return Schema.from_arrow(columns)
