"""Handle signals that ask the process to end: at once before work starts, then by an exception that runs ``finally`` blocks.

Imported before anything else, so it imports little.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False  # typing itself is loaded later
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType
    from typing import Any, Final, TypeVar

    Writer = TypeVar("Writer", bound=Callable[..., object])

_DEFAULTS: Final = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
}
_IMPORTING: Final = "<frozen importlib._bootstrap>"
_REMOTE_CALL_MODULE: Final = "store_core.storage.remote_call"  # loaded with the clients of object stores
_RETRY_SECONDS: Final = 0.005
_PATIENCE_SECONDS: Final = 2.0  # a terminal and `timeout` send a signal twice; a repeat after this time is not delayed


class Interrupted(KeyboardInterrupt):
    """SIGINT has come. A class of this module, because Python's KeyboardInterrupt takes no weak reference."""


class Terminated(BaseException):
    """The signal ``signal_number``, which asks the process to end, has come."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number


def end_at_once() -> None:
    """Make a signal end the process at once: before the work starts and after it, nothing needs tidying up.

    Signals that the caller ignores (nohup) stay ignored. Only for the program itself, not for callers of it as a library.
    """
    for number, default in _DEFAULTS.items():
        if signal.getsignal(number) is default:
            signal.signal(number, _end_process)


def _end_process(signal_number: int, frame: FrameType | None) -> None:
    word = "interrupted" if signal_number == signal.SIGINT else "terminated"
    try:
        sys.stderr.write(f"error: {word}\n")
    finally:  # even if stderr cannot be written
        os._exit(128 + signal_number)


_written_whole: Final[set[CodeType]] = set()


def written_whole(function: Writer) -> Writer:
    """Delay a signal's exception to the end of a function: its output is written entirely or not at all.

    The delay is at most ``_PATIENCE_SECONDS``, because the reader of the output may be asleep.
    """
    _written_whole.add(function.__code__)
    return function


class signals_raise:
    """Raise KeyboardInterrupt for SIGINT, and Terminated for SIGTERM and SIGHUP, within the ``with`` block.

    Forked workers end at once and quietly, because their parent reports the signal. The exception is raised a little later

    * in a finaliser or a callback, where Python would print it and continue
    * while a module is loaded, whose code may take it for an error of its own
    * in a ``written_whole`` function
    * if it is gone before ``reached`` was called: a look-up in numpy clears any exception raised meanwhile
    """

    def __init__(self) -> None:
        self._process_id = os.getpid()
        self._first_signal_at: float | None = None
        self._raised = self._is_over = False
        self._cause: Callable[[], BaseException | None] | None = None  # a weak reference
        self._waiting: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> signals_raise:
        import threading

        if threading.current_thread() is not threading.main_thread():
            return self
        for number, default in _DEFAULTS.items():
            if signal.getsignal(number) in (default, _end_process):
                self._before[number] = signal.signal(number, self._stop)
        self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._raise_waiting)
        self._hook_before, sys.unraisablehook = sys.unraisablehook, self._unraisable
        return self

    @property
    def cause(self) -> BaseException | None:
        """The exception raised for a signal, if it still exists: any other error that ends the work follows from it."""
        return None if self._cause is None else self._cause()

    def reached(self) -> None:
        """Raise nothing any more: the error that ends the work is being reported."""
        self._is_over = self._raised = True

    def __exit__(self, *_: object) -> None:
        self.reached()
        if self._before:
            signal.setitimer(signal.ITIMER_REAL, 0)
            sys.unraisablehook = self._hook_before
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _stop(self, signal_number: int, frame: FrameType | None) -> None:
        from time import monotonic

        if os.getpid() != self._process_id:
            signal.signal(signal_number, signal.SIG_DFL)
            os.kill(os.getpid(), signal_number)
        now = monotonic()
        self._first_signal_at = now if self._first_signal_at is None else self._first_signal_at
        insists = now - self._first_signal_at > _PATIENCE_SECONDS
        if self._raised:
            if insists:
                _end_process(signal_number, frame)
        elif _must_wait(frame) and not insists:
            self._raise_later(signal_number)
        else:
            self._raised = True
            raise self._exception(signal_number)  # in no local variable: a traceback would keep it alive

    def _exception(self, signal_number: int) -> BaseException:
        from weakref import ref

        if (remote_call := sys.modules.get(_REMOTE_CALL_MODULE)) is not None:
            remote_call.hurry()
        exception = Interrupted() if signal_number == signal.SIGINT else Terminated(signal_number)
        self._cause = ref(exception, lambda _: self._exception_freed(signal_number))
        return exception

    def _exception_freed(self, signal_number: int) -> None:
        if self._raised and not self._is_over:
            self._raised = False
            self._raise_later(signal_number)

    def _raise_later(self, signal_number: int) -> None:
        self._waiting = signal_number
        signal.setitimer(signal.ITIMER_REAL, _RETRY_SECONDS)

    def _raise_waiting(self, _: int, frame: FrameType | None) -> None:
        signal_number, self._waiting = self._waiting, None
        if signal_number is not None:
            signal.raise_signal(signal_number)  # for the handler installed now

    def _unraisable(self, unraisable: Any) -> None:
        if (
            unraisable.exc_value is None or unraisable.exc_value is not self.cause
        ):  # it is raised again once it is freed
            self._hook_before(unraisable)


def _must_wait(frame: FrameType | None) -> bool:
    """Return True if a module is being loaded or a ``written_whole`` function runs."""
    while frame is not None:
        if frame.f_code in _written_whole or frame.f_code.co_filename == _IMPORTING:
            return True
        frame = frame.f_back
    return False
