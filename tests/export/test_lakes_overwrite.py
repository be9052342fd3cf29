"""Delta and Iceberg tables that another export replaces: with other partitions, of another version, killed in between."""

from __future__ import annotations

import shutil
import sqlite3
from itertools import permutations
from pathlib import Path
from typing import Any

import deltalake.transaction
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

from rmqctl import exit_codes
from store_core.errors import FailedError, StoreInUseError, UsageError
from store_core.export.dest import iceberg_io, state
from store_core.export.dest.address import Format
from store_core.export.dest.delta import DeltaDestination
from store_core.export.dest.folder import FolderDestination
from store_core.export.dest.iceberg import IcebergDestination
from store_core.export.dest.object_dest import LooseDestination
from tests import stores
from tests.conftest import DamagedStore, GoldenStore, StoreCopy
from tests.export.exports import found_rows, table_of, told_rows
from tests.export.killing import run_killed
from tests.export.test_incremental import OFFSETS, STORE
from tests.export.test_lakes import FORMATS, export_to, iceberg_table, offsets_in, rows_in
from tests.object_stores import ObjectStore
from tests.rmqctl.calls import call

ROWS = "clean-533"


def partitions_of(out: Path, kind: Format) -> list[str]:
    if kind == "delta":
        found: list[str] = DeltaTable(out / "data").metadata().partition_columns
        return found
    return [field.name for field in iceberg_table(out, "messages").spec().fields]


@pytest.mark.product(2)
@pytest.mark.parametrize(("before", "after"), [*permutations([None, "topic", "day"], 2)])
@pytest.mark.parametrize("kind", FORMATS)
def test_other_partitions_than_before(
    golden: GoldenStore, tmp_path: Path, kind: Format, before: str | None, after: str | None
) -> None:
    """Every value is there and stays readable, and whoever adds to it later does so in the new ones."""
    out = tmp_path / "out"
    export_to(golden(ROWS), out, kind, partition_by=before)
    export_to(golden(ROWS), out, kind, partition_by=after, overwrite=True)
    assert partitions_of(out, kind) == ([after] if after else [])
    assert found_rows(rows_in(out, kind)) == told_rows(ROWS)
    export_to(golden(ROWS), out, kind, partition_by=after, incremental=True)
    assert found_rows(rows_in(out, kind)) == told_rows(ROWS)
    export_to(golden(ROWS), out, kind, partition_by=before, overwrite=True)
    assert partitions_of(out, kind) == ([before] if before else [])
    assert found_rows(rows_in(out, kind)) == told_rows(ROWS)


@pytest.mark.product(1)
@pytest.mark.parametrize("kind", FORMATS)
def test_other_partitions_in_an_object_store(
    golden: GoldenStore, tmp_path: Path, kind: Format, object_store: ObjectStore
) -> None:
    address = object_store.address(f"replaced-{kind}/out")
    options: dict[str, Any] = {"catalog": f"sqlite:///{tmp_path}/catalog.db"} if kind == "iceberg" else {}
    export_to(golden(ROWS), address, kind, **options)
    assert export_to(golden(ROWS), address, kind, partition_by="topic", overwrite=True, **options).rows == len(
        stores.truth(ROWS)["messages"]
    )
    assert export_to(golden(ROWS), address, kind, partition_by="topic", incremental=True, **options).rows == 0


def test_what_is_set_on_a_table_stays(golden: GoldenStore, tmp_path: Path) -> None:
    out, kept = tmp_path / "out", {"delta.logRetentionDuration": "interval 365 days"}
    export_to(golden(STORE), out, "delta")
    table = DeltaTable(out / "data")
    table.alter.set_table_properties(kept)
    table.alter.set_table_name("orders")
    table.alter.set_table_description("all of them")
    export_to(golden(STORE), out, "delta", partition_by="topic", overwrite=True)
    now = DeltaTable(out / "data").metadata()
    assert (now.configuration, now.name, now.description) == (kept, "orders", "all of them")


def test_a_rival_comes_between_when_partitions_change(
    damaged: DamagedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library does not see it. Who notices begins anew, so that both tables are of one export."""
    root, other, out = damaged("load-533", "zero-page-mid"), damaged("load-533", "size-huge-mid"), tmp_path / "out"
    export_to(root, out, "delta")
    monkeypatch.setattr(LooseDestination, "_take_lock", lambda self: None)
    real, calls = deltalake.transaction.create_table_with_add_actions, list[int]()

    def late(*arguments: Any, **options: Any) -> None:
        calls.append(1)
        if len(calls) == 1:
            export_to(other, out, "delta", overwrite=True)
        real(*arguments, **options)

    monkeypatch.setattr(deltalake.transaction, "create_table_with_add_actions", late)
    with pytest.raises(StoreInUseError, match="run the command again"):
        export_to(root, out, "delta", partition_by="topic", overwrite=True)
    monkeypatch.undo()
    export_to(root, out, "delta", partition_by="topic", overwrite=True)
    export_to(root, tmp_path / "whole", "delta")
    for name in ("messages", "quarantine"):
        assert offsets_in(out, "delta", name) == offsets_in(tmp_path / "whole", "delta", name) != []


@pytest.mark.product(kind=("delta",))
@pytest.mark.parametrize(
    ("kind", "methods", "points"),
    [
        ("delta", {"deltalake.transaction:CommitProperties": "__init__"}, [0.0001 * 2**n for n in range(10)]),
        (
            "iceberg",
            {"pyiceberg.io.pyarrow:PyArrowFile": "create", "pyiceberg.catalog.sql:SqlCatalog": "commit_table"},
            range(8),
        ),
    ],
)
def test_killed_while_partitions_change(
    store_copy: StoreCopy, tmp_path: Path, kind: Format, methods: dict[str, str], points: Any
) -> None:
    """What is there can be read all the time, and the same command again ends with what was asked for."""
    root, killed = store_copy(STORE), 0
    for number, point in enumerate(points):
        out = tmp_path / str(number)
        words = ["export", str(out), "--format", kind, "-s", f"a={root}", "--jobs", "1", "-q"]
        assert call(*words, "--partition-by", "day").code == exit_codes.OK
        killed += run_killed(point, methods, *words, "--partition-by", "topic", "--overwrite").code < 0
        assert offsets_in(out, kind) == OFFSETS
        assert call(*words, "--partition-by", "topic", "--overwrite").code == exit_codes.OK
        assert (offsets_in(out, kind), partitions_of(out, kind)) == (OFFSETS, ["topic"])
    assert killed > len(points) // 3


def test_killed_when_a_table_was_made_and_holds_nothing(golden: GoldenStore, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    IcebergDestination(out)._made("messages")
    export_to(golden(STORE), out, "iceberg", partition_by="topic", incremental=True)
    assert (offsets_in(out, "iceberg"), partitions_of(out, "iceberg")) == (OFFSETS, ["topic"])


@pytest.mark.parametrize("kind", FORMATS)
def test_an_export_of_another_version_is_replaced(
    golden: GoldenStore, tmp_path: Path, kind: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as other:
        other.setattr(state, "MANIFEST_VERSION", 1)
        export_to(golden(STORE), out, kind)
    with pytest.raises(FailedError, match="another version of rmqctl made this export"):
        export_to(golden(STORE), out, kind, incremental=True)
    export_to(golden(STORE), out, kind, overwrite=True)
    assert export_to(golden(STORE), out, kind, incremental=True).rows == 0
    assert offsets_in(out, kind) == OFFSETS


def test_a_catalog_that_others_have_or_that_may_only_be_read(golden: GoldenStore, tmp_path: Path) -> None:
    """What the database was asked is not repeated."""
    out, catalog = tmp_path / "out", tmp_path / "catalog.db"
    export_to(golden(STORE), out, "iceberg", catalog=f"sqlite:///{catalog}")
    read_only = f"sqlite:///file:{catalog}?mode=ro&uri=true"
    before = sorted(out.rglob("*"))
    with pytest.raises(FailedError, match=r"a readonly database \(.*\): give its user the right to write to it$"):
        export_to(golden(STORE), out, "iceberg", catalog=read_only, overwrite=True, partition_by="day")
    assert sorted(out.rglob("*")) == before  # noticed before anything was read and written
    with sqlite3.connect(catalog) as rival:
        rival.execute("begin immediate")
        with pytest.raises(FailedError, match=r"database is locked \(.*\): wait for the process .*, and run .* again$"):
            export_to(golden(STORE), out, "iceberg", catalog=f"sqlite:///{catalog}", overwrite=True)
    export_to(golden(STORE), out, "iceberg", catalog=f"sqlite:///{catalog}", incremental=True)


def test_an_iceberg_table_that_somebody_removed_while_its_catalog_stayed(golden: GoldenStore, tmp_path: Path) -> None:
    out, catalog = tmp_path / "out", f"sqlite:///{tmp_path / 'catalog.db'}"
    export_to(golden(STORE), out, "iceberg", catalog=catalog)
    export_to(golden(STORE), out, "iceberg", catalog=catalog, overwrite=True)
    shutil.rmtree(out)
    for options in ({}, {"incremental": True}):
        with pytest.raises(
            UsageError, match=r"names a table that is not there .*, or make the table again with --overwrite$"
        ):
            export_to(golden(STORE), out, "iceberg", catalog=catalog, **options)
    with pytest.raises(
        UsageError, match=r"names a table that is not there .*, or name another catalog with --catalog$"
    ):
        export_to(golden(STORE), tmp_path / "other", "iceberg", catalog=catalog, overwrite=True)
    export_to(golden(STORE), out, "iceberg", catalog=catalog, overwrite=True)
    export_to(golden(STORE), out, "iceberg", catalog=catalog, incremental=True)
    found = SqlCatalog("rmqctl", uri=catalog).load_table(("rmqctl", "messages")).scan().to_arrow()
    assert sorted(found["phy_offset"].to_pylist()) == OFFSETS


def test_an_iceberg_table_of_which_a_part_is_gone_is_not_made_anew(damaged: DamagedStore, tmp_path: Path) -> None:
    """Commits are counted in the messages' table: with a new one, the old quarantine would count as added already."""
    root, out = damaged("load-533", "zero-page-mid"), tmp_path / "out"
    export_to(root, out, "iceberg")
    shutil.rmtree(out / "data")
    with pytest.raises(
        UsageError, match=r"names a table that is not there .*, or name another catalog with --catalog$"
    ):
        export_to(root, out, "iceberg", overwrite=True)
    shutil.rmtree(out / "quarantine")
    export_to(root, out, "iceberg", overwrite=True)
    rows = len(rows_in(out, "iceberg", "quarantine"))
    shutil.rmtree(out / "quarantine")
    export_to(root, out, "iceberg", overwrite=True)
    assert len(rows_in(out, "iceberg", "quarantine")) == rows > 0


def test_a_rivals_iceberg_table_is_not_taken_for_the_one_that_was_gone(
    golden: GoldenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    export_to(golden(STORE), out, "iceberg")
    for folder in ("data", "quarantine"):
        shutil.rmtree(out / folder)
    monkeypatch.setattr(LooseDestination, "_take_lock", lambda self: None)
    forget = IcebergDestination._forget

    def after_a_rival(self: IcebergDestination, name: str) -> None:
        monkeypatch.setattr(IcebergDestination, "_forget", forget)
        export_to(golden(STORE), out, "iceberg", overwrite=True)
        forget(self, name)

    monkeypatch.setattr(IcebergDestination, "_forget", after_a_rival)
    with pytest.raises(StoreInUseError, match="another export has been published"):
        export_to(golden(STORE), out, "iceberg", overwrite=True)
    assert offsets_in(out, "iceberg") == OFFSETS


@pytest.mark.parametrize("kind", ["parquet", *FORMATS])
def test_what_is_replaced_by_the_same_is_not_taken_for_the_result_of_what_broke_off(
    golden: GoldenStore, tmp_path: Path, kind: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody has removed a file of an export, and does as he is told: exports all anew. Broken off, the same command does
    what it says, and one that is not to replace anything does not."""
    out = tmp_path / "out"

    def break_off() -> None:
        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as broken:
            for each in (FolderDestination, DeltaDestination, IcebergDestination):
                broken.setattr(each, "publish", interrupted)
            with pytest.raises(KeyboardInterrupt):
                export_to(golden(STORE), out, kind, overwrite=True)

    export_to(golden(STORE), out, kind)
    min((out / "data").glob("*.parquet")).unlink()
    break_off()
    with pytest.raises(UsageError, match="a finished export is there"):
        export_to(golden(STORE), out, kind)
    break_off()
    assert export_to(golden(STORE), out, kind, overwrite=True).rows == len(OFFSETS)
    found = table_of(out)["phy_offset"].to_pylist() if kind == "parquet" else offsets_in(out, kind)
    assert sorted(found) == OFFSETS


def test_what_an_iceberg_catalog_names_is_on_disk_first(
    golden: GoldenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog is, so that a machine that goes down does not leave a table that nobody can open."""
    out, synced = tmp_path / "out", set[Path]()
    real = iceberg_io.sync_written

    def noted(path: Path) -> None:
        real(path)
        synced.add(path)

    monkeypatch.setattr(iceberg_io, "sync_written", noted)
    export_to(golden(STORE), out, "iceberg")
    export_to(golden(STORE), out, "iceberg", overwrite=True)
    assert synced == {path for name in ("data", "quarantine") for path in (out / name / "metadata").iterdir()}
