"""Pieces of work side by side in threads, results in order."""

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
    """Without concurrent.futures, which takes longer to load than a segment may take to walk."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._stopped = Event()
        self._failed = Event()

    def until_stopped(self, parts: Iterable[Part]) -> Iterator[Part]:
        """The parts as long as somebody wants the results. For the threads."""
        for part in parts:
            if self._stopped.is_set():
                raise _StoppedError
            yield part

    def map(self, work: Callable[[Item, Lanes], Result], items: Sequence[Item]) -> Iterator[tuple[Item, Result]]:
        """``work`` of each item, ``jobs`` of them at a time. Raises the first exception of a work, in the items' order.

        Behind one that fails none is begun. Whoever asks no more, or is interrupted, waits for what is under way; that ends early with
        ``until_stopped``.
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
    """Nobody wants the rest any more."""


class _Outcome(Generic[Result]):
    """What a work gives or raises, from one thread to another."""

    def __init__(self) -> None:
        self._told: SimpleQueue[tuple[list[Result], BaseException | None]] = SimpleQueue()

    def of(self, work: Callable[[], Result]) -> bool:
        """Do the work; whether it did not fail."""
        try:
            self._told.put(([work()], None))
        except BaseException as error:
            self._told.put(([], error))
            return False
        return True

    def result(self) -> Result:
        results, error = self._told.get()
        if error is not None:
            raise error
        return results[0]
