"""Another process that has a file of a store in its hands, and does nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from store_core.layout.paths import LOCK

_WAITS = "; print(flush=True); sys.stdin.read()"


@contextmanager
def another_process(code: str, path: Path) -> Iterator[None]:
    """It has run ``code``, whose ``sys.argv[1]`` is ``path``, and lives on to the end of the context."""
    args = [sys.executable, "-c", code + _WAITS, str(path)]
    with subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


def locked(root: Path) -> AbstractContextManager[None]:
    """Another process has the store's lock, as a broker does."""
    code = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX, 1)"
    return another_process(code, root / LOCK)


def at_work_on(root: Path) -> AbstractContextManager[None]:
    """Another process has the log open for writing, or without one the checkpoint."""
    segment = min((root / "commitlog").iterdir(), default=root / "checkpoint")
    return another_process("import sys; f = open(sys.argv[1], 'r+b')", segment)
