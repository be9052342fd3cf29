"""Write and read the undo journal: an append-only file of checksummed lines, next to the bytes that a change keeps.

Each change has a folder ``.rmqctl/undo/NNNN-KIND-PLAN/`` with ``journal``, ``plan.json``, ``kept/`` and ``staged/``. A line is the
CRC-32C of its JSON as eight hex digits, a blank, the JSON, a newline. The JSON's key ``entry`` names the kind of the line.
Empty lines mean nothing.

A torn tail is not damage: a killed process may leave its last append incomplete. The step that this line announces had not
started, for each step waits until its line is synced. A bad line *before* a mark (``MARKS``) is damage: a mark is written
only after all lines before it are synced.
"""

from __future__ import annotations

import io
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from store_core.errors import FailedError
from store_core.layout.paths import OURS
from store_core.storage.digest import crc32c
from store_core.storage.failure import failed
from store_core.storage.files import open_read_only
from store_core.storage.writer import Writer

UNDO_FOLDER: Final = f"{OURS}/undo"
JOURNAL_FILE: Final = "journal"
OUR_FOLDER_MODE: Final = 0o700
OUR_FILE_MODE: Final = 0o600
LARGEST_JOURNAL_BYTES: Final = 128 << 20  # enough for 100,000 files; rmqctl writes no larger one
_MARKS_BYTES: Final = 64 << 10  # the marks of a journal of the largest size may still be added to it
_HEAD_BYTES: Final = 64 << 10
_LONGEST_MARK_BYTES: Final = 16 << 20  # marks of rmqctl 0.1 hold the digests of all files
_BLOCK_BYTES: Final = 1 << 20
_SEQUENCE_DIGITS: Final = 4
_MARKED: Final = re.compile(rb'[0-9a-f]{8} \{"entry":"([a-z]+)"')  # keys are sorted, and in marks this is the first
_encode: Final = json.JSONEncoder(separators=(",", ":"), sort_keys=True).encode

Entry = Mapping[str, Any]


class State(StrEnum):
    """The progress of a change; each but ``preparing`` is also the name of the line that records it."""

    PREPARING = "preparing"  # nothing changed yet, kept bytes may be incomplete: roll back by forgetting
    PREPARED = "prepared"  # all kept and new bytes are durable; the change may have started: finish it
    DONE = "done"  # the change is durable
    UNDOING = "undoing"  # the undo has started: finish it
    UNDONE = "undone"  # the old bytes are back; the kept bytes can be removed
    FORGOTTEN = "forgotten"  # the change stays; the kept bytes can be removed

    @property
    def finished(self) -> bool:
        return self is State.DONE

    @property
    def midway(self) -> bool:
        """True if the store may be half changed."""
        return self in (State.PREPARED, State.UNDOING)


MARKS: Final = frozenset(State) - {State.PREPARING}
_BEGIN: Final = "begin"
_KEPT: Final = MARKS | {_BEGIN}


@dataclass(frozen=True, slots=True)
class JournalHead:
    """The state of a change and the first line of its journal, for callers that only report it."""

    id: str
    begin: Mapping[str, Any]
    state: State

    def text(self, key: str) -> str | None:
        """Return a text of the first line, None if it has none."""
        value = self.begin.get(key)
        return value if isinstance(value, str) else None

    def number(self, key: str) -> int | None:
        """Return a number of the first line that fits into 63 bits, None if it has none."""
        value = self.begin.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63 else None


@dataclass(slots=True)
class Journal:
    """The journal of one change, as read and as it grows. ``id`` is the folder's name.

    ``entries`` are its first line and the marks. The lines about files stay on disk, for there may be a million.
    """

    id: str
    entries: list[dict[str, Any]]
    size_bytes: int  # of the good lines; bytes after them are a torn tail
    path: Path

    @property
    def folder(self) -> str:
        """The change's folder, relative to the store root."""
        return f"{UNDO_FOLDER}/{self.id}"

    @property
    def file(self) -> str:
        return f"{self.folder}/{JOURNAL_FILE}"

    @property
    def state(self) -> State:
        return next((State(e["entry"]) for e in reversed(self.entries) if e["entry"] in MARKS), State.PREPARING)

    def lines(self, *names: str) -> Iterator[dict[str, Any]]:
        """Read the lines of some kinds from the file, oldest first. Raises OSError, FailedError for a damaged line."""
        unread_bytes = self.size_bytes
        with _opened(self.path) as file:
            while unread_bytes > 0 and (line := file.readline(unread_bytes)):
                unread_bytes -= len(line)
                if line == b"\n":
                    continue
                entry = _parse(line)
                if entry is None:
                    raise _damaged(self.path)
                if entry["entry"] in names:
                    yield entry

    def last(self, entry: str) -> dict[str, Any]:
        """Return the newest line of one kind; an empty mapping if there is none."""
        return next((e for e in reversed(self.entries) if e["entry"] == entry), {})

    def append(self, writer: Writer, entries: Iterable[Entry]) -> None:
        """Add lines and make them durable. Raises OSError, FailedError if they are too many; then none of them counts."""
        self._append(writer, _blocks(map(_line, entries)), LARGEST_JOURNAL_BYTES)

    def mark(self, writer: Writer, state: State, **more: Any) -> None:
        """Record durably how far the change has come, in two lines, so that no single flipped bit loses the mark."""
        entry = {"entry": str(state), **more}
        self._append(writer, [b"\n%b\n%b" % (_line(entry), _line(entry))])
        self.entries.append(entry)

    def _append(self, writer: Writer, blocks: Iterable[bytes], largest_bytes: int | None = None) -> None:
        if writer.path(self.file).stat().st_size > self.size_bytes:
            writer.set_length(self.file, self.size_bytes)
        end = self.size_bytes
        try:
            for block in blocks:
                if largest_bytes is not None and end + len(block) > largest_bytes:
                    raise FailedError(
                        f"the change needs a journal of more than {largest_bytes} bytes",
                        path=str(writer.root / self.file),
                        to_do="make the change in parts, for instance `rebuild queues` before `recover`",
                    )
                writer.write_range(self.file, end, block)
                end += len(block)
            writer.sync_file(self.file)
        except (OSError, FailedError):
            with suppress(OSError):  # half of the block could be read as a mark
                writer.set_length(self.file, self.size_bytes)
            raise
        self.size_bytes = end


def start_journal(writer: Writer, kind: str, plan_id: str, **begin: Any) -> Journal:
    """Make the folder and the journal of a new change; its first line, ``begin``, holds the given keywords. Raises OSError.

    The line also holds the root's modification time, which is restored if ``.rmqctl`` had to be made.
    """
    root_mtime_ns = writer.root.stat().st_mtime_ns
    make_our_folders(writer, UNDO_FOLDER)
    number = 1 + max((_sequence(id) for id in list_ids(writer.root)), default=0)
    id = f"{number:0{_SEQUENCE_DIGITS}d}-{kind}-{plan_id[:8]}"
    journal = Journal(id, [], 0, writer.path(f"{UNDO_FOLDER}/{id}/{JOURNAL_FILE}"))
    writer.mkdir(journal.folder, mode=OUR_FOLDER_MODE)
    writer.create(journal.file, mode=OUR_FILE_MODE)
    first = {"entry": _BEGIN, "kind": kind, "plan_id": plan_id, "made_at_ms": time.time_ns() // 1_000_000}
    first |= {"root_mtime_ns": root_mtime_ns, **begin}
    journal.append(writer, [first])
    journal.entries.append(first)
    writer.sync_folder(journal.folder)
    writer.sync_folder(UNDO_FOLDER)
    writer.sync_folder(OURS)
    writer.sync_folder("")
    return journal


def make_our_folders(writer: Writer, folder: str) -> None:
    """Make a folder inside a ``.rmqctl`` and its missing parents; the folder that holds ``.rmqctl`` keeps its time."""
    path = Path(folder)
    for part in [*reversed(path.parents), path]:
        name = part.as_posix()
        if OURS in part.parts and not writer.path(name).exists():
            parent = (
                str(part.parent) if part.is_absolute() else ("" if part.parent == Path() else part.parent.as_posix())
            )
            with writer.keeping_folder_mtime(parent):
                writer.mkdir(name, mode=OUR_FOLDER_MODE)


def remove_our_folder(writer: Writer, folder: str) -> None:
    """Remove a folder inside a ``.rmqctl`` with its content, the journal last, and ``.rmqctl`` itself once it is empty."""
    real = writer.path(folder)
    if real.is_symlink():
        raise foreign_link(real)
    journal = real / JOURNAL_FILE
    for path in sorted(real.rglob("*"), key=lambda path: (path == journal, -len(path.parts))):
        if path.is_dir() and not path.is_symlink():
            writer.rmdir(str(path))
        else:
            writer.unlink(str(path))
    if real.exists():
        writer.rmdir(folder)
    remove_empty_folders(writer, str(Path(folder).parent))


def remove_empty_folders(writer: Writer, folder: str) -> None:
    """Remove a folder inside a ``.rmqctl`` and its parents up to ``.rmqctl`` where they are empty.

    The folder that holds ``.rmqctl`` keeps its time.
    """
    parts = Path(folder).parts
    for depth in range(len(parts), parts.index(OURS) + 1, -1):
        _remove_if_empty(writer, Path(*parts[:depth]))
    ours = Path(*parts[: parts.index(OURS) + 1])
    holder = "" if ours.parent == Path() else str(ours.parent)
    with writer.keeping_folder_mtime(holder):
        _remove_if_empty(writer, ours)
    writer.sync_folder(holder)


def is_empty(folder: Path) -> bool:
    """Return True if a folder holds nothing. Raises OSError."""
    with os.scandir(folder) as entries:
        return next(entries, None) is None


def _remove_if_empty(writer: Writer, folder: Path) -> None:
    with suppress(OSError):
        if is_empty(writer.path(str(folder))):
            writer.rmdir(str(folder))


def list_ids(root: Path) -> list[str]:
    """List the changes that have a folder, oldest first.

    Raises FailedError if the folder cannot be read, or for a link where rmqctl makes folders only.
    """
    names = []
    try:
        for folder in (root / OURS, root / UNDO_FOLDER):
            if folder.is_symlink():
                raise foreign_link(folder)
        with os.scandir(root / UNDO_FOLDER) as entries:
            for entry in entries:
                if entry.is_symlink():
                    raise foreign_link(root / UNDO_FOLDER / entry.name)
                if entry.is_dir(follow_symlinks=False):
                    names.append(entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise failed(error, "cannot read the undo journal") from error
    return sorted(names, key=lambda name: (_sequence(name), name))


def foreign_link(path: Path) -> FailedError:
    """Return the error for a link among rmqctl's own files, where rmqctl never makes one."""
    return FailedError("a link stands among rmqctl's own files", path=str(path), to_do="move it out of the store")


def read_ours(path: Path, largest_bytes: int, what: str) -> bytes:
    """Read a whole file of rmqctl's own. Raises OSError, FailedError for a link or a file larger than rmqctl writes."""
    with _opened(path) as file:
        if os.fstat(file.fileno()).st_size > largest_bytes:
            raise _too_large(path, largest_bytes, what)
        return file.read(largest_bytes)


def _opened(path: Path) -> io.BufferedReader:
    if path.is_symlink():
        raise foreign_link(path)
    return open(open_read_only(path, follow=False), "rb")


def _too_large(path: Path, largest_bytes: int, what: str) -> FailedError:
    to_do = "rmqctl did not write it: move its folder out of the store"
    return FailedError(f"{what} has more than {largest_bytes} bytes", path=str(path), to_do=to_do)


def read_journal(root: Path, id: str) -> Journal:
    """Read a change's journal; empty if the process was killed before its first line was whole.

    Raises FailedError if a line is damaged that had been durable, and for a journal larger than rmqctl writes.
    """
    path = root / UNDO_FOLDER / id / JOURNAL_FILE
    try:
        with _opened(path) as file:
            if os.fstat(file.fileno()).st_size > LARGEST_JOURNAL_BYTES + _MARKS_BYTES:
                raise _too_large(path, LARGEST_JOURNAL_BYTES + _MARKS_BYTES, "the undo journal")
            return _journal_of(path, id, file)
    except FileNotFoundError:
        return Journal(id, [], 0, path)
    except OSError as error:
        raise failed(error, "cannot read the undo journal") from error


def _journal_of(path: Path, id: str, lines: Iterable[bytes]) -> Journal:
    journal, rest = Journal(id, [], 0, path), iter(lines)
    for line in rest:
        if line != b"\n":
            entry = _parse(line) if _name(line) in _KEPT else None
            if entry is not None:
                journal.entries.append(entry)
            elif not _is_whole(line):
                _assert_torn(path, rest)
                break
        journal.size_bytes += len(line)
    return journal


def read_head(root: Path, id: str) -> JournalHead:
    """Read how far a change has come, from the first and last lines of its journal, whatever its length.

    Raises FailedError as ``read_journal``, except for damage between those lines.
    """
    path = root / UNDO_FOLDER / id / JOURNAL_FILE
    try:
        with _opened(path) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            if size_bytes > LARGEST_JOURNAL_BYTES + _MARKS_BYTES:
                raise _too_large(path, LARGEST_JOURNAL_BYTES, "the undo journal")
            if size_bytes <= 2 * _HEAD_BYTES:
                journal = _journal_of(path, id, io.BytesIO(file.read(2 * _HEAD_BYTES)))
                return JournalHead(id, journal.last(_BEGIN), journal.state)
            begin = _parse(file.readline(_HEAD_BYTES)) or {}
            file.seek(size_bytes - _HEAD_BYTES)
            file.readline(_HEAD_BYTES)  # the rest of a line
            state = _last_mark(file)
            if state is None:  # the last line is long, or much of the tail is torn
                file.seek(0)
                state = _last_mark(file)
    except FileNotFoundError:
        return JournalHead(id, {}, State.PREPARING)
    except OSError as error:
        raise failed(error, "cannot read the undo journal") from error
    return JournalHead(id, begin if begin.get("entry") == _BEGIN else {}, state or State.PREPARING)


def _last_mark(file: io.BufferedReader) -> State | None:
    """Return the last mark among the whole lines after the file's position. No line is parsed, and none longer than a mark held."""
    found = None
    for line in iter(lambda: file.readline(_LONGEST_MARK_BYTES), b""):
        if (name := _name(line)) in MARKS and _is_whole(line):
            found = State(name)
    return found


def heads(root: Path | str) -> Iterator[JournalHead]:
    """Read the heads of all changes of a store, oldest first. Raises FailedError."""
    return (read_head(Path(root), id) for id in list_ids(Path(root)))


def unfinished(root: Path | str) -> JournalHead | None:
    """Return the change of a store that is under way or was interrupted, None if there is none.

    Raises FailedError if its journal is damaged or cannot be read.
    """
    return next((head for head in heads(root) if not head.state.finished), None)


def _assert_torn(path: Path, rest: Iterable[bytes]) -> None:
    if any(_name(line) in MARKS and _is_whole(line) for line in rest):
        raise _damaged(path)


def _damaged(path: Path) -> FailedError:
    to_do = "copy .rmqctl aside: its kept/ holds the bytes as they were; then remove that folder to go on"
    return FailedError("the undo journal is damaged", path=str(path), to_do=to_do)


def _line(entry: Entry) -> bytes:
    text = _encode(entry).encode()
    return b"%08x %s\n" % (crc32c(text), text)


def _blocks(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines joined to blocks, each to be written at once."""
    block = bytearray()
    for line in lines:
        block += line
        if len(block) >= _BLOCK_BYTES:
            yield bytes(block)
            block.clear()
    if block:
        yield bytes(block)


def _name(line: bytes) -> str:
    """Return the name of a line if it is the first or a mark, else "". No line is parsed."""
    named = _MARKED.match(line)
    return named[1].decode() if named is not None else ""


def _parse(line: bytes) -> dict[str, Any] | None:
    """Return the entry of a line, None if it is torn or damaged."""
    if not _is_whole(line):
        return None
    try:
        entry = json.loads(line[9:])
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) and isinstance(entry.get("entry"), str) else None


def _is_whole(line: bytes) -> bool:
    return line.endswith(b"\n") and line[:9] == b"%08x " % crc32c(memoryview(line)[9:-1])


def _sequence(id: str) -> int:
    digits = id.partition("-")[0]
    return int(digits) if digits.isdecimal() else 0
