"""Make files for tasks: a place is a small object that goes to them, between processes and machines."""

from __future__ import annotations

import os
import re
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from store_core.errors import FailedError, UsageError
from store_core.storage.objects import LocalObjects, Objects
from store_core.storage.part_file import PartFile
from store_core.storage.publish import remove_part

_LONGEST_NAME_BYTES: Final = 255
_OWN_NAME: Final = re.compile(r"-[0-9a-f]{12}\.parquet$")


class NewFile(Protocol):
    """A file that is written front to end, as Python's binary files; it knows its length and CRC-32C.

    ``close`` makes it durable and raises FailedError where that fails. After ``drop`` nothing is written; ``discard``
    removes it.
    """

    size_bytes: int
    crc32c: int

    def write(self, data: object, /) -> int: ...
    def close(self) -> None: ...
    def drop(self) -> None: ...
    def discard(self) -> None: ...


class Place(Protocol):
    """Makes new files for parts; can be pickled. No two files have the same name, even if two tasks write the same
    part.
    """

    def create(self, path: str) -> tuple[NewFile, str, str]:
        """Create a file for a part with final path ``path`` below the destination. Raises FailedError.

        Returns:
            The file, its name until it is published, and its final path. The last two are equal where parts are not
                moved.
        """
        ...

    def remove(self, staged: str) -> None:
        """Remove a file that ``create`` made, if possible."""
        ...


@dataclass(frozen=True, slots=True)
class StagingFolder:
    """A local folder from which parts are moved to their final places when all are written."""

    folder: Path

    def create(self, path: str) -> tuple[NewFile, str, str]:
        """Create a file as ``Place.create`` does. Raises UsageError for a name that is too long for file systems,
        before any work.
        """
        if max(len(os.fsencode(name)) for name in path.split("/")) > _LONGEST_NAME_BYTES:
            _, is_partition, rest = path.partition("=")
            if not is_partition:
                raise _name_too_long(path)
            raise UsageError(
                "a topic's name is too long for a folder's, in which some characters take three",
                path=rest.partition("/")[0],
                to_do="leave --partition-by topic out",
            )
        staged = f"{uuid.uuid4().hex}.parquet"
        return PartFile(self.folder / staged), staged, path

    def remove(self, staged: str) -> None:
        remove_part(self.folder / staged)


@dataclass(frozen=True, slots=True)
class FinalPlace:
    """A place where parts are written under their final names, each of them unique.

    ``flat``: for tables whose readers find a partition's values in the table and need no folders. A partition whose
    name is too long for a folder's has none either.
    """

    objects: Objects
    flat: bool = False

    def create(self, path: str) -> tuple[NewFile, str, str]:
        """Create a file as ``Place.create`` does. Raises UsageError for a name that is too long for a local file
        system, before any work.
        """
        table, _, rest = path.partition("/")
        folder, _, name = rest.removesuffix(".parquet").rpartition("/")
        if folder and not self.flat and len(os.fsencode(folder)) <= _LONGEST_NAME_BYTES:
            name = f"{folder}/{name}"
        final = f"{table}/{name}-{uuid.uuid4().hex[:12]}.parquet"  # matches ``_OWN_NAME``
        if isinstance(self.objects, LocalObjects) and len(os.fsencode(final.rpartition("/")[2])) > _LONGEST_NAME_BYTES:
            raise _name_too_long(final)
        return self.objects.create(final), final, final

    def remove(self, staged: str) -> None:
        with suppress(FailedError):
            self.objects.remove(staged)


def _name_too_long(path: str) -> UsageError:
    return UsageError(
        "the store's name is too long for a file's",
        path=path.rpartition("/")[2],
        to_do="give it a shorter one, -s NAME=PATH",
    )


def is_made_here(name: str) -> bool:
    """Return True if a file has a name as ``FinalPlace`` makes them."""
    return _OWN_NAME.search(name) is not None
