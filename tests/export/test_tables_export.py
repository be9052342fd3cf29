"""`export --what`: files that hold what the tables hold, whole or not at all, alike however they are divided and by whom."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from crc32c import crc32c

from rmqctl import exit_codes
from store_core.errors import FailedError, UsageError
from store_core.export.query.catalog import Tables
from store_core.export.runners.local import LocalRunner
from store_core.export.runners.spark import SparkRunner
from store_core.export.tables.table import schema_of
from store_core.export.tables_export import TABLES, TablesReport, What, export_tables
from store_core.read.log import LogFilter
from store_core.storage.store import Store
from tests import stores
from tests.conftest import GoldenStore, StoreCopy
from tests.damage import Damageable
from tests.rmqctl.calls import call

NAME = "clean-533"


def exported(
    root: Path, dest: Path, what: What, wanted: LogFilter | None = None, *, runner: Any = None, **options: Any
) -> TablesReport:
    with Store.open(root) as store:
        return export_tables([("a", store)], dest, what, runner or LocalRunner(), wanted, **options)


def read(dest: Path, table: str) -> pa.Table:
    return pa.concat_tables([pq.read_table(file) for file in sorted((dest / table).iterdir())])


def rows_of(root: Path, table: str) -> list[dict[str, Any]]:
    """What a query would read."""
    with Store.open(root) as store:
        found = Tables([("a", store)]).by_name[table]
        return [row for batch in found.batches(schema_of(found.columns).names) for row in batch.to_pylist()]


@pytest.mark.parametrize("size", [400, 100_000])
@pytest.mark.parametrize("name", ["clean-533", "bcq-533", "cqext-497", "load-533"])
def test_queue_entries(golden: GoldenStore, tmp_path: Path, name: str, size: int) -> None:
    report = exported(golden(name), tmp_path / "out", "queues", split_size_bytes=size)
    table = read(tmp_path / "out", "queues")
    assert table.schema.remove_metadata() == schema_of(TABLES["queues"]["queues"])
    expected = rows_of(golden(name), "queues")
    assert table.to_pylist() == expected
    told = stores.truth(name)["afterLoad"]["queues"]
    assert report.rows == len(expected) >= sum(len(queue["entries"]) for queue in told)
    assert (len(report.files) > 5) is (size == 400)
    assert report.bytes_read % 20 == 0  # an entry's length, or a multiple of it
    assert report.bytes_read >= 20 * report.rows


def test_queue_entries_of_some_topics(golden: GoldenStore, tmp_path: Path) -> None:
    exported(golden(NAME), tmp_path / "out", "queues", LogFilter(topics=frozenset({"Shop_bills", "Shop_tx"})))
    found = read(tmp_path / "out", "queues").to_pylist()
    assert found == [row for row in rows_of(golden(NAME), "queues") if row["topic"] in ("Shop_bills", "Shop_tx")]


@pytest.mark.parametrize("name", ["clean-533", "rocks-533"])
def test_index_entries(golden: GoldenStore, tmp_path: Path, name: str) -> None:
    report = exported(golden(name), tmp_path / "out", "index", runner=LocalRunner(2))
    assert read(tmp_path / "out", "index").to_pylist() == rows_of(golden(name), "index")
    assert len(report.files) == len(stores.truth(name)["afterLoad"]["indexFiles"])
    told = sum(file["indexCount"] - 1 for file in stores.truth(name)["afterLoad"]["indexFiles"])
    assert report.rows == told


def test_statistics_need_the_log_alone(golden: GoldenStore, tmp_path: Path) -> None:
    """Where the queues are in RocksDB, so is the groups' progress, which is told."""
    report = exported(golden("rocks-533"), tmp_path / "out", "stats")
    counted = sum(row["messages"] for row in read(tmp_path / "out", "topics").to_pylist())
    assert counted == len(stores.truth("rocks-533")["messages"])
    assert [found.code for found in report.findings] == ["Q015"]


def test_statistics(golden: GoldenStore, tmp_path: Path) -> None:
    report = exported(golden(NAME), tmp_path / "out", "stats", split_size_bytes=70_001, runner=LocalRunner(2))
    messages = stores.truth(NAME)["messages"]
    queues = Counter((m["topic"], m["queueId"]) for m in messages)
    found: Counter[tuple[str, int]] = Counter()
    for row in read(tmp_path / "out", "stats").to_pylist():
        found[row["topic"], row["queue_id"]] += row["messages"]
    assert found == queues
    topics = {row["topic"]: row for row in read(tmp_path / "out", "topics").to_pylist()}
    assert {t: row["messages"] for t, row in topics.items()} == Counter(m["topic"] for m in messages)
    assert topics["RMQ_SYS_TRANS_HALF_TOPIC"]["kind"] == "half"
    assert read(tmp_path / "out", "groups").to_pylist() == rows_of(golden(NAME), "offsets")
    assert report.findings == []
    assert report.bytes_read >= sum(file["size"] for file in stores.truth(NAME)["log"]["files"])
    asked = duckdb.sql(f"select sum(bytes) from '{tmp_path}/out/stats/*.parquet' where kind = 'user'").fetchall()
    assert asked == [(sum(m["storeSize"] for m in messages if topics[m["topic"]]["kind"] == "user"),)]


def test_statistics_of_some_messages(golden: GoldenStore, tmp_path: Path) -> None:
    wanted = LogFilter(to_phy_offset=500_000, topics=frozenset({"Shop_bills"}))
    exported(golden(NAME), tmp_path / "out", "stats", wanted)
    messages = [m for m in stores.truth(NAME)["messages"] if m["topic"] == "Shop_bills" and m["phyOffset"] < 500_000]
    assert [row["messages"] for row in read(tmp_path / "out", "topics").to_pylist()] == [len(messages)]
    assert {row["topic"] for row in read(tmp_path / "out", "groups").to_pylist()} == {"Shop_bills"}


def test_every_table_has_a_file(golden: GoldenStore, tmp_path: Path) -> None:
    for what in TABLES:
        wanted = LogFilter(topics=frozenset({"nope"})) if what != "index" else None
        exported(golden("bcq-533"), tmp_path / what, what, wanted)
        for table, columns in TABLES[what].items():
            found = read(tmp_path / what, table)
            assert found.schema.remove_metadata() == schema_of(columns)
            assert (len(found) == 0) is (what != "index")


def test_the_manifest(golden: GoldenStore, tmp_path: Path) -> None:
    report = exported(golden(NAME), tmp_path / "out", "queues", split_size_bytes=20_000)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (manifest["format"], manifest["what"], manifest["rows"]) == ("rmqctl-export", "queues", report.rows)
    assert manifest["stores"] == [{"store": "a", "rows": report.rows, "findings": {}}]
    paths = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.parquet")}
    assert {file["path"] for file in manifest["files"]} == paths
    for file in manifest["files"]:
        data = (tmp_path / "out" / file["path"]).read_bytes()
        assert (len(data), f"{crc32c(data):08x}") == (file["size_bytes"], file["crc32c"])


def test_an_export_is_replaced_only_when_asked(golden: GoldenStore, tmp_path: Path) -> None:
    dest = tmp_path / "out"
    exported(golden(NAME), dest, "queues")
    before = (dest / "manifest.json").read_bytes()
    with pytest.raises(UsageError, match="a finished export is there"):
        exported(golden(NAME), dest, "index")
    assert (dest / "manifest.json").read_bytes() == before
    exported(golden(NAME), dest, "index", overwrite=True)
    assert sorted(path.name for path in dest.iterdir()) == ["index", "manifest.json"]


def test_what_breaks_off_leaves_nothing(golden: GoldenStore, tmp_path: Path) -> None:
    with pytest.raises(FailedError, match="RocksDB"):
        exported(golden("rocks-533"), tmp_path / "out", "queues")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_into_a_store(store_copy: StoreCopy) -> None:
    root = store_copy("lmq-533")
    with pytest.raises(UsageError, match="inside the store"):
        exported(root, root / "out", "stats")
    assert not (root / "out").exists()


@pytest.mark.parametrize(
    ("what", "wanted"),
    [
        ("queues", LogFilter(from_phy_offset=1)),
        ("index", LogFilter(end_ms=1)),
        ("index", LogFilter(topics=frozenset({"a"}))),
    ],
)
def test_filters_that_a_table_does_not_know(golden: GoldenStore, tmp_path: Path, what: What, wanted: LogFilter) -> None:
    with pytest.raises(UsageError):
        exported(golden(NAME), tmp_path / "out", what, wanted)


@pytest.mark.spark
def test_spark_writes_the_same(golden: GoldenStore, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    with SparkRunner("local[2]", [("spark.driver.memory", "512m")]) as spark:
        for what in TABLES:
            size = 20_000 if what == "queues" else 200_000
            root = golden("compact-533" if what == "compaction" else NAME)
            exported(root, tmp_path / f"{what}-local", what, split_size_bytes=size)
            exported(root, tmp_path / f"{what}-spark", what, split_size_bytes=size, runner=spark)
            files = [
                {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.*")}
                for folder in (tmp_path / f"{what}-local", tmp_path / f"{what}-spark")
            ]
            assert files[0] == files[1]
            assert len(files[0]) >= 3


# The command


def test_the_command(golden: GoldenStore, damageable: Callable[..., Damageable], tmp_path: Path) -> None:
    store = damageable("load-533")
    store.flip(record=3, field="body")
    words = ("-s", f"a={store.root}", "-s", f"b={golden('lmq-533')}", "-o", "json")
    result = call("export", tmp_path / "out", "--what", "stats", *words)
    assert (result.code, result.err) == (exit_codes.FINDINGS, "")
    document = result.json
    assert list(document) == ["dest", "what", "files", "rows", "bytes_read", "bytes_written", "stores", "seconds"]
    assert [store["store"] for store in document["stores"]] == ["a", "b"]
    assert [[found["code"] for found in store["findings"]] for store in document["stores"]] == [["L001"], []]
    rows = read(tmp_path / "out", "topics").to_pylist()
    counts = Counter((row["store"], row["bad_messages"] > 0) for row in rows)
    assert counts["a", True] == 1
    assert sum(row["messages"] for row in rows if row["store"] == "b") == len(stores.truth("lmq-533")["messages"])
    shown = call("export", tmp_path / "plain", "--what", "queues", "-s", golden("lmq-533"))
    assert (shown.code, "lmq-533  queues" in shown.out) == (exit_codes.OK, True)


@pytest.mark.parametrize(
    "words",
    [
        ["--catalog", "sqlite:///x.db"],
        ["--incremental"],
        ["--partition-by", "topic"],
        ["--cluster", "offset"],
        ["--from", "1"],
        ["--master", "local"],
    ],
)
def test_options_that_do_not_fit(golden: GoldenStore, tmp_path: Path, words: list[str]) -> None:
    result = call("export", tmp_path / "out", "--what", "queues", *words, "-s", golden("lmq-533"))
    assert (result.code, result.err.count("\n")) == (exit_codes.USAGE, 1)
    assert not (tmp_path / "out").exists()


def test_an_overwrite_leaves_nothing_of_other_tables(golden: GoldenStore, tmp_path: Path) -> None:
    out = tmp_path / "out"
    exported(golden(NAME), out, "stats")
    assert call("export", out, "-s", golden(NAME), "--incremental").code == exit_codes.USAGE
    assert {path.name for path in out.iterdir()} == {"manifest.json", *TABLES["stats"]}
    assert call("export", out, "-s", golden(NAME), "--overwrite").code == exit_codes.OK
    assert {path.name for path in out.iterdir()} == {"manifest.json", "data", "quarantine"}
    exported(golden(NAME), out, "queues", overwrite=True)
    assert {path.name for path in out.iterdir()} == {"manifest.json", "queues"}


def test_a_queue_file_that_is_missing_between_others_is_told(
    damageable: Callable[..., Damageable], tmp_path: Path
) -> None:
    store = damageable("load-533")
    store.queue_file("Calm_audit", 0, 200)[0].unlink()
    for words in (
        ["export", str(tmp_path / "out"), "--what", "queues", "-s", f"a={store.root}"],
        ["sql", "select count(*) from queues", "-s", str(store.root)],
    ):
        found = call(*words)
        assert found.code == exit_codes.FINDINGS
        assert "no file for the 4000 bytes of the queue from 4000 on" in found.out + found.err
