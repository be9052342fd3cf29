"""Run calls that may take minutes so that a Ctrl-C does not have to wait for them.

A client of an object store, or a library with one, reacts to no signal while it waits for a server: Python handles signals
between its own instructions, in its main thread.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Final, TypeVar

from store_core.errors import FailedError, StoreError

Answer = TypeVar("Answer")
_HURRY_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 0.2
_PATIENCE_SECONDS: Final = 8.0  # a client that gives up later has tried again by itself


class _Hurry:
    """The number of signals so far, and flags.

    ``is_on``: a signal has come, and no call of the main thread has returned since. Calls then get a second, so that
    clearing up is short.
    """

    signals = 0
    is_on = False


def hurry() -> None:
    """Record that a signal has come between two calls."""
    _Hurry.signals += 1
    _Hurry.is_on = True


def asked(call: Callable[..., Answer], *words: object, within_seconds: float | None = None) -> Answer:
    """Return or raise what ``call(*words)`` does, and let signals interrupt the wait.

    * In the main thread an exception of a signal handler is raised at once. The call cannot be stopped: it continues in a
      daemon thread.
    * A call that starts after a signal, or that is under way in another thread when it comes, has a second to return; then
      FailedError is raised.
    * FailedError is raised after ``within_seconds``, too.
    """
    answer: Future[Answer] = Future()

    def ask() -> None:
        try:
            answer.set_result(call(*words))
        except BaseException as error:
            answer.set_exception(error)

    is_main = threading.current_thread() is threading.main_thread()
    before, is_hurried = _Hurry.signals, _Hurry.is_on
    end = time.monotonic() + (threading.TIMEOUT_MAX if within_seconds is None else within_seconds)
    try:
        threading.Thread(target=ask, name="object-store-question", daemon=True).start()
        if is_main:
            wait([answer], _HURRY_SECONDS if is_hurried else within_seconds)
        else:  # signals reach the main thread only
            while not (is_hurried or _Hurry.signals != before or answer.done() or time.monotonic() > end):
                wait([answer], _LOOK_SECONDS)
            wait([answer], _HURRY_SECONDS)
    except BaseException:
        if is_main:
            hurry()
        raise
    if not answer.done():
        raise FailedError("the server does not answer", to_do="run the command again")
    if is_main:
        _Hurry.is_on = False
    return answer.result()


def call_again(
    pauses_of: Callable[[Exception], tuple[float, ...]],
    call: Callable[..., Answer],
    *words: object,
    within_seconds: float | None = None,
) -> Answer:
    """Call as ``asked``, and repeat the call after each pause (seconds) that ``pauses_of`` returns for its error.

    Errors with different pauses are counted separately. Only for calls that may be made twice. After a signal there is one
    attempt, so that the process ends soon.
    """
    attempts: Counter[tuple[float, ...]] = Counter()
    asking_seconds = allowed_seconds = 0.0
    while True:
        signals, is_hurried = _Hurry.signals, _Hurry.is_on
        start = time.monotonic()
        try:
            return asked(call, *words, within_seconds=within_seconds)
        except (StoreError, FileNotFoundError):
            raise
        except Exception as error:
            asking_seconds += time.monotonic() - start
            pauses_seconds = pauses_of(error)
            allowed_seconds = max(allowed_seconds, _PATIENCE_SECONDS + sum(pauses_seconds))
            attempt = attempts[pauses_seconds]
            if is_hurried or asking_seconds > allowed_seconds or attempt >= len(pauses_seconds):
                raise
            time.sleep(pauses_seconds[attempt])
            if _Hurry.signals != signals:
                raise
            attempts[pauses_seconds] += 1
