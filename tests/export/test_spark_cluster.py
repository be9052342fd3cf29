"""A standalone cluster of real processes: whoever is killed, in the end every record is there once, as after a local export."""

from __future__ import annotations

import ast
import os
import shlex
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from rmqctl import exit_codes
from store_core.check.verify import verify_log
from store_core.errors import FailedError
from store_core.export.dest.address import Format
from store_core.export.runners.java import java_home
from store_core.export.runners.local import LocalRunner
from store_core.export.runners.spark import SparkRunner
from store_core.export.statistics import stats_of_stores, verify_stores
from store_core.export.tables.stats import hourly_rows
from store_core.storage.publish import UNFINISHED
from store_core.storage.store import Store
from tests import stores
from tests.conftest import DamagedStore, GoldenStore
from tests.export.exports import export_one, files_of
from tests.export.killing import run_killed
from tests.export.test_buckets import manifest_in, names_in, offsets_in
from tests.export.test_lakes import export_to, rows_in
from tests.object_stores import ObjectStore
from tests.rmqctl.calls import ROOT

pytest.importorskip("pyspark")

import pyspark_rmqctl
from tests.export.cluster_exports import SPLIT_SIZE, Export, ancestors, words_of
from tests.export.clusters import (
    CONF,
    SPARK,
    Cluster,
    SentTask,
    bare_python,
    cluster,
    command_of,
    descendants,
    kill,
    wait_until,
)

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two workers of one core each, for all tests of the module."""
    with cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture(scope="module")
def whole(golden: GoldenStore, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """All files of a local export."""
    out = tmp_path_factory.mktemp("whole") / "local"
    export_one(golden("load-533"), out, split_size_bytes=SPLIT_SIZE)
    return files_of(out)


def test_killed_workers_and_executors(
    spark: Cluster, golden: GoldenStore, tmp_path: Path, whole: dict[str, bytes]
) -> None:
    with Export(spark, golden("load-533"), tmp_path / "out") as export:
        export.has_written(5)
        kill(spark.pythons()[0])
        export.has_written(20)
        kill(spark.executors()[0])
        export.has_written(40)
        kill(spark.pythons()[-1])
        assert export.end()[0] == 0
    assert files_of(tmp_path / "out") == whole


def test_tasks_done_twice_and_a_lost_machine(
    spark: Cluster, golden: GoldenStore, tmp_path: Path, whole: dict[str, bytes]
) -> None:
    """A task that hangs is run a second time elsewhere; then a worker goes with its executor."""
    speculation = ("speculation=true", "speculation.quantile=0.05", "speculation.minTaskRuntime=100ms")
    conf = [word for setting in speculation for word in ("--conf", f"spark.{setting}")]
    extra = spark.worker()
    with Export(spark, golden("load-533"), tmp_path / "out", *conf) as export:
        export.has_written(10)
        lost = spark.executors(extra)[0]
        hanging = next(pid for pid in spark.pythons() if lost not in ancestors(pid))
        kill(hanging, signal.SIGSTOP)
        try:
            export.has_written(30)
            kill(extra.pid)
            kill(lost)
            assert export.end()[0] == 0
        finally:
            kill(hanging)
    assert files_of(tmp_path / "out") == whole


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_lake_when_an_executor_and_the_export_are_killed(
    spark: Cluster, damaged: DamagedStore, tmp_path: Path, kind: Format
) -> None:
    root, out = damaged("load-533", "zero-page-mid"), tmp_path / "out"
    with Export(spark, root, out, "--format", kind) as export:
        export.has_written(5)
        kill(spark.executors()[0])
        export.has_written(20)
        export.process.kill()
        export.end()
    with Export(spark, root, out, "--format", kind) as export:
        code, said = export.end()
        assert code == exit_codes.FINDINGS, said
    export_to(root, tmp_path / "whole", kind, split_size_bytes=SPLIT_SIZE)
    for name in ("messages", "quarantine"):
        assert rows_in(out, kind, name).equals(rows_in(tmp_path / "whole", kind, name))


@pytest.mark.product(1)
@pytest.mark.parametrize(
    ("kind", "method", "calls"),
    [
        ("parquet", "store_core.storage.publish:ResultFolder._make_folders", 5),  # asked for each of some dozen files
        ("delta", "store_core.export.dest.delta:DeltaDestination._add", 1),  # of two tables
        ("iceberg", "store_core.export.dest.iceberg:IcebergDestination._add", 1),
    ],
)
def test_an_export_that_is_killed_in_the_middle_of_its_commit(
    spark: Cluster, damaged: DamagedStore, tmp_path: Path, kind: Format, method: str, calls: int
) -> None:
    root, out = damaged("load-533", "zero-page-mid"), tmp_path / "out"
    words = [*words_of(spark, root, out, split_size=100_000), "--format", kind]
    owner, _, name = method.rpartition(".")
    assert run_killed(calls, {owner: name}, *words).code == -signal.SIGKILL
    if kind == "parquet":
        assert not (out / "manifest.json").exists()
        assert [path for path in out.rglob("*.parquet") if UNFINISHED not in path.parts]
    else:
        assert rows_in(out, kind).num_rows
    done = subprocess.run(
        [sys.executable, "-m", "rmqctl", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == exit_codes.FINDINGS, done.stderr
    export_to(root, tmp_path / "whole", kind, split_size_bytes=100_000)
    if kind == "parquet":
        assert files_of(out) == files_of(tmp_path / "whole")
    else:
        for table in ("messages", "quarantine"):
            assert rows_in(out, kind, table).equals(rows_in(tmp_path / "whole", kind, table))


def test_surveys_when_an_executor_and_python_are_killed(spark: Cluster, damaged: DamagedStore) -> None:
    """Nothing is passed over, and nothing counts twice."""
    conf = [tuple(setting.split("=", 1)) for setting in CONF]
    victims: list[Callable[[], list[int]]] = []

    def on_progress(walked_bytes: int) -> None:
        if walked_bytes and victims and (found := victims[0]()):
            kill(found[0])
            victims.clear()

    with Store.open(damaged("load-533", "flip-body-mid")) as store, SparkRunner(spark.url, conf) as runner:
        logs, options = [("a", store)], {"split_size_bytes": SPLIT_SIZE, "on_progress": on_progress}
        victims.append(spark.executors)
        [verified] = verify_stores(logs, runner, **options)
        assert not victims
        alone = verify_log(store)
        assert (verified.segments, verified.findings) == (alone.segments, alone.findings)
        victims.append(spark.pythons)
        [counted] = stats_of_stores(logs, runner, **options)
        assert not victims
        [told] = stats_of_stores(logs, LocalRunner())
        assert hourly_rows("a", counted.stats).equals(hourly_rows("a", told.stats))


def test_an_error_of_a_task_counts_when_it_stays(spark: Cluster, tmp_path: Path) -> None:
    """One machine may be all that cannot reach the store."""
    conf = [tuple(setting.split("=", 1)) for setting in CONF]

    def fail(times: int) -> SimpleNamespace:
        tried = len(list(tmp_path.glob(f"{times}-*")))
        (tmp_path / f"{times}-{tried}").touch()
        if tried < times:
            raise FailedError(f"it fails {times} times")
        return SimpleNamespace(walked_bytes=0, times=times)

    with SparkRunner(spark.url, conf) as runner:  # Spark tries four times
        told = runner.run([SentTask(partial(fail, times)) for times in range(4)], lambda walked_bytes: None)
        assert [each.times for each in told] == [0, 1, 2, 3]
        with pytest.raises(FailedError, match="it fails 4 times"):
            runner.run([SentTask(partial(fail, 4))], lambda walked_bytes: None)
    assert len(list(tmp_path.iterdir())) == 1 + 2 + 3 + 4 + 4


SPECULATING = {
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.python.task.killTimeout": "20s",
}


def test_nothing_is_written_behind_the_answer(spark: Cluster, tmp_path: Path) -> None:
    """An attempt that has lost against another one is over by then. Each round begins right behind another job, for what Spark
    tells of a task that begins then may be old."""
    conf = [tuple(setting.split("=", 1)) for setting in CONF]

    def work(folder: Path, number: int) -> SimpleNamespace:
        answer = SimpleNamespace(walked_bytes=0)
        try:
            (folder / f"first-{number}").touch(exist_ok=False)
        except FileExistsError:
            (folder / f"second-{number}").touch()
            return answer
        while number == 0 and not (folder / "second-0").exists():
            time.sleep(0.01)
        time.sleep(1 if number == 0 else 0.05)
        (folder / f"written-{number}").touch()
        return answer

    with SparkRunner(spark.url, [*conf, *SPECULATING.items()]) as runner:
        for number in range(6):
            folder = tmp_path / str(number)
            folder.mkdir()
            runner.run([SentTask(partial(SimpleNamespace, walked_bytes=0))] * 4, lambda walked_bytes: None)
            runner.run([SentTask(partial(work, folder, task)) for task in range(8)], lambda walked_bytes: None)
            there = {path.name for path in folder.iterdir()}
            assert "second-0" in there, "no task was done twice"
            time.sleep(1.5)
            assert {path.name for path in folder.iterdir()} == there


def test_a_second_attempt_that_fails_takes_nothing_from_the_first(spark: Cluster, tmp_path: Path) -> None:
    """Spark counts failures, and not attempts: here it takes two of them."""
    conf = [tuple(setting.split("=", 1)) for setting in CONF]

    def work(number: int) -> SimpleNamespace:
        try:
            (tmp_path / f"first-{number}").touch(exist_ok=False)
        except FileExistsError:
            (tmp_path / f"second-{number}").touch()
            raise FailedError("this machine lacks the mount") from None
        while number == 0 and not (tmp_path / "second-0").exists():
            time.sleep(0.01)
        time.sleep(1 if number == 0 else 0.05)
        return SimpleNamespace(walked_bytes=0)

    with SparkRunner(spark.url, [*conf, *SPECULATING.items(), ("spark.task.maxFailures", "2")]) as runner:
        assert len(runner.run([SentTask(partial(work, task)) for task in range(8)], lambda walked_bytes: None)) == 8
    assert (tmp_path / "second-0").exists()


@pytest.mark.product(any_object_store=("s3",))
def test_executors_read_and_write_in_object_stores(
    spark: Cluster, golden: GoldenStore, any_object_store: ObjectStore
) -> None:
    """They find it by the variables that they are given: their machines know nothing of it. A Python worker and an executor are killed."""
    root, address = any_object_store.put(golden("load-533")), any_object_store.address("written-by-spark")
    given = [f"spark.executorEnv.{name}={value}" for name, value in any_object_store.environment.items()]
    conf = [word for each in given for word in ("--conf", each)]
    with Export(spark, root, address, *conf, split_size=50_000) as export:
        wait_until(lambda: len(names_in(any_object_store, address)) > 5 or export.process.poll() is not None)
        kill(spark.pythons()[0])
        kill(spark.executors()[-1])
        code, said = export.end()
    assert code == 0, said
    files = manifest_in(any_object_store, address)["files"]
    assert {file["path"] for file in files} | {"manifest.json"} == names_in(any_object_store, address)
    told = sorted(message["phyOffset"] for message in stores.truth("load-533")["messages"])
    assert offsets_in(any_object_store, address) == told


def test_a_killed_driver_and_a_killed_export(
    spark: Cluster, golden: GoldenStore, tmp_path: Path, whole: dict[str, bytes]
) -> None:
    """The same command ends what was begun, and does not do again what was done. Of the driver, once its Python is killed and once Java."""
    root, out = golden("load-533"), tmp_path / "out"
    with Export(spark, root, out) as export:
        export.has_written(20)
        kill(export.driver)
        code, said = export.end()
    assert code == 1
    assert "Spark has ended early: its program was ended by a signal (Killed)" in said
    assert not (out / "manifest.json").exists()
    with Export(spark, root, out) as export:
        export.has_written(30)
        kill(next(pid for pid in descendants(export.driver) if Path(command_of(pid).split()[0]).name == "java"))
        code, said = export.end()
    assert code == 1
    assert "Traceback" not in said
    assert not (out / "manifest.json").exists()
    with Export(spark, root, out) as export:
        wait_until(lambda: bool(spark.pythons()))
        export.has_written(50)
        driver = export.driver
        kill(export.process.pid)
        export.end()
    wait_until(lambda: not command_of(driver) and not spark.executors())
    assert not (out / "manifest.json").exists()
    with Export(spark, root, out) as export:
        code, said = export.end()
    assert code == 0
    assert "splits had been done before" in said
    assert files_of(out) == whole


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with nothing but itself."""
    return bare_python(tmp_path_factory.mktemp("bare"))


def test_executors_that_have_nothing_but_python(
    spark: Cluster, bare: Path, damaged: DamagedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = damaged("load-533", "zero-page-mid")
    export_one(root, tmp_path / "local", split_size_bytes=300_000)
    words = ("--conf", f"spark.pyspark.python={bare}", "--split-size", "300000")
    with Export(spark, root, tmp_path / "out", *words) as export:
        code, said = export.end()
    assert code == 1
    assert "an executor cannot run the job: No module named" in said
    assert "--pack-env" in said
    with Export(spark, root, tmp_path / "out", *words, "--pack-env") as export:
        code, said = export.end()
    assert code == 3, said
    assert "twin" not in said
    assert files_of(tmp_path / "out") == files_of(tmp_path / "local")
    assert len(list((tmp_path / "cache" / "rmqctl").glob("environment-*.tar.gz"))) == 1


def test_executors_without_the_package_get_its_sources(spark: Cluster, damaged: DamagedStore, tmp_path: Path) -> None:
    """They have the libraries; then the kernel's twin does the work, and that is said."""
    root = damaged("load-533", "flip-body-mid")
    export_one(root, tmp_path / "local", split_size_bytes=300_000)
    words = ("--conf", f"spark.pyspark.python={python_with_libraries(tmp_path)}", "--split-size", "300000")
    with Export(spark, root, tmp_path / "out", *words) as export:
        code, said = export.end()
    assert (code, "executors have no compiled kernel and run its Python twin" in said) == (3, True), said
    assert files_of(tmp_path / "out") == files_of(tmp_path / "local")


def python_with_libraries(folder: Path) -> Path:
    """A Python with the installed libraries, but without what is installed for development: the package itself."""
    program = folder / "python-with-libraries"
    libraries = shlex.quote(sysconfig.get_path("purelib"))
    # -S: no .pth files, which is how a development install is found
    program.write_text(
        f'#!/bin/sh\nexport PYTHONPATH="$PYTHONPATH":{libraries}\nexec {shlex.quote(sys.executable)} -S "$@"\n'
    )
    program.chmod(0o755)
    return program


READING = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
frame = spark.read.format("rocketmq-store").option("path", "a=" + sys.argv[1]).option("splitSize", "300k").load()
rows = frame.selectExpr("phy_offset", "topic", "crc", "sha2(body, 256)").orderBy("phy_offset").collect()
open(sys.argv[2], "w").write(repr([tuple(row) for row in rows]))
"""


def submit(
    spark: Cluster, *words: str | Path, driver_python: Path | str = sys.executable, **variables: str
) -> tuple[int, str]:
    """``spark-submit``; exit code and what was said."""
    conf = [word for setting in CONF for word in ("--conf", setting)]
    env = {**os.environ, "PYSPARK_DRIVER_PYTHON": str(driver_python), "SPARK_LOCAL_IP": "127.0.0.1", **variables}
    if (home := java_home()) is not None:
        env["JAVA_HOME"] = str(home)
    command = [SPARK / "bin" / "spark-submit", "--master", spark.url, *conf, *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=False)
    return done.returncode, done.stdout + done.stderr


def told_rows(name: str) -> list[tuple[int, str, str, str]]:
    return [
        (m["phyOffset"], m["topic"], "ok", m.get("plainSha256", m["bodySha256"]))
        for m in stores.truth(name)["messages"]
    ]


def test_a_program_with_the_sources_alone(spark: Cluster, golden: GoldenStore, tmp_path: Path) -> None:
    """Neither the driver nor the executors have the package, but for what is sent."""
    assert pyspark_rmqctl.main(["sources", str(tmp_path / "rmqctl.zip")]) == 0
    program, out = tmp_path / "program.py", tmp_path / "out.txt"
    program.write_text("import pyspark_rmqctl\n" + READING)
    python = python_with_libraries(tmp_path)
    words = ("--conf", f"spark.pyspark.python={python}", "--py-files", tmp_path / "rmqctl.zip")
    code, said = submit(spark, *words, program, golden("clean-533"), out, driver_python=python)
    assert code == 0, said
    assert ast.literal_eval(out.read_text()) == told_rows("clean-533")
    assert "executors get rmqctl's sources alone and run the kernel's Python twin" in said


def test_a_program_with_a_packed_environment(spark: Cluster, bare: Path, golden: GoldenStore, tmp_path: Path) -> None:
    """Executors have nothing but Python. Nothing is imported: Spark finds the source where it is installed."""
    archive = tmp_path / "environment.tar.gz"
    assert pyspark_rmqctl.main(["environment", str(archive)]) == 0
    program, out = tmp_path / "program.py", tmp_path / "out.txt"
    program.write_text(READING)
    words = ("--conf", f"spark.pyspark.python={bare}", "--archives", f"{archive}#rmqctl_env")
    path = ("--conf", "spark.executorEnv.PYTHONPATH=rmqctl_env")
    code, said = submit(spark, *words, *path, program, golden("clean-533"), out, PYTHONPATH=str(ROOT))
    assert code == 0, said
    assert ast.literal_eval(out.read_text()) == told_rows("clean-533")
    assert "twin" not in said


def test_an_export_that_spark_submit_starts(
    spark: Cluster, golden: GoldenStore, tmp_path: Path, whole: dict[str, bytes]
) -> None:
    out = tmp_path / "out"
    words = ("export", out, "-s", f"a={golden('load-533')}", "--split-size", str(SPLIT_SIZE))
    code, said = submit(spark, "--conf", f"spark.pyspark.python={sys.executable}", ROOT / "pyspark_rmqctl.py", *words)
    assert code == 0, said
    assert files_of(out) == whole
