"""Give PyIceberg access to files.

* In object stores it uses the clients with which stores are read, so the same environment variables: its own clients
  know only the catalog's properties, and those for Azure need another package.
* In folders it uses its own access, but each file is synced before a catalog, which is synced, names it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyiceberg.io import InputFile, OutputFile
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from store_core.storage.objects import sync_written
from store_core.storage.remote_path import RemotePath, path_of


class ObjectFileIO(PyArrowFileIO):
    """PyIceberg's file access: this package's clients for object stores, PyIceberg's own for other addresses."""

    def new_input(self, location: str) -> PyArrowFile:
        file = self._file(location)
        return super().new_input(location) if file is None else file

    def new_output(self, location: str) -> PyArrowFile:
        file = self._file(location)
        return super().new_output(location) if file is None else file

    def delete(self, location: str | InputFile | OutputFile) -> None:
        path = path_of(location if isinstance(location, str) else location.location)
        if isinstance(path, RemotePath):
            files, key = _client_of(path)
            files.delete_file(key)
        else:
            super().delete(location)

    def _file(self, location: str) -> PyArrowFile | None:
        path = path_of(location)
        if not isinstance(path, RemotePath):
            return None
        files, key = _client_of(path)
        return PyArrowFile(location=location, path=key, fs=files)


def _client_of(path: RemotePath) -> tuple[Any, str]:
    """Load the clients of object stores only for an address in one: a process that has them makes no copies of itself."""
    from store_core.storage.object_store import client_of

    return client_of(path)


class SyncedFileIO(PyArrowFileIO):
    """PyIceberg's own access to local files, with each file synced when it is closed."""

    def new_output(self, location: str) -> PyArrowFile:
        made = super().new_output(location)
        return _SyncedFile(location, made._path, made._filesystem, made._buffer_size)


class _SyncedFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> Any:
        return _SyncedStream(super().create(overwrite), Path(self._path))


class _SyncedStream:
    """An output stream that syncs its file."""

    def __init__(self, stream: Any, path: Path) -> None:
        self._stream, self._path = stream, path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if not self._stream.closed:
            self._stream.close()
            sync_written(self._path)
