"""Read object stores through pyarrow: listings, sizes, and bytes by position.

Credentials and endpoints come from the environment and the files that each provider's own tools read. The clients repeat
most failed requests themselves; this module repeats others whose error may pass.
"""

from __future__ import annotations

import base64
import errno
import os
import re
import stat
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from store_core.errors import FailedError, UsageError
from store_core.extras import assert_installed
from store_core.storage.files import FileCache
from store_core.storage.remote_call import asked, call_again
from store_core.storage.remote_errors import AZURE, BRIEFLY_SECONDS, WENT_AWAY, pauses_of, told
from store_core.storage.remote_path import RemotePath

_FETCHED_SIZE_BYTES: Final = 16 << 20  # of a file that is copied, at a time
_RANGE_SIZE_BYTES: Final = 4 << 20  # one connection is slow, so a window comes over several
_CONNECTIONS: Final = 8
_BLOCK_SIZE_BYTES: Final = 256 << 10  # a small read fetches whole blocks
_MOST_BLOCKS: Final = 64
_MOST_OPEN_FILES: Final = 64
_GIVE_UP_AFTER: Final = timedelta(seconds=20)
_PATIENCE_SECONDS: Final = 60  # for a read, plus its length at the slowest rate
_SLOWEST_BYTES_PER_SECOND: Final = 10_000
_ACCOUNT: Final = re.compile(r"[a-z0-9-]+")
_SAS_TOKEN: Final = re.compile(r"\??(?:[\w-]+=[!-%'-~]*&)*sig=[!-%'-~]+(?:&[\w-]+=[!-%'-~]*)*")
_ANY_NAME: Final = "rmqctl"
Key = tuple[str, ...]  # the bucket, then the folders, as the client names them


@dataclass(frozen=True, slots=True)
class Listed:
    """An entry of a folder, as ``os.DirEntry``. ``mtime_ns`` is when it was uploaded, not when the broker wrote it."""

    name: str
    is_folder: bool = True
    size_bytes: int = 0
    mtime_ns: int = 0

    def is_dir(self) -> bool:
        return self.is_folder

    def stat(self) -> os.stat_result:
        mode = stat.S_IFDIR | 0o555 if self.is_folder else stat.S_IFREG | 0o444
        seconds = self.mtime_ns // 1_000_000_000
        numbers = (mode, 0, 0, 1, 0, 0, self.size_bytes, seconds, seconds, seconds)
        times = dict.fromkeys(("st_atime_ns", "st_mtime_ns", "st_ctime_ns"), self.mtime_ns)
        return os.stat_result(numbers, times)


class Bucket:
    """A bucket or container, and the listings made of it. Safe for several threads.

    ``lists_folders``: a listing of a folder shows the folders in it. Google's shows only folders that were made explicitly,
    so there all objects below are listed.
    """

    def __init__(self, files: Any, *, lists_folders: bool) -> None:
        self._files = files
        self._lists_folders = lists_folders
        self._folders: dict[Key, dict[str, Listed]] = {}

    def folder(self, path: RemotePath) -> dict[str, Listed]:
        """Return the entries of a folder by name; none if it is missing. Listed once, until ``forget``."""
        with told(path):
            return self._folder(_key(path))

    def list_below(self, path: RemotePath) -> None:
        """List everything below a folder in one request."""
        with told(path):
            self._list_below(_key(path))

    def _list_below(self, top: Key) -> None:
        below = self._ask_for(top, recursive=True)
        folders: dict[Key, dict[str, Listed]] = {top: {}}
        for key, listed in below:
            for depth in range(len(top) + 1, len(key)):  # not every client lists the folders in between
                folders.setdefault(key[: depth - 1], {}).setdefault(key[depth - 1], Listed(key[depth - 1]))
            folders.setdefault(key[:-1], {})[key[-1]] = listed
            if listed.is_folder:
                folders.setdefault(key, {})
        self._folders |= folders

    def forget(self, path: RemotePath) -> None:
        """Drop the listings of a folder and of all below it: they may have changed."""
        top = _key(path)
        for key in [key for key in self._folders if key[: len(top)] == top]:
            self._folders.pop(key, None)

    def stat(self, path: RemotePath) -> Listed:
        """Return an entry, from listings if a folder above it has been listed. Raises FileNotFoundError."""
        key = _key(path)
        with told(path):
            found = self._folder(key[:-1]).get(key[-1]) if self._is_known(key) else self._ask_about(key)
            if found is None and not self._lists_folders and self._folder(key):
                found = Listed(path.name)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "not in the object store", str(path))
        return found

    def open(self, path: RemotePath, *, may_have_changed: bool = True) -> Any:
        """Open a file and return pyarrow's object. Raises FileNotFoundError, FailedError.

        A listed file that is missing or shorter now is asked for again, for a single wrong answer would turn a segment into zeros.
        If a new listing still contradicts the answer, that is an error.
        """
        key = _key(path)
        with told(path):
            for pause_seconds in (0, *BRIEFLY_SECONDS):
                time.sleep(pause_seconds)
                listed = self._listed_file(key)
                try:
                    file = call_again(pauses_of, self._opened, key)
                except FileNotFoundError:
                    if listed is None:
                        raise
                    contradiction = "says that it is there, and that it is not"
                else:
                    if listed is None or file.size() >= listed.size_bytes:
                        return file
                    contradiction = f"lists {listed.size_bytes} bytes of it, and says that it has {file.size()}"
                    file.close()
            known = {name: entry for name, entry in self._folders[key[:-1]].items() if name != key[-1]}
            now = dict(self._ask_for(key[:-1], recursive=False)).get(key)
            if now is None or now.is_folder:
                self._folders[key[:-1]] = known
                raise FileNotFoundError(errno.ENOENT, "not in the object store any more", str(path))
            self._folders[key[:-1]] |= {key[-1]: now}
            if now != listed and may_have_changed:
                return self.open(path, may_have_changed=False)
        raise FailedError(f"the object store {contradiction}", path=str(path), to_do="run the command again")

    def _opened(self, key: Key) -> Any:
        file = self._files.open_input_file("/".join(key))
        file.size()  # raises ValueError if Google's client returned a closed file because its first read failed
        return file

    def _listed_file(self, key: Key) -> Listed | None:
        """Return the listed entry of a file, None if its folder has not been listed."""
        listed = self._folders.get(key[:-1], {}).get(key[-1])
        return listed if listed is not None and not listed.is_folder else None

    def _is_known(self, key: Key) -> bool:
        return any(key[:depth] in self._folders for depth in range(1, len(key)))

    def _folder(self, key: Key) -> dict[str, Listed]:
        if key not in self._folders:
            listed = self._folder(key[:-1]).get(key[-1]) if self._is_known(key) else Listed(key[-1])
            is_folder = listed is not None and listed.is_folder
            if is_folder and not self._lists_folders:
                self._list_below(key)
            else:
                below = self._ask_for(key, recursive=False) if is_folder else []
                self._folders[key] = {found[-1]: listed for found, listed in below}
        return self._folders[key]

    def _ask_for(self, key: Key, *, recursive: bool) -> list[tuple[Key, Listed]]:
        from pyarrow.fs import FileSelector

        selector = FileSelector("/".join(key), recursive=recursive, allow_not_found=True)
        infos = call_again(pauses_of, self._files.get_file_info, selector)
        found = [(tuple(filter(None, info.path.split("/"))), info) for info in infos]
        return [(name, _listed(name, info)) for name, info in found if len(name) > len(key)]

    def _ask_about(self, key: Key) -> Listed | None:
        [info] = call_again(pauses_of, self._files.get_file_info, ["/".join(key)])
        return None if info.type.name == "NotFound" else _listed(key, info)


def _listed(key: Key, info: Any) -> Listed:
    return Listed(key[-1], info.type.name == "Directory", max(info.size or 0, 0), max(info.mtime_ns or 0, 0))


def _key(path: RemotePath) -> Key:
    """Return the client's name of a path, without the account that follows the container in an Azure address."""
    return path.parts[1].partition("@")[0] if path.scheme in AZURE else path.parts[1], *path.parts[2:]


def bucket_of(path: RemotePath) -> Bucket:
    """Return the bucket that an address names; one object for the whole process. Raises UsageError, FailedError."""
    return _bucket(path.scheme, path.parts[1])


@cache
def _bucket(scheme: str, name: str) -> Bucket:
    address = RemotePath(f"{scheme}:", name)
    assert_installed("pyarrow", "a store in an object store")
    with told(address):
        return Bucket(asked(_CLIENTS[scheme], name), lists_folders=scheme != "gs")


def _s3(bucket: str) -> Any:
    """Return a client of Amazon S3 or a server with its protocol. pyarrow itself does not read the endpoint's variables."""
    from pyarrow.fs import S3FileSystem, resolve_s3_region

    options: dict[str, Any] = {"allow_delayed_open": True}  # one request for a small file instead of three
    endpoint = urlsplit(os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or "")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if endpoint.netloc:
        options |= {"scheme": endpoint.scheme, "endpoint_override": endpoint.netloc}
    elif not region:
        with suppress(OSError):  # the client's default may do, else its first request reports the error
            region = resolve_s3_region(bucket)
    if region:
        options["region"] = region
    if os.environ.get("AWS_NO_SIGN_REQUEST", "").lower() in ("1", "yes", "true"):
        options["anonymous"] = True
    return S3FileSystem(**options)


def _gcs(_: str) -> Any:
    from pyarrow.fs import GcsFileSystem

    options: dict[str, Any] = {"retry_time_limit": _GIVE_UP_AFTER}
    emulator = urlsplit(os.environ.get("STORAGE_EMULATOR_HOST", ""))
    if emulator.netloc:
        options |= {"scheme": emulator.scheme, "endpoint_override": emulator.netloc, "anonymous": True}
    return GcsFileSystem(**options)


def _azure(container: str) -> Any:
    """Return a client for ``container@account.dfs.core.windows.net``; keys come from the variables that Azure's own tools read."""
    from pyarrow.fs import AzureFileSystem

    environ = os.environ
    address = RemotePath("abfss:", container)
    account = account_of(address)
    options = {"account_key": environ.get("AZURE_STORAGE_KEY"), "sas_token": environ.get("AZURE_STORAGE_SAS_TOKEN")}
    _refuse_malformed(address, account, **options)
    has_secret = any(options.values())
    endpoint = urlsplit(environ.get("AZURE_STORAGE_BLOB_ENDPOINT", ""))
    if endpoint.netloc:
        places = {"blob_storage_authority": endpoint.netloc, "dfs_storage_authority": endpoint.netloc}
        options |= places | {"blob_storage_scheme": endpoint.scheme, "dfs_storage_scheme": endpoint.scheme}
    files = AzureFileSystem(account, **{name: value for name, value in options.items() if value})
    if not has_secret:
        # A client without credentials ends the process when it reads or writes; on this request it raises.
        files.get_file_info([f"{container.partition('@')[0]}/{_ANY_NAME}"])
    return files


def _refuse_malformed(path: RemotePath, account: str, account_key: str | None, sas_token: str | None) -> None:
    """Raise UsageError for a malformed account or secret, at which the client would end the process."""
    if not _ACCOUNT.fullmatch(account):
        raise UsageError(
            "the storage account has no such name", path=str(path), to_do="it has small letters and digits"
        )
    try:
        is_key = not account_key or bool(base64.b64decode(account_key, validate=True))
    except ValueError:
        is_key = False
    if not is_key:
        raise UsageError("AZURE_STORAGE_KEY is no key", path=str(path), to_do="set it to the account's key, in base64")
    if sas_token and not _SAS_TOKEN.fullmatch(sas_token):
        raise UsageError(
            "AZURE_STORAGE_SAS_TOKEN is no signature", path=str(path), to_do="set it to NAME=VALUE&…&sig=…"
        )


def account_of(path: RemotePath) -> str:
    """Return the storage account of an Azure address. Raises UsageError."""
    account = path.parts[1].partition("@")[2].partition(".")[0] or os.environ.get("AZURE_STORAGE_ACCOUNT", "")
    if not account:
        to_do = "name it as CONTAINER@ACCOUNT.dfs.core.windows.net, or set AZURE_STORAGE_ACCOUNT"
        raise UsageError("the address names no storage account", path=str(path), to_do=to_do)
    return account


_CLIENTS: Final[dict[str, Callable[[str], Any]]] = {"s3": _s3, "gs": _gcs, **dict.fromkeys(AZURE, _azure)}


class RemoteFile:
    """A file of an object store, read by position. Safe for several threads.

    Raises FailedError; the constructor also FileNotFoundError.
    """

    def __init__(self, path: RemotePath) -> None:
        self._path = path
        self._file = bucket_of(path).open(path)
        with told(path):
            self.size_bytes: int = self._file.size()

    def read(self, at: int, size_bytes: int) -> bytes:
        """Return the bytes at a position; fewer at the end of the file."""
        size_bytes = min(size_bytes, self.size_bytes - at)
        if size_bytes <= 0:
            return b""
        with told(self._path):
            try:
                within = _PATIENCE_SECONDS + size_bytes / _SLOWEST_BYTES_PER_SECOND
                return bytes(call_again(pauses_of, self._file.read_at, size_bytes, at, within_seconds=within))
            except FileNotFoundError as error:  # from Google's client; a caller would take it for an empty file
                raise FailedError(WENT_AWAY, path=str(self._path), to_do="run the command again") from error

    def read_into(self, at: int, buffer: memoryview) -> int:
        """Fill a buffer from a position, over several connections if it is long; return the number of bytes read."""
        size = max(min(len(buffer), self.size_bytes - at), 0)

        def fetch(start: int) -> int:
            data = self.read(at + start, min(_RANGE_SIZE_BYTES, size - start))
            buffer[start : start + len(data)] = data
            return len(data)

        starts = range(0, size, _RANGE_SIZE_BYTES)
        return sum(connections().map(fetch, starts) if len(starts) > 1 else map(fetch, starts))

    def close(self) -> None:
        self._file.close()


@cache
def connections() -> ThreadPoolExecutor:
    """Return the threads for requests that need not wait for each other."""
    return ThreadPoolExecutor(_CONNECTIONS, "object-store")


class RemoteCache(FileCache):
    """A file cache that also reads remote files; small reads fetch blocks, the last ones of which are kept."""

    def __init__(self) -> None:
        super().__init__()
        self._files: OrderedDict[RemotePath, RemoteFile] = OrderedDict()
        self._blocks: OrderedDict[tuple[RemotePath, int], bytes] = OrderedDict()

    def apart(self) -> RemoteCache:
        return RemoteCache()

    def read(self, path: Path, at: int, size_bytes: int) -> bytes:
        if not isinstance(path, RemotePath):
            return super().read(path, at, size_bytes)
        try:
            first, last = at // _BLOCK_SIZE_BYTES, (at + size_bytes - 1) // _BLOCK_SIZE_BYTES
            if last > first + 1:
                return self._file(path).read(at, size_bytes)
            data = b"".join(self._block(path, number) for number in range(first, last + 1))
        except FileNotFoundError:
            return b""
        start = at - first * _BLOCK_SIZE_BYTES
        return data[start : start + size_bytes]

    def read_into(self, path: Path, at: int, buffer: memoryview) -> int:
        if not isinstance(path, RemotePath):
            return super().read_into(path, at, buffer)
        try:
            return self._file(path).read_into(at, buffer)
        except FileNotFoundError:
            return 0

    def next_data(self, path: Path, at: int) -> int | None:
        """Return ``at`` for an object, which has no holes; else as for a local file."""
        return at if isinstance(path, RemotePath) else super().next_data(path, at)

    def close(self) -> None:
        super().close()
        self._blocks.clear()
        while self._files:
            self._files.popitem()[1].close()

    def _file(self, path: RemotePath) -> RemoteFile:
        if path not in self._files:
            if len(self._files) >= _MOST_OPEN_FILES:
                self._files.popitem(last=False)[1].close()
            self._files[path] = RemoteFile(path)
        self._files.move_to_end(path)
        return self._files[path]

    def _block(self, path: RemotePath, number: int) -> bytes:
        key = path, number
        if key not in self._blocks:
            if len(self._blocks) >= _MOST_BLOCKS:
                self._blocks.popitem(last=False)
            self._blocks[key] = self._file(path).read(number * _BLOCK_SIZE_BYTES, _BLOCK_SIZE_BYTES)
        self._blocks.move_to_end(key)
        return self._blocks[key]


def fetch(path: RemotePath) -> int:
    """Copy a file into an unnamed local one and return its descriptor. Raises FileNotFoundError, FailedError."""
    source = RemoteFile(path)
    try:
        with tempfile.TemporaryFile() as copy:
            for at in range(0, source.size_bytes, _FETCHED_SIZE_BYTES):
                buffer = memoryview(bytearray(min(_FETCHED_SIZE_BYTES, source.size_bytes - at)))
                copy.write(buffer[: source.read_into(at, buffer)])
            copy.seek(0)
            return os.dup(copy.fileno())
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise FailedError(
            f"no local copy can be made: {reason}", path=str(path), to_do="make room in $TMPDIR"
        ) from error
    finally:
        source.close()


def client_of(path: RemotePath) -> tuple[Any, str]:
    """Return pyarrow's file system and its name of an address, for writers of results. Raises UsageError, FailedError."""
    return bucket_of(path)._files, "/".join(_key(path))
