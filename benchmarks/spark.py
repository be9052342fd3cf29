"""Exports on Spark against the local export, on the same cores; and what a read through Spark's own writer costs.

    python -m benchmarks.spark --size 2GiB --record 866

All on this machine, the log in the page cache, two cores. A Spark session takes some seconds to start: that is measured for
itself, and what is compared is the time after it, from opening the store to the published manifest; the local export's is
taken likewise, without the start of a command, which is beside it. Where one core is asked
for, threads that read, collect and compress beside the task find the second processor idle; so the same is measured where
all of it has one processor, as in a container with one. How much more two cores of this machine can do than one, zstd alone
in one process and in two tells: it shares nothing and writes nothing. "read" is ``spark.read.format("rocketmq-store")`` into
Parquet by Spark's own writer as docs/pipeline.md advises: with its options, in the Java that the extra brings, with the
parallel collector, compact headers and without Arrow's checks, over sockets that are files and without Hadoop's checksums beside local files, in splits of whole segments where
there is one for each core; what of it is that writer's, a read without it tells. Resident memory is the most that a Python
process which does tasks ever had.

A job of hours is what counts, and not its first seconds. Java compiles Spark's writer while it runs, and does so for some
GiB: the JVM that reads has read as much before the first round, and what the first of it took is told for itself. Spark ends
Python processes that were idle for a minute: where a round takes longer than that, a contestant that needs them has them made
by a run that does not count.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks import contest
from benchmarks.commands import measure, rmqctl
from benchmarks.make_store import GIB, Made, Recipe, made_store
from store_core.export.dest.folder import FolderDestination
from store_core.export.export import export_stores
from store_core.export.runners.java import brought_java_home
from store_core.export.runners.local import LocalRunner
from store_core.export.runners.runner import Runner
from store_core.export.runners.spark import DEFAULTS, LOCAL_DEFAULTS, SparkRunner
from store_core.read.log import LogFilter
from store_core.storage.settings import load_settings
from store_core.storage.store import Store

CONTEST: Final = "exports on Spark"
LOCAL: Final = "local export, two processes"
COMMAND: Final = "rmqctl export as a whole, two processes"
LOCAL_1: Final = "local export, one process"
SPARK_2: Final = "Spark, two cores, after the start"
SPARK_1: Final = "Spark, one core, after the start"
SPARK_1_ALONE: Final = "Spark, one core, all of it on one processor"
LOOK: Final = "spark.read of every row, written nowhere, two cores"
READ: Final = "spark.read into Spark's own Parquet writer, two cores"
FIRST_READ: Final = "the first GiB read by a new JVM into Spark's own Parquet writer"
START: Final = "start of Spark"
BARE_1: Final = "nothing but zstd, one process"
BARE_2: Final = "nothing but zstd, two processes"
_CONF: Final = {"spark.driver.memory": "2g"}
_READ_CONF: Final = {
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC -Darrow.enable_unsafe_memory_access=true"
    " -Darrow.enable_null_check_for_get=false -XX:+UseCompactObjectHeaders",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
}
_CORES: Final = 2
_WARM_BYTES: Final = 8 * GIB  # then it takes no longer than after twice as much (measured)
_STARTS: Final = 3  # the first may have Spark brought from the disk
_IDLE_SECONDS: Final = 45  # Spark's own limit is 60
_MB: Final = 1_000_000
_MOST_MB: Final = 512
_PIECE_BYTES: Final = 64 << 20
_PAGE_BYTES: Final = 1 << 20


def export(made: Made, runner: Runner, work: Path, wanted: LogFilter | None = None) -> float:
    """Seconds of an export into a new folder, which is removed."""
    out = work / "out"
    started = time.perf_counter()
    with Store.open(made.root, load_settings(None, made.root)) as store:
        export_stores([("bench", store)], FolderDestination(out), runner, wanted)
    seconds = time.perf_counter() - started
    shutil.rmtree(out)
    return seconds


@contextmanager
def local(made: Made, work: Path) -> Iterator[Callable[[int], float]]:
    """Gives a function that exports with so many processes, from a process without other threads, as the command's is.

    Those that it starts are then copies of it. In this one Spark's threads would have them made anew, and load all once more.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        yield lambda jobs: pool.submit(export, made, LocalRunner(jobs), work).result()


def started(stack: ExitStack, master: str, made: Made, work: Path) -> tuple[SparkRunner, float]:
    """A runner whose Spark runs, and the seconds of an export of next to nothing that started it."""
    runner = stack.enter_context(SparkRunner(master, tuple(_CONF.items())))
    return runner, export(made, runner, work, LogFilter(to_phy_offset=1))


def start(made: Made, work: Path) -> float:
    """The seconds of such a start, of a Spark that is ended then."""
    with ExitStack() as stack:
        return started(stack, "local[2]", made, work)[1]


def command(made: Made, work: Path) -> float:
    """Seconds of the command that a user types, with its start and its end."""
    out = work / "out"
    seconds = measure(rmqctl("export", out, "--jobs", 2, "-q", "-s", f"bench={made.root}")).seconds
    shutil.rmtree(out)
    return seconds


@contextmanager
def one_processor() -> Iterator[None]:
    """What is started in here stays on one processor, as a container with one does."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def session() -> Iterator[Any]:
    """A Spark session of this process with two cores."""
    from pyspark.sql import SparkSession

    from pyspark_rmqctl import register

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["JAVA_HOME"] = str(brought_java_home())
    builder = SparkSession.builder.master(f"local[{_CORES}]")
    for key, value in (DEFAULTS | LOCAL_DEFAULTS | _CONF | _READ_CONF).items():
        builder = builder.config(key, value)
    spark = builder.config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS").getOrCreate()
    register(spark)
    try:
        yield spark
    finally:
        spark.stop()


def loaded(spark: Any, made: Made) -> Any:
    reader = spark.read.format("rocketmq-store").option("path", f"bench={made.root}")
    return (reader.option("splitSize", "1g") if len(made.segments) >= _CORES else reader).load()


def read(spark: Any, made: Made, work: Path) -> float:
    from pyspark_rmqctl import parquet_options

    out = work / "read"
    started = time.perf_counter()
    loaded(spark, made).write.options(**parquet_options()).parquet(str(out))
    seconds = time.perf_counter() - started
    shutil.rmtree(out)
    return seconds


def look(spark: Any, made: Made) -> float:
    started = time.perf_counter()
    loaded(spark, made).write.format("noop").mode("append").save()
    return time.perf_counter() - started


@contextmanager
def bare(made: Made, processes: int) -> Iterator[Callable[[], float]]:
    """Gives a function that compresses the log in so many processes, as exports do, and writes nothing: what these cores can be to each other."""
    pieces = [(segment, at) for segment in made.segments for at in range(0, segment.stat().st_size, _PIECE_BYTES)]
    apart = get_context("spawn")  # a copy of this process would have Spark's threads
    with ProcessPoolExecutor(processes, apart) as pool:

        def run() -> float:
            started = time.perf_counter()
            list(pool.map(_compress, pieces))
            return time.perf_counter() - started

        run()
        yield run


def _compress(piece: tuple[Path, int]) -> None:
    import pyarrow as pa

    path, at = piece
    with path.open("rb") as file:
        file.seek(at)
        while at < piece[1] + _PIECE_BYTES and (data := file.read(_PAGE_BYTES)):
            pa.Codec("zstd", compression_level=1).compress(data)
            at += len(data)


class OnSpark:
    """Looks at the Python processes of Spark below this one; ``most_bytes`` is the most that one of them ever had resident."""

    def __init__(self) -> None:
        self.most_bytes = 0

    def turns(self, run: Callable[[], float]) -> Callable[[], float]:
        """A contestant, whose processes are there when a turn begins."""
        ended: float | None = None

        def turn() -> float:
            nonlocal ended
            if ended is not None and time.monotonic() - ended > _IDLE_SECONDS:
                run()
            seconds = run()
            self._look()
            ended = time.monotonic()
            return seconds

        return turn

    def _look(self) -> None:
        """Behind a run: they live on, and remember; meanwhile looking would slow all."""
        for pid in _below(os.getpid()):
            with suppress(OSError):
                if b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    self.most_bytes = max(self.most_bytes, _resident_bytes(pid))


def _below(pid: int) -> Iterator[int]:
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield int(child)
                yield from _below(int(child))


def _resident_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM")), 0)


def main() -> None:
    parser = contest.arguments("spark", __doc__, size="2GiB", rounds=3)
    parser.add_argument("--record", type=int, default=866, help="bytes of a record")
    told = parser.parse_args()
    name = CONTEST
    with made_store(Recipe(told.size, told.record), told.work) as made, ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rmqctl-bench-", dir=told.work)))
        measure(["cat", *map(str, made.segments)])
        starts = [start(made, work) for _ in range(_STARTS - 1)]
        two, start_seconds = started(stack, "local[2]", made, work)
        starts.append(start_seconds)
        one, _ = started(stack, "local[1]", made, work)
        with one_processor():
            alone, _ = started(stack, "local[1]", made, work)
        spark = stack.enter_context(session())
        bare_1, bare_2 = (stack.enter_context(bare(made, processes)) for processes in (1, 2))
        exported, spark_has = stack.enter_context(local(made, work)), OnSpark()
        contestants: dict[str, Callable[[], float]] = {
            LOCAL: lambda: exported(2),
            COMMAND: lambda: command(made, work),
            LOCAL_1: lambda: exported(1),
            SPARK_2: spark_has.turns(lambda: export(made, two, work)),
            SPARK_1: spark_has.turns(lambda: export(made, one, work)),
            SPARK_1_ALONE: spark_has.turns(lambda: export(made, alone, work)),
            LOOK: spark_has.turns(lambda: look(spark, made)),
            READ: spark_has.turns(lambda: read(spark, made, work)),
            BARE_1: bare_1,
            BARE_2: bare_2,
        }
        first_read_seconds = read(spark, made, work) * GIB / made.log_bytes
        for _ in range(1, -(-_WARM_BYTES // made.log_bytes)):
            read(spark, made, work)
        times = contest.interleave(contestants, told.rounds)
        rows = [
            contest.ratio(name, times, SPARK_2, LOCAL, ("<=", 1.25)),
            contest.ratio(name, times, SPARK_1, SPARK_2, (">=", 1.7)),
            contest.ratio(name, times, SPARK_1_ALONE, SPARK_2, (">=", 1.7)),
            contest.ratio(name, times, LOCAL_1, LOCAL),
            contest.ratio(name, times, BARE_1, BARE_2),
            contest.ratio(name, times, READ, LOCAL, ("<=", 3.5)),
            contest.ratio(name, times, READ, COMMAND),
            contest.ratio(name, times, LOOK, LOCAL),
            contest.limit(name, START, "s", median(starts), 9),
            contest.limit(name, "a task", "MB resident", spark_has.most_bytes / _MB, _MOST_MB),
        ]
        store = f"{made.log_bytes / GIB:g} GiB of log, {made.messages} records of {told.record} B, made by {made.maker}"
        measured = {**times, FIRST_READ: [first_read_seconds], START: starts}
    said = f"python -m benchmarks.spark --size {told.size / GIB:g}GiB --record {told.record}"
    contest.finish(told, name, said, store, measured, rows)


if __name__ == "__main__":
    main()
