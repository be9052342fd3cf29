"""Keep signals that ask the process to end from interrupting writes that belong together."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_END_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Handle signals that arrive in this block after it. Python handles signals only in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        arrived.append(number)

    # Not a mask: the system would deliver the signal to another thread, and Python would still handle it here.
    before = {number: handler for number in _END_SIGNALS if (handler := signal.getsignal(number)) is not None}
    for number in before:
        signal.signal(number, remember)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for late in arrived:
            signal.raise_signal(late)
