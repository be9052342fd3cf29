"""Questions that may take minutes, of which a Ctrl-C does not have to wait for the answer.

A client of an object store, or a library that has one, is deaf while it waits for a server: Python handles signals between two of
its own steps, in its main thread.
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
    """Signals so far; and whether one has come and no question of the main thread has been answered since: whoever clears up then waits
    for little."""

    signals = 0
    is_on = False
    is_left = False  # a question that is still under way


def hurry() -> None:
    """A signal has come, between two questions."""
    _Hurry.signals += 1
    _Hurry.is_on = True


def asks_still() -> bool:
    """Whether a question was given up on, whose client may keep the process from ending."""
    return _Hurry.is_left


def asked(call: Callable[..., Answer], *words: object, within_seconds: float | None = None) -> Answer:
    """What ``call(*words)`` gives or raises. In the main thread whatever a signal raises comes at once; the call, which nobody can
    stop, then goes on in a thread of its own that keeps no process from ending. What is asked behind a signal, or is being asked by
    another thread when it comes, has a second to be answered; then FailedError is raised, and so it is behind ``within_seconds``."""
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
        else:  # no signal reaches it
            while not (is_hurried or _Hurry.signals != before or answer.done() or time.monotonic() > end):
                wait([answer], _LOOK_SECONDS)
            wait([answer], _HURRY_SECONDS)
    except BaseException:
        if is_main:
            hurry()
        raise
    if not answer.done():
        _Hurry.is_left = True
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
    """As ``asked``, and again behind each of the pauses (seconds) that ``pauses_of`` an error are worth waiting for, as it may
    not come again; each trouble that has other pauses has its own. For calls that may be made twice.

    Behind a signal there is one attempt, as nobody may wait for longer than it takes.
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
