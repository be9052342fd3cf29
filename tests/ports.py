"""Ports for the servers that tests start."""

from __future__ import annotations

import os
import random
import socket
from contextlib import ExitStack
from typing import Final

_SHARES: Final = 8
_WORKER: Final = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
# Below what Linux hands out to connections (32768 on), and to each worker its own: nobody comes by one before the server binds it.
_FIRST: Final = 10_000 + _WORKER % _SHARES * 2750
_PORTS: Final = range(_FIRST, _FIRST + 2750)
_given: set[int] = set()


def free_port(*neighbours: int) -> int:
    """A loopback port that nobody listens on, nor on the ones so far from it: ``free_port(-2, 1)``. None is given out twice."""
    while True:
        port = random.choice(_PORTS)
        wanted = {port + distance for distance in (0, *neighbours)}
        if wanted & _given or not wanted <= set(_PORTS):
            continue
        with ExitStack() as held:
            try:
                for one in wanted:
                    held.enter_context(socket.socket()).bind(("127.0.0.1", one))
            except OSError:
                continue
        _given.update(wanted)
        return port
