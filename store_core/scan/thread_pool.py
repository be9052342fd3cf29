"""Run pieces of work in threads and yield their results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from queue import SimpleQueue
from threading import Event, Thread
from typing import Generic, TypeVar

Item = TypeVar("Item")
Part = TypeVar("Part")
Result = TypeVar("Result")


class Lanes:
    """A pool of threads without concurrent.futures, whose import can take longer than the walk over a segment."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._stopped = Event()
        self._failed = Event()

    def until_stopped(self, parts: Iterable[Part]) -> Iterator[Part]:
        """Yield the parts until the caller needs no more results. For use in the pool's threads."""
        for part in parts:
            if self._stopped.is_set():
                raise _StoppedError
            yield part

    def map(self, work: Callable[[Item, Lanes], Result], items: Sequence[Item]) -> Iterator[tuple[Item, Result]]:
        """Yield each item with its result of ``work``, ``jobs`` at a time. Raises the first exception, in the items' order.

        After a failure no further item is started. A caller that stops early, or is interrupted, waits for the running
        items; ``until_stopped`` ends these early.
        """
        waiting = deque((item, _Outcome[Result]()) for item in items)
        outcomes = list(waiting)

        def lane() -> None:
            while waiting and not (self._stopped.is_set() or self._failed.is_set()):
                try:
                    item, outcome = waiting.popleft()
                except IndexError:  # another lane was quicker
                    return
                if not outcome.of(partial(work, item, self)):
                    self._failed.set()

        threads = [Thread(target=lane, name="rmqctl-walk") for _ in range(min(self._jobs, len(items)))]
        try:
            for thread in threads:
                thread.start()
            for item, outcome in outcomes:
                yield item, outcome.result()
        finally:
            self._stopped.set()
            for thread in threads:
                thread.join()


class _StoppedError(Exception):
    """Ends the work on an item whose result is no longer needed."""


class _Outcome(Generic[Result]):
    """Passes the result or the exception of an item from one thread to another."""

    def __init__(self) -> None:
        self._passed: SimpleQueue[tuple[list[Result], BaseException | None]] = SimpleQueue()

    def of(self, work: Callable[[], Result]) -> bool:
        """Do the work. Return True if it did not fail."""
        try:
            self._passed.put(([work()], None))
        except BaseException as error:
            self._passed.put(([], error))
            return False
        return True

    def result(self) -> Result:
        results, error = self._passed.get()
        if error is not None:
            raise error
        return results[0]
