"""An object store of our own: moto's server in a process on loopback, and golden stores put into it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.ports import free_port

_START_SECONDS: Final = 60
_CREDENTIALS: Final = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_REGION": "us-east-1"}


@dataclass(frozen=True)
class ObjectStore:
    """A running server. ``environment`` is what a program needs to find it."""

    port: int
    environment: dict[str, str]
    _put: dict[Path, str] = field(default_factory=dict)

    def put(self, root: Path) -> str:
        """Every file of a store as an object, once; gives the store's address. Empty folders are lost, as with any such copy."""
        if root not in self._put:
            address = self._put[root] = f"stores/{len(self._put)}/{root.name}"
            for path in root.rglob("*"):
                if path.is_file():
                    with self.files.open_output_stream(f"{address}/{path.relative_to(root).as_posix()}") as out:
                        out.write(path.read_bytes())
        return f"s3://{self._put[root]}"

    @property
    def files(self) -> Any:
        """pyarrow's view of it."""
        from pyarrow.fs import S3FileSystem

        return S3FileSystem(
            scheme="http",
            endpoint_override=f"127.0.0.1:{self.port}",
            access_key=_CREDENTIALS["AWS_ACCESS_KEY_ID"],
            secret_key=_CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
            region=_CREDENTIALS["AWS_REGION"],
            allow_bucket_creation=True,
        )


@contextmanager
def running() -> Iterator[ObjectStore]:
    """Started on enter with an empty bucket ``stores``, ended on leaving."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _await(port, process)
        environment = {
            **_CREDENTIALS,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        store = ObjectStore(port, environment)
        store.files.create_dir("stores")
        yield store
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def in_environment(environment: dict[str, str]) -> Iterator[None]:
    """This process's environment with changes, for as long as the context lasts."""
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _await(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/moto-api/", timeout=1):
                return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError("moto's server does not start") from None
            time.sleep(0.1)
