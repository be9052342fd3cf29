"""Tasks in processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import wait

from store_core.errors import FailedError
from store_core.export.runners.runner import Doable, OnPiece, Told, Walked


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
        # Fresh processes: a copy of one in which Arrow has started threads may hang.
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(min(self._jobs, len(tasks)), context, initializer=_start_worker)
        try:
            with _interrupts_held():
                futures = {pool.submit(task.run): index for index, task in enumerate(tasks)}  # starts the processes
            pieces = {futures[future]: told(futures[future], future.result()) for future in as_completed(futures)}
            return [pieces[index] for index in range(len(tasks))]
        except BrokenProcessPool as error:
            raise FailedError(
                "a worker process has died",
                to_do="it may have run out of memory: use fewer --jobs or a smaller --split-size",
            ) from error
        except BaseException:
            for worker in multiprocessing.active_children():
                worker.terminate()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


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
