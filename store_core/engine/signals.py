"""Keep signals that ask the process to end from interrupting writes that belong together."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Final

_END_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SignalGuard:
    """While it is installed, a signal that arrives in a ``with`` block of the main thread is handled after the block.

    Python handles signals only in the main thread; elsewhere the guard does nothing. Not a mask: the system would deliver the signal to another
    thread, and Python would still handle it in the main one.
    """

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._arrived: list[int] = []
        self._depth = 0
        self._thread = 0

    def install(self) -> None:
        """Take the process's signals until ``remove``; only in the main thread."""
        if threading.current_thread() is threading.main_thread():
            self._thread = threading.get_ident()
            handlers = ((number, signal.getsignal(number)) for number in _END_SIGNALS)
            self._before = {number: handler for number, handler in handlers if handler is not None}
            for number in self._before:
                signal.signal(number, self._handle)

    def remove(self) -> None:
        """Give the signals back to their handlers."""
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, handler)
        self._before.clear()

    def __enter__(self) -> None:
        if threading.get_ident() == self._thread:
            self._depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if threading.get_ident() == self._thread:
            self._depth -= 1
            while self._arrived and not self._depth:
                self._pass_on(self._arrived.pop(0))

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._depth:
            self._arrived.append(number)
        else:
            self._pass_on(number)

    def _pass_on(self, number: int) -> None:
        """Let the handler of before have a signal, as if it arrived now."""
        handler = self._before.get(number)
        if handler is not None:
            signal.signal(number, handler)
            try:
                signal.raise_signal(number)
            finally:
                signal.signal(number, self._handle)
