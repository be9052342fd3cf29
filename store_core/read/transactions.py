"""Find the outcome of half messages from the log and the check service's progress (store behaviour 4.8; store format 10.5)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from store_core.codec.properties import FIRST_HALF_NUMBER, TRANSACTION_CHECK_TIMES, UNIQ_KEY, some_properties
from store_core.codec.record import Message
from store_core.kernel.codes import FrameCode, FrameKind
from store_core.layout import marks, paths, record
from store_core.read.queue import Queue, entries_after
from store_core.read.records import read_message
from store_core.scan.frames import FrameTable, filler_rows, tombstone_rows

Place = tuple[int, int]  # queue id, queue offset
State = Literal["committed", "rolled_back", "given_up", "pending", "unknown"]
HALF: Final = paths.HALF_TOPIC.encode()
OP: Final = paths.OP_TOPIC.encode()
LONGEST_OP_BODY_BYTES: Final = 1 << 16
_TOPICS: Final = (HALF, OP, paths.TRANSACTION_CHECK_TOPIC.encode())
_MOST_DIGITS: Final = 19  # of a queue offset
_CHECK_GROUP: Final = "CID_RMQ_SYS_TRANS"
_MOST_OPEN: Final = 1 << 20  # half messages that are tracked at a time
_MOST_COPIES: Final = 64  # of one half message that are tracked: brokers give up after 15
_BAD_CODES: Final = (FrameCode.BAD_CRC, FrameCode.BAD_PROPERTY_CRC)
_UNIQ_KEY: Final = UNIQ_KEY.encode()
_CHECKS: Final = TRANSACTION_CHECK_TIMES.encode()
_FIRST: Final = FIRST_HALF_NUMBER.encode()
_TOMBSTONE: Final = marks.TOMBSTONE_PROPERTY.encode()
_NAMES: Final = frozenset((_UNIQ_KEY, _CHECKS, _FIRST, _TOMBSTONE))


@dataclass(slots=True)
class Transaction:
    """A transaction: its first half message in the log, the check service's newest copy of it, and its end.

    ``end_timestamp_ms`` is the store time of the record that ended it. ``has_gap``: part of the log between the half message and that record, or the
    log's end, cannot be read.
    """

    queue_id: int
    queue_offset: int
    phy_offset: int
    store_timestamp_ms: int
    last_phy_offset: int
    last_queue_offset: int
    half_messages: int = 1
    checks: int = 0
    commit_phy_offset: int | None = None
    op_phy_offset: int | None = None
    given_up_phy_offset: int | None = None
    end_timestamp_ms: int | None = None
    has_gap: bool = False
    places: list[tuple[Place, int]] = field(default_factory=list)
    key: bytes = b""

    def state(self, passed: int) -> State:
        """Return the state. ``passed``: the queue offset before which the check service has finished."""
        if self.commit_phy_offset is not None:
            return "committed"
        if self.given_up_phy_offset is not None:
            return "given_up"
        is_passed = self.last_queue_offset < passed
        if self.op_phy_offset is None and not is_passed:
            return "pending"
        if self.has_gap:  # the commit record may have been there
            return "unknown"
        return "given_up" if self.op_phy_offset is None else "rolled_back"


class TransactionTracker:
    """Tracks transactions through every table of a walk over the log.

    Few are open at a time, because most end soon. With more than ``most_open`` of them the oldest is no longer tracked.
    """

    def __init__(self, most_open: int = _MOST_OPEN) -> None:
        self._most_open = most_open
        self._open: dict[int, Transaction] = {}  # by the first half message's phy_offset
        self._by_place: dict[Place, Transaction] = {}
        self._by_phy_offset: dict[int, Transaction] = {}
        self._by_key: dict[bytes, Transaction] = {}
        self._ended: list[Transaction] = []
        self._gap = -1  # phy_offset of the last unreadable range that has a message after it
        self._pending_gap = -1  # phy_offset of the last unreadable range, which may be the log's end

    def add(self, table: FrameTable) -> None:
        """Process a table of the walk, which must have its bytes. Only rows of transactions are looped over."""
        good = table.messages & ~np.isin(table.code, _BAD_CODES)
        gaps = _gaps(table, good)
        if good.any():
            self._gap = max(self._gap, self._pending_gap)
        for row, topic in transaction_rows(table, good):
            self._advance_gap(table, gaps, row)
            self._row(table, row, topic)
        if len(gaps):
            if good.any():
                self._advance_gap(table, gaps, int(np.flatnonzero(good)[-1]))
            self._pending_gap = int(table.phy_offset[gaps[-1]])

    def ended(self) -> list[Transaction]:
        """Return and remove the transactions that have ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def rest(self) -> Iterator[Transaction]:
        """Yield the transactions without an op record at the log's end, in log order."""
        for found in self._open.values():
            found.has_gap = self._gap > found.phy_offset
            yield found

    def _advance_gap(self, table: FrameTable, gaps: NDArray[np.int64], row: int) -> None:
        """Store the last gap before a row."""
        if before := int(gaps.searchsorted(row)):
            self._gap = max(self._gap, int(table.phy_offset[gaps[before - 1]]))

    def _row(self, table: FrameTable, row: int, topic: bytes | None) -> None:
        if topic is None:
            self._commit(table, row)
        elif topic == HALF:
            self._half(table, row, some_properties(table.properties(row), _NAMES))
        elif topic == OP:
            if int(table.body_length[row]) <= LONGEST_OP_BODY_BYTES:
                for number in decided_numbers(table.body(row)):
                    self._op(table, row, (int(table.queue_id[row]), number))
        else:
            self._give_up(table, row, some_properties(table.properties(row), _NAMES))

    def _half(self, table: FrameTable, row: int, properties: Mapping[bytes, bytes]) -> None:
        if _TOMBSTONE in properties:
            return
        place = int(table.queue_id[row]), int(table.queue_offset[row])
        phy_offset = int(table.phy_offset[row])
        found = self._original_of(place, properties)
        if found is None:
            time_ms = int(table.store_timestamp_ms[row])
            found = Transaction(*place, phy_offset, time_ms, phy_offset, place[1], key=properties.get(_UNIQ_KEY, b""))
            self._open[phy_offset] = found
            if found.key:
                self._by_key[found.key] = found
        else:
            found.half_messages += 1
            found.last_phy_offset, found.last_queue_offset = phy_offset, place[1]
        found.checks = max(found.checks, _number(properties.get(_CHECKS)) or 0)
        found.places.append((place, phy_offset))
        if len(found.places) > _MOST_COPIES:
            self._forget(found, found.places.pop(0))
        self._by_place[place] = self._by_phy_offset[phy_offset] = found
        if len(self._open) > self._most_open:
            oldest = next(iter(self._open.values()))
            oldest.has_gap = True
            self._end(oldest)

    def _original_of(self, place: Place, properties: Mapping[bytes, bytes]) -> Transaction | None:
        """Return the open transaction of which the check service made this half message; None for a producer's own."""
        if (first := _number(properties.get(_FIRST))) is not None and first != place[1]:
            found = self._by_place.get((place[0], first))
            if found is not None:
                return found
        return (
            self._by_key.get(properties.get(_UNIQ_KEY, b"")) if _CHECKS in properties or _FIRST in properties else None
        )

    def _commit(self, table: FrameTable, row: int) -> None:
        found = self._by_phy_offset.get(int(table.prepared_transaction_offset[row]))
        if found is not None and found.commit_phy_offset is None:
            found.commit_phy_offset = int(table.phy_offset[row])
            found.end_timestamp_ms = int(table.store_timestamp_ms[row])

    def _op(self, table: FrameTable, row: int, place: Place) -> None:
        if (found := self._by_place.get(place)) is not None:
            found.op_phy_offset = int(table.phy_offset[row])
            self._ends_at(found, table, row)

    def _give_up(self, table: FrameTable, row: int, properties: Mapping[bytes, bytes]) -> None:
        found = self._by_key.get(properties.get(_UNIQ_KEY, b""))
        if found is not None and _TOMBSTONE not in properties:
            found.given_up_phy_offset = int(table.phy_offset[row])
            found.checks = max(found.checks, _number(properties.get(_CHECKS)) or 0)
            self._ends_at(found, table, row)

    def _ends_at(self, found: Transaction, table: FrameTable, row: int) -> None:
        found.has_gap = self._gap > found.phy_offset
        if found.end_timestamp_ms is None:
            found.end_timestamp_ms = int(table.store_timestamp_ms[row])
        self._end(found)

    def _end(self, found: Transaction) -> None:
        self._ended.append(found)
        self._open.pop(found.phy_offset, None)
        if self._by_key.get(found.key) is found:
            del self._by_key[found.key]
        for place in found.places:
            self._forget(found, place)

    def _forget(self, found: Transaction, place: tuple[Place, int]) -> None:
        if self._by_place.get(place[0]) is found:
            del self._by_place[place[0]]
        if self._by_phy_offset.get(place[1]) is found:
            del self._by_phy_offset[place[1]]


def transaction_rows(table: FrameTable, good: NDArray[np.bool_]) -> Iterator[tuple[int, bytes | None]]:
    """Yield the rows of half messages, op records and given-up messages with their topic, and of commit records with None."""
    wanted = (table.sys_flag & record.TRANSACTION_MASK) == record.TRANSACTION_COMMIT
    topics = {number: name for number, name in enumerate(table.topics) if name in _TOPICS}
    if topics:
        wanted = wanted | np.isin(table.topic_id, list(topics))
    for row in np.flatnonzero(good & wanted).tolist():
        yield row, topics.get(int(table.topic_id[row]))


def decided_numbers(body: bytes) -> list[int]:
    """Return the queue offsets in an op record's body: one number (4.x), or several, each ended by a comma (5.x)."""
    return [int(part) for part in body.split(b",") if part.isdigit() and len(part) <= _MOST_DIGITS]


def check_progress(offsets: Mapping[tuple[str, str, int], int]) -> dict[int, int]:
    """Return the check service's progress in the half messages' queues, by queue id."""
    return {
        queue_id: offset
        for (group, topic, queue_id), offset in offsets.items()
        if (group, topic) == (_CHECK_GROUP, paths.HALF_TOPIC)
    }


def op_record(ops: Queue, half: Message) -> Message | None:
    """Return the op record after a half message that names its queue offset; None without one."""
    for entry in entries_after(ops, half.phy_offset):
        op = read_message(ops.log, entry.phy_offset, entry.size_bytes)
        if op is not None and len(op.body) <= LONGEST_OP_BODY_BYTES and half.queue_offset in decided_numbers(op.body):
            return op
    return None


def _gaps(table: FrameTable, good: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the rows where a record may have been that is unreadable now, including fillers and tombstones."""
    lost = ~good & ~table.of_kind(FrameKind.BLANK)
    lost[filler_rows(table)] = True
    lost[tombstone_rows(table)] = True
    return np.flatnonzero(lost)


def _number(text: bytes | None) -> int | None:
    return int(text) if text is not None and text.isdigit() and len(text) <= _MOST_DIGITS else None
