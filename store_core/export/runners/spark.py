"""Tasks on Spark: starts the program that talks to it, hands it tasks, takes pieces. Works with ``rmqctl[spark]`` alone."""

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
from store_core.export.runners.pack import packed_environment
from store_core.export.runners.runner import Doable, OnPiece, Told, Walked
from store_core.export.runners.spark_messages import JAVA_ENDS_SECONDS, Done, Outcome, Progress, Start
from store_core.extras import assert_installed

LOCAL_MASTER: Final = "local[*]"
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"  # set by spark-submit, which has started Java and knows the master
_PROGRAM: Final = "store_core.export.runners.spark_job"
_LINES_KEPT: Final = 200
_PATIENCE_SECONDS: Final = 15
_LOOK_AGAIN_SECONDS: Final = 0.02
_LOOK_EVERY_SECONDS: Final = 0.1
_SOON_SECONDS: Final = 1.0  # a program whose end we hear is gone by then
_LOOKS: Final = 25
_NO_GATEWAY: Final = "JAVA_GATEWAY_EXITED"
_THROWN: Final = re.compile(r'Exception in thread "main" \S+: (.+)')
DEFAULTS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
}
LOCAL_DEFAULTS: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
# Java only hands out tasks here: compiled thoroughly it starts later and takes from the cores that do them (measured).
# No collector is named: Java refuses to start with two, and the user's settings may name one.
_LOCAL_JAVA: Final = {"spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1"}

Say = Callable[[str], None]


class SparkRunner:
    """Does tasks on a Spark master; a context manager. Spark starts at the first run.

    ``master``: None is this machine, or under spark-submit what that was told. ``conf`` beats our settings.
    ``pack_env``: send executors all that they need except Python. ``note`` is told what a person should know, ``log``
    every line that Spark writes. Raises FailedError where pyspark or Java is missing, Spark does not start, or a task
    fails for good.
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
        """End Spark, if it runs; a later run starts it again."""
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
        """As ``runner.Runner.run``. Where it raises, Spark is ended first, so that no task goes on writing."""
        try:
            return self._run(tasks, on_walked, on_piece or _unheard) if tasks else []
        except BaseException:
            self._stop(patience_seconds=0)
            raise

    def _run(self, tasks: Sequence[Doable[Told]], on_walked: Walked, on_piece: OnPiece[Told]) -> list[Told]:
        connection = self._connection or self._start()
        walked = 0
        done: dict[int, Told] = {}
        with self._heard():
            connection.send([pickle.dumps(task) for task in tasks])
        while not isinstance(told := self._next(connection, on_walked), Outcome):
            if isinstance(told, Progress):
                on_walked(told.walked_bytes - walked)
                walked = told.walked_bytes
            elif isinstance(told, Done):
                for index, data in told.pieces:
                    done[index] = pickle.loads(data)
                    on_piece(index, done[index])
        for note in told.notes:
            self._note(note)
        if told.error is not None:
            error = pickle.loads(told.error)
            if _NO_GATEWAY in str(error) and (thrown := self._thrown()) is not None:
                raise FailedError(f"Spark does not start: {thrown}", to_do=error.to_do) from error
            raise error
        for index, data in enumerate(told.pieces):
            if index not in done:
                done[index] = pickle.loads(data)
                on_piece(index, done[index])
        pieces = [done[index] for index in range(len(tasks))]
        on_walked(sum(piece.walked_bytes for piece in pieces) - walked)
        return pieces

    def _next(self, connection: Connection, on_walked: Walked) -> object:
        while not self._has_more(connection):
            on_walked(0)  # whoever shows how far it is has something to show while Spark starts
        with self._heard():
            return connection.recv()

    def _has_more(self, connection: Connection) -> bool:
        with self._heard():
            return connection.poll(_LOOK_EVERY_SECONDS)

    @contextmanager
    def _heard(self) -> Iterator[None]:
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
        self._connection, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _PROGRAM, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=self._environment(scratch),
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # a Ctrl-C is for us: we end it
            )
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()
        ours = {} if self._is_submitted else DEFAULTS | (LOCAL_DEFAULTS | _LOCAL_JAVA if self._is_local else {})
        self._connection.send(Start(self._master, tuple((ours | dict(self._conf)).items()), scratch, environment))
        return self._connection

    @property
    def _is_local(self) -> bool:
        return self._master is not None and self._master.startswith("local")

    def _environment(self, scratch: Path) -> dict[str, str]:
        env = dict(os.environ)
        if self._is_submitted:
            return env
        env.pop(_SUBMITTED, None)
        env["TMPDIR"] = str(scratch)  # what pyspark makes there stays if it is ended while Java starts
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
            with suppress(ValueError):  # closed under us
                for line in process.stdout:
                    self._lines.append(line.rstrip())
                    self._log(line.rstrip())

    def _thrown(self) -> str | None:
        """What Java has ended with, of which Python only knows that it has."""
        for _ in range(_LOOKS):  # its last lines may be on their way
            if found := next(filter(None, map(_THROWN.match, list(self._lines))), None):
                return found[1].rstrip(".")
            time.sleep(_LOOK_AGAIN_SECONDS)
        return None

    def _last_words(self) -> str:
        telling = [line for line in self._lines if "Error" in line or "Exception" in line]
        if self._process is not None:  # what was said before, of an executor that was lost, does not tell of a signal
            with suppress(subprocess.TimeoutExpired):
                if (ended := self._process.wait(_SOON_SECONDS)) < 0:
                    return f"its program was ended by a signal ({signal.strsignal(-ended) or -ended})"
        return (telling or list(self._lines) or ["it said nothing"])[-1]


def _unheard(index: int, answer: object) -> None:
    """Nobody notes answers."""


def _wait_for_group(group: int, seconds: float) -> None:
    """Until none of its processes is left, or for so long: Java removes its scratch folders when it is asked to end."""
    deadline = time.monotonic() + seconds
    with suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(_LOOK_AGAIN_SECONDS)


def _end(process: subprocess.Popen[str], patience_seconds: float) -> None:
    """Let the program and the Java it started end, or make them."""
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
