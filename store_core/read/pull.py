"""Read a queue as a consumer does, by the rules of a broker's getMessage (store behaviour, section 8).

Three differences from a broker are intended:

* only ``limit`` limits the number of messages, not a broker's transfer limits or the end of a queue file;
* the client's exact test of tags is made here too;
* an entry that does not point to a record is skipped and reported; a broker would return the bytes there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final, Literal, NamedTuple

from store_core.codec.record import Message
from store_core.errors import FailedError
from store_core.findings import KINDS, Finding, finding
from store_core.kernel.messages import messages_of
from store_core.read.content import TagFilter
from store_core.read.entries import BatchEntry, Entry
from store_core.read.queue import ENTRY_SIZE_BYTES, BatchQueue, Queue
from store_core.read.records import needs_unwrap, read_message, unwrapped
from store_core.read.rules import RULES_5, ReadRules
from store_core.storage.sequence import SegmentSequence
from store_core.storage.store import QueueKey, Store

Status = Literal[
    "FOUND",
    "NO_MATCHED_MESSAGE",
    "MESSAGE_WAS_REMOVING",
    "OFFSET_FOUND_NULL",
    "OFFSET_OVERFLOW_BADLY",
    "OFFSET_OVERFLOW_ONE",
    "OFFSET_TOO_SMALL",
    "NO_MATCHED_LOGIC_QUEUE",
    "NO_MESSAGE_IN_QUEUE",
]
DEFAULT_LIMIT: Final = 32
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
_FILTER_ENTRIES: Final = 16_000 // ENTRY_SIZE_BYTES  # maxFilterMessageSize: entries that one call reads


class PullResult(NamedTuple):
    """The answer to a pull. The consumer continues at ``next_begin_offset``."""

    topic: str
    queue_id: int
    offset: int
    status: Status
    next_begin_offset: int
    min_offset: int
    max_offset: int
    messages: tuple[Message, ...] = ()
    findings: tuple[Finding, ...] = ()


def require_queue_files(store: Store) -> None:
    """Raise FailedError where the store keeps its queues in RocksDB (finding Q015)."""
    if store.queues_in_rocksdb:
        kind = KINDS["Q015"]
        raise FailedError(kind.title, path=str(store.root), to_do=kind.advice[0].lower() + kind.advice[1:].rstrip("."))


def open_queue(store: Store, topic: str, queue_id: int, rules: ReadRules = RULES_5) -> Queue | BatchQueue | None:
    """Return a queue by topic and id, None where the store has no such queue. Raises FailedError for queues in RocksDB."""
    topic = os.fsencode(topic).decode(errors="replace")  # as in listed queues; an argument may hold raw bytes
    files = store.queue(topic, queue_id)
    if files is None and _REPLACEMENT in topic:
        files = store.queues.get(QueueKey(topic, queue_id))
    if files is not None and files.segments:
        ext = store.ext_queues.get(QueueKey(topic, queue_id))
        return Queue(files, store.log, ext=ext, rules=rules)
    batch = store.batch_queues.get(QueueKey(topic, queue_id))
    if batch is not None:
        return BatchQueue(batch, store.log)
    require_queue_files(store)
    return None if files is None else Queue(files, store.log, rules=rules)


def pull(
    queue: Queue | BatchQueue | None,
    topic: str,
    queue_id: int,
    offset: int | None,
    *,
    limit: int = DEFAULT_LIMIT,
    tags: TagFilter | None = None,
) -> PullResult:
    """Return up to ``limit`` messages from a queue offset on (None: the queue's min). An inner batch is returned as its messages."""
    if queue is None:
        return PullResult(topic, queue_id, offset or 0, "NO_MATCHED_LOGIC_QUEUE", 0, 0, 0)
    first, end = queue.min_offset, queue.max_offset
    if offset is None:
        offset = first
    if not first <= offset < end:
        return PullResult(topic, queue_id, offset, *_outside(queue, offset, first, end), first, end)
    taken: list[Message] = []
    if tags is None and isinstance(queue, Queue):
        taken = _plain_messages(queue, offset, limit if limit < end - offset else end - offset)
    next_offset = offset + len(taken)
    if taken and (len(taken) == limit or next_offset == end):
        return PullResult(topic, queue_id, offset, "FOUND", next_offset, first, end, tuple(taken))
    entries: Iterator[Entry | BatchEntry] = queue.entries(next_offset, min(end, offset + max(_FILTER_ENTRIES, limit)))
    if not taken:
        first_entry = next(entries, None)
        if first_entry is None or (isinstance(queue, Queue) and first_entry.queue_offset != offset):
            following = queue.next_file_offset(offset) if isinstance(queue, Queue) else None
            next_begin = end if following is None else min(following, end)
            return PullResult(topic, queue_id, offset, "OFFSET_FOUND_NULL", next_begin, first, end)
        entries = chain((first_entry,), entries)
    loop = _Loop(queue, topic, queue_id, offset, limit, tags, taken)
    status, next_begin = loop.run(entries)
    return PullResult(
        topic, queue_id, offset, status, next_begin, first, end, tuple(loop.messages), tuple(loop.findings)
    )


def _plain_messages(queue: Queue, offset: int, count: int) -> list[Message]:
    """Return the messages of up to ``count`` entries, up to the first entry that needs a check of its own."""
    found: list[Message] = []
    while len(found) < count:
        entries = queue.stored(offset + len(found), count - len(found))
        messages = messages_of(queue.log, entries)
        found = found + messages if found else messages
        if not messages or len(messages) * ENTRY_SIZE_BYTES < len(entries):
            break
    return found


def _outside(queue: Queue | BatchQueue, offset: int, first: int, end: int) -> tuple[Status, int]:
    """Return the status and the consumer's next offset for an offset that is not in the queue."""
    if end == 0:
        return "NO_MESSAGE_IN_QUEUE", 0
    if offset < first:
        return "OFFSET_TOO_SMALL", first
    if offset == end:
        return "OFFSET_OVERFLOW_ONE", end
    restarts = first == 0 and isinstance(queue, Queue) and queue.rules.begins_again
    return "OFFSET_OVERFLOW_BADLY", 0 if restarts else end


class _Loop:
    """The loop over entries: messages taken, entries skipped and the reasons."""

    def __init__(
        self,
        queue: Queue | BatchQueue,
        topic: str,
        queue_id: int,
        offset: int,
        limit: int,
        tags: TagFilter | None,
        taken: list[Message],
    ) -> None:
        self.messages = taken  # of the entries from ``offset`` on, one each
        self.findings: list[Finding] = []
        self._queue = queue
        self._log = queue.log
        self._topic = topic
        self._queue_id = queue_id
        self._offset = offset
        self._limit = limit
        self._tags = tags

    def run(self, entries: Iterable[Entry | BatchEntry]) -> tuple[Status, int]:
        """Process the entries after those already taken; return the status and the consumer's next offset."""
        status: Status = "NO_MATCHED_MESSAGE"
        next_begin = self._offset + len(self.messages)
        skip_below: int | None = None  # after a removed record: start of the next segment
        for entry in entries:
            if self.messages and len(self.messages) + entry.batch_size > self._limit:
                break
            next_begin = entry.queue_offset + entry.batch_size
            if skip_below is not None and entry.phy_offset < skip_below:
                continue
            if self._tags is not None and not self._tags.may_match(self._tags_code(entry)):
                continue
            if not _is_readable(self._log, entry):
                skip_below = _next_segment_start(self._log, entry.phy_offset)
                status = "MESSAGE_WAS_REMOVING"
                continue
            skip_below = None
            if not self._take(entry):
                status = "MESSAGE_WAS_REMOVING"
            if len(self.messages) >= self._limit:
                break
        return ("FOUND" if self.messages else status), next_begin

    def _tags_code(self, entry: Entry | BatchEntry) -> int:
        unit = self._queue.ext_of(entry.tags_code) if isinstance(self._queue, Queue) else None
        return entry.tags_code if unit is None else unit.tags_code

    def _take(self, entry: Entry | BatchEntry) -> bool:
        """Add the matching messages of the record that the entry points to. Return False if there is no record."""
        message = read_message(self._log, entry.phy_offset, entry.size_bytes)
        if message is None:
            self._report("Q001", "no record starts where the entry points to", entry)
            return False
        if message.size_bytes != entry.size_bytes:
            text = f"the entry says {entry.size_bytes} bytes, the record has {message.size_bytes}"
            self._report("Q003", text, entry)
        parts = unwrapped(message) if needs_unwrap(message) else (message,)
        taken = [
            part
            for part in parts
            if (part is message or part.queue_offset >= self._offset)
            and (self._tags is None or self._tags.matches(part.tags))
        ]
        self.messages += taken
        return True

    def _report(self, code: str, text: str, entry: Entry | BatchEntry) -> None:
        self.findings.append(
            finding(
                code,
                text,
                phy_offset=entry.phy_offset,
                size_bytes=entry.size_bytes,
                topic=self._topic,
                queue_id=self._queue_id,
                queue_offset=entry.queue_offset,
            )
        )


def _is_readable(log: SegmentSequence, entry: Entry | BatchEntry) -> bool:
    """Return True if a broker could map the entry's bytes, which must be in one segment."""
    segment = log.find(entry.phy_offset) if entry.phy_offset >= 0 else None
    return segment is not None and entry.phy_offset + entry.size_bytes <= segment.end_phy_offset


def _next_segment_start(log: SegmentSequence, phy_offset: int) -> int:
    """Return the start of the segment after the one that an offset belongs to."""
    size = log.file_size_bytes
    return phy_offset + size - phy_offset % size if size else phy_offset + 1
