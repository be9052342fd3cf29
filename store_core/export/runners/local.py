"""Run tasks in processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from ctypes import Array, c_longlong
from multiprocessing.connection import wait
from queue import Empty, SimpleQueue
from typing import Final, Literal

from store_core.errors import FailedError
from store_core.export.runners.runner import Doable, OnPiece, Told, Walked
from store_core.export.task_progress import told_to

_CLIENTS: Final = ("store_core.storage.object_store", "deltalake")  # once loaded, these may have threads of their own
_LOOK_EVERY_SECONDS: Final = 0.1
# Each thread waits for finished workers, which need a moment to return their memory.
_LEAVING: Final[list[threading.Thread]] = []


def wait_for_workers() -> None:
    """Wait until the workers of finished runs have exited.

    The program calls this before it ends: Python 3.11 would close a pool's wakeup pipe in one thread while another
    thread writes to it, and print a traceback.
    """
    while _LEAVING:
        _LEAVING.pop().join()


class LocalRunner:
    """Runs tasks in ``jobs`` processes; with one job or a single task, in this process."""

    def __init__(self, jobs: int = 1) -> None:
        self._jobs = jobs

    def run(
        self, tasks: Sequence[Doable[Told]], on_walked: Walked, on_piece: OnPiece[Told] | None = None
    ) -> list[Told]:
        """Run the tasks as ``runner.Runner.run`` does."""
        progress = _Progress(on_walked)

        def told(index: int, piece: Told) -> Told:
            progress.done(piece.walked_bytes)
            if on_piece is not None:
                on_piece(index, piece)
            return piece

        if min(self._jobs, len(tasks)) <= 1:
            with told_to(progress.more):
                answers = [told(index, task.run()) for index, task in enumerate(tasks)]
            progress.end()
            return answers
        wait_for_workers()
        context = multiprocessing.get_context(_start_method())
        # One number a task, without a lock: that may be gone before a late worker takes it.
        walked = context.RawArray("q", len(tasks))
        pool = ProcessPoolExecutor(min(self._jobs, len(tasks)), context, initializer=_start_worker, initargs=(walked,))
        ended: SimpleQueue[Future[Told]] = SimpleQueue()
        pieces: dict[int, Told] = {}
        try:
            with _interrupts_held():
                futures = {
                    pool.submit(_run, index, task): index for index, task in enumerate(tasks)
                }  # starts the processes
            for future in futures:
                future.add_done_callback(ended.put)
            look_at = 0.0
            while len(pieces) < len(futures):
                with suppress(Empty):
                    future = ended.get(timeout=_LOOK_EVERY_SECONDS)
                    pieces[futures[future]] = told(futures[future], future.result())
                if time.monotonic() >= look_at:  # with many tasks, the sum takes longer than a short task
                    progress.reached(sum(walked))
                    look_at = time.monotonic() + _LOOK_EVERY_SECONDS
        except BaseException as error:
            for worker in multiprocessing.active_children():
                worker.kill()  # a new copy in which Python has not started up would lose SIGTERM
            pool.shutdown(wait=True, cancel_futures=True)
            if isinstance(error, BrokenProcessPool):
                raise FailedError(
                    "a worker process has died",
                    to_do="it may have run out of memory: use fewer --jobs or a smaller --split-size",
                ) from error
            raise
        progress.end()
        leaving = threading.Thread(target=pool.shutdown)
        leaving.start()
        _LEAVING.append(leaving)
        return [pieces[index] for index in range(len(tasks))]


class _Progress:
    """Reports the larger of walked and answered bytes; at the end, the answered bytes."""

    def __init__(self, on_walked: Walked) -> None:
        self._on_walked = on_walked
        self._told_bytes = self._answered_bytes = 0

    def more(self, walked_bytes: int) -> None:
        self._tell(self._told_bytes + walked_bytes)

    def reached(self, walked_bytes: int) -> None:
        self._tell(max(walked_bytes, self._told_bytes))

    def done(self, walked_bytes: int) -> None:
        self._answered_bytes += walked_bytes
        self.reached(self._answered_bytes)

    def end(self) -> None:
        self._tell(self._answered_bytes)

    def _tell(self, reached_bytes: int) -> None:
        self._on_walked(reached_bytes - self._told_bytes)
        self._told_bytes = reached_bytes


def _start_method() -> Literal["fork", "spawn"]:
    """Return how to start workers. A forked copy of this process need not load any module again.

    But a copy has only the thread that made it. It would wait for ever for a lock of another thread, or for clients
    of object stores, which have threads of their own. Arrow's own pools handle a fork and make new threads.
    """
    is_alone = sys.platform == "linux" and threading.active_count() == 1 and sys.modules.keys().isdisjoint(_CLIENTS)
    return "fork" if is_alone else "spawn"


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back. Processes that are started meanwhile never receive it: their parent ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_walked: Array[c_longlong]  # in a worker: bytes walked by each task


def _run(index: int, task: Doable[Told]) -> Told:
    """Run a task in a worker."""

    def add(size_bytes: int) -> None:
        _walked[index] += size_bytes

    with told_to(add):
        return task.run()


def _start_worker(walked: Array[c_longlong]) -> None:
    """Set up a worker: it reports its progress and exits with its parent."""
    global _walked
    _walked = walked
    parent = multiprocessing.parent_process()
    if parent is not None:

        def watch(sentinel: int) -> None:
            wait([sentinel])
            os._exit(1)

        threading.Thread(target=watch, args=(parent.sentinel,), daemon=True).start()
