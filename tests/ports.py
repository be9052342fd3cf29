"""Ports for the servers that tests start."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
from typing import Final

# Below what Linux hands out to connections (32768 on): nobody's client can come by one before the server binds it.
_PORTS: Final = range(10_000, 32_000)


def free_port(*neighbours: int) -> int:
    """A loopback port that nobody listens on, nor on the ones so far from it: ``free_port(-2, 1)``."""
    while True:
        port = random.choice(_PORTS)
        with ExitStack() as held:
            try:
                for distance in (0, *neighbours):
                    held.enter_context(socket.socket()).bind(("127.0.0.1", port + distance))
            except OSError:
                continue
        return port
