"""The program for a shell's sessions: a small client passes each call on to the server of copies (``warm``), one after another."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory
from typing import Final

from tests.rmqctl import warm

_NUMBER_BYTES: Final = 8
_DEADLINE_SECONDS: Final = 120
_OURS: Final = ("PYTHON", "PYTHONPATH")  # they lead to what the server of copies has loaded
_NOT_RUN: Final = 97  # the environment asks for a process of its own
_CLIENT: Final = f"""
import json, os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect(sys.argv[1])
text = json.dumps({{"args": sys.argv[2:], "env": dict(os.environ), "cwd": os.getcwd()}}).encode()
socket.send_fds(server, [len(text).to_bytes({_NUMBER_BYTES}, "big")], [0, 1, 2])
server.sendall(text)
code = int.from_bytes(server.recv({_NUMBER_BYTES}, socket.MSG_WAITALL), "big", signed=True)
sys.exit(code if code >= 0 else 128 - code)
"""


@contextmanager
def command_for_shell() -> Iterator[str]:
    """Words for a shell that run the program with the arguments behind them, as long as the context lasts."""
    with TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listening:
        path = Path(folder, "calls")
        listening.bind(str(path))
        listening.listen()
        answering = threading.Thread(target=_answer, args=(listening,))
        answering.start()
        try:
            yield f"{quote(sys.executable)} -I -c {quote(_CLIENT)} {quote(str(path))}"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            answering.join()


def _answer(listening: socket.socket) -> None:
    while True:
        try:
            call, _ = listening.accept()
        except OSError:  # shut down
            return
        with call:
            head, streams, _, _ = socket.recv_fds(call, _NUMBER_BYTES, 3)
            asked = json.loads(call.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL))
            ours = {name: os.environ[name] for name in _OURS if name in os.environ}
            known = {name: value for name, value in asked["env"].items() if name not in _OURS} | ours
            if warm.can_run(known):
                code = warm.run("rmqctl", asked["args"], streams, asked["env"], asked["cwd"], _DEADLINE_SECONDS)
            else:
                code = _NOT_RUN
                for stream in streams:
                    os.close(stream)
            call.sendall(code.to_bytes(_NUMBER_BYTES, "big", signed=True))
