"""Runs whole commands and measures them: wall time, and the most memory they had resident."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# Started in between, so that what is measured is not the memory of a large parent, which a child begins with.
_LAUNCHER: Final = """
import os, sys, time
out = os.open(os.devnull, os.O_WRONLY)
started = time.perf_counter()
pid = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, out, 1)])
_, status, used = os.wait4(pid, 0)
seconds = time.perf_counter() - started
print(seconds, used.ru_maxrss, used.ru_utime + used.ru_stime, os.waitstatus_to_exitcode(status))
"""
_KIB: Final = 1024


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of a command. ``resident_bytes`` is the most it had resident, of one process."""

    seconds: float
    resident_bytes: int
    cpu_seconds: float
    code: int


def rmqctl(*arguments: object) -> list[str]:
    """The command line of an installed rmqctl; that of this folder where it is not installed."""
    installed = Path(sys.executable).with_name("rmqctl")
    program = [str(installed)] if installed.exists() else [sys.executable, "-m", "rmqctl"]
    return [*program, *map(str, arguments)]


def environment() -> dict[str, str]:
    """This environment, in which Python keeps compiled modules: a user's does."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def measure(command: Sequence[str], accept: Sequence[int] = (0,)) -> Measured:
    """Run a command with its output thrown away. Raises RuntimeError for an exit code that is not accepted."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", _LAUNCHER, *command],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    seconds, resident, cpu_seconds, code = done.stdout.split()
    if int(code) not in accept:
        raise RuntimeError(f"{' '.join(command)} ended with {code}")
    return Measured(float(seconds), int(resident) * _KIB, float(cpu_seconds), int(code))


def run(command: Sequence[str], accept: Sequence[int] = (0,)) -> str:
    """What a command says on stdout. Raises RuntimeError for an exit code that is not accepted."""
    done = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in accept:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}")
    return done.stdout


def timed(command: Sequence[str], accept: Sequence[int] = (0,)) -> float:
    """Seconds a command takes, from its start to its end."""
    return measure(command, accept).seconds


def stopwatch() -> float:
    """Now, in seconds of a clock that only moves forward."""
    return time.perf_counter()
