"""Define the journal's records of original files, new files and folders, and check that there is room for a change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from sys import intern
from typing import Any, Final, TypeVar, get_type_hints

from store_core.errors import FailedError
from store_core.recovery.plans.plan import (
    NEW_FILES,
    RANGES,
    Built,
    Content,
    Op,
    Plan,
    Step,
    expected_range,
    is_in_place,
)
from store_core.recovery.plans.plan_json import plan_blocks
from store_core.storage.journal import Journal
from store_core.storage.writer import Ownership, Writer

_TOO_LARGE: Final = 1 << 63  # no length, time or owner of a file reaches this

Record = TypeVar("Record")
_SLACK_BYTES: Final = 1 << 20  # journal lines, folders
_BLOCK_SIZE_BYTES: Final = 512  # unit of st_blocks
_ALLOCATION_BYTES: Final = 4096  # the least that file systems allocate to a file with data


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


class Room:
    """Sums of the bytes that a change needs and frees, by file system."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._needed: Counter[Path] = Counter()

    def need(self, path: Path, size_bytes: int) -> None:
        """Add bytes needed on the file system of ``path``, which may not exist yet; negative for bytes that become free."""
        self._needed[path] += size_bytes

    def refuse_full(self) -> None:
        """Raise FailedError if a file system has fewer free bytes than needed."""
        needed: Counter[int] = Counter()
        places: dict[int, Path] = {}
        for path, size_bytes in self._needed.items():
            place = _existing(path)
            device = place.stat().st_dev
            places[device] = place
            needed[device] += size_bytes
        for device, size_bytes in needed.items():
            free = self._writer.ops.free_bytes(places[device])
            if free < size_bytes:
                raise FailedError(
                    f"the disk would be full: {size_bytes} bytes are needed and {free} are free; nothing was changed",
                    path=str(places[device]),
                    to_do="make room there and run the command again",
                )


def assert_room(plan: Plan, writer: Writer) -> None:
    """Raise FailedError if a file system lacks the room for kept bytes, new files and grown files."""
    room = Room(writer)
    device = cache(device_of)
    room.need(writer.root, _SLACK_BYTES + 2 * sum(map(len, plan_blocks(plan))))
    for path, steps in plan.by_path.items():
        real, area = writer.path(path), writer.places.area_for(path)
        room.need(area, sum(_staged_bytes(step) for step in steps))
        if is_in_place(steps):
            room.need(area, min(sum(expected_range(step)[1] for step in steps), allocated_bytes(real)))
            room.need(real, _growth_bytes(real, steps))
        elif device(area) != device(real.parent):  # kept and new files are copied between file systems
            room.need(area, min(steps[0].expect_file_size_bytes or 0, allocated_bytes(real)))
            room.need(real, sum(_staged_bytes(step) for step in steps))
    room.refuse_full()


def device_of(path: Path) -> int:
    """Return the device number of the file system of a path, which may not exist yet."""
    return _existing(path).stat().st_dev


def _existing(path: Path) -> Path:
    """Return a path, or its nearest parent that exists."""
    while not path.exists():
        path = path.parent
    return path


def _staged_bytes(step: Step) -> int:
    if isinstance(step.content, Built):
        return _allocated_for(step.content)
    return _literal_bytes(step) if step.op in NEW_FILES else 0


def _allocated_for(built: Built) -> int:
    """Return the bytes that a built file takes up; blocks of zeros stay holes, as in a broker's files."""
    size_bytes = built.size_bytes or 0
    if built.data_bytes is None or built.data_bytes < 0:
        return size_bytes
    return min(size_bytes, -(-built.data_bytes // _ALLOCATION_BYTES) * _ALLOCATION_BYTES)


def _literal_bytes(step: Step) -> int:
    """Count the bytes that a step writes, except runs of zeros."""
    if isinstance(step.content, Content):
        return sum(len(piece) for piece in step.content.pieces if isinstance(piece, bytes))
    return step.size_bytes or 0 if step.op is Op.WRITE_RANGE else 0


def _growth_bytes(real: Path, steps: Sequence[Step]) -> int:
    """Return the most bytes that a change in place can allocate, in holes of the file and after its end."""
    end = max([real.stat().st_size, *(step.end for step in steps if step.op in RANGES)])
    return min(sum(map(_literal_bytes, steps)), max(0, end - allocated_bytes(real)))


def allocated_bytes(real: Path) -> int:
    """Return the bytes that a file takes up: fewer than its length if it is sparse, as its copy is."""
    return real.stat().st_blocks * _BLOCK_SIZE_BYTES if real.exists() else 0
