"""Requests to end: at once while nothing has begun, then as an exception that lets ``finally`` blocks run.

Loaded before anything else, and therefore light.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False  # typing itself is loaded later
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType
    from typing import Any, Final

_DEFAULTS: Final = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
}
_IMPORTING: Final = "<frozen importlib._bootstrap>"
_ASKING: Final = "store_core.storage.remote_call"  # where object stores are asked, once it is loaded
_AGAIN_SECONDS: Final = 0.005
_PATIENCE_SECONDS: Final = 2.0  # a terminal and `timeout` send twice; who insists after this does not want to wait


class Interrupted(KeyboardInterrupt):
    """SIGINT has come. Of our own, for one of Python's tells nobody when it is gone."""


class Terminated(BaseException):
    """A signal that asks to end has come; ``signal_number`` says which."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number


def end_at_once() -> None:
    """From now on a request to end ends the process: before the work begins and behind it, nothing needs tidying up.

    What the caller ignores (nohup) stays ignored. For processes that are the program, not for who calls it as a library.
    """
    for number, default in _DEFAULTS.items():
        if signal.getsignal(number) is default:
            signal.signal(number, _end)


def _end(signal_number: int, frame: FrameType | None) -> None:
    word = "interrupted" if signal_number == signal.SIGINT else "terminated"
    try:
        sys.stderr.write(f"error: {word}\n")
    finally:  # even where there is nobody to tell
        os._exit(128 + signal_number)


class _Whole:
    """``with whole:``: a request to end is raised behind this, so that what is written in here is written to its end or not at all.
    Who insists, or has waited for as long, is not kept waiting: the reader may have gone to sleep."""

    depth = 0

    def __init__(self) -> None:
        self._codes: set[CodeType] = set()

    def hold_in(self, code: CodeType) -> None:
        """The same for all of a function, from before its first line on, where no ``with`` can be yet."""
        self._codes.add(code)

    def holds(self, frame: FrameType | None) -> bool:
        """Whether a request that comes in a frame has to wait."""
        while not self.depth and frame is not None:
            if frame.f_code in self._codes:
                return True
            frame = frame.f_back
        return self.depth > 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1


whole: Final = _Whole()


class signals_raise:
    """While this is on, SIGINT raises KeyboardInterrupt, and SIGTERM and SIGHUP raise Terminated.

    Forked workers end at once and quietly: their parent tells the story. Where Python would print an exception and go on
    (in a finaliser or a callback), while a module is loaded, whose code may take it for a fault of its own, and within
    ``whole`` the exception is raised a little later; and once more where it is gone before ``reached`` was called: numpy, looking
    something up, clears whatever is raised meanwhile.
    """

    def __init__(self) -> None:
        self._process_id = os.getpid()
        self._asked_at: float | None = None
        self._raised = self._is_over = False
        self._cause: Callable[[], BaseException | None] | None = None  # a weak reference
        self._waiting: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> signals_raise:
        import threading

        if threading.current_thread() is not threading.main_thread():
            return self
        for number, default in _DEFAULTS.items():
            if signal.getsignal(number) in (default, _end):
                self._before[number] = signal.signal(number, self._stop)
        self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._again)
        self._hook_before, sys.unraisablehook = sys.unraisablehook, self._unraisable
        return self

    @property
    def cause(self) -> BaseException | None:
        """The exception that was raised for a signal, while there is one: what ends the work is a consequence of it."""
        return None if self._cause is None else self._cause()

    def reached(self) -> None:
        """What ends the work has come to where it is told: nothing is raised any more."""
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
        self._asked_at = now if self._asked_at is None else self._asked_at
        insists = now - self._asked_at > _PATIENCE_SECONDS
        if self._raised:
            if insists:
                _end(signal_number, frame)
        elif (whole.holds(frame) or _is_importing(frame)) and not insists:
            self._later(signal_number)
        else:
            self._raised = True
            raise self._exception(signal_number)  # in no variable here: a traceback would hold it

    def _exception(self, signal_number: int) -> BaseException:
        from weakref import ref

        if (asking := sys.modules.get(_ASKING)) is not None:
            asking.hurry()
        made = Interrupted() if signal_number == signal.SIGINT else Terminated(signal_number)
        self._cause = ref(made, lambda _: self._gone(signal_number))
        return made

    def _gone(self, signal_number: int) -> None:
        if self._raised and not self._is_over:
            self._raised = False
            self._later(signal_number)

    def _later(self, signal_number: int) -> None:
        self._waiting = signal_number
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)

    def _again(self, _: int, frame: FrameType | None) -> None:
        signal_number, self._waiting = self._waiting, None
        if signal_number is not None:
            signal.raise_signal(signal_number)  # to whoever handles it now

    def _unraisable(self, unraisable: Any) -> None:
        error = unraisable.exc_value
        if isinstance(error, KeyboardInterrupt | Terminated) and self._raised:
            self._raised = False
            self._later(error.signal_number if isinstance(error, Terminated) else signal.SIGINT)
        else:
            self._hook_before(unraisable)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == _IMPORTING:
            return True
        frame = frame.f_back
    return False
