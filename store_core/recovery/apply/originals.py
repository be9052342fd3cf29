"""Define the journal's records of original files, new files and folders, and their JSON."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from sys import intern
from typing import Any, Final, TypeVar, get_type_hints

from store_core.errors import FailedError
from store_core.storage.journal import Journal
from store_core.storage.writer import Ownership

_TOO_LARGE: Final = 1 << 63  # no length, time or owner of a file reaches this

Record = TypeVar("Record")


@dataclass(frozen=True, slots=True)
class KeptRange:
    """Original bytes of a file: ``size_bytes`` from ``offset``, kept at ``kept_offset`` of the kept file.

    They are fewer than the step's range if the file ended in it, or was cut.
    """

    offset: int
    size_bytes: int
    crc32c: int
    kept_offset: int


@dataclass(frozen=True, slots=True)
class Original:
    """A file before the change; ``existed`` is False if there was none.

    ``kept`` names the file with the whole content (``crc32c`` is then its digest), or with the ranges that the change
    overwrites or cuts off.
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
    """A folder in which the change makes, replaces or removes names, before the change.

    ``existed`` is False if there was none; mode and owner are then those that it gets.
    """

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
    """New bytes in the file ``staged``: the whole new file ``path``, or the range that goes to ``offset`` of it."""

    path: str
    staged: str
    offset: int | None
    size_bytes: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class Left:
    """The state of a path after a change.

    It has a file's length and digest, or a folder's time; all are None if neither exists.
    """

    path: str
    size_bytes: int | None = None
    crc32c: int | None = None
    mtime_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Records:
    """The file records of a change's journal, by path."""

    originals: Mapping[str, Original]
    folders: Mapping[str, OriginalFolder]
    new_files: Mapping[str, Staged]
    new_ranges: Mapping[tuple[str, int], Staged]

    @classmethod
    def of(cls, originals: Iterable[Original], folders: Iterable[OriginalFolder], staged: Sequence[Staged]) -> Records:
        """Group records by their paths."""
        return cls(
            originals={original.path: original for original in originals},
            folders={folder.path: folder for folder in folders},
            new_files={new.path: new for new in staged if new.offset is None},
            new_ranges={(new.path, new.offset): new for new in staged if new.offset is not None},
        )


_NAMES: Final = {Original: "original", OriginalFolder: "folder", Staged: "staged", Left: "left"}


def to_entry(record: Original | OriginalFolder | Staged | Left) -> dict[str, Any]:
    """Return the journal line of a record."""
    values = {name: getattr(record, name) for name in record.__slots__}
    if isinstance(record, Original):
        values["ranges"] = [asdict(kept) for kept in record.ranges]
    return {"entry": _NAMES[type(record)], **values}


def left_of(journal: Journal) -> Mapping[str, Left]:
    """Read the states that a finished change left, by path. Raises FailedError for lines that rmqctl does not write."""
    try:
        old = journal.last("done")  # rmqctl 0.1 wrote all states into one line
        files = {path: Left(path, *(found or ())) for path, found in old.get("files", {}).items()}
        folders = {path: Left(path, mtime_ns=mtime_ns) for path, mtime_ns in old.get("folders", {}).items()}
        lines = (_record(Left, entry) for entry in journal.lines("left"))
        return files | folders | {line.path: line for line in lines}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _not_ours(journal, error) from error


def records_of(journal: Journal) -> Records:
    """Read the records from the journal's lines. Raises OSError, and FailedError for lines that rmqctl does not write."""
    found: dict[str, list[Any]] = {name: [] for name in ("original", "folder", "staged")}
    try:
        for entry in journal.lines(*found):
            name = entry["entry"]
            found[name].append(_original(entry) if name == "original" else _record(_KINDS[name], entry))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _not_ours(journal, error) from error
    return Records.of(found["original"], found["folder"], found["staged"])


def _not_ours(journal: Journal, error: Exception) -> FailedError:
    return FailedError(
        f"the undo journal has a line that rmqctl does not write: {error}",
        path=journal.file,
        to_do=f"look at it; `rmqctl undo --forget {journal.id}` gives the change up",
    )


def _original(entry: Mapping[str, Any]) -> Original:
    ranges = tuple(_record(KeptRange, kept) for kept in entry["ranges"])
    return _record(Original, {**entry, "ranges": ranges})


_KINDS: Final = {"folder": OriginalFolder, "staged": Staged}


def _record(kind: type[Record], entry: Mapping[str, Any]) -> Record:
    """Make a record of a journal's line. Raises KeyError, TypeError, ValueError for values that no record has."""
    values = {key: value for key, value in entry.items() if key != "entry"}
    for name, hint in _hints(kind).items():  # type: ignore[arg-type]  # a class is hashable
        value = values[name]
        if not isinstance(value, hint) or (isinstance(value, int) and not -_TOO_LARGE <= value < _TOO_LARGE):
            raise ValueError(f"{name} is {value!r:.40}")
    if "path" in values:
        values["path"] = intern(values["path"])  # the plan and several lines name the same path
    return kind(**values)


@cache
def _hints(kind: Hashable) -> Mapping[str, Any]:
    return {name: tuple if name == "ranges" else hint for name, hint in get_type_hints(kind).items()}
