"""Requests to end, as an exception that lets ``finally`` blocks run."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_HANDLED: Final = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
}


class Terminated(BaseException):
    """A signal that asks to end has come; ``signal_number`` says which."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number


@contextmanager
def signals_raise() -> Iterator[None]:
    """While this is on, SIGINT raises KeyboardInterrupt, and SIGTERM and SIGHUP raise Terminated.

    What the caller ignores (nohup) stays ignored. Forked workers end at once and quietly: their parent tells the story.
    """
    parent = os.getpid()

    def stop(signal_number: int, frame: FrameType | None) -> None:
        if os.getpid() != parent:
            signal.signal(signal_number, signal.SIG_DFL)
            os.kill(os.getpid(), signal_number)
        if signal_number == signal.SIGINT:
            raise KeyboardInterrupt
        raise Terminated(signal_number)

    before = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number, default in _HANDLED.items():
                if signal.getsignal(number) is default:
                    before[number] = signal.signal(number, stop)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
