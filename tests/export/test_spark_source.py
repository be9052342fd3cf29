"""``spark.read.format("rocketmq-store")`` in a real session: types, rows, tables, and nothing that leaks between queries."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pandas
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests import stores
from tests.conftest import DamagedStore, GoldenStore
from tests.damage import Damageable
from tests.export.exports import export_one, ranges_of, table_of

pytest.importorskip("pyspark")

import pyspark_rmqctl
from tests.export.clusters import descendants, kill, wait_until
from tests.export.log_writer import LogWriter
from tests.export.sessions import Query, spark_session
from tests.export.sources import source_table
from tests.export.test_copies import lag
from tests.export.test_splits import SEGMENT_BYTES
from tests.rmqctl.calls import ROOT

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """One session for all tests of the module."""
    with spark_session(spark_python_unix_domain_socket_enabled="true") as session:
        yield session


def read(spark: Any, *roots: Path, **options: str | int) -> Any:
    paths = ",".join(f"{name}={root}" for name, root in zip("abc", roots, strict=False))
    return spark.read.format("rocketmq-store").option("path", paths).options(**options).load()


def test_rows_and_types_are_those_of_an_export(golden: GoldenStore, spark: Any, tmp_path: Path) -> None:
    export_one(golden("clean-533"), tmp_path / "out")
    frame = read(spark, golden("clean-533"), splitSize="300k")
    exported = table_of(tmp_path / "out")
    assert frame.rdd.getNumPartitions() > 3
    # Spark's Arrow names the parts of lists and maps otherwise.
    assert frame.orderBy("phy_offset").toArrow().cast(exported.schema).equals(exported)
    assert [(f.name, f.nullable) for f in frame.schema] == [(f.name, f.nullable) for f in exported.schema]


def test_spark_writes_files_encoded_as_an_export(golden: GoldenStore, spark: Any, tmp_path: Path) -> None:
    """By what the files themselves say of their columns, in Spark's files and in an export's; where there is a dictionary, bounds are left out."""
    export_one(golden("clean-533"), tmp_path / "out")
    frame = read(spark, golden("clean-533")).coalesce(1)
    frame.write.options(**pyspark_rmqctl.parquet_options()).parquet(str(tmp_path / "ours"))
    frame.write.parquet(str(tmp_path / "plain"))
    ours, plain, exported = (_encoding(tmp_path / name) for name in ("ours", "plain", "out"))
    assert ours == exported | {"statistics": exported["statistics"] - exported["dictionary"]}
    assert ours["dictionary"] < plain["dictionary"]
    assert ours["statistics"] < plain["statistics"]


def test_a_dictionary_tells_spark_what_is_not_there(golden: GoldenStore, spark: Any, tmp_path: Path) -> None:
    """Between the bounds, too, where those would have told nothing."""
    out = str(tmp_path / "out")
    read(spark, golden("clean-533")).coalesce(1).write.options(**pyspark_rmqctl.parquet_options()).parquet(out)
    topics = sorted(row.topic for row in spark.read.parquet(out).select("topic").distinct().collect())

    def rows_read(topic: str) -> int:
        plan = spark.read.parquet(out).where(f"topic = '{topic}'")._jdf.queryExecution().executedPlan()
        plan.executeCollect()
        return int(plan.collectLeaves().apply(0).metrics().apply("numOutputRows").value())

    assert rows_read(topics[0]) > 0
    assert rows_read(f"{topics[0]} and more") == 0


def test_others_read_what_spark_writes_with_our_options(golden: GoldenStore, spark: Any, tmp_path: Path) -> None:
    """Pages of version 2 know encodings of their own for offsets, times and text."""
    out = str(tmp_path / "out")
    read(spark, golden("clean-533")).coalesce(1).write.options(**pyspark_rmqctl.parquet_options()).parquet(out)
    wanted = (
        source_table(golden("clean-533")).select(["phy_offset", "topic", "store_time", "body"]).sort_by("phy_offset")
    )
    names = wanted.column_names
    path = f"{out}/*.parquet"
    as_read = [
        pq.read_table(out, columns=names),
        spark.read.parquet(out).select(*names).toArrow(),
        polars.read_parquet(path, columns=names).to_arrow(),
        duckdb.sql(f"set timezone = 'UTC'; from '{path}' select {', '.join(names)}").to_arrow_table(),
        pa.Table.from_pandas(pandas.read_parquet(out, columns=names)),
    ]
    for table in as_read:
        assert table.cast(wanted.schema).sort_by("phy_offset").equals(wanted)


def _encoding(folder: Path) -> dict[str, set[str]]:
    """How the columns of a folder's first file are compressed, and the paths of those that have a dictionary, and statistics."""
    group = pq.ParquetFile(min(folder.rglob("*.parquet"))).metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    return {
        "compression": {column.compression for column in columns},
        "dictionary": {column.path_in_schema for column in columns if column.has_dictionary_page},
        "statistics": {column.path_in_schema for column in columns if column.is_stats_set},
    }


def test_damage_is_marked_and_quarantined(damaged: DamagedStore, spark: Any, tmp_path: Path) -> None:
    root = damaged("load-533", "zero-page-mid")
    export_one(root, tmp_path / "out")
    found = read(spark, root, table="quarantine").orderBy("phy_offset").collect()
    assert found
    assert [tuple(row)[1:] for row in found] == ranges_of(tmp_path / "out")
    assert read(spark, root).count() == table_of(tmp_path / "out").num_rows


def test_sql_over_two_stores_and_twice_the_same_frame(golden: GoldenStore, spark: Any) -> None:
    """Filters and unions count what they should, in one query and in the next."""
    counts = {name: len(stores.truth(name)["messages"]) for name in ("clean-533", "ipv6-533")}
    frame = read(spark, golden("clean-533"), golden("ipv6-533"), columns="store,topic,phy_offset")
    frame.createOrReplaceTempView("messages")
    rows = spark.sql("select store, count(*) from messages group by 1 order by 1").collect()
    assert [tuple(row) for row in rows] == [("a", counts["clean-533"]), ("b", counts["ipv6-533"])]
    only = frame.where("store = 'b' and phy_offset >= 0")
    assert [frame.count(), only.count(), frame.count()] == [
        sum(counts.values()),
        counts["ipv6-533"],
        sum(counts.values()),
    ]
    assert frame.union(only).count() == sum(counts.values()) + counts["ipv6-533"]


def test_a_master_and_its_slave_are_one_table_and_no_stream(
    golden: GoldenStore, damageable: Callable[..., Damageable], spark: Any, tmp_path: Path
) -> None:
    slave = lag(damageable("load-533"), 1500).root
    assert read(spark, slave, golden("load-533"), columns="store").groupBy("store").count().collect() == [("a", 2183)]
    both = f"{slave},{golden('load-533')}"
    with pytest.raises(Exception, match="are copies of one log, and a stream would read each record 2 times"):
        Query(spark, slave, tmp_path / "refused", path=both).finish()
    apart = Query(spark, slave, tmp_path / "apart", path=both, keepCopies="true")
    apart.finish()
    assert len(apart.rows()) == 2183 + 1500


def test_nothing_to_read_is_no_rows(golden: GoldenStore, spark: Any) -> None:
    assert read(spark, golden("clean-533"), fromOffset=1 << 50).count() == 0
    assert read(spark, golden("clean-533"), table="quarantine").count() == 0


def test_errors_say_what_is_wrong(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="there is no column 'topik': there are store, phy_offset"):
        read(spark, tmp_path, columns="topik")
    with pytest.raises(Exception, match="the source has a schema of its own"):
        spark.read.format("rocketmq-store").schema("topic string").load(str(tmp_path)).count()
    with pytest.raises(Exception, match="not a RocketMQ store"):
        read(spark, tmp_path).count()


def test_registering_again_changes_nothing(golden: GoldenStore, spark: Any) -> None:
    pyspark_rmqctl.register(spark)
    assert read(spark, golden("ipv6-533"), columns="topic").count() == len(stores.truth("ipv6-533")["messages"])


def told(name: str) -> list[tuple[int, str]]:
    return [(message["phyOffset"], "ok") for message in stores.truth(name)["messages"]]


def test_what_is_there_is_read_in_batches(golden: GoldenStore, spark: Any, tmp_path: Path) -> None:
    query = Query(spark, golden("load-533"), tmp_path, maxBytesPerTrigger="300k")
    batches = query.finish().recentProgress
    assert query.rows() == told("load-533")
    assert len([batch for batch in batches if batch["numInputRows"]]) >= 3
    assert query.finish().lastProgress["numInputRows"] == 0
    assert query.rows() == told("load-533")


def test_torn_writes_and_restarts_lose_nothing_and_repeat_nothing(
    golden: GoldenStore, spark: Any, tmp_path: Path
) -> None:
    """A log is written, a piece of a record at a time, while a query reads it, is stopped, and goes on from its checkpoint."""
    root = tmp_path / "live"
    pieces = LogWriter(golden("load-533"), root, seed=3).pieces(3000)
    next(pieces)
    query = Query(spark, root, tmp_path)
    for _ in range(3):
        running = query.start(processingTime="0 seconds")
        for _ in zip(range(150), pieces, strict=False):
            time.sleep(0.005)
        deadline = time.monotonic() + 60
        while not any(batch["numInputRows"] for batch in running.recentProgress):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        running.stop()  # in the middle of whatever it does
    assert 0 < len(query.rows()) < len(told("load-533"))
    for _ in pieces:
        pass
    query.finish()
    assert query.rows() == told("load-533")


FOLLOWING = """
import sys
from pathlib import Path
from tests.export.sessions import Query, spark_session

root, folder = map(Path, sys.argv[1:])
with spark_session() as spark:
    Query(spark, root, folder, maxBytesPerTrigger="30k").start(processingTime="0 seconds").awaitTermination()
"""


def test_a_query_whose_driver_is_killed_goes_on_from_its_checkpoint(
    golden: GoldenStore, spark: Any, tmp_path: Path
) -> None:
    """All of it, by SIGKILL, in the middle of whatever it does."""
    root = golden("load-533")
    planned = tmp_path / "checkpoint" / "offsets"
    with subprocess.Popen([sys.executable, "-c", FOLLOWING, root, tmp_path], cwd=ROOT) as program:
        wait_until(lambda: len(list(planned.glob("[0-9]*"))) > 5)
        for pid in (program.pid, *descendants(program.pid)):
            kill(pid)
    query = Query(spark, root, tmp_path)
    assert len(query.rows()) < len(told("load-533"))
    query.finish()
    assert query.rows() == told("load-533")


def test_data_between_two_runs_that_is_gone_ends_the_query(
    damageable: Callable[..., Damageable], spark: Any, tmp_path: Path
) -> None:
    store = damageable("load-533")
    later = store.segments[2:]
    kept = {path: path.read_bytes() for path in later}
    for path in later:
        path.unlink()
    Query(spark, store.root, tmp_path).finish()
    for path, data in kept.items():
        path.write_bytes(data)
    for path in store.segments[:3]:
        path.unlink()
    with pytest.raises(Exception, match=r"the stream has read a up to .* the log begins at 393216"):
        Query(spark, store.root, tmp_path).finish()
    lenient = Query(spark, store.root, tmp_path, failOnDataLoss="false")
    lenient.finish()
    assert lenient.rows() == [
        row for row in told("load-533") if row[0] < 2 * SEGMENT_BYTES or row[0] >= 3 * SEGMENT_BYTES
    ]


@pytest.mark.parametrize("batch", [0, 1])
def test_a_batch_that_was_under_way_is_read_as_it_was_planned(
    damageable: Callable[..., Damageable], spark: Any, tmp_path: Path, batch: int
) -> None:
    """Spark asks a new query for its rows before all else: no other begin and no missing segment may make them fewer."""
    store = damageable("load-533")
    given = {"path": f"a={store.root}", "columns": "phy_offset,crc", "quietMs": "0", "maxBytesPerTrigger": "500k"}

    def run(*, fails: bool = False, **options: str) -> None:
        def keep(frame: Any, number: int) -> None:
            if fails and number == batch:
                raise OSError("the sink is full")
            frame.write.mode("overwrite").parquet(str(tmp_path / "rows" / f"batch={number}"))

        frame = spark.readStream.format("rocketmq-store").options(**given | options).load()
        writer = frame.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).foreachBatch(keep).start().awaitTermination()

    with pytest.raises(Exception, match="the sink is full"):
        run(fails=True)
    away = store.segments[2 + 4 * batch]
    kept = away.read_bytes()
    away.unlink()
    with pytest.raises(Exception, match=r"the segment that goes on there is missing or incomplete .*: bring it back"):
        run(startingOffset="latest")
    away.write_bytes(kept)
    run(startingOffset="latest")
    frame = spark.read.parquet(str(tmp_path / "rows"))
    assert sorted(map(tuple, frame.select("phy_offset", "crc").collect())) == told("load-533")
