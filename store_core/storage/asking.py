"""Questions that may take minutes, of which a Ctrl-C does not have to wait for the answer.

A client of an object store, or a library that has one, is deaf while it waits for a server: Python handles signals between two of
its own steps, in its main thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Answer = TypeVar("Answer")


def asked(call: Callable[..., Answer], *words: object) -> Answer:
    """What ``call(*words)`` gives or raises. In the main thread whatever a signal raises comes at once; the call, which nobody can
    stop, then goes on in a thread of its own that keeps no process from ending."""
    if threading.current_thread() is not threading.main_thread():
        return call(*words)
    answer: Future[Answer] = Future()

    def ask() -> None:
        try:
            answer.set_result(call(*words))
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=ask, name="object-store-question", daemon=True).start()
    return answer.result()
