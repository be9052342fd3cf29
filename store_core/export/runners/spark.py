"""Run tasks on Spark: start the program that talks to it, send tasks and receive pieces.

Needs ``rmqctl[spark]`` and nothing else.
"""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, Self

from store_core.errors import FailedError
from store_core.export.runners.java import java_home
from store_core.export.runners.pack import JAVA_ENDS_SECONDS, Done, Outcome, Progress, Start, packed_environment
from store_core.export.runners.runner import Doable, OnPiece, Told, Walked
from store_core.extras import assert_installed

LOCAL_MASTER: Final = "local[*]"
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"  # set by spark-submit, which has started Java and knows the master
_PROGRAM: Final = "store_core.export.runners.spark_job"
_LINES_KEPT: Final = 200
_PATIENCE_SECONDS: Final = 15
_LOOK_AGAIN_SECONDS: Final = 0.02
_LOOK_EVERY_SECONDS: Final = 0.1
_SOON_SECONDS: Final = 1.0  # a program has exited this long after its connection closes
_LOOKS: Final = 25
_NO_GATEWAY: Final = "JAVA_GATEWAY_EXITED"
_THROWN: Final = re.compile(r'Exception in thread "main" \S+: (.+)')
DEFAULTS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
}
LOCAL_DEFAULTS: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
# Java only distributes tasks here: full compilation would delay its start and use the cores that run them.
# No collector is named: Java refuses to start with two, and the user's settings may name one.
_LOCAL_JAVA: Final = {"spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1"}

Say = Callable[[str], None]


class SparkRunner:
    """Runs tasks on a Spark master; a context manager. Spark starts at the first run.

    Args:
        master: None is this machine, or under spark-submit its master.
        conf: settings that override the defaults of this package.
        pack_env: send executors all that they need except Python.
        note: is called with notes for the operator.
        log: is called with every line that Spark writes.

    Raises:
        FailedError: pyspark or Java is missing, Spark does not start, or a task fails for good.
    """

    def __init__(
        self,
        master: str | None = None,
        conf: Sequence[tuple[str, str]] = (),
        *,
        pack_env: bool = False,
        note: Say = lambda text: None,
        log: Say = lambda text: None,
    ) -> None:
        assert_installed("pyspark", "--spark")
        self._is_submitted = master is None and _SUBMITTED in os.environ
        self._master = None if self._is_submitted else master or LOCAL_MASTER
        self._conf, self._pack_env = tuple(conf), pack_env
        self._note, self._log = note, log
        self._connection: Connection | None = None
        self._process: subprocess.Popen[str] | None = None
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop(patience_seconds=_PATIENCE_SECONDS)

    def _stop(self, patience_seconds: float) -> None:
        """End Spark if it runs; a later run starts it again."""
        connection, self._connection = self._connection, None
        process, self._process = self._process, None
        try:
            if connection is not None:
                connection.close()
            if process is not None:
                _end(process, patience_seconds)
        finally:
            self._opened.close()

    def run(
        self, tasks: Sequence[Doable[Told]], on_walked: Walked, on_piece: OnPiece[Told] | None = None
    ) -> list[Told]:
        """Run the tasks as ``runner.Runner.run`` does. Where it raises, Spark is ended first, so that no task
        continues to write.
        """
        try:
            return self._run(tasks, on_walked, on_piece or _ignore_answer) if tasks else []
        except BaseException:
            self._stop(patience_seconds=0)
            raise

    def _run(self, tasks: Sequence[Doable[Told]], on_walked: Walked, on_piece: OnPiece[Told]) -> list[Told]:
        connection = self._connection or self._start()
        walked = 0
        done: dict[int, Told] = {}
        with self._early_end_reported():
            connection.send([pickle.dumps(task) for task in tasks])
        while not isinstance(message := self._next(connection, on_walked), Outcome):
            if isinstance(message, Progress):
                on_walked(message.walked_bytes - walked)
                walked = message.walked_bytes
            elif isinstance(message, Done):
                for index, data in message.pieces:
                    done[index] = pickle.loads(data)
                    on_piece(index, done[index])
        for note in message.notes:
            self._note(note)
        if message.error is not None:
            error = pickle.loads(message.error)
            if _NO_GATEWAY in str(error) and (thrown := self._thrown()) is not None:
                raise FailedError(f"Spark does not start: {thrown}", to_do=error.to_do) from error
            raise error
        for index, data in enumerate(message.pieces):
            if index not in done:
                done[index] = pickle.loads(data)
                on_piece(index, done[index])
        pieces = [done[index] for index in range(len(tasks))]
        on_walked(sum(piece.walked_bytes for piece in pieces) - walked)
        return pieces

    def _next(self, connection: Connection, on_walked: Walked) -> object:
        while not self._has_more(connection):
            on_walked(0)  # lets the caller refresh its progress display while Spark starts
        with self._early_end_reported():
            return connection.recv()

    def _has_more(self, connection: Connection) -> bool:
        with self._early_end_reported():
            return connection.poll(_LOOK_EVERY_SECONDS)

    @contextmanager
    def _early_end_reported(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError) as error:
            raise FailedError(
                f"Spark has ended early: {self._last_words()}", to_do="run it with -v to see why"
            ) from error

    def _start(self) -> Connection:
        self._lines.clear()
        environment = packed_environment() if self._pack_env else None
        scratch = Path(self._opened.enter_context(tempfile.TemporaryDirectory(prefix="rmqctl-spark-")))
        self._connection, child_end = Pipe()
        with child_end:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _PROGRAM, str(child_end.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=self._environment(scratch),
                pass_fds=[child_end.fileno()],
                start_new_session=True,  # Ctrl-C must reach this process alone, which ends Spark
            )
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()
        defaults = {} if self._is_submitted else DEFAULTS | (LOCAL_DEFAULTS | _LOCAL_JAVA if self._is_local else {})
        self._connection.send(Start(self._master, tuple((defaults | dict(self._conf)).items()), scratch, environment))
        return self._connection

    @property
    def _is_local(self) -> bool:
        return self._master is not None and self._master.startswith("local")

    def _environment(self, scratch: Path) -> dict[str, str]:
        env = dict(os.environ)
        if self._is_submitted:
            return env
        env.pop(_SUBMITTED, None)
        env["TMPDIR"] = str(scratch)  # pyspark's files stay if it is ended while Java starts
        if (home := java_home()) is not None:
            env["JAVA_HOME"] = str(home)
        if self._is_local:
            env.pop("SPARK_HOME", None)  # the Spark that came with pyspark, whatever else is installed
            env["PYSPARK_PYTHON"] = env["PYSPARK_DRIVER_PYTHON"] = sys.executable
        else:
            env.setdefault("PYSPARK_PYTHON", sys.executable)
        if python := dict(self._conf).get("spark.pyspark.python"):
            env["PYSPARK_PYTHON"] = python  # spark-submit would do this for a program of its own
        return env

    def _listen(self, process: subprocess.Popen[str]) -> None:
        if process.stdout is not None:
            with suppress(ValueError):  # another thread has closed it
                for line in process.stdout:
                    self._lines.append(line.rstrip())
                    self._log(line.rstrip())

    def _thrown(self) -> str | None:
        """Return the exception with which Java has ended; Python knows only that it has."""
        for _ in range(_LOOKS):  # its last lines may be on their way
            if found := next(filter(None, map(_THROWN.match, list(self._lines))), None):
                return found[1].rstrip(".")
            time.sleep(_LOOK_AGAIN_SECONDS)
        return None

    def _last_words(self) -> str:
        errors = [line for line in self._lines if "Error" in line or "Exception" in line]
        if self._process is not None:  # earlier lines, as of a lost executor, do not show a signal
            with suppress(subprocess.TimeoutExpired):
                if (ended := self._process.wait(_SOON_SECONDS)) < 0:
                    return f"its program was ended by a signal ({signal.strsignal(-ended) or -ended})"
        return (errors or list(self._lines) or ["it said nothing"])[-1]


def _ignore_answer(index: int, answer: object) -> None:
    pass


def _wait_for_group(group: int, seconds: float) -> None:
    """Wait for at most ``seconds`` until no process of a group is left: Java removes its scratch folders."""
    deadline = time.monotonic() + seconds
    with suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(_LOOK_AGAIN_SECONDS)


def _end(process: subprocess.Popen[str], patience_seconds: float) -> None:
    """Wait for the program and the Java it started to exit, then kill them."""
    if patience_seconds:
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience_seconds)
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE_SECONDS / 3)
        if number == signal.SIGTERM:
            _wait_for_group(process.pid, JAVA_ENDS_SECONDS)
    if process.stdout is not None:
        process.stdout.close()
