"""Exports of other tables than messages into tables of lakes and object stores: whole or not at all, replaced when asked."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from crc32c import crc32c

from rmqctl import exit_codes
from store_core.errors import StoreInUseError, UsageError
from store_core.export.dest.address import Format, destination_of
from store_core.export.dest.bucket import BucketDestination
from store_core.export.dest.delta import DeltaDestination
from store_core.export.dest.iceberg import IcebergDestination
from store_core.export.runners.local import LocalRunner
from store_core.export.tables_export import TABLES, TablesReport, What, export_tables, table_set
from store_core.storage.objects import RemoteObjects
from store_core.storage.settings import load_settings
from store_core.storage.store import Store
from tests.conftest import GoldenStore
from tests.damage import Damageable
from tests.export.test_buckets import names_in, read
from tests.export.test_tables_export import rows_of
from tests.object_stores import ObjectStore
from tests.rmqctl.calls import call

NAME = "load-533"
OTHER = "cqext-533"
LAKES: tuple[Format, ...] = ("delta", "iceberg")
TABLE_OF: dict[What, str] = {"queues": "queues", "index": "index", "stats": "offsets"}  # what a query calls it


def exported(root: Path, dest: str | Path, what: What, format: Format = "parquet", **options: Any) -> TablesReport:
    destination = destination_of(dest, format, tables=table_set(what), **options)
    with Store.open(root, load_settings(None, root)) as store:
        return export_tables([("a", store)], destination, what, LocalRunner())


def lake(format: Format, dest: Path | str, table: str, uri: str | None = None) -> pa.Table:
    """A table as its own library reads it."""
    if format == "delta":
        from deltalake import DeltaTable

        return DeltaTable(f"{dest}/{table}").to_pyarrow_table()
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("rmqctl", uri=uri or f"sqlite:///{dest}/catalog.db")
    return catalog.load_table(f"rmqctl.{table}").scan().to_arrow()


def sorted_rows(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=repr)


@pytest.mark.parametrize("format", LAKES)
@pytest.mark.parametrize("what", TABLE_OF)
def test_tables_of_a_lake(golden: GoldenStore, tmp_path: Path, format: Format, what: What) -> None:
    report = exported(golden(NAME), tmp_path / "out", what, format)
    main = {"queues": "queues", "index": "index", "stats": "groups"}[what]
    assert sorted_rows(lake(format, tmp_path / "out", main)) == sorted(rows_of(golden(NAME), TABLE_OF[what]), key=repr)
    assert sum(len(lake(format, tmp_path / "out", table)) for table in TABLES[what]) == report.rows
    with pytest.raises(UsageError, match=r"a finished export is there .*: name another place, or replace it"):
        exported(golden(OTHER), tmp_path / "out", what, format)
    exported(golden(OTHER), tmp_path / "out", what, format, overwrite=True)
    assert sorted_rows(lake(format, tmp_path / "out", main)) == sorted(rows_of(golden(OTHER), TABLE_OF[what]), key=repr)


@pytest.mark.parametrize("format", LAKES)
def test_an_empty_table_has_its_columns(golden: GoldenStore, tmp_path: Path, format: Format) -> None:
    exported(golden("bcq-533"), tmp_path / "out", "stats", format)
    found = lake(format, tmp_path / "out", "groups")
    assert (len(found), found.schema.names) == (0, [column.name for column in TABLES["stats"]["groups"]])


@pytest.mark.parametrize("format", LAKES)
def test_other_tables_stand_beside_messages(golden: GoldenStore, tmp_path: Path, format: Format) -> None:
    words = ("--format", format, "-s", f"a={golden(NAME)}", "-o", "json")
    assert call("export", tmp_path / "out", *words).json["rows"] == 2183
    assert call("export", tmp_path / "out", "--what", "queues", *words).json["rows"] == 2183
    assert len(lake(format, tmp_path / "out", "data" if format == "delta" else "messages")) == 2183
    assert len(lake(format, tmp_path / "out", "queues")) == 2183


@pytest.mark.parametrize("kind", [DeltaDestination, IcebergDestination])
def test_killed_between_the_tables_of_one_export(
    golden: GoldenStore, tmp_path: Path, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table that tells whether an export is there comes last: the same command ends what was begun."""
    format: Format = "delta" if kind is DeltaDestination else "iceberg"
    real: Callable[..., None] = kind._add  # type: ignore[attr-defined]  # both have it
    done: list[str] = []

    def add(self: Any, name: str, *arguments: Any, **options: Any) -> None:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(name)
        real(self, name, *arguments, **options)

    with monkeypatch.context() as context:
        context.setattr(kind, "_add", add)
        with pytest.raises(KeyboardInterrupt):
            exported(golden(NAME), tmp_path / "out", "stats", format)
    assert done == ["topics", "groups"]
    exported(golden(NAME), tmp_path / "out", "stats", format)
    for table, rows in (("stats", 12), ("topics", 5), ("groups", 12)):
        assert len(lake(format, tmp_path / "out", table)) == rows, table


@pytest.mark.parametrize("format", LAKES)
def test_of_two_at_once_one_commits(
    golden: GoldenStore, tmp_path: Path, format: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").mkdir()
    kind: Any = DeltaDestination if format == "delta" else IcebergDestination
    real = kind.commit
    calls: list[int] = []

    def commit(self: Any, *arguments: Any) -> None:
        calls.append(1)
        if len(calls) == 1:
            exported(golden(OTHER), tmp_path / "out", "index", format)
        real(self, *arguments)

    monkeypatch.setattr(kind, "_take_lock", lambda self: None)
    monkeypatch.setattr(kind, "commit", commit)
    with pytest.raises(StoreInUseError, match="run the command again"):
        exported(golden(NAME), tmp_path / "out", "index", format)
    assert len(lake(format, tmp_path / "out", "index")) == len(rows_of(golden(OTHER), "index"))


# Object stores


@pytest.fixture
def address(object_store: ObjectStore, request: pytest.FixtureRequest) -> str:
    return f"s3://stores/{abs(hash(request.node.name))}/out"


@pytest.mark.parametrize("what", TABLE_OF)
def test_files_in_an_object_store(golden: GoldenStore, object_store: ObjectStore, address: str, what: What) -> None:
    for root, overwrite in ((golden(NAME), False), (golden(OTHER), True)):
        report = exported(root, address, what, overwrite=overwrite)
        manifest = json.loads(read(object_store, f"{address}/manifest.json"))
        assert (manifest["what"], manifest["rows"]) == (what, report.rows)
        assert {file["path"] for file in manifest["files"]} | {"manifest.json"} == names_in(object_store, address)
        rows = []
        for file in manifest["files"]:
            data = read(object_store, f"{address}/{file['path']}")
            assert (file["size_bytes"], file["crc32c"]) == (len(data), f"{crc32c(data):08x}")
            if file["table"] in ("queues", "index", "groups"):
                rows += pq.read_table(pa.BufferReader(data)).to_pylist()
        assert sorted(rows, key=repr) == sorted(rows_of(root, TABLE_OF[what]), key=repr)
    with pytest.raises(UsageError, match="a finished export is there"):
        exported(golden(NAME), address, what)


def test_an_export_that_breaks_off_is_made_again(
    golden: GoldenStore, object_store: ObjectStore, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a manifest there is no export; the next one removes what was left."""

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(RemoteObjects, "remove", lambda *_: None)  # nothing is tidied up either
        context.setattr(BucketDestination, "commit", killed)
        with pytest.raises(KeyboardInterrupt):
            exported(golden(NAME), address, "queues")
    left = names_in(object_store, address)
    assert "manifest.json" not in left
    assert any(name.startswith("queues/") for name in left)
    exported(golden(NAME), address, "queues")
    files = json.loads(read(object_store, f"{address}/manifest.json"))["files"]
    assert {file["path"] for file in files} | {"manifest.json"} == names_in(object_store, address)


def test_a_messages_export_and_another_one_exclude_each_other(
    golden: GoldenStore, object_store: ObjectStore, address: str
) -> None:
    words = ("-s", f"a={golden(NAME)}", "-o", "json")
    assert call("export", address, "--what", "stats", *words).code == exit_codes.OK
    for more in ([], ["--incremental"], ["--what", "queues"]):
        refused = call("export", address, *more, *words)
        assert (refused.code, refused.err.count("\n"), refused.err[:6]) == (exit_codes.USAGE, 1, "error:")
    assert call("export", address, "--overwrite", *words).json["rows"] == 2183
    assert {name.split("/")[0] for name in names_in(object_store, address)} == {"data", "quarantine", "manifest.json"}


@pytest.mark.product(1)
@pytest.mark.parametrize("format", LAKES)
def test_tables_of_a_lake_in_an_object_store(
    golden: GoldenStore, object_store: ObjectStore, address: str, tmp_path: Path, format: Format
) -> None:
    uri = f"sqlite:///{tmp_path}/catalog.db"
    more = ("--catalog", uri) if format == "iceberg" else ()
    for name in (NAME, OTHER):
        done = call("export", address, "--what", "index", "--format", format, "--overwrite", *more, "-s", golden(name))
        assert (done.code, done.err) == (exit_codes.OK, "")
        assert len(from_bucket(format, object_store, address, uri)) == len(rows_of(golden(name), "index"))


def from_bucket(format: Format, bucket: ObjectStore, address: str, uri: str) -> pa.Table:
    endpoint = bucket.environment["AWS_ENDPOINT_URL"]
    if format == "delta":
        from deltalake import DeltaTable

        options = {"AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true"}
        return DeltaTable(f"{address}/index", storage_options=options).to_pyarrow_table()
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("rmqctl", uri=uri, **{"s3.endpoint": endpoint, "s3.region": "us-east-1"})
    return catalog.load_table("rmqctl.index").scan().to_arrow()


def test_an_iceberg_catalog_is_asked_for(golden: GoldenStore, object_store: ObjectStore, address: str) -> None:
    refused = call("export", address, "--what", "queues", "--format", "iceberg", "-s", golden(NAME))
    assert (refused.code, "name one with --catalog" in refused.err) == (exit_codes.USAGE, True)
    assert names_in(object_store, address) == set()


def test_a_destination_is_asked_for(golden: GoldenStore) -> None:
    for what in ("messages", "stats"):
        refused = call("export", "", "--what", what, "-s", golden(NAME))
        assert (refused.code, refused.err[:31]) == (exit_codes.USAGE, "error: no destination is named:")


def test_a_catalog_names_the_tables(golden: GoldenStore, tmp_path: Path) -> None:
    exported(golden(NAME), tmp_path / "out", "stats", "iceberg")
    with sqlite3.connect(tmp_path / "out" / "catalog.db") as catalog:
        names = catalog.execute("select table_name from iceberg_tables order by 1").fetchall()
    assert names == [("groups",), ("stats",), ("topics",)]


@pytest.mark.product(1)
@pytest.mark.parametrize("what", TABLE_OF)
def test_a_store_in_an_object_store_gives_the_same(
    damageable: Callable[..., Damageable], object_store: ObjectStore, tmp_path: Path, what: What
) -> None:
    store = damageable(OTHER)
    store.flip(record=100, field="body")
    done = [
        call("export", tmp_path / where, "--what", what, "-s", f"a={root}", "--split-size", "50000", "-o", "json")
        for where, root in (("here", store.root), ("there", object_store.put(store.root)))
    ]
    told = [{**each.json, "dest": "", "seconds": 0} for each in done]
    assert (done[0].code, told[0]) == (done[1].code, told[1])
    assert done[0].code == (exit_codes.FINDINGS if what == "stats" else exit_codes.OK)
    files = [{path.name: path.read_bytes() for path in (tmp_path / d).rglob("*.parquet")} for d in ("here", "there")]
    assert files[0] == files[1]
    manifests = [json.loads((tmp_path / d / "manifest.json").read_text()) for d in ("here", "there")]
    assert [manifest.pop("id") for manifest in manifests] == [ANY, ANY]  # it tells where the store lay
    assert manifests[0] == manifests[1]


@pytest.mark.spark
def test_spark_reads_and_writes_in_an_object_store(
    golden: GoldenStore, object_store: ObjectStore, address: str
) -> None:
    pytest.importorskip("pyspark")
    root = object_store.put(golden(NAME))
    conf = [
        word
        for name, value in object_store.environment.items()
        for word in ("--conf", f"spark.executorEnv.{name}={value}")
    ]
    done = call(
        "export", address, "--what", "queues", "--spark", "--master", "local[2]", *conf, "-s", f"a={root}", "-o", "json"
    )
    assert (done.code, done.json["rows"]) == (exit_codes.OK, 2183), done.err
    assert {file["path"] for file in done.json["files"]} | {"manifest.json"} == names_in(object_store, address)
