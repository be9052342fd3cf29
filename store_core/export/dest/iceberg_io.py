"""How PyIceberg reaches files in an object store: by the clients that stores are read with, so by the same variables.

Its own clients know only what a catalog's properties tell, and those for Azure want a package of their own.
"""

from __future__ import annotations

from pyiceberg.io import InputFile, OutputFile
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from store_core.storage.object_store import client_of
from store_core.storage.remote_path import RemotePath, path_of


class ObjectFileIO(PyArrowFileIO):
    """PyIceberg's file access for addresses of object stores; for all else PyIceberg's own."""

    def new_input(self, location: str) -> PyArrowFile:
        file = self._file(location)
        return super().new_input(location) if file is None else file

    def new_output(self, location: str) -> PyArrowFile:
        file = self._file(location)
        return super().new_output(location) if file is None else file

    def delete(self, location: str | InputFile | OutputFile) -> None:
        path = path_of(location if isinstance(location, str) else location.location)
        if isinstance(path, RemotePath):
            files, key = client_of(path)
            files.delete_file(key)
        else:
            super().delete(location)

    def _file(self, location: str) -> PyArrowFile | None:
        path = path_of(location)
        if not isinstance(path, RemotePath):
            return None
        files, key = client_of(path)
        return PyArrowFile(location=location, path=key, fs=files)
