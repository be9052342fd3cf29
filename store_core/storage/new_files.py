"""Make many new files for scratch folders in two threads, each with a file of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from io import FileIO
from pathlib import Path
from threading import Event, Lock
from typing import Final

from store_core.storage.digest import Hole
from store_core.storage.writer import dense_runs

_THREADS: Final = 2  # new pages of the cache take longer than the copies into them


def create_files(root: Path, files: Mapping[str, Callable[[], Iterable[bytes | Hole]]]) -> None:
    """Make new files and their folders. Names are relative to ``root``; blocks of zeros are left as holes.

    The threads produce one chunk at a time. Nothing is synced. Raises OSError: FileExistsError if a file exists already.
    """
    making = Lock()
    stopped = Event()
    waiting = iter(files.items())
    folders: set[str] = set()  # that exist

    def create_some() -> None:
        """Make files until none waits. A future for each file would take too much memory."""
        while not stopped.is_set():
            with making:
                name, read = next(waiting, (None, None))
            if name is None or read is None:
                return
            try:
                create(os.path.join(root, name), read)
            except BaseException:
                stopped.set()
                raise

    def create(path: str, read: Callable[[], Iterable[bytes | Hole]]) -> None:
        folder = os.path.dirname(path)
        if folder not in folders:
            os.makedirs(folder, exist_ok=True)
            folders.add(folder)
        with FileIO(path, "x") as file:
            end = 0
            chunks = iter(read())
            while not stopped.is_set():
                with making:
                    chunk = next(chunks, None)
                if chunk is None:
                    break
                if not isinstance(chunk, Hole):
                    _write(file, end, chunk)
                end += len(chunk)
            file.truncate(end)

    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(_THREADS, "write"))
        stack.callback(stopped.set)
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        for made in [pool.submit(create_some) for _ in range(_THREADS)]:
            made.result()


def _write(file: FileIO, offset: int, data: bytes) -> None:
    for at, block in dense_runs(data):
        while block:
            done = os.pwrite(file.fileno(), block, offset + at)
            block, at = block[done:], at + done
