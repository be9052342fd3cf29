"""The program that talks to Spark: ``python -m store_core.export.runners.spark_job DESCRIPTOR``, started by ``submit``.

DESCRIPTOR is an inherited socket. A ``Start`` comes in and makes the Spark context; then every tuple of pickled tasks
that comes in is run and answered by ``Progress``es and one ``Outcome``; the end of the stream ends the program.

Every task is a partition of its own, writes its own Parquet file, and gives back its piece: one small row. A task that
is tried again or run twice writes under another name; the piece that Spark accepts decides which file counts.
"""

from __future__ import annotations

import pickle
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from store_core.export.runners.pack import ENVIRONMENT
from store_core.export.runners.spark_messages import Done, Outcome, Progress, Start

_LOOK_EVERY_SECONDS: Final = 0.5
_LOOK_AGAIN_SECONDS: Final = 0.05
_PATIENCE_SECONDS: Final = 30
# Arrow's own heap keeps 50 MB beside the C library's, which tasks have told to keep what they need (measured).
_EXECUTORS: Final = {"ARROW_DEFAULT_MEMORY_POOL": "system"}


class Job:
    """Runs of tasks in one Spark context."""

    def __init__(self, context: Any, scratch: Path, environment: Path | None = None) -> None:
        self._context = context
        self._scratch = scratch
        if environment is not None:
            context.addArchive(f"{environment}#{ENVIRONMENT}")
        self._notes: list[str] = []
        self._prepared = False

    def run(self, tasks: Sequence[bytes], connection: Connection) -> Outcome:
        from store_core.errors import FailedError

        try:
            if not self._prepared:
                self._prepare()
            answers = self._collect(tasks, connection)
            self._wait_for_losers()
        except FailedError as error:
            return Outcome(error=pickle.dumps(error))
        except Exception as error:  # Spark's own: a lost executor, a refused submission, Java's stack traces
            return Outcome(error=pickle.dumps(FailedError(f"the Spark job failed: {_reason(error)}", to_do=_SEE)))
        notes, self._notes = tuple(self._notes), []
        for kind, answer in answers:
            if kind == "error":
                return Outcome(error=answer, notes=notes)
        return Outcome(tuple(answer for _, answer in answers), notes=notes)

    def _collect(self, tasks: Sequence[bytes], connection: Connection) -> list[tuple[str, bytes]]:
        """What the tasks answer, in their order, or the error of one that failed for good, which ends the others. While they are
        at it, tells how far they are and which are done.

        Spark adds up only what the attempts that count have said, so that a piece told early is the one of the answer.
        """
        walked = self._context.accumulator(0)
        done, failed = (self._context.accumulator([], _several()) for _ in range(2))
        stop = threading.Event()

        def tell() -> None:
            told = 0
            while not stop.wait(_LOOK_EVERY_SECONDS):
                try:
                    connection.send(Progress(walked.value))
                    if pieces := tuple(done.value[told:]):
                        connection.send(Done(pieces))
                        told += len(pieces)
                    is_over = bool(failed.value)
                except OSError:  # nobody waits for it any more
                    is_over = True
                if is_over:  # no task may go on writing
                    self._context.cancelAllJobs()
                    return

        teller = threading.Thread(target=tell, daemon=True)
        teller.start()
        try:
            numbered = self._context.parallelize(list(enumerate(tasks)), len(tasks))
            attempts = self._attempts
            answers: list[tuple[str, bytes]] = numbered.map(
                lambda each: _do(each[0], each[1], attempts, walked, done, failed)
            ).collect()
            return answers
        except Exception:
            if failed.value:  # we have cancelled it
                return [("error", failed.value[0])]
            raise
        finally:
            stop.set()
            teller.join()

    def _wait_for_losers(self) -> None:
        """Attempts that lost against another one are killed, and may write until they are: nothing is to come behind a commit."""
        if self._context.getConf().get("spark.speculation", "false").lower() != "true":
            return
        tracker = self._context._jsc.sc().statusTracker()
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while any(executor.numRunningTasks() for executor in tracker.getExecutorInfos()):
            if time.monotonic() > deadline:  # a machine that does not answer: the next export removes what it leaves
                return
            time.sleep(_LOOK_AGAIN_SECONDS)

    @property
    def _attempts(self) -> int:
        """How often a task is tried before its error counts."""
        on_this_machine = self._context.master.startswith("local")
        return 1 if on_this_machine else int(self._context.getConf().get("spark.task.maxFailures", "4"))

    def _prepare(self) -> None:
        """See that executors have the package, or send it. Raises FailedError where they cannot run it."""
        found = self._ask()
        if "" in found:
            from store_core.export.runners.pack import packed_sources

            self._context.addPyFile(str(packed_sources(self._scratch)))
            found = self._ask()
        problems = found - {"compiled", "twin"}
        if problems:
            from store_core.errors import FailedError

            raise FailedError(
                f"an executor cannot run the job: {min(problems) or 'the package cannot be sent'}",
                to_do="send it with --pack-env, or install rmqctl there and name that Python with --conf spark.pyspark.python=PATH",
            )
        if "twin" in found:
            self._notes.append(
                "executors have no compiled kernel and run its Python twin: send one with --pack-env, or install rmqctl there"
            )
        self._prepared = True

    def _ask(self) -> set[str]:
        slots = max(self._context.defaultParallelism, 1)
        return set(self._context.parallelize(range(slots), slots).mapPartitions(lambda _: _what_is_here()).collect())


_SEE: Final = "run it with -v to see what Spark says"


def _several() -> Any:
    """How Spark adds up lists."""
    from pyspark.accumulators import AccumulatorParam

    class Several(AccumulatorParam[list[Any]]):
        def zero(self, value: list[Any]) -> list[Any]:
            return []

        def addInPlace(self, value1: list[Any], value2: list[Any]) -> list[Any]:
            value1.extend(value2)
            return value1

    return Several()


def _enter() -> None:
    """On an executor: work in the environment that was sent, by us or with ``--archives``, if one was."""
    from pyspark import SparkFiles

    path = SparkFiles.get(ENVIRONMENT)
    if path not in sys.path and Path(path).is_dir():
        sys.path.insert(0, path)


def _do(number: int, task: bytes, attempts: int, walked: Any, done: Any, failed: Any) -> tuple[str, bytes]:
    """On an executor: one task. An error of ours in the last attempt comes back as a value, not as Java's stack trace; in
    those before it Spark tries again, on another machine if there is one: this one may be all that lacks the store."""
    _enter()
    from pyspark import TaskContext

    from store_core.errors import StoreError
    from store_core.export.rows.memory import settle

    work = pickle.loads(task)  # loads what it needs
    settle()
    try:
        piece = work.run()
    except StoreError as error:
        context = TaskContext.get()
        if context is not None and context.attemptNumber() + 1 < attempts:
            raise
        data = pickle.dumps(error)
        failed.add([data])
        return "error", data
    walked.add(piece.walked_bytes)
    data = pickle.dumps(piece)
    done.add([(number, data)])
    return "piece", data


def _what_is_here() -> Iterator[str]:
    """On an executor: which kernel it has, "" without the package, else what is missing."""
    _enter()
    try:
        import_module("store_core.export.splits.piece")  # with all it needs
        from store_core.kernel import is_native

        yield "compiled" if is_native() else "twin"
    except ModuleNotFoundError as error:
        yield "" if (error.name or "").partition(".")[0] == "store_core" else str(error)
    except ImportError as error:
        yield str(error)


def _reason(error: Exception) -> str:
    """The first telling line: Java's exception where there is one."""
    java = getattr(error, "java_exception", None)
    text = str(java) if java is not None else str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def main(descriptor: int) -> int:
    with Connection(descriptor) as connection:
        start: Start = connection.recv()
        from pyspark import SparkConf, SparkContext

        conf = SparkConf().setAppName("rmqctl export").setAll(list(start.conf))
        if start.master is not None:
            conf.setMaster(start.master)
        try:
            context = SparkContext(conf=conf, environment=dict(_EXECUTORS))
        except Exception as error:
            from store_core.errors import FailedError

            failure = FailedError(f"Spark does not start: {_reason(error)}", to_do=_SEE)
            connection.send(Outcome(error=pickle.dumps(failure)))
            return 1
        job = Job(context, start.scratch, start.environment)
        try:
            while True:
                connection.send(job.run(connection.recv(), connection))
        except (EOFError, OSError):  # the parent is done, or gone
            context.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
