"""Exports of stores in an object store: in this process, in others, and on Spark's executors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from store_core.export.export import ExportReport, export_stores
from store_core.export.runners.local import LocalRunner
from store_core.export.runners.runner import Runner
from store_core.read.log_copies import find_copies, joint_settings
from store_core.storage.store import Store
from tests.conftest import DamagedStore, GoldenStore
from tests.damage import Damageable
from tests.export.exports import export_one, ranges_of, table_of, without_seconds
from tests.object_stores import ObjectStore

DamageableStore = Callable[..., Damageable]


def export(address: str, dest: Path, runner: Runner, **options: Any) -> ExportReport:
    with Store.open(address) as store:
        return export_stores([("a", store)], dest, runner, **options)


def assert_same(root: Path, address: str, out: Path, runner: Runner, split_size_bytes: int) -> None:
    """An export of the remote store has the rows, files, ranges and findings of the local one's."""
    here = export_one(root, out / "here", split_size_bytes=split_size_bytes)
    there = export(address, out / "there", runner, split_size_bytes=split_size_bytes)
    assert table_of(out / "there").equals(table_of(out / "here"), check_metadata=True)
    assert ranges_of(out / "there") == ranges_of(out / "here")
    assert without_seconds(there) == without_seconds(here)
    files = [{path.name: path.read_bytes() for path in (out / kind).rglob("*.parquet")} for kind in ("here", "there")]
    assert files[0] == files[1]


@pytest.mark.parametrize(
    ("name", "split_size_bytes"), [("clean-533", 1 << 20), ("ipv6-533", 50_000), ("crash-497", 200_000)]
)
def test_rows_and_files_are_the_same(
    name: str, split_size_bytes: int, golden: GoldenStore, object_store: ObjectStore, tmp_path: Path
) -> None:
    root = golden(name)
    assert_same(root, object_store.put(root), tmp_path, LocalRunner(), split_size_bytes)


def test_each_kind_of_object_store_gives_the_same(
    golden: GoldenStore, any_object_store: ObjectStore, tmp_path: Path
) -> None:
    root = golden("lmq-533")
    assert_same(root, any_object_store.put(root), tmp_path, LocalRunner(jobs=2), 50_000)


def test_damage_is_the_same(damaged: DamagedStore, object_store: ObjectStore, tmp_path: Path) -> None:
    root = damaged("load-533", "zero-page-mid")
    assert_same(root, object_store.put(root), tmp_path, LocalRunner(jobs=2), 50_000)


def test_an_export_that_goes_on(golden: GoldenStore, object_store: ObjectStore, tmp_path: Path) -> None:
    address = object_store.put(golden("clean-533"))
    first = export(address, tmp_path / "out", LocalRunner(), split_size_bytes=100_000)
    again = export(address, tmp_path / "out", LocalRunner(), split_size_bytes=100_000, incremental=True)
    assert (first.rows, again.rows, again.parts) == (2047, 0, ())


def test_a_copy_in_an_object_store_makes_damage_good(
    damageable: DamageableStore, golden: GoldenStore, object_store: ObjectStore, tmp_path: Path
) -> None:
    """A backup that was taken earlier: it gives what expired and what broke since."""
    export_one(golden("load-533"), tmp_path / "whole")
    store = damageable("load-533")
    backup = object_store.put(golden("load-533"))
    store.lose(segment=0)
    store.flip(record=900, field="body")
    with Store.open(store.root) as here, Store.open(backup) as there:
        assert find_copies([here, there]).groups == ((0, 1),)
        settings = joint_settings([here, there])
    with Store.open(settings.root, settings) as joint:
        report = export_stores([("a", joint)], tmp_path / "out", LocalRunner(), split_size_bytes=50_000)
    assert report.findings == []
    assert report.stores[0].copies == (str(store.root), backup)
    assert len(report.stores[0].healed) == 1
    assert table_of(tmp_path / "out").equals(table_of(tmp_path / "whole"))


@pytest.mark.spark
def test_spark_reads_it_too(damaged: DamagedStore, object_store: ObjectStore, tmp_path: Path) -> None:
    """Executors are told where the object store is in the way that Spark has for it."""
    pytest.importorskip("pyspark")
    from store_core.export.runners.spark import SparkRunner

    told = [(f"spark.executorEnv.{name}", value) for name, value in object_store.environment.items()]
    root = damaged("load-533", "zero-page-mid")
    address = object_store.put(root)
    with SparkRunner("local[2]", [("spark.driver.memory", "512m"), *told]) as runner:
        assert_same(root, address, tmp_path, runner, 100_000)
