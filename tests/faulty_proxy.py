"""A server in front of an object store that fails as networks and busy object stores do."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from tests.object_stores import ObjectStore

_HOST: Final = "127.0.0.1"
_SLOW_DOWN: Final = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
_NOT_FOUND: Final = b"<html><body>Nothing here.</body></html>"
_ACCESS_DENIED: Final = b"<Error><Code>AccessDenied</Code><Message>Access denied.</Message></Error>"


class Fault(Enum):
    """What becomes of a request."""

    REFUSED = "answered with 503, and not done"
    FORBIDDEN = "answered with 403, and not done"
    NOT_FOUND = "answered with 404 by something that is no object store, and not done"
    LOST = "not done, and the connection ends"
    SILENT = "not answered until whoever asks gives up"
    UNANSWERED = "done, and the connection ends"
    CUT = "answered by half of the bytes that the answer's head promises"
    SHORT = "answered by half of the bytes, and by a head that promises no more"
    GARBLED = "answered by a chunk that is longer than it says"


# Trying again is worth while, and soon.
FLEETING: Final = tuple(fault for fault in Fault if fault not in (Fault.FORBIDDEN, Fault.NOT_FOUND, Fault.SILENT))


@dataclass
class Faulty:
    """``fault_of``: what becomes of a request, by its method and path; nothing if it is passed on."""

    fault_of: Callable[[str, str], Fault | None]
    met: list[tuple[Fault, str, str]] = field(default_factory=list)  # with method and path
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def next(self, method: str, path: str) -> Fault | None:
        with self._lock:
            fault = self.fault_of(method, path)
            if fault is not None:
                self.met.append((fault, method, path))
            return fault


@contextmanager
def in_front_of(store: ObjectStore, faulty: Faulty) -> Iterator[ObjectStore]:
    """The object store as it is reached through the faulty server."""
    server = ThreadingHTTPServer((_HOST, 0), _answering(store.port, faulty))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield replace(store, port=server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _answering(port: int, faulty: Faulty) -> type[BaseHTTPRequestHandler]:
    class Answer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass_on(self) -> None:
            body = self._body()
            fault = faulty.next(self.command, self.path)
            match fault:
                case Fault.REFUSED:
                    self._answer(503, {}, b"" if self.command == "HEAD" else _SLOW_DOWN)
                case Fault.FORBIDDEN:
                    self._answer(403, {}, b"" if self.command == "HEAD" else _ACCESS_DENIED)
                case Fault.NOT_FOUND:
                    self._answer(404, {}, b"" if self.command == "HEAD" else _NOT_FOUND)
                case Fault.LOST:
                    self.close_connection = True
                case Fault.SILENT:
                    self.connection.recv(1)
                    self.close_connection = True
                case _:
                    status, headers, data = self._asked(body)
                    if fault is Fault.UNANSWERED:
                        self.close_connection = True
                    else:
                        self._answer(status, headers, data, fault)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass_on

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding", "") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            found = b""
            while size := int(self.rfile.readline().partition(b";")[0], 16):
                found += self.rfile.read(size)
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
            return found

        def _asked(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
            connection = http.client.HTTPConnection(_HOST, port, timeout=60)
            try:
                headers = {
                    name: value
                    for name, value in self.headers.items()
                    if name.lower() not in ("transfer-encoding", "content-length", "connection", "expect")
                }
                connection.request(self.command, self.path, body, headers)
                answer = connection.getresponse()
                return answer.status, {n.lower(): v for n, v in answer.getheaders()}, answer.read()
            finally:
                connection.close()

        def _answer(self, status: int, headers: dict[str, str], data: bytes, fault: Fault | None = None) -> None:
            half = data[: len(data) // 2]
            promised = int(headers.get("content-length", 0)) if self.command == "HEAD" else len(data)
            self.send_response_only(status)
            for name, value in headers.items():
                if name not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(name, value)
            if fault is Fault.GARBLED:
                self.send_header("Transfer-Encoding", "chunked")
                data = b"%x\r\n%s" % (max(len(half), 1), data)
            else:
                self.send_header("Content-Length", str(promised // 2 if fault is Fault.SHORT else promised))
            self.end_headers()
            self.wfile.write(half if fault in (Fault.CUT, Fault.SHORT) else data)
            if fault in (Fault.CUT, Fault.GARBLED):
                self.close_connection = True

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    return Answer
