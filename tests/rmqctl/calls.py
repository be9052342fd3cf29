"""Calling the program as its users do: in a process of its own, and on a terminal of its own (see ``warm`` for how it is loaded)."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.rmqctl import warm

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
    ours = [os.pipe(), os.pipe()]
    with ThreadPoolExecutor(2) as readers:
        texts = [readers.submit(_all_of, reading) for reading, _ in ours]
        code = _run(args, program, [os.open(os.devnull, os.O_RDONLY), *(writing for _, writing in ours)], env)
    out, err = (text.result().decode() for text in texts)
    return Result(code, out, err)


def _run(args: tuple[object, ...], program: tuple[str, ...], streams: list[int], env: dict[str, str | None]) -> int:
    """The exit code; the three descriptors are closed here."""
    taken = environment(**env)
    if program[0] == "-m" and warm.can_run(taken):
        return warm.run(program[1], [*map(str, args)], streams, taken, str(ROOT), _DEADLINE_SECONDS)
    stdin, stdout, stderr = streams
    words = command(*args, program=program)
    with subprocess.Popen(words, cwd=ROOT, env=taken, stdin=stdin, stdout=stdout, stderr=stderr) as process:
        for stream in set(streams):
            os.close(stream)
        return process.wait(_DEADLINE_SECONDS)


def _all_of(descriptor: int) -> bytes:
    with open(descriptor, "rb") as file:
        return file.read()


def artificial(*args: object, **env: str | None) -> Result:
    return call(*args, program=ARTIFICIAL, **env)


def on_terminal(*args: object, program: tuple[str, ...] = REAL, typed: str = "", **env: str | None) -> Result:
    """Run with a terminal for all three streams; ``out`` is everything that reached it."""
    ours, theirs = pty.openpty()
    if typed:
        os.write(ours, typed.encode())
    with ThreadPoolExecutor(1) as reader:
        seen = reader.submit(_shown, ours)
        code = _run(args, program, [theirs] * 3, env)
    return Result(code, seen.result().decode().replace("\r\n", "\n"), "")


def _shown(terminal: int) -> bytes:
    seen = b""
    with suppress(OSError):  # the other end is closed: Linux says EIO
        while part := os.read(terminal, 1 << 16):
            seen += part
    os.close(terminal)
    return seen
