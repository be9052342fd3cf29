"""Questions that may take minutes, of which a Ctrl-C does not have to wait for the answer.

A client of an object store, or a library that has one, is deaf while it waits for a server: Python handles signals between two of
its own steps, in its main thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Final, TypeVar

from store_core.errors import FailedError, StoreError

Answer = TypeVar("Answer")
_HURRY_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 0.2
_PATIENCE_SECONDS: Final = 8.0  # a client that gives up later has tried again by itself
PAUSES_SECONDS: Final = (0.1, 0.3)  # in front of each further attempt


class _Hurry:
    """Signals so far; and whether one has come and no question of the main thread has been answered since: whoever clears up then waits
    for little."""

    signals = 0
    is_on = False


def hurry() -> None:
    """A signal has come, between two questions."""
    _Hurry.signals += 1
    _Hurry.is_on = True


def asked(call: Callable[..., Answer], *words: object) -> Answer:
    """What ``call(*words)`` gives or raises. In the main thread whatever a signal raises comes at once; the call, which nobody can
    stop, then goes on in a thread of its own that keeps no process from ending. What is asked behind a signal, or is being asked by
    another thread when it comes, has a second to be answered; then FailedError is raised."""
    answer: Future[Answer] = Future()

    def ask() -> None:
        try:
            answer.set_result(call(*words))
        except BaseException as error:
            answer.set_exception(error)

    is_main = threading.current_thread() is threading.main_thread()
    before, is_hurried = _Hurry.signals, _Hurry.is_on
    try:
        threading.Thread(target=ask, name="object-store-question", daemon=True).start()
        if is_main:
            wait([answer], _HURRY_SECONDS if is_hurried else None)
        else:  # no signal reaches it
            while not is_hurried and _Hurry.signals == before and not answer.done():
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


def asked_again(may_pass: Callable[[Exception], bool], call: Callable[..., Answer], *words: object) -> Answer:
    """As ``asked``, up to three times where ``may_pass`` says of an error that it may not come again. For calls that only read.

    Behind a signal there is one attempt, as nobody may wait for longer than it takes.
    """
    start = time.monotonic()
    for pause_seconds in PAUSES_SECONDS:
        signals, is_hurried = _Hurry.signals, _Hurry.is_on
        try:
            return asked(call, *words)
        except (StoreError, FileNotFoundError):
            raise
        except Exception as error:
            if is_hurried or time.monotonic() - start > _PATIENCE_SECONDS or not may_pass(error):
                raise
            time.sleep(pause_seconds)
            if _Hurry.signals != signals:
                raise
    return asked(call, *words)
