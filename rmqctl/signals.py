"""Requests to end, as an exception that lets ``finally`` blocks run."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(BaseException):
    """A signal that asks to end has come; ``signal_number`` says which."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number


@contextmanager
def signals_raise() -> Iterator[None]:
    """While this is on, SIGTERM and SIGHUP raise Terminated; what the caller ignores (nohup) stays ignored."""

    def raise_terminated(signal_number: int, frame: FrameType | None) -> None:
        raise Terminated(signal_number)

    before = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is signal.SIG_DFL:
                    before[number] = signal.signal(number, raise_terminated)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
