"""Represent ``s3://bucket/prefix`` as a path whose methods ask the object store.

The client of the object store is loaded only when such a method is called.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path, PosixPath
from typing import TYPE_CHECKING, Final, Protocol

from store_core.errors import UsageError

if TYPE_CHECKING:
    from store_core.storage.object_store import Listed

SCHEMES: Final = ("s3", "gs", "abfs", "abfss")
_SAME: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}  # as Hadoop and others spell them
_FILE: Final = "file"
_URL: Final = re.compile(r"([a-z][a-z0-9+.-]*)(://|(?<=..):/)(.*)", re.DOTALL | re.IGNORECASE)  # C:/ is a folder
_SIGNED: Final = re.compile(r"\?[\w.%-]+=")
_NAMED: Final = re.compile(r"([^/=]*)=(.*)", re.DOTALL)


class RemotePath(PosixPath):
    """A folder or file in an object store. Its parts are ``("s3:", "bucket", "folder", "name")``.

    Passing one to the operating system raises UsageError, for the kernel would look for a local file of that name.
    """

    __slots__ = ()

    @property
    def is_url(self) -> bool:
        """True if the path starts with a scheme; results of ``relative_to`` do not."""
        return bool(self.parts) and self.parts[0].endswith(":")

    def __str__(self) -> str:
        return f"{self.parts[0]}//{'/'.join(self.parts[1:])}" if self.is_url else super().__str__()

    def __repr__(self) -> str:
        return f"RemotePath({str(self)!r})"

    def __fspath__(self) -> str:
        raise on_disk_only(self)

    def is_absolute(self) -> bool:
        return self.is_url

    def absolute(self) -> RemotePath:
        return self

    def resolve(self, strict: bool = False) -> RemotePath:
        return self

    def expanduser(self) -> RemotePath:
        return self

    @property
    def scheme(self) -> str:
        return self.parts[0][:-1]

    def listed(self) -> dict[str, Listed]:
        """Return the folder's entries by name; none if there is no such folder. Raises FailedError."""
        from store_core.storage.object_store import bucket_of

        return bucket_of(self).folder(self)

    def list_below(self) -> None:
        """List all below this folder in one request instead of one for each folder."""
        from store_core.storage.object_store import bucket_of

        bucket_of(self).list_below(self)

    def forget(self) -> None:
        """Drop the listings below this folder, so that the next question lists them again."""
        from store_core.storage.object_store import bucket_of

        bucket_of(self).forget(self)

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return type, size and time of last change. Raises FileNotFoundError, and FailedError if the server does not answer."""
        from store_core.storage.object_store import bucket_of

        return bucket_of(self).stat(self).stat()

    def iterdir(self) -> Generator[RemotePath, None, None]:
        return (self / name for name in self.listed())


class Entry(Protocol):
    """An entry of a folder; ``os.DirEntry`` is one."""

    @property
    def name(self) -> str: ...
    def stat(self) -> os.stat_result: ...
    def is_dir(self) -> bool: ...


def path_of(text: str | Path) -> Path:
    """Parse a path from the command line: a URL of an object store, or a local path, also as ``file:///path``.

    Raises UsageError for other URLs and for malformed ones.
    """
    if isinstance(text, Path):
        return text
    url = _URL.fullmatch(text)
    if url is None:
        return Path(text)
    named, slashes, rest = url[1].lower(), url[2], url[3]
    scheme = _SAME.get(named, named)
    if slashes == ":/" and scheme not in (*SCHEMES, _FILE):
        return Path(text)  # a folder's name may end with a colon
    if scheme == _FILE and (slashes == ":/" or rest.startswith("/")):
        return Path("/" + rest.lstrip("/"))
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise UsageError(
            f"unknown kind of address {url[1]}://", path=text, to_do=f"name a local path, or one of {known}"
        )
    if slashes == ":/":
        raise UsageError(
            "an address has two slashes after its colon",
            path=text,
            to_do=f"name {scheme}://{rest}, or a local folder as ./{text}",
        )
    parts = [part for part in rest.split("/") if part]
    if not parts or any(part in (".", "..") for part in parts):
        raise UsageError("not the address of a folder", path=text, to_do=f"name it like {scheme}://BUCKET/FOLDER")
    if _SIGNED.search(rest) or ((":" in parts[0] or scheme in ("s3", "gs")) and "@" in parts[0]):
        raise UsageError(
            "an address holds no user name, password or signature",
            path=text,
            to_do="leave them out, and set the variables that docs/export.md names",
        )
    return RemotePath(f"{scheme}:", *parts)


def named_path(text: str) -> tuple[str | None, str]:
    """Split ``[NAME=]PATH`` into NAME (None without one) and PATH.

    NAME ends at a ``=`` that comes before any ``/``, unless the whole text is an existing path and PATH is not. Raises
    UsageError if NAME or PATH is empty.
    """
    named = _NAMED.fullmatch(text)
    if named is None:
        return None, text
    name, path = named.groups()
    if os.path.exists(text) and not (
        name and os.path.exists(os.path.expanduser(path))
    ):  # a folder with a = in its name
        return None, text
    if not name or not path:
        missing = "PATH after" if name else "NAME before"
        raise UsageError(f"there is no {missing} the =", path=text, to_do="give NAME=PATH, or PATH alone")
    return name, path


def real_path(path: Path) -> Path:
    """Return a path with its links followed; a remote one as it is."""
    return path if isinstance(path, RemotePath) else Path(os.path.realpath(path))


def absolute_path(path: Path) -> Path:
    """Return an absolute path with its links kept; a remote one as it is."""
    return path if isinstance(path, RemotePath) else Path(os.path.abspath(path))


def is_remote(path: Path) -> bool:
    """Return True if a path lies in an object store."""
    return isinstance(path, RemotePath)


def on_disk_only(path: Path) -> UsageError:
    """Return the error for work that only a store on a disk allows."""
    return UsageError(
        "this cannot be done with a store in an object store",
        path=str(path),
        to_do="copy it to a disk, and name the copy",
    )


def is_there(path: Path) -> bool:
    """Return True if anything has that name, even a dangling link."""
    return path.exists() if isinstance(path, RemotePath) else os.path.lexists(path)


def names_of(folder: Path) -> Sequence[str]:
    """Return the names in a folder, in any order. Raises OSError, and FailedError if an object store does not answer."""
    return list(folder.listed()) if isinstance(folder, RemotePath) else os.listdir(folder)


def scan_folder(folder: Path) -> AbstractContextManager[Iterable[Entry]]:
    """Return the entries of a folder, as ``os.scandir``. Raises OSError, and FailedError if an object store does not answer."""
    if isinstance(folder, RemotePath):
        return nullcontext(folder.listed().values())
    return os.scandir(folder)
