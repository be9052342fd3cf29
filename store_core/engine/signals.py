"""A few writes that belong together are not interrupted by a signal that asks the process to end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_ASKING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Signals that arrive in this block are handled behind it. Python handles signals in the main thread alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        arrived.append(number)

    # Not a mask: the system would hand the signal to another thread, and Python would handle it here all the same.
    before = {number: handler for number in _ASKING if (handler := signal.getsignal(number)) is not None}
    for number in before:
        signal.signal(number, remember)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for late in arrived:
            signal.raise_signal(late)
