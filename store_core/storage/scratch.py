"""Make scratch folders, and lay a store out in one as it would be after a change."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from io import FileIO
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Lock
from typing import Final

from store_core.layout.paths import OURS
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


def lay_out_links(
    root: Path,
    folder: Path,
    *,
    new: Mapping[str, Callable[[], Iterator[bytes | Hole]]],
    removed: Collection[str],
    left_out: Collection[str] = (),
) -> Path:
    """Lay the store at ``root`` out in ``folder`` as after a change, with links to unchanged files.

    Returns the shadow's root. Paths are relative to the root: ``new`` files with their content, ``removed`` files and folders,
    and folders ``left_out`` entirely. Nothing of the store is touched. Raises OSError if the scratch folder has no room.
    """
    shadow = folder / "store"
    skipped = {OURS, *left_out}
    touched = {*new, *removed}
    for path, folders, names in os.walk(root, followlinks=True):
        here = os.path.relpath(path, root)
        relative = "" if here == os.curdir else here + "/"
        # A linked folder stays a link if nothing in it changes, also if it leads back up.
        kept = {
            name
            for name in folders
            if os.path.islink(os.path.join(path, name)) and not any(t.startswith(f"{relative}{name}/") for t in touched)
        }
        names += sorted(kept.difference(name for name in folders if relative + name in skipped))
        gone = {name for name in folders if relative + name in skipped or relative + name in removed}
        folders[:] = [name for name in folders if name not in gone and name not in kept]
        os.makedirs(shadow / here, exist_ok=True)
        for name in names:
            if relative + name not in new and relative + name not in removed:
                os.symlink(os.path.join(os.path.abspath(path), name), shadow / here / name)
    create_files(shadow, new)
    return shadow


_SPARE_DESCRIPTORS: Final = 12  # a removal takes two for each level


@contextmanager
def scratch_folder(prefix: str = "rmqctl-") -> Iterator[Path]:
    """Make a folder that is removed on exit, even if the process has no free descriptors then. Raises OSError."""
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix=prefix))
        for _ in range(_SPARE_DESCRIPTORS):
            stack.callback(os.close, os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        yield Path(folder)
