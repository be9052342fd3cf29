"""Talk to Spark: ``python -m store_core.export.runners.spark_job DESCRIPTOR PARENT``, started by
``spark.SparkRunner``.

DESCRIPTOR is an inherited socket. The parent sends a ``Start``, which makes the Spark context, and then tuples of
pickled tasks. Each tuple is run and answered by ``Progress`` and ``Done`` messages and one ``Outcome``. The end of
the stream ends the program. So does the end of the process PARENT, at any time, and it ends the Java that the program
started.

Every task is a partition of its own, writes its own Parquet file, and returns its piece: one small row. A task that
is repeated or runs twice writes under another name; the piece that Spark accepts decides which file counts.
"""

from __future__ import annotations

import os
import pickle
import re
import signal
import sys
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from store_core.export.runners.pack import ENVIRONMENT, JAVA_ENDS_SECONDS, Done, Outcome, Progress, Start

if TYPE_CHECKING:
    from store_core.errors import FailedError, StoreError

_LOOK_EVERY_SECONDS: Final = 0.5
_PACKED: Final = "rmqctl-error:"
_LOOK_AGAIN_SECONDS: Final = 0.05
_PATIENCE_SECONDS: Final = 30
# Arrow's own heap would keep memory next to the C library's heap, which tasks have tuned.
_EXECUTORS: Final = {"ARROW_DEFAULT_MEMORY_POOL": "system"}


class Job:
    """Runs tasks in one Spark context."""

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
            return Outcome(error=pickle.dumps(self._reported_by_task(error) or self._failure(error)))
        notes, self._notes = tuple(self._notes), []
        return Outcome(tuple(answers), notes=notes)

    def _reported_by_task(self, error: Exception) -> StoreError | None:
        """Return the error that a task raised until Spark gave up; None if it was something else."""
        found = re.search(f"<{_PACKED}([^>]+)>", _text(error))
        if found is None:
            return None
        reported: StoreError = pickle.loads(b64decode(found[1]))
        if "://" in reported.where and not self._context.master.startswith("local"):
            reported.to_do = "; ".join(filter(None, (reported.to_do, _EXECUTORS_HAVE)))
        return reported

    def _failure(self, error: Exception) -> FailedError:
        from store_core.errors import FailedError

        if any(words in _text(error) for words in _STOPPED):  # also if it never started
            master = self._context.master
            return FailedError(
                f"Spark has stopped: no master answers at {master}, or it has ended the application",
                to_do="see that it runs and that --master names it",
            )
        return FailedError(f"the Spark job failed: {_reason(error).rstrip('.:')}", to_do=_SEE)

    def _collect(self, tasks: Sequence[bytes], connection: Connection) -> list[bytes]:
        """Return the answers of the tasks in their order; meanwhile report progress and finished tasks.

        Spark adds up the values of accepted attempts only, so a piece that is reported early is the one in the
        answer.
        """
        walked = self._context.accumulator(0)
        done = self._context.accumulator([], _list_sum())
        stop = threading.Event()

        def tell() -> None:
            sent = 0
            while not stop.wait(_LOOK_EVERY_SECONDS):
                try:
                    connection.send(Progress(walked.value))
                    if pieces := tuple(done.value[sent:]):
                        connection.send(Done(pieces))
                        sent += len(pieces)
                except OSError:  # the parent is gone: no task may continue to write
                    self._context.cancelAllJobs()
                    return

        teller = threading.Thread(target=tell, daemon=True)
        teller.start()
        try:
            numbered = self._context.parallelize(list(enumerate(tasks)), len(tasks))
            answers: list[bytes] = numbered.map(
                lambda numbered_task: _do(numbered_task[0], numbered_task[1], walked, done)
            ).collect()
            return answers
        finally:
            stop.set()
            teller.join()

    def _wait_for_losers(self) -> None:
        """Wait until attempts that lost against another one are killed: nothing may be written after a commit."""
        if self._context.getConf().get("spark.speculation", "false").lower() != "true":
            return
        scheduler = self._context._jsc.sc().taskScheduler()  # statusTracker is some tenths of a second late
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while _sum(scheduler.runningTasksByExecutors().valuesIterator()):
            if time.monotonic() > deadline:  # a machine does not answer
                self._notes.append(
                    f"an attempt that lost against another one is still at work after {_PATIENCE_SECONDS} s: a file that it may "
                    "write yet belongs to no result, and goes with the next export"
                )
                return
            time.sleep(_LOOK_AGAIN_SECONDS)

    def _prepare(self) -> None:
        """Make sure that executors have the package, or send it. Raises FailedError where they cannot run it."""
        found = self._kernels_of_executors()
        if "" in found:
            from store_core.export.runners.pack import packed_sources

            self._context.addPyFile(str(packed_sources(self._scratch)))
            found = self._kernels_of_executors()
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

    def _kernels_of_executors(self) -> set[str]:
        slots = max(self._context.defaultParallelism, 1)
        return set(self._context.parallelize(range(slots), slots).mapPartitions(lambda _: _kernel_here()).collect())


_STOPPED: Final = ("a stopped SparkContext", "SparkContext has been shutdown", "SparkContext was shut down")
_EXECUTORS_HAVE: Final = "executors have variables of their own, which --conf spark.executorEnv.NAME=VALUE sets"
_SEE: Final = "run it with -v to see what Spark says"


def _sum(numbers: Any) -> int:
    """Return the sum of an iterator of Scala."""
    found = 0
    while numbers.hasNext():
        found += int(numbers.next())
    return found


def _list_sum() -> Any:
    """Return the parameter with which Spark concatenates lists."""
    from pyspark.accumulators import AccumulatorParam

    class Several(AccumulatorParam[list[Any]]):
        def zero(self, value: list[Any]) -> list[Any]:
            return []

        def addInPlace(self, value1: list[Any], value2: list[Any]) -> list[Any]:
            value1.extend(value2)
            return value1

    return Several()


def _enter() -> None:
    """Use the environment that was sent to this executor, by rmqctl or with ``--archives``, if any."""
    from pyspark import SparkFiles

    path = SparkFiles.get(ENVIRONMENT)
    if path not in sys.path and Path(path).is_dir():
        sys.path.insert(0, path)


def _do(number: int, task: bytes, walked: Any, done: Any) -> bytes:
    """Run one task on an executor.

    An error of this package is packed into the text of one that Spark understands. Spark then tries again, on another
    machine if there is one, since this machine may be the only one without the store. It ends the other tasks when it
    gives up.
    """
    _enter()
    from store_core.errors import StoreError
    from store_core.export.rows.memory import settle

    work = pickle.loads(task)  # loads what it needs
    settle()
    try:
        piece = work.run()
    except StoreError as error:
        packed = b64encode(pickle.dumps(error)).decode()
        raise RuntimeError(f"{error} <{_PACKED}{packed}>") from None
    walked.add(piece.walked_bytes)
    data = pickle.dumps(piece)
    done.add([(number, data)])
    return data


def _kernel_here() -> Iterator[str]:
    """Yield this executor's kernel, "" without the package, or the name of a missing module."""
    _enter()
    try:
        import_module("store_core.export.splits.split_task")  # with all it needs
        from store_core.kernel import is_native

        yield "compiled" if is_native() else "twin"
    except ModuleNotFoundError as error:
        yield "" if (error.name or "").partition(".")[0] == "store_core" else str(error)
    except ImportError as error:
        yield str(error)


def _reason(error: Exception) -> str:
    """Return the first line of an error, Java's if there is one; a lost connection means that Java has ended."""
    if isinstance(error, ConnectionError):
        return "Java has ended"
    lines = [line.strip() for line in _text(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _text(error: Exception) -> str:
    java = getattr(error, "java_exception", None)
    return str(error if java is None else java)


@contextmanager
def _ended_with(parent: int) -> Iterator[None]:
    """End this program and its Java when the parent process has been killed, even while it waits for Spark."""
    done = threading.Event()
    watch = threading.Thread(target=_watch, args=(parent, done), daemon=True)
    watch.start()
    try:
        yield
    finally:
        done.set()
        watch.join()  # it may be waiting for Java to end


def _watch(parent: int, done: threading.Event) -> None:
    while not done.wait(_LOOK_EVERY_SECONDS):
        if os.getppid() != parent:
            with suppress(Exception):  # Spark may be in any state
                _let_java_end()
            os.killpg(os.getpid(), signal.SIGKILL)


def _let_java_end() -> None:
    """Make the Java that was started leave its master and remove its files: it ends when its input is closed."""
    if "pyspark" not in sys.modules:
        return
    from pyspark import SparkContext

    java = getattr(SparkContext._gateway, "proc", None)  # None before the start, or under spark-submit
    if java is not None:
        java.stdin.close()
        java.wait(JAVA_ENDS_SECONDS)


def main(descriptor: int, parent: int) -> int:
    with Connection(descriptor) as connection, _ended_with(parent):
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
        except (EOFError, OSError):  # the parent has finished or was killed
            context.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
