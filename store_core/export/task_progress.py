"""Report how far an unfinished task has walked to the runner in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Tell = Callable[[int], object]


def _ignore(size_bytes: int) -> None:
    pass


_tell: Tell = _ignore


def walked(size_bytes: int) -> None:
    """Report that ``size_bytes`` more bytes of a log are walked; bytes of a repeated walk are reported twice."""
    _tell(size_bytes)


@contextmanager
def told_to(tell: Tell) -> Iterator[None]:
    """Call ``tell`` with the progress of tasks that run inside this context."""
    global _tell
    before, _tell = _tell, tell
    try:
        yield
    finally:
        _tell = before
