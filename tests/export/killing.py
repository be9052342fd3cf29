"""A real rmqctl that kills itself: at its n-th call of methods that change something, or some time behind the first of them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from importlib import import_module

from tests.rmqctl.calls import Result, call


def run_killed(
    after: int | float, methods: Mapping[str, str], *words: object, variables: Mapping[str, str] | None = None
) -> Result:
    """``after``: a number of calls, or as a float seconds behind the first. ``methods``: names, divided by spaces, by their class as ``module:Class``."""
    told = [f"{owner}.{name}" for owner, names in methods.items() for name in names.split()]
    return call(after, ",".join(told), *words, program=("-m", __name__), **(variables or {}))


def _kill_after(after: int | float, methods: list[str]) -> None:
    """Seconds are waited for by the system, whose signal ends a process within a library's own code too."""
    left = after

    def killing(real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **options: object) -> object:
            nonlocal left
            if isinstance(after, float) and left == after:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)  # rmqctl has a use of its own for it
                signal.setitimer(signal.ITIMER_REAL, after)
            left -= 1
            if isinstance(after, int) and left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **options)

        return call

    for method in methods:
        module, _, path = method.partition(":")
        owner, _, name = path.partition(".")
        found = getattr(import_module(module), owner)
        setattr(found, name, killing(getattr(found, name)))


if __name__ == "__main__":
    from rmqctl.app import main

    told = sys.argv.pop(1)
    _kill_after(float(told) if "." in told else int(told), sys.argv.pop(1).split(","))
    sys.exit(main())
