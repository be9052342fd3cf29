"""What a change's journal says about files: as they were, the new ones that wait, and folders. Data, and its JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from store_core.storage.journal import Journal
from store_core.storage.writer import Ownership


@dataclass(frozen=True, slots=True)
class KeptRange:
    """Bytes of a file as they were: ``size_bytes`` from ``offset``, kept at ``kept_offset`` of the kept file.

    Fewer than the step's range where the file ended in it, or was cut.
    """

    offset: int
    size_bytes: int
    crc32c: int
    kept_offset: int


@dataclass(frozen=True, slots=True)
class Original:
    """A file as it was before the change, or that there was none.

    ``kept`` holds the whole file (``crc32c`` is then its digest), or the ranges that the change overwrites or cuts off.
    """

    path: str
    existed: bool
    size_bytes: int = 0
    mtime_ns: int = 0
    mode: int = 0
    uid: int = 0
    gid: int = 0
    crc32c: int | None = None
    kept: str | None = None
    ranges: tuple[KeptRange, ...] = ()

    @property
    def ownership(self) -> Ownership:
        return Ownership(self.mode, self.uid, self.gid)

    @property
    def kept_size_bytes(self) -> int:
        return self.size_bytes if self.crc32c is not None else sum(r.size_bytes for r in self.ranges)


@dataclass(frozen=True, slots=True)
class OriginalFolder:
    """A folder in which the change makes, replaces or removes names, as it was, or that there was none."""

    path: str
    existed: bool
    mtime_ns: int
    mode: int
    uid: int
    gid: int

    @property
    def ownership(self) -> Ownership:
        return Ownership(self.mode, self.uid, self.gid)


@dataclass(frozen=True, slots=True)
class Staged:
    """New bytes that wait in a file of their own: a whole file for ``path``, or what goes there at ``offset``."""

    path: str
    staged: str
    offset: int | None
    size_bytes: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class Records:
    """All that a change's journal holds about files, by path."""

    originals: Mapping[str, Original]
    folders: Mapping[str, OriginalFolder]
    new_files: Mapping[str, Staged]
    new_ranges: Mapping[tuple[str, int], Staged]


def to_entry(record: Original | OriginalFolder | Staged) -> dict[str, Any]:
    """The journal line of a record."""
    name = {Original: "original", OriginalFolder: "folder", Staged: "staged"}[type(record)]
    return {"entry": name, **asdict(record)}


def records_of(journal: Journal) -> Records:
    """Read the records back from the journal's lines."""
    originals = [_original(entry) for entry in journal.all("original")]
    folders = [OriginalFolder(**_fields(entry)) for entry in journal.all("folder")]
    staged = [Staged(**_fields(entry)) for entry in journal.all("staged")]
    return Records(
        originals={original.path: original for original in originals},
        folders={folder.path: folder for folder in folders},
        new_files={new.path: new for new in staged if new.offset is None},
        new_ranges={(new.path, new.offset): new for new in staged if new.offset is not None},
    )


def _original(entry: Mapping[str, Any]) -> Original:
    found = Original(**_fields(entry))
    return replace(found, ranges=tuple(KeptRange(**kept) for kept in entry["ranges"]))


def _fields(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key != "entry"}
