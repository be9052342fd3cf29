"""Tasks in processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Final, Literal

from store_core.errors import FailedError
from store_core.export.runners.runner import Doable, OnPiece, Told, Walked

_CLIENTS: Final = "store_core.storage.object_store"  # where there are clients of object stores, once it is loaded
# Done, but giving back as much memory as they had takes workers a moment.
_LEAVING: Final[list[ProcessPoolExecutor]] = []


class LocalRunner:
    """``jobs`` processes side by side; one of them, or a single task, runs in this process."""

    def __init__(self, jobs: int = 1) -> None:
        self._jobs = jobs

    def run(
        self, tasks: Sequence[Doable[Told]], on_walked: Walked, on_piece: OnPiece[Told] | None = None
    ) -> list[Told]:
        """As ``runner.Runner.run``."""

        def told(index: int, piece: Told) -> Told:
            on_walked(piece.walked_bytes)
            if on_piece is not None:
                on_piece(index, piece)
            return piece

        if min(self._jobs, len(tasks)) <= 1:
            return [told(index, task.run()) for index, task in enumerate(tasks)]
        while _LEAVING:
            _LEAVING.pop().shutdown(wait=True)
        context = multiprocessing.get_context(_start_method())
        pool = ProcessPoolExecutor(min(self._jobs, len(tasks)), context, initializer=_start_worker)
        try:
            with _interrupts_held():
                futures = {pool.submit(task.run): index for index, task in enumerate(tasks)}  # starts the processes
            pieces = {futures[future]: told(futures[future], future.result()) for future in as_completed(futures)}
        except BaseException as error:
            for worker in multiprocessing.active_children():
                worker.kill()  # a gentler signal is lost where Python has not yet made itself at home in a fresh copy
            pool.shutdown(wait=True, cancel_futures=True)
            if isinstance(error, BrokenProcessPool):
                raise FailedError(
                    "a worker process has died",
                    to_do="it may have run out of memory: use fewer --jobs or a smaller --split-size",
                ) from error
            raise
        pool.shutdown(wait=False)
        _LEAVING.append(pool)
        return [pieces[index] for index in range(len(tasks))]


def _start_method() -> Literal["fork", "spawn"]:
    """A copy of this process need not load anything, which takes a fresh one half a second of a processor's time.

    But a copy has only the thread that made it: it would wait for ever for what another thread holds at that moment, or
    for clients of object stores, which have threads of their own. Arrow's own pools know of copies, and make new threads.
    """
    is_alone = sys.platform == "linux" and threading.active_count() == 1 and _CLIENTS not in sys.modules
    return "fork" if is_alone else "spawn"


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """A Ctrl-C waits until this is over. Processes that are started meanwhile never see one: their parent ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker() -> None:
    """A worker does not outlive its parent."""
    parent = multiprocessing.parent_process()
    if parent is not None:

        def watch(sentinel: int) -> None:
            wait([sentinel])
            os._exit(1)

        threading.Thread(target=watch, args=(parent.sentinel,), daemon=True).start()
