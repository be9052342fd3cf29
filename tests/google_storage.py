"""``python -m tests.google_storage PORT``: an emulator of Google Cloud Storage on loopback, with an empty bucket ``stores``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from http.server import ThreadingHTTPServer
from threading import RLock
from types import FunctionType
from typing import Any

from gcp_storage_emulator import server
from gcp_storage_emulator.storage import Storage


def one_at_a_time(method: Callable[..., Any], lock: RLock) -> Callable[..., Any]:
    @wraps(method)
    def alone(*args: Any, **options: Any) -> Any:
        with lock:
            return method(*args, **options)

    return alone


if __name__ == "__main__":
    # Its own server answers one connection at a time, and clients open a second one before they have read the first one out.
    server.server.HTTPServer = ThreadingHTTPServer
    # What it keeps is not made for that: to remove an upload it copies all that there is, and forgets what came meanwhile.
    lock = RLock()
    for name, method in list(vars(Storage).items()):
        if isinstance(method, FunctionType):
            setattr(Storage, name, one_at_a_time(method, lock))
    server.create_server("127.0.0.1", int(sys.argv[1]), in_memory=True, default_bucket="stores").run()
