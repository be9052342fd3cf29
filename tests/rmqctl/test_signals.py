"""Requests to end, whenever they come: never a traceback, and a code that says what happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.rmqctl.calls import ROOT, call, command, environment

UNSIGHTLY = ("Traceback", "Exception ignored", "panicked", "internal error")
# Says with a byte that the program listens to signals, which is the first thing it does.
_PROGRAM = """
import os, sys
from rmqctl import signals
install, told = signals.end_at_once, int(sys.argv.pop(1))
def end_at_once():
    install()
    os.write(told, b"!")
signals.end_at_once = end_at_once
from rmqctl.app import main
sys.exit(main())
"""


def interrupted(number: signal.Signals, after_seconds: float, *words: object) -> tuple[int, str]:
    """Exit code and stderr of a command that gets a signal so long after it has begun to listen."""
    ours, theirs = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(theirs), *map(str, words)],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=(theirs,),
    )
    os.close(theirs)
    assert os.read(ours, 1) == b"!"
    os.close(ours)
    time.sleep(after_seconds)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    return process.returncode, err


def ran(code: str, *words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("words", [("log", "-o", "table"), ("check", "-o", "json")])
def test_a_signal_at_any_moment(words: tuple[str, ...], number: signal.Signals, code: int) -> None:
    by_itself = call(*words, "-s", ROOT / "sample_store").code
    for step in range(8):
        found, err = interrupted(number, step * 0.03, *words, "-s", ROOT / "sample_store")
        # By the signal itself while the interpreter, all work done, takes itself down.
        assert found in {code, -number, by_itself}, (step, err)
        assert not any(word in err for word in UNSIGHTLY), (step, err)
        assert step or found == code


def test_nothing_is_loaded_before_the_program_listens() -> None:
    code = "import sys; before = set(sys.modules); import rmqctl.app; print(*sorted(set(sys.modules) - before))"
    assert {
        name for name in ran(code).stdout.split() if name.startswith(("rmqctl", "store_core", "typer", "typing"))
    } == {
        "rmqctl",
        "rmqctl.app",
        "rmqctl.signals",
    }


_WITHIN = """
import os, signal, sys, time
from rmqctl.signals import signals_raise
sys.path.insert(0, sys.argv[1])
with signals_raise():
    try:
        {body}
        time.sleep(30)
    except KeyboardInterrupt:
        print("raised")
"""


def test_a_module_is_loaded_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "touchy.py").write_text(
        "import os, signal, time\n"
        "try:\n    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(0.1)\n"
        "except BaseException:\n    print('interrupted while loading')\n"
    )
    done = ran(_WITHIN.format(body="import touchy"), tmp_path)
    assert (done.stdout, done.stderr) == ("raised\n", "")


def test_what_python_would_only_print_is_raised_behind_it(tmp_path: Path) -> None:
    body = "finaliser = type('Finaliser', (), {'__del__': lambda self: os.kill(os.getpid(), signal.SIGINT)})(); del finaliser"
    done = ran(_WITHIN.format(body=body), tmp_path)
    assert (done.stdout, done.stderr) == ("raised\n", "")


def test_what_a_library_clears_is_raised_again(tmp_path: Path) -> None:
    (tmp_path / "kinds.py").write_text(
        "import numpy, os, signal\n"
        "class Looked(type):\n"
        "    def __getattr__(cls, name):\n        os.kill(os.getpid(), signal.SIGINT)\n        raise AttributeError(name)\n"
        "class Kind(int, metaclass=Looked):\n    pass\n"
        "ONE, ANOTHER = numpy.int64(1), Kind(1)\n"
    )
    body = "from kinds import ONE, ANOTHER; ONE == ANOTHER; sys.stdout.write('cleared and ')"
    done = ran(_WITHIN.format(body=body), tmp_path)
    assert (done.stdout, done.stderr) == ("cleared and raised\n", "")


def test_a_signal_that_a_library_takes_for_a_fault_is_still_a_signal() -> None:
    code = """
import os, signal, sys
import rmqctl.app as app
def run(session):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except BaseException as error:
        raise RuntimeError("cannot load the plug-in") from error
app._run = run
sys.exit(app.main())
"""
    done = ran(code)
    assert (done.returncode, done.stderr) == (143, "error: terminated\n")


def test_a_second_signal_changes_nothing() -> None:
    code = """
import os, signal, sys
import rmqctl.app as app
def run(session):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        os.kill(os.getpid(), signal.SIGINT)
        print("tidied up")
app._run = run
sys.exit(app.main())
"""
    done = ran(code)
    assert (done.returncode, done.stdout, done.stderr) == (130, "tidied up\n", "error: interrupted\n")


@pytest.mark.parametrize("words", [("--version",), ("--help",), ("info", "-s", ROOT / "sample_store")])
def test_a_pipe_that_nobody_reads(words: tuple[object, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        command(*words), cwd=ROOT, env=environment(), stdout=writing, stderr=subprocess.PIPE, timeout=60, check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_notes_that_nobody_reads_end_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        command("log", "-s", ROOT / "sample_store", "-o", "ndjson", "--no-body"),
        cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=writing, timeout=60, check=False,
    )  # fmt: skip
    os.close(writing)
    assert done.returncode == 3
    assert len(done.stdout.splitlines()) == 2183


def test_a_full_disk_behind_the_version() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command("--version"), cwd=ROOT, env=environment(), stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 1
    assert done.stderr == b"error: cannot write the result: No space left on device: check where stdout goes\n"
