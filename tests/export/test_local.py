"""Processes of the local runner: copies of this one where that is safe, else fresh ones; the same files either way."""

from __future__ import annotations

import json
import subprocess
import sys
from multiprocessing import Pipe
from pathlib import Path
from threading import Timer
from typing import Any

import pytest

from store_core.export.export import export_stores
from store_core.export.runners.local import LocalRunner
from store_core.export.runners.spark import SparkRunner
from store_core.storage.store import Store
from tests.conftest import GoldenStore
from tests.export.exports import files_of
from tests.rmqctl.calls import ROOT, environment

# Exports with two processes; tells how they were started. The second argument: what goes on beside.
EXPORT = """
import json, multiprocessing, sys, threading
from pathlib import Path
from store_core.export.export import export_stores
from store_core.export.runners.local import LocalRunner
from store_core.storage.settings import load_settings
from store_core.storage.store import Store

if __name__ == "__main__":
    root, dest, beside = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    asked = []
    real = multiprocessing.get_context
    multiprocessing.get_context = lambda method: asked.append(method) or real(method)
    done = threading.Event()
    if beside == "thread":
        threading.Thread(target=done.wait).start()
    elif beside == "clients":
        import store_core.storage.object_store
    with Store.open(root, load_settings(None, root)) as store:
        report = export_stores([("a", store)], dest, LocalRunner(2), split_size_bytes=200_000)
        export_stores([("a", store)], dest, LocalRunner(2), split_size_bytes=200_000, overwrite=True)
    done.set()
    print(json.dumps({"asked": asked, "rows": report.rows}))
"""

# The command, with two processes; tells how they were started.
COMMAND = """
import importlib, multiprocessing, sys

if __name__ == "__main__":
    importlib.import_module(sys.argv[1])
    asked = []
    real = multiprocessing.get_context
    multiprocessing.get_context = lambda method: asked.append(method) or real(method)
    from rmqctl.app import main
    main(sys.argv[2:])
    print(*asked)
"""

# A task fails beside one that no gentle signal ends; tells what came of it and who is left.
FAILING = """
import multiprocessing, signal, time
from store_core.export.runners.local import LocalRunner

is_deaf = multiprocessing.get_context("fork").Event()

class Deaf:
    def run(self):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        is_deaf.set()
        time.sleep(3600)

class Failing:
    def run(self):
        is_deaf.wait()
        raise ValueError("the task")

if __name__ == "__main__":
    try:
        LocalRunner(2).run([Deaf(), Failing()], lambda walked_bytes: None)
    except ValueError as error:
        print(error, multiprocessing.active_children())
"""

# Two tasks that go on only when it has been heard how far they are; tells what was heard at most, in the end, and when.
WALKING = """
import multiprocessing, sys
from itertools import accumulate
from types import SimpleNamespace
from store_core.export import task_progress as meter
from store_core.export.runners.local import LocalRunner

is_heard = multiprocessing.get_context("fork").Event()
told = []

class Walking:
    def run(self):
        meter.walked(60)
        assert is_heard.wait(60)
        return SimpleNamespace(walked_bytes=50)

def on_walked(size_bytes):
    told.append(size_bytes)
    if sum(told) >= 60:
        is_heard.set()

if __name__ == "__main__":
    LocalRunner(int(sys.argv[1])).run([Walking(), Walking()], on_walked)
    print(max(accumulate(told)), sum(told))
"""


# Workers that take a while to leave; tells how those of the next run were started.
LEAVING = """
import multiprocessing, time
from multiprocessing.util import Finalize
from types import SimpleNamespace
from store_core.export.runners.local import LocalRunner

class Slow:
    def run(self):
        Finalize(None, time.sleep, (1,), exitpriority=1)
        return SimpleNamespace(walked_bytes=1)

if __name__ == "__main__":
    asked = []
    real = multiprocessing.get_context
    multiprocessing.get_context = lambda method: asked.append(method) or real(method)
    for _ in range(2):
        LocalRunner(2).run([Slow(), Slow()], lambda walked_bytes: None)
    print(*asked)
"""


def export_beside(beside: str, root: Path, tmp_path: Path) -> Any:
    program = tmp_path / "program.py"
    program.write_text(EXPORT)
    ran = subprocess.run(
        [sys.executable, program, root, tmp_path / beside, beside],
        env=environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stderr == ""
    return json.loads(ran.stdout)


@pytest.mark.parametrize(
    ("kind", "loaded", "method"),
    [("parquet", "sys", "fork"), ("iceberg", "sys", "fork"), ("parquet", "deltalake", "spawn")],
)
def test_the_command_makes_copies_where_no_client_is_loaded(
    golden: GoldenStore, tmp_path: Path, kind: str, loaded: str, method: str
) -> None:
    program = tmp_path / "program.py"
    program.write_text(COMMAND)
    words = ["export", tmp_path / "out", "-s", golden("clean-533"), "--format", kind, "--jobs", "2"]
    ran = subprocess.run(
        [sys.executable, program, loaded, *words, "--split-size", "200k", "-q"],
        env=environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines()[-1] == method


@pytest.mark.product(1)
@pytest.mark.parametrize("beside", ["thread", "clients"])
def test_copies_are_made_of_a_process_that_is_alone(golden: GoldenStore, tmp_path: Path, beside: str) -> None:
    """A copy has only the thread that made it, and would wait for what others hold."""
    root = golden("load-533")
    alone, fresh = export_beside("alone", root, tmp_path), export_beside(beside, root, tmp_path)
    assert (alone["asked"], fresh["asked"]) == (["fork"] * 2, ["spawn"] * 2)
    assert alone["rows"] == fresh["rows"] > 0
    assert files_of(tmp_path / "alone") == files_of(tmp_path / beside)


def test_workers_that_leave_are_waited_for(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(LEAVING)
    ran = subprocess.run(
        [sys.executable, program], env=environment(), cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert (ran.stdout, ran.stderr) == ("fork fork\n", "")


def test_no_worker_outlives_what_went_wrong(tmp_path: Path) -> None:
    """A fresh copy loses a signal that comes before Python looks for any: what ends a worker must not be one of those."""
    program = tmp_path / "program.py"
    program.write_text(FAILING)
    ran = subprocess.run(
        [sys.executable, program], env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "the task []\n", "")


@pytest.mark.parametrize("jobs", [1, 2])
def test_how_far_a_task_is_is_told_before_it_is_done(tmp_path: Path, jobs: int) -> None:
    """In the end what tasks answer counts, for one that begins anew tells more."""
    program = tmp_path / "program.py"
    program.write_text(WALKING)
    ran = subprocess.run(
        [sys.executable, program, str(jobs)], env=environment(), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (ran.stderr, ran.stdout) == ("", "120 100\n")


def test_an_export_tells_how_far_it_is_within_a_split(golden: GoldenStore, tmp_path: Path) -> None:
    reached: list[int] = []
    with Store.open(golden("load-533")) as store:
        report = export_stores([("a", store)], tmp_path / "out", LocalRunner(1), on_plan=lambda _: reached.append)
    steps = [size for size in dict.fromkeys(reached) if size]
    assert len(steps) == len(store.log.segments)  # a window each, in one split
    assert steps == sorted(steps)
    assert reached[-1] == report.bytes_read


def test_somebody_who_waits_for_spark_hears_that_it_is_alive() -> None:
    reached, (ours, theirs) = list[int](), Pipe()
    Timer(0.4, lambda: theirs.send("told")).start()
    assert SparkRunner("local[1]")._next(ours, reached.append) == "told"
    assert set(reached) == {0}
