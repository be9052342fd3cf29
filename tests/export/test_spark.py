"""Spark gives what the local export gives: on this machine's cores, and on a cluster of real processes."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import tempfile
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from store_core.errors import FailedError, NotAStoreError
from store_core.export.rows.schema import MESSAGE_COLUMNS, TIME
from store_core.export.runners import pack, spark_job
from store_core.export.runners.java import brought_java_home, java_home
from store_core.export.runners.pack import Done
from store_core.export.runners.runner import OnPiece, Walked
from store_core.export.runners.spark import SparkRunner
from store_core.export.runners.spark_job import _reason
from store_core.export.splits.plan import Task
from store_core.export.splits.split_task import Piece
from store_core.read.log import LogFilter
from tests import stores
from tests.conftest import DamagedStore, GoldenStore
from tests.damage import Damageable
from tests.export.clusters import SentTask, command_of, descendants, wait_until
from tests.export.exports import export_one, ranges_of, table_of, without_seconds
from tests.export.sessions import spark_session
from tests.export.test_healing import export as export_copies
from tests.rmqctl.calls import ROOT, command, environment

pyspark = pytest.importorskip("pyspark")
SPARK = Path(pyspark.__file__).parent
_DEADLINE_SECONDS = 60
_SMALL = [("spark.driver.memory", "512m")]


@pytest.fixture(scope="module")
def local_spark() -> Iterator[SparkRunner]:
    """One Spark session for all tests of the module that run on this machine's cores, on the Java of the extra."""
    with pytest.MonkeyPatch.context() as patch, SparkRunner("local[2]", _SMALL) as runner:
        patch.setattr("store_core.export.runners.spark.java_home", brought_java_home)
        yield runner


def assert_same(
    root: Path, runner: SparkRunner, out: Path, split_size_bytes: int, wanted: LogFilter | None = None
) -> None:
    """An export on Spark has the rows, types, files, ranges and findings of a local one."""
    local = export_one(root, out / "local", wanted, split_size_bytes=split_size_bytes)
    spark = export_one(root, out / "spark", wanted, split_size_bytes=split_size_bytes, runner=runner)
    assert table_of(out / "spark").equals(table_of(out / "local"), check_metadata=True)
    assert ranges_of(out / "spark") == ranges_of(out / "local")
    assert without_seconds(spark) == without_seconds(local)
    assert (spark.bytes_read, spark.bytes_written) == (local.bytes_read, local.bytes_written)
    files = [{path.name: path.read_bytes() for path in (out / kind).rglob("*.*")} for kind in ("local", "spark")]
    assert files[0] == files[1]


@pytest.mark.spark
@pytest.mark.parametrize("name", ["clean-533", "ipv6-533"])
def test_spark_on_this_machine_gives_the_same(
    golden: GoldenStore, local_spark: SparkRunner, tmp_path: Path, name: str
) -> None:
    assert_same(golden(name), local_spark, tmp_path, 50_000)


@pytest.mark.spark
def test_spark_joins_splits_at_damage(damaged: DamagedStore, local_spark: SparkRunner, tmp_path: Path) -> None:
    assert_same(
        damaged("load-533", "zero-page-mid"),
        local_spark,
        tmp_path,
        20_000,
        LogFilter(topics=frozenset({"Calm_orders"})),
    )
    assert ranges_of(tmp_path / "spark")


@pytest.mark.spark
def test_spark_reads_copies_as_one(
    damageable: Callable[..., Damageable], local_spark: SparkRunner, tmp_path: Path
) -> None:
    """What is damaged in one of them comes from the other, and what is in both is told once."""
    master, slave = damageable("load-533"), damageable("load-533")
    for row in (100, 900):
        master.zero(master.message(row)["phyOffset"], 200)
    for row in (900, 1500):
        slave.zero(slave.message(row)["phyOffset"], 200)
    reports = [
        export_copies(tmp_path / name, 50_000, master, slave, runner=runner)
        for name, runner in (("local", None), ("spark", local_spark))
    ]
    assert table_of(tmp_path / "spark").equals(table_of(tmp_path / "local"), check_metadata=True)
    assert [len(report.stores[0].healed) for report in reports] == [1, 1]
    lost = master.message(900)
    ranges = ranges_of(tmp_path / "spark")
    assert (ranges[0][0], sum(size for _, size, *_ in ranges)) == (lost["phyOffset"], lost["storeSize"])
    assert without_seconds(reports[0]) == without_seconds(reports[1])


@pytest.mark.product(1)
@pytest.mark.spark
@pytest.mark.parametrize("collector", ["Serial", "Parallel", "G1"])
def test_java_may_have_any_collector(golden: GoldenStore, tmp_path: Path, collector: str) -> None:
    """It does not start where two are named."""
    conf = (*_SMALL, ("spark.driver.extraJavaOptions", f"-XX:+Use{collector}GC -XX:TieredStopAtLevel=4"))
    with SparkRunner("local[1]", conf) as runner:
        assert export_one(golden("clean-533"), tmp_path / "out", runner=runner).rows


@pytest.mark.spark
def test_each_piece_is_told_once_while_others_are_at_work(
    golden: GoldenStore, local_spark: SparkRunner, tmp_path: Path
) -> None:
    most: list[int] = []

    class Noting:
        """Notes what it is told, and sees that the answer is the same."""

        def run(self, tasks: Sequence[Task], on_walked: Walked, on_piece: OnPiece | None = None) -> list[Piece]:
            told: list[tuple[int, Piece]] = []
            pieces = local_spark.run(tasks, on_walked, lambda index, piece: told.append((index, piece)))
            most.append(len(tasks))
            assert sorted(index for index, _ in told) == list(range(len(tasks)))
            assert all(pieces[index] is piece for index, piece in told)
            return pieces

    export_one(golden("clean-533"), tmp_path / "out", split_size_bytes=20_000, runner=Noting())
    assert max(most) > 20


@pytest.mark.spark
def test_an_error_on_an_executor_is_told_as_it_is(
    golden: GoldenStore, local_spark: SparkRunner, tmp_path: Path
) -> None:
    root = golden("clean-533")

    class Elsewhere:
        """Loses the store before the tasks see it."""

        def run(self, tasks: Sequence[Task], on_walked: Walked, on_piece: OnPiece | None = None) -> list[Piece]:
            settings = replace(tasks[0].settings, root=tmp_path / "gone")
            return local_spark.run([replace(tasks[0], settings=settings)], on_walked)

    with pytest.raises(NotAStoreError, match="no such folder"):
        export_one(root, tmp_path / "out", runner=Elsewhere())
    assert not (tmp_path / "out").exists()


@pytest.mark.spark
def test_an_error_that_stays_ends_the_other_tasks(local_spark: SparkRunner, tmp_path: Path) -> None:
    """Nobody waits for a thousand of them to hear that one has no place to write to."""

    def fail() -> None:
        raise FailedError("no space left")

    def work() -> SimpleNamespace:
        time.sleep(0.1)
        fd, _ = tempfile.mkstemp(dir=tmp_path)
        os.close(fd)
        return SimpleNamespace(walked_bytes=0)

    with pytest.raises(FailedError, match="no space left"):
        local_spark.run([SentTask(fail), *[SentTask(work)] * 200], ignored)
    assert len(list(tmp_path.iterdir())) < 200


@pytest.mark.spark
def test_nothing_of_spark_stays_behind_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))

    def fail() -> None:
        raise FailedError("no space left")

    with SparkRunner("local[1]", _SMALL) as runner:
        with pytest.raises(FailedError, match="no space left"):
            runner.run([SentTask(fail)], ignored)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.spark
def test_nothing_stays_of_what_is_ended_while_java_starts(golden: GoldenStore, tmp_path: Path) -> None:
    words = ("verify-crc", "--spark", "--master", "local[1]", "-s", golden("bcq-533"))
    process = subprocess.Popen(
        command(*words), cwd=ROOT, env=environment(TMPDIR=str(tmp_path)), stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while not any(
        path.name.startswith("tmp") for path in tmp_path.rglob("*")
    ):  # where pyspark is told how to reach Java
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.terminate()
    process.wait(_DEADLINE_SECONDS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spark
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_driver_ends_with_the_process_that_started_it(
    golden: GoldenStore, tmp_path: Path, number: signal.Signals
) -> None:
    """Also while it waits for a master that does not answer, which it would for a minute."""
    words = ("export", tmp_path / "out", "--spark", "--master", "spark://127.0.0.1:9", "-v", "-s", golden("bcq-533"))
    with subprocess.Popen(
        command(*words), cwd=ROOT, env=environment(), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stderr is not None
        assert any("Failed to connect to master" in line for line in process.stderr)
        started = descendants(process.pid)
        assert any("java" in command_of(pid) for pid in started)
        process.send_signal(number)
        process.wait(_DEADLINE_SECONDS)
        wait_until(lambda: not any(map(command_of, started)), 20)


def test_who_is_told_of_a_piece_may_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not Spark that has ended then."""
    ours, theirs = Pipe()
    monkeypatch.setattr(SparkRunner, "_start", lambda _: ours)

    def refuse(index: int, piece: object) -> None:
        raise OSError(f"no place for {index}")

    with SparkRunner() as runner, theirs:
        theirs.send(Done(((0, pickle.dumps("piece")),)))
        with pytest.raises(OSError, match="no place for 0"):
            runner.run([Nothing()], ignored, refuse)
        theirs.close()
        with pytest.raises(FailedError, match="Spark has ended early: it said nothing"):
            runner.run([Nothing()], ignored, refuse)


class Nothing:
    """A task."""

    def run(self) -> Piece:
        raise NotImplementedError


def ignored(walked_bytes: int) -> None:
    """How far it is."""


@pytest.mark.spark
def test_java_comes_from_the_machine_or_from_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    home = java_home()
    assert home is not None
    assert home.parent == tmp_path / "rmqctl"
    java = [str(home / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-Dwords=a b", "-version"]
    done = subprocess.run(java, capture_output=True, text=True, check=True, env={"PATH": os.defpath})
    assert "version" in done.stderr
    old = tmp_path / "old" / "bin" / "java"
    old.parent.mkdir(parents=True)
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    old.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(old.parents[1]))
    assert java_home() == home
    old.write_text("#!/bin/sh\necho 'openjdk version \"17.0.2\" 2022-01-18' >&2\n")
    assert java_home() == old.parents[1]


@pytest.mark.spark
def test_a_master_that_is_not_there_is_an_error(golden: GoldenStore, tmp_path: Path) -> None:
    for master, cause in (
        ("nonsense", "Master must either be yarn or"),
        ("yarnn", "HADOOP_CONF_DIR or YARN_CONF_DIR must be set"),
    ):
        with SparkRunner(master, _SMALL) as runner, pytest.raises(FailedError, match=f"Spark does not start.*{cause}"):
            export_one(golden("bcq-533"), tmp_path / "out", runner=runner)
    assert not (tmp_path / "out").exists()


@pytest.mark.spark
def test_spark_reads_an_export_with_its_types(golden: GoldenStore, tmp_path: Path) -> None:
    export_one(golden("clean-533"), tmp_path / "out", split_size_bytes=100_000)
    with spark_session() as session:
        frame = session.read.parquet(str(tmp_path / "out" / "data"))
        types = {field.name: field.dataType.simpleString() for field in frame.schema}
        assert types == {column.name: SPARK_TYPES.get(str(column.type), str(column.type)) for column in MESSAGE_COLUMNS}
        rows = frame.selectExpr(
            "phy_offset", "unix_millis(store_time)", "size(keys)", "properties['TAGS']", "sha2(body, 256)"
        ).orderBy("phy_offset")
        told = [
            (
                m["phyOffset"],
                m["storeTimestamp"],
                len(m["properties"].get("KEYS", "").split()),
                m["properties"].get("TAGS"),
                m.get("plainSha256", m["bodySha256"]),
            )
            for m in stores.truth("clean-533")["messages"]
        ]
        assert [tuple(row) for row in rows.collect()] == told
        assert session.read.parquet(str(tmp_path / "out" / "quarantine")).count() == 0


SPARK_TYPES = {
    "int64": "bigint",
    "int32": "int",
    "bool": "boolean",
    str(TIME): "timestamp",
    str(pa.list_(pa.string())): "array<string>",
    str(pa.map_(pa.string(), pa.string())): "map<string,string>",
}


def test_an_environment_is_packed_only_where_rmqctl_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that runs from such an archive itself is told that it need not make one."""
    monkeypatch.setattr(pack, "DISTRIBUTION", "rmqctl-nowhere")
    with pytest.raises(
        FailedError, match="cannot be packed where rmqctl-nowhere is not installed: leave --pack-env out"
    ):
        pack.save_environment(tmp_path / "environment.tar.gz")
    assert list(tmp_path.iterdir()) == []


def test_java_that_was_killed_is_named() -> None:
    """What Python says then is that nobody listens any more."""
    assert _reason(ConnectionRefusedError(111, "Connection refused")) == "Java has ended"


@pytest.mark.parametrize(
    ("master", "said"),
    [
        ("spark://a:7077", "check the network; executors have variables of their own, which --conf spark.executorEnv.NAME=VALUE sets"),
        ("local[2]", "check the network"),
    ],
)  # fmt: skip
def test_what_an_executor_does_not_reach(master: str, said: str, tmp_path: Path) -> None:
    """It may have been told otherwise than whoever asked it."""
    packed = b64encode(pickle.dumps(FailedError("no answer", path="s3://b/store", to_do="check the network"))).decode()
    job = spark_job.Job(SimpleNamespace(master=master), tmp_path)
    told = job._reported_by_task(RuntimeError(f"no answer <{spark_job._PACKED}{packed}>"))
    assert str(told) == f"no answer (s3://b/store): {said}"


def test_a_master_that_does_not_answer_is_named(tmp_path: Path) -> None:
    """Spark gives up after a minute and stops itself: this is what it says when it is asked for anything then."""
    job = spark_job.Job(SimpleNamespace(master="spark://nobody:7077"), tmp_path)
    said = "java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.\nThis stopped …"
    assert str(job._failure(RuntimeError(said))).startswith(
        "Spark has stopped: no master answers at spark://nobody:7077, or it has ended the application: see that it runs"
    )
