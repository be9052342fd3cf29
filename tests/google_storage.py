"""``python -m tests.google_storage PORT``: an emulator of Google Cloud Storage on loopback, with an empty bucket ``stores``."""

from __future__ import annotations

import sys
from http.server import ThreadingHTTPServer

from gcp_storage_emulator import server

if __name__ == "__main__":
    # Its own server answers one connection at a time, and clients open a second one before they have read the first one out.
    server.server.HTTPServer = ThreadingHTTPServer
    server.create_server("127.0.0.1", int(sys.argv[1]), in_memory=True, default_bucket="stores").run()
