"""The program, loaded once: a server that answers each call with a copy of its process, as loading anew takes half a second each.

A copy has its own streams, environment and exit, and its caches are empty, as if Python had just loaded the program in it. What Python
and its libraries read while they are loaded (``STARTS``) is not read again: whoever changes it needs a process of its own.
How Python takes itself apart at the end is left to the processes of their own, and to copies that have loaded a client.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any, Final, NoReturn, TextIO, cast

import rmqctl
import store_core
from rmqctl.app import prepare_process
from store_core.storage import live
from tests.alone import nobody

STARTS: Final = (
    "PYTHON",
    "LC_",
    "LANG",
    "TZ",
    "LD_",
    "MALLOC_",
    "ARROW_",
    "OPENBLAS_",
    "OMP_",
    "PYICEBERG_",
    "RMQCTL_KERNEL",
)
# Clients that a process asks for when it needs them; the program acts otherwise where they are loaded.
_NOT_LOADED: Final = ("duckdb", "pyspark", "deltalake", "store_core.storage.object_store")
# Libraries of plain Python that the program asks for when it needs them: loading Iceberg's takes a second.
_LOADED: Final = (
    "crc32c",
    "pyarrow.dataset",
    "pyiceberg.catalog.sql",
    "pyiceberg.io.pyarrow",
    "sqlalchemy.dialects.sqlite",
    "tabulate",
)
_NOT_WALKED: Final = (
    "rmqctl.__main__",
    "store_core.storage.object_store",
    "store_core.export.dest",
    "store_core.export.source",
)
_NUMBER_BYTES: Final = 8
_DEADLINE_SECONDS: Final = 60
_SET: Final = {
    "OPENBLAS_NUM_THREADS": "1"
}  # by the program where it is not set, so by tests that call it in their own process
_BEFORE: Final = _SET | os.environ  # before any test changes it


def can_run(environment: Mapping[str, str]) -> bool:
    """Whether a copy's process is as one that is started with this environment."""
    asked = _SET | {**environment}
    changed = {n for n in asked.keys() | _BEFORE.keys() if asked.get(n) != _BEFORE.get(n)}
    return not any(name.startswith(STARTS) for name in changed)


class _Server:
    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        self.one_call = threading.Lock()
        with theirs:
            words = [sys.executable, "-m", __name__, str(theirs.fileno())]
            self._process = subprocess.Popen(words, env=_BEFORE, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        atexit.register(self._end)

    def start(self, request: dict[str, Any], streams: Sequence[int]) -> int:
        text = json.dumps(request).encode()
        socket.send_fds(self._socket, [len(text).to_bytes(_NUMBER_BYTES, "big")], streams)
        self._socket.sendall(text)
        return self._number()

    def _end(self) -> None:
        """Hang up: the server ends by that."""
        self._socket.close()
        self._process.wait(_DEADLINE_SECONDS)

    def _number(self) -> int:
        told = self._socket.recv(_NUMBER_BYTES, socket.MSG_WAITALL)
        assert len(told) == _NUMBER_BYTES, "the server of copies has ended"
        return int.from_bytes(told, "big", signed=True)

    def code(self, pid: int, deadline_seconds: float) -> int:
        killing = threading.Timer(deadline_seconds, os.kill, (pid, signal.SIGKILL))
        killing.start()
        try:
            code = self._number()
            assert not killing.finished.is_set(), f"it was killed as it was not done within {deadline_seconds} s"
            return code
        finally:
            killing.cancel()


@cache
def _server() -> _Server:
    return _Server()


def run(
    module: str, args: Sequence[str], streams: Sequence[int], env: Mapping[str, str], cwd: str, deadline_seconds: float
) -> int:
    """``python -m module args``: its exit code, negative for the signal that ended it. It is killed at the deadline.

    The three streams are closed here once it has them, so that who reads the other ends sees when it has ended.
    """
    server = _server()
    with server.one_call:
        try:
            alone = live.processes_with_files_open is nobody
            pid = server.start({"module": module, "args": [*args], "env": {**env}, "cwd": cwd, "alone": alone}, streams)
        finally:
            for stream in set(streams):
                os.close(stream)
        return server.code(pid, deadline_seconds)


def _serve(asked: socket.socket) -> None:
    while True:
        head, streams, _, _ = socket.recv_fds(asked, _NUMBER_BYTES, 3)
        if not head:
            return
        request = json.loads(asked.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL))
        pid = os.fork()
        if not pid:
            asked.close()
            _become(streams, **request)
        for stream in streams:
            os.close(stream)
        asked.sendall(pid.to_bytes(_NUMBER_BYTES, "big"))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        asked.sendall(code.to_bytes(_NUMBER_BYTES, "big", signed=True))


def _become(streams: list[int], module: str, args: list[str], env: dict[str, str], cwd: str, alone: bool) -> NoReturn:
    if alone:
        live.processes_with_files_open = nobody
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin = sys.__stdin__ = _stream(0, "r", sys.stdin)
    sys.stdout = sys.__stdout__ = _stream(1, "w", sys.stdout)
    sys.stderr = sys.__stderr__ = _stream(2, "w", sys.stderr)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = [module, *args]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code: object = 0
    except SystemExit as ended:
        code = ended.code or 0
    if isinstance(code, int) and not any(name in sys.modules for name in _NOT_LOADED):
        _leave(code)
    sys.exit(cast(str | int, code))


def _leave(code: int) -> NoReturn:
    """End as Python does, but let all modules be: taking them apart copies the server's memory, which takes most of a call."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with suppress(OSError):  # Python says so at its own end
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code & 0xFF)
    sys.exit(code)


def _stream(number: int, mode: str, before: TextIO) -> TextIO:
    buffering = 1 if number == 2 else -1
    return cast(TextIO, open(number, mode, buffering, before.encoding, before.errors, closefd=False))


def _load() -> None:
    prepare_process()
    for package in (rmqctl, store_core):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.startswith(_NOT_WALKED):
                import_module(module.name)
    for name in _LOADED:
        import_module(name)
    loaded = [name for name in _NOT_LOADED if name in sys.modules]
    assert not loaded, f"loaded with the program, though it acts otherwise where they are: {loaded}"


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _load()
    gc.freeze()  # copies share what they do not look through
    _serve(socket.socket(fileno=int(sys.argv[1])))
