"""A standalone Spark cluster of real processes on loopback, and what runs below it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pyspark
from pyspark import cloudpickle

from store_core.export.runners.java import java_home
from tests.export.spark_java import WITH_CLASSES, keep_classes
from tests.ports import free_port

SPARK = Path(pyspark.__file__).parent
_DEADLINE_SECONDS = 90
CONF = (
    "spark.driver.memory=512m",
    "spark.executor.memory=512m",
    "spark.driver.host=127.0.0.1",
    "spark.driver.bindAddress=127.0.0.1",
    f"spark.driver.defaultJavaOptions={WITH_CLASSES}",
    f"spark.executor.defaultJavaOptions={WITH_CLASSES}",
)


class Cluster:
    """A master; ``worker`` starts workers. ``url`` is the master's. A context manager that ends what it started."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._port = free_port()
        self.url = f"spark://127.0.0.1:{self._port}"

    def __enter__(self) -> Cluster:
        keep_classes()
        words = ["--host", "127.0.0.1", "--port", str(self._port), "--webui-port", "0"]
        self._start("master.Master", *words, say="I have been elected leader")
        return self

    def __exit__(self, *error: object) -> None:
        for daemon in self._daemons:
            self.end(daemon)

    def worker(self, cores: int = 1) -> subprocess.Popen[bytes]:
        """Start a worker; gives its process. Each has an address of its own: Spark tries a task again only on another machine."""
        words = [
            "--host",
            f"127.0.0.{len(self._daemons) + 1}",
            "--cores",
            str(cores),
            "--memory",
            "1g",
            "--webui-port",
            "0",
        ]
        words += ["--work-dir", str(self._folder / "work"), self.url]
        return self._start("worker.Worker", *words, say="Successfully registered with master")

    def end(self, daemon: subprocess.Popen[bytes]) -> None:
        daemon.terminate()
        with suppress(subprocess.TimeoutExpired):
            daemon.wait(10)
        daemon.kill()
        daemon.wait()

    def executors(self, worker: subprocess.Popen[bytes] | None = None) -> list[int]:
        """Processes of executors, those of one worker or of all."""
        daemons = self._daemons if worker is None else [worker]
        below = [pid for daemon in daemons for pid in descendants(daemon.pid)]
        return [pid for pid in below if "CoarseGrainedExecutorBackend" in command_of(pid)]

    def pythons(self) -> list[int]:
        """Python processes that do tasks: the children of each executor's daemon."""
        daemons = [pid for executor in self.executors() for pid in children(executor)]
        return [pid for daemon in daemons for pid in children(daemon)]

    def _start(self, name: str, *args: str, say: str) -> subprocess.Popen[bytes]:
        env = {**os.environ, "SPARK_LOCAL_IP": args[1], "SPARK_LOCAL_DIRS": str(self._folder)}
        env |= {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": WITH_CLASSES}
        env.pop("PYTHONPATH", None)  # executors have what they are given, not what the tests have
        if (home := java_home()) is not None:
            env["JAVA_HOME"] = str(home)
        log = self._folder / f"{name}-{len(self._daemons)}.log"
        command = [SPARK / "bin" / "spark-class", f"org.apache.spark.deploy.{name}", *args]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, env=env, cwd=self._folder, stdout=output, stderr=output, stdin=subprocess.DEVNULL
            )
        self._daemons.append(process)
        wait_until(lambda: say in log.read_text() or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        return process


class SentTask:
    """A task that is one function of a test, which executors do not have and are sent."""

    def __init__(self, run: Callable[[], object]) -> None:
        self.run = run

    def __reduce__(self) -> tuple[Callable[[bytes], object], tuple[bytes]]:
        return cloudpickle.loads, (cloudpickle.dumps(SimpleNamespace(run=self.run)),)


@contextmanager
def cluster(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    """A cluster with some workers of one core each."""
    with Cluster(folder) as started:
        for _ in range(workers):
            started.worker()
        yield started


def bare_python(folder: Path) -> Path:
    """A Python with nothing but itself, made in a folder."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    alone = subprocess.run([python, "-I", "-c", "import numpy"], capture_output=True, check=False)
    assert alone.returncode != 0
    return python


def wait_until(holds: Callable[[], bool], seconds: float = _DEADLINE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.02)


def children(pid: int) -> list[int]:
    with suppress(OSError):
        return [
            int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in _read(task / "children").split()
        ]
    return []


def descendants(pid: int) -> list[int]:
    return [each for child in children(pid) for each in (child, *descendants(child))]


def command_of(pid: int) -> str:
    return _read(Path(f"/proc/{pid}/cmdline")).replace("\0", " ")


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _read(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(errors="replace")
    return ""
