"""Import many messages. Killed and run again, every row is there exactly once.

A batch is durable before the position of the source after it is saved with the store. So a kill leaves at most the records of one batch after the saved
position; they are recognised by their unique keys, which every imported message has.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final

from store_core.codec.properties import UNIQ_KEY
from store_core.engine.import_rows import RowError, lines_of, message_of
from store_core.engine.live_store import LiveStore
from store_core.engine.message import NewMessage, PutResult, PutStatus
from store_core.engine.put import accepted
from store_core.engine.record import NewRecord
from store_core.errors import FailedError, UsageError
from store_core.kernel.encode import Encoded
from store_core.layout.paths import OURS
from store_core.scan.log import scan_log
from store_core.storage.failure import failed
from store_core.storage.journal import OUR_FILE_MODE, make_our_folders
from store_core.storage.remote_path import real_path
from store_core.storage.syscalls import FileOps

FOLDER: Final = f"{OURS}/imports"
BATCH_ROWS: Final = 1000
BATCH_BYTES: Final = 4 << 20
_HEAD_BYTES: Final = 64 << 10
_REJECTS_MODE: Final = 0o600
_KEY_DIGITS: Final = 32


@dataclass(frozen=True, slots=True)
class Position:
    """The position up to which a source is imported. The source is recognised by its first bytes: it may have grown since.

    * ``rows`` are those read, ``rows_sha256`` their digest, ``next_phy_offset`` is the end of the log after them.
    * ``rejects`` is the file of rejects, ``rejects_bytes`` its length.
    """

    id: str
    topic: str | None
    head_bytes: int
    head_sha256: str
    rows: int = 0
    next_phy_offset: int | None = None
    rejects_bytes: int = 0
    rejects: str = ""
    rows_sha256: str = ""

    def is_of(self, head: bytes, topic: str | None) -> bool:
        """Return True if a source with these first bytes is the one."""
        begin = head[: self.head_bytes]
        return self.topic == topic and len(begin) == self.head_bytes and _digest(begin) == self.head_sha256


@dataclass(slots=True)
class Imported:
    """The result: rows of this run. ``continued_rows`` were read by earlier runs; ``found`` rows of a killed one were stored already."""

    continued_rows: int = 0
    rows: int = 0
    stored: int = 0
    found: int = 0
    rejected: int = 0
    first_phy_offset: int | None = None
    next_phy_offset: int = 0
    topics: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class _Row:
    number: int
    line: bytes
    message: NewMessage | None
    reason: str = ""


class Rejects:
    """A file of rows that were not stored: objects with the row's number, the reason and its text, one a line."""

    def __init__(self, path: Path, position: Position) -> None:
        """Open the file for the rows after a position. What a killed import wrote after it goes; other files are refused."""
        self._ops = FileOps()
        self._path = path
        self.size_bytes = 0
        try:
            self._ops.create(path, _REJECTS_MODE)
        except FileExistsError:
            info = path.lstat()
            if not stat.S_ISREG(info.st_mode) or (info.st_size and str(path) != position.rejects):
                to_do = "name another file for the rejects, or remove this one"
                raise UsageError("there is something already", path=str(path), to_do=to_do) from None
            self.size_bytes = min(position.rejects_bytes, info.st_size)
            self._ops.truncate(path, self.size_bytes)

    def add(self, rows: Sequence[tuple[_Row, str]]) -> None:
        """Add rows with their reasons and make them durable. Raises OSError."""
        documents = ({"row": r.number, "reason": why, "source": _shown(r.line)} for r, why in rows)
        data = b"".join(json.dumps(document).encode() + b"\n" for document in documents)
        if data:
            self._ops.write(self._path, self.size_bytes, data)
            self._ops.sync_file(self._path)
            self.size_bytes += len(data)

    def close(self) -> None:
        self._ops.close()


def import_rows(
    live: LiveStore,
    stream: IO[bytes],
    *,
    topic: str | None = None,
    create_topic: bool = False,
    rejects: Path | None = None,
    again: bool = False,
    on_progress: Callable[[int], None] = lambda done_bytes: None,
) -> Imported:
    """Store the rows of a stream as new messages, those of an interrupted import from where it ended.

    Args:
        topic: for all rows, instead of their own.
        create_topic: topics that are not configured are created.
        rejects: file for the rows that are not stored.
        again: import a source that was imported already once more.
        on_progress: gets the bytes of the source that are done.

    Raises:
        FailedError: the system refuses; the rows before the saved position are stored.
    """
    head = stream.read(_HEAD_BYTES)
    if not head:
        return Imported(next_phy_offset=live.log.end_phy_offset)
    position = _position_of(live, head, topic, again)
    lines = lines_of(_Headed(head, stream), live.longest_body_bytes)
    read = _read_again(live, lines, position)
    result = Imported(continued_rows=position.rows, next_phy_offset=live.log.end_phy_offset)
    present = _keys_after(live, position)
    refused = _open_rejects(live, rejects, position)
    done_bytes = 0
    try:
        position = replace(position, rejects=str(real_path(rejects)) if rejects is not None else "")
        if position.next_phy_offset is None:  # so that the first batch of a killed import is recognised, too
            position = replace(position, next_phy_offset=live.log.end_phy_offset)
        _save(live, position)
        for batch in _batches(lines, position, topic):
            outcome = _store(live, batch, present, create_topic, result)
            if refused is not None:
                refused.add(outcome)
            position = replace(
                position,
                rows=batch[-1].number,
                rows_sha256=_digest_after(read, batch),
                next_phy_offset=live.log.end_phy_offset,
                rejects_bytes=refused.size_bytes if refused is not None else 0,
            )
            _save(live, position)
            done_bytes += sum(len(row.line) for row in batch)
            on_progress(done_bytes)
    except OSError as error:
        raise failed(
            error, "cannot import", state=f"{position.rows} rows are done", then="run the command again"
        ) from error
    finally:
        if refused is not None:
            refused.close()
    return result


class _Headed:
    """The lines of a stream whose first bytes were read already."""

    def __init__(self, head: bytes, stream: IO[bytes]) -> None:
        self._head, self._stream = head, stream

    def readline(self, limit: int, /) -> bytes:
        if not self._head:
            return self._stream.readline(limit)
        end = self._head.find(b"\n") + 1 or len(self._head)
        line, self._head = self._head[: min(end, limit)], self._head[min(end, limit) :]
        if line.endswith(b"\n") or self._head or len(line) == limit:
            return line
        return line + self._stream.readline(limit - len(line))


def _batches(lines: Iterator[bytes | None], position: Position, topic: str | None) -> Iterator[list[_Row]]:
    """Yield the rows after a position, some at a time. Empty lines are no rows, but are counted."""
    numbered = enumerate(lines, position.rows + 1)
    batch: list[_Row] = []
    size = 0
    for number, line in numbered:
        batch.append(_row(number, line, position, topic))
        size += len(line or b"")
        if len(batch) >= BATCH_ROWS or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _read_again(live: LiveStore, lines: Iterator[bytes | None], position: Position) -> hashlib._Hash:
    """Read the rows up to a position; return their running digest.

    Raises UsageError if they are not the rows that were imported, or the log has no longer what was stored of them.
    """
    read = hashlib.sha256()
    count = 0
    for line in islice(lines, position.rows):
        read.update(_without_end(line or b""))
        count += 1
    to_do = "give --again to import the whole source as a new one"
    if count < position.rows or (position.rows and read.hexdigest() != position.rows_sha256):
        raise UsageError("the source begins as one that was imported, and goes on otherwise", to_do=to_do)
    start = position.next_phy_offset
    if start is not None and not live.store.log.min_phy_offset <= start <= live.log.end_phy_offset:
        raise UsageError("the log no longer has the place where an import of this source ended", to_do=to_do)
    return read


def _digest_after(read: hashlib._Hash, batch: Sequence[_Row]) -> str:
    for row in batch:
        read.update(_without_end(row.line))
    return read.hexdigest()


def _without_end(line: bytes) -> bytes:
    """Return a line as it counts for the digest: the last line of a source that grows has no end yet."""
    return line.rstrip(b"\r\n") + b"\n"


def _row(number: int, line: bytes | None, position: Position, topic: str | None) -> _Row:
    if line is not None and not line.strip():
        return _Row(number, line, None)
    key = hashlib.sha256(f"{position.id} {number}".encode()).hexdigest()[:_KEY_DIGITS].upper()
    try:
        return _Row(number, line or b"", message_of(line, topic, key))
    except RowError as error:
        return _Row(number, line or b"", None, str(error))


def _store(
    live: LiveStore, batch: Sequence[_Row], present: deque[str], create_topic: bool, result: Imported
) -> list[tuple[_Row, str]]:
    """Store a batch, except what is ``present`` already; return the rows that are refused, with the reasons."""
    refused: list[tuple[_Row, str]] = []
    new: list[tuple[NewRecord, Encoded]] = []
    for row in batch:
        if row.message is None:
            if row.reason:
                refused.append((row, row.reason))
            result.rows += bool(row.reason)
            continue
        result.rows += 1
        if present and present[0] == row.message.properties[UNIQ_KEY]:
            present.popleft()
            result.found += 1
            continue
        answer = _accepted(live, row.message, create_topic)
        if isinstance(answer, str):
            refused.append((row, answer))
        else:
            present.clear()
            new.append(answer)
            result.topics[row.message.topic] += 1
    if new:
        stored = live.append_all(new)
        if result.first_phy_offset is None:
            result.first_phy_offset = stored[0].phy_offset
    result.stored += len(new)
    result.rejected += len(refused)
    result.next_phy_offset = live.log.end_phy_offset
    return refused


def _accepted(live: LiveStore, message: NewMessage, create_topic: bool) -> tuple[NewRecord, Encoded] | str:
    """Return the record to store, or the reason why a broker refuses it.

    A queue that the topic does not have is replaced by a random one.
    """
    config = live.topic(message.topic)
    if config is not None and message.queue_id is not None and message.queue_id >= config["write_queues"]:
        message = message._replace(queue_id=None)
    try:
        answer = accepted(live, message, create_topic, half=False)
    except (UsageError, FailedError) as error:
        if live.has_failed:  # the system refused, not the row
            raise
        return error.what
    if not isinstance(answer, PutResult):
        return answer
    if answer.status == PutStatus.SERVICE_NOT_AVAILABLE:  # it is so for each message, and may change
        raise FailedError(
            f"{answer.status}: {answer.reason}", path=str(live.store.root), to_do="then run the command again"
        )
    return f"{answer.status}: {answer.reason}"


def _position_of(live: LiveStore, head: bytes, topic: str | None, again: bool) -> Position:
    """Return the saved position of a source, else a new one."""
    digest = _digest(head)
    new = Position(digest, topic, len(head), digest)
    if again:
        return replace(new, id=f"{digest} {live.now_ms()}")
    saved = (position for position in _saved(live) if position.is_of(head, topic))
    return max(saved, key=lambda position: position.head_bytes, default=new)


def _saved(live: LiveStore) -> Iterator[Position]:
    folder = live.store.root / FOLDER
    for path in sorted(folder.glob("*.json")) if folder.is_dir() and not folder.is_symlink() else ():
        with suppress(OSError, ValueError, TypeError):  # a file that is no position is none
            position = Position(**json.loads(path.read_text()))
            if _is_sound(position):
                yield position


def _is_sound(position: Position) -> bool:
    numbers: tuple[Any, ...] = (position.head_bytes, position.rows, position.next_phy_offset, position.rejects_bytes)
    return all(isinstance(text, str) for text in (position.rejects, position.rows_sha256)) and all(
        type(number) is int and number >= 0 for number in numbers
    )


def _keys_after(live: LiveStore, position: Position) -> deque[str]:
    """Return the unique keys of the records after a position's end of the log: of a killed import, its last batch."""
    keys: deque[str] = deque()
    start = position.next_phy_offset
    if start is None or start >= live.log.end_phy_offset:
        return keys
    with live.listed() as store:
        for table in scan_log(store, from_phy_offset=start):
            for row in range(len(table)):
                if not table.kind[row]:
                    keys.append(table.message(row).unique_key or "")
                if len(keys) == BATCH_ROWS:
                    return keys
    return keys


def _save(live: LiveStore, position: Position) -> None:
    """Save a position with the store, durably. Raises OSError."""
    writer = live.files.writer
    make_our_folders(writer, FOLDER)
    path = f"{FOLDER}/{position.head_sha256[:_KEY_DIGITS]}.json"
    part = f"{path}.part"
    if os.path.lexists(writer.path(part)):
        writer.unlink(part)
    writer.create(part, json.dumps(asdict(position)).encode(), mode=OUR_FILE_MODE)
    writer.sync_file(part)
    writer.rename(part, path)
    writer.sync_folder(FOLDER)


def _open_rejects(live: LiveStore, path: Path | None, position: Position) -> Rejects | None:
    """Open the file of rejects. Raises UsageError for a file of something else, and for a place inside the store."""
    if path is None:
        return None
    real = real_path(path)
    folders = (live.store.root, *live.store.settings.commitlog_paths)
    if any(real.is_relative_to(real_path(folder)) for folder in folders):
        raise UsageError("rejects are not written into the store", path=str(path), to_do="name a file elsewhere")
    try:
        return Rejects(real, position)
    except OSError as error:
        raise failed(error, "cannot write the rejects") from error


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _shown(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\r\n")
