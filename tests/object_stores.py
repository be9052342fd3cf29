"""Object stores of our own, each in a process on loopback, and golden stores put into them.

S3 is moto's server, Google's is gcp-storage-emulator, both from PyPI; Azure's is Azurite, through npm.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal

from tests import azurite
from tests.ports import free_port

Kind = Literal["s3", "gs", "abfss"]
KINDS: Final[tuple[Kind, ...]] = ("s3", "gs", "abfss")
_BUCKET: Final = "stores"
_HOST: Final = "127.0.0.1"
_START_SECONDS: Final = 60
_AWS: Final = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_REGION": "us-east-1"}


@dataclass(frozen=True)
class ObjectStore:
    """A running server with a bucket ``stores``. ``environment`` is what a program needs to find it."""

    kind: Kind
    port: int
    _put: dict[Path, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        url = f"http://{_HOST}:{self.port}"
        match self.kind:
            case "s3":
                return {**_AWS, "AWS_ENDPOINT_URL": url, "AWS_EC2_METADATA_DISABLED": "true"}
            case "gs":
                return {"STORAGE_EMULATOR_HOST": url}
            case "abfss":
                return {
                    "AZURE_STORAGE_KEY": azurite.KEY,
                    "AZURE_STORAGE_BLOB_ENDPOINT": f"{url}/{azurite.ACCOUNT}",
                    "AZURITE_BLOB_STORAGE_URL": url,
                }

    def address(self, path: str) -> str:
        """The address of a path in the bucket."""
        account = f"@{azurite.ACCOUNT}.dfs.core.windows.net" if self.kind == "abfss" else ""
        return f"{self.kind}://{_BUCKET}{account}/{path}"

    def key(self, address: str) -> str:
        """What ``files`` calls an address."""
        return f"{_BUCKET}/{address.partition('://')[2].partition('/')[2]}"

    def put(self, root: Path) -> str:
        """Every file of a store as an object, once; gives the store's address. Empty folders are lost, as with any such copy."""
        if root not in self._put:
            folder = self._put[root] = f"{len(self._put)}/{root.name}"
            for path in root.rglob("*"):
                if path.is_file():
                    name = f"{_BUCKET}/{folder}/{path.relative_to(root).as_posix()}"
                    with self.files.open_output_stream(name) as out:
                        out.write(path.read_bytes())
        return self.address(self._put[root])

    @property
    def files(self) -> Any:
        """pyarrow's view of it."""
        from pyarrow import fs

        place = f"{_HOST}:{self.port}"
        match self.kind:
            case "s3":
                return fs.S3FileSystem(
                    scheme="http",
                    endpoint_override=place,
                    access_key=_AWS["AWS_ACCESS_KEY_ID"],
                    secret_key=_AWS["AWS_SECRET_ACCESS_KEY"],
                    region=_AWS["AWS_REGION"],
                    allow_bucket_creation=True,
                )
            case "gs":
                patience = timedelta(seconds=10)
                return fs.GcsFileSystem(
                    anonymous=True, scheme="http", endpoint_override=place, retry_time_limit=patience
                )
            case "abfss":
                places = dict.fromkeys(("blob_storage_authority", "dfs_storage_authority"), place)
                schemes = dict.fromkeys(("blob_storage_scheme", "dfs_storage_scheme"), "http")
                return fs.AzureFileSystem(azurite.ACCOUNT, account_key=azurite.KEY, **places, **schemes)


@contextmanager
def running(kind: Kind = "s3") -> Iterator[ObjectStore]:
    """Started on enter with an empty bucket ``stores``, ended on leaving. Raises NoAzuriteError."""
    port = free_port()
    commands = {
        "s3": lambda: [sys.executable, "-m", "moto.server", "-H", _HOST, "-p", str(port)],
        "gs": lambda: [sys.executable, "-m", "tests.google_storage", str(port)],
        "abfss": lambda: azurite.command(port),
    }
    process = subprocess.Popen(
        commands[kind](),
        cwd=Path(__file__).parents[1],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _await(port, process)
        store = ObjectStore(kind, port)
        if kind != "gs":  # which has it already
            store.files.create_dir(_BUCKET)
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
    """Wait until it answers, whatever it says."""
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(f"http://{_HOST}:{port}/", timeout=1):
                return
        except urllib.error.HTTPError:
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{process.args} does not start") from None
            time.sleep(0.1)
