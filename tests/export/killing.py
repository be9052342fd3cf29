"""A real rmqctl that kills itself at its n-th call of methods that change something."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib import import_module

from tests.rmqctl.calls import ROOT, environment


def run_killed(
    after: int, methods: Mapping[str, str], *words: object, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """``methods``: names, divided by spaces, by their class as ``module:Class``."""
    told = [f"{owner}.{name}" for owner, names in methods.items() for name in names.split()]
    return subprocess.run(
        [sys.executable, "-m", __name__, str(after), ",".join(told), *map(str, words)],
        cwd=ROOT, env=environment() | (variables or {}), capture_output=True, text=True, check=False,
    )  # fmt: skip


def _kill_after(calls: int, methods: list[str]) -> None:
    left = calls

    def killing(real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object) -> object:
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args)

        return call

    for method in methods:
        module, _, path = method.partition(":")
        owner, _, name = path.partition(".")
        found = getattr(import_module(module), owner)
        setattr(found, name, killing(getattr(found, name)))


if __name__ == "__main__":
    from rmqctl.app import main

    _kill_after(int(sys.argv.pop(1)), sys.argv.pop(1).split(","))
    sys.exit(main())
