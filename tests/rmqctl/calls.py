"""Calling the program as its users do: in a process of its own, and on a terminal of its own."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
REAL: Final = ("-m", "rmqctl")
ARTIFICIAL: Final = ("-m", "tests.rmqctl.artificial")
_DEADLINE_SECONDS: Final = 60


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        """What reached a terminal, without colours."""
        return re.sub(r"\x1b\[[\d;]*m", "", self.out)

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


def environment(**changes: str | None) -> dict[str, str]:
    """This environment without what would colour the outcome, with changes; None removes a variable."""
    taken = {k: v for k, v in os.environ.items() if not k.startswith(("RMQCTL", "_RMQCTL", "NO_COLOR", "FORCE_COLOR"))}
    taken.update({"TERM": "xterm-256color", "COLUMNS": "160"})
    for name, value in changes.items():
        taken.pop(name, None)
        if value is not None:
            taken[name] = value
    return taken


def command(*args: object, program: tuple[str, ...] = REAL) -> list[str]:
    return [sys.executable, *program, *map(str, args)]


def call(*args: object, program: tuple[str, ...] = REAL, **env: str | None) -> Result:
    """Run with pipes; environment variables by keyword, None removes one."""
    done = subprocess.run(
        command(*args, program=program),
        cwd=ROOT,
        env=environment(**env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_DEADLINE_SECONDS,
        check=False,
    )
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


def artificial(*args: object, **env: str | None) -> Result:
    return call(*args, program=ARTIFICIAL, **env)


def on_terminal(*args: object, program: tuple[str, ...] = REAL, typed: str = "", **env: str | None) -> Result:
    """Run with a terminal for all three streams; ``out`` is everything that reached it."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command(*args, program=program), cwd=ROOT, env=environment(**env), stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    if typed:
        os.write(ours, typed.encode())
    seen = b""
    while True:
        try:
            part = os.read(ours, 1 << 16)
        except OSError:  # the other end is closed: Linux says EIO
            break
        if not part:
            break
        seen += part
    os.close(ours)
    return Result(process.wait(_DEADLINE_SECONDS), seen.decode().replace("\r\n", "\n"), "")
