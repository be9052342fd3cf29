"""Questions that may take minutes, of which a Ctrl-C does not have to wait for the answer.

A client of an object store, or a library that has one, is deaf while it waits for a server: Python handles signals between two of
its own steps, in its main thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Final, TypeVar

from store_core.errors import FailedError

Answer = TypeVar("Answer")
_HURRY_SECONDS: Final = 1.0


class _Hurry:
    """Whether a signal has come, and no question has been answered since: whoever clears up then waits for little."""

    is_on = False


def hurry() -> None:
    """A signal has come, between two questions."""
    _Hurry.is_on = True


def asked(call: Callable[..., Answer], *words: object) -> Answer:
    """What ``call(*words)`` gives or raises. In the main thread whatever a signal raises comes at once; the call, which nobody can
    stop, then goes on in a thread of its own that keeps no process from ending. What is asked behind a signal has a second to be
    answered; then FailedError is raised."""
    if threading.current_thread() is not threading.main_thread():
        return call(*words)
    answer: Future[Answer] = Future()

    def ask() -> None:
        try:
            answer.set_result(call(*words))
        except BaseException as error:
            answer.set_exception(error)

    try:
        threading.Thread(target=ask, name="object-store-question", daemon=True).start()
        done, _ = wait([answer], _HURRY_SECONDS if _Hurry.is_on else None)
    except BaseException:
        hurry()
        raise
    if not done:
        raise FailedError("the server does not answer", to_do="run the command again")
    _Hurry.is_on = False
    return answer.result()
