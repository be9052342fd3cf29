"""Where tasks write: a small thing that goes to them, between processes and machines, and makes their files."""

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
    """A file being written, front to end, as Python's binary files; it knows its length and CRC-32C.

    ``close`` makes it durable and raises FailedError where that fails. After ``drop`` nothing is written, ``discard``
    removes it.
    """

    size_bytes: int
    crc32c: int

    def write(self, data: object, /) -> int: ...
    def close(self) -> None: ...
    def drop(self) -> None: ...
    def discard(self) -> None: ...


class Place(Protocol):
    """Makes new files for parts; can be pickled. No two files ever meet, whoever else is at work on the same part."""

    def create(self, path: str) -> tuple[NewFile, str, str]:
        """A new file for a part that is to stand at ``path`` below the destination: (file, name until it is published,
        path in the end), the last two the same where parts are written where they stay. Raises FailedError."""
        ...

    def remove(self, staged: str) -> None:
        """Take away a file that ``create`` made, if that can be done."""
        ...


@dataclass(frozen=True, slots=True)
class StagingFolder:
    """A local folder from which parts are moved to where they belong when all are there."""

    folder: Path

    def create(self, path: str) -> tuple[NewFile, str, str]:
        """As ``Place.create``. Raises UsageError for a name that no file system takes, before there is any work to lose."""
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
        """As ``Place.remove``."""
        remove_part(self.folder / staged)


@dataclass(frozen=True, slots=True)
class FinalPlace:
    """Where parts stay where they are written, each under a name that nothing else ever has.

    ``flat``: for tables whose readers know by the table what is in a partition, and need no folders; nor has a partition one
    whose name is too long for a folder's.
    """

    objects: Objects
    flat: bool = False

    def create(self, path: str) -> tuple[NewFile, str, str]:
        """As ``Place.create``. Raises UsageError for a name that no local file system takes, before there is any work to lose."""
        table, _, rest = path.partition("/")
        folder, _, name = rest.removesuffix(".parquet").rpartition("/")
        if folder and not self.flat and len(os.fsencode(folder)) <= _LONGEST_NAME_BYTES:
            name = f"{folder}/{name}"
        final = f"{table}/{name}-{uuid.uuid4().hex[:12]}.parquet"  # as ``_OWN_NAME`` has it
        if isinstance(self.objects, LocalObjects) and len(os.fsencode(final.rpartition("/")[2])) > _LONGEST_NAME_BYTES:
            raise _name_too_long(final)
        return self.objects.create(final), final, final

    def remove(self, staged: str) -> None:
        """As ``Place.remove``."""
        with suppress(FailedError):
            self.objects.remove(staged)


def _name_too_long(path: str) -> UsageError:
    return UsageError(
        "the store's name is too long for a file's",
        path=path.rpartition("/")[2],
        to_do="give it a shorter one, -s NAME=PATH",
    )


def is_made_here(name: str) -> bool:
    """Whether a file has such a name as ``FinalPlace`` gives."""
    return _OWN_NAME.search(name) is not None
