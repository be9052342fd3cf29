"""Trace a message: every record that a broker made of it, the reasons, and the progress of consumers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from itertools import islice
from typing import Any, Final, Literal

from store_core.codec.message_id import parse_offset_message_id
from store_core.codec.properties import (
    FIRST_HALF_NUMBER,
    FIRST_POP_TIME,
    ORIGIN_MESSAGE_ID,
    PRODUCER_GROUP,
    REAL_QID,
    REAL_TOPIC,
    RETRY_TOPIC,
    TIMER_DEL_UNIQKEY,
    TRANSACTION_CHECK_TIMES,
)
from store_core.codec.record import Message, body_crc_ok
from store_core.codec.tags import tags_code
from store_core.derive.delay import delay_table
from store_core.findings import Finding
from store_core.layout import paths, queue
from store_core.layout.timer import TIMER_TOPIC
from store_core.read.delayed import DeliveryProgress, delivery_progress, timer_due_ms
from store_core.read.progress import ProgressTable, read_progress
from store_core.read.pull import open_queue
from store_core.read.query import KeyAnywhere, Source, query_key
from store_core.read.queue import Queue, entries_after
from store_core.read.records import read_message
from store_core.read.transactions import check_progress, decided_numbers, op_record
from store_core.storage.config_files import ConfigFiles, offset_table, read_config
from store_core.storage.store import Store

What = Literal[
    "stored",
    "half",
    "half_copy",
    "op",
    "commit",
    "given_up",
    "delayed",
    "timed",
    "delivered",
    "retry",
    "pop_retry",
    "dead_letter",
    "pop",
    "pop_ack",
    "revive",
    "tombstone",
]
MOST_RECORDS: Final = 4096  # with one key
_LONGEST_CHECK_POINT_BYTES: Final = 1 << 16
_MOST_POPS: Final = 20_000  # check points and acknowledgements, of any message, that are read after a record
_REVIVE_PREFIX: Final = "rmq_sys_REVIVE_LOG_"
_POP_TAGS: Final[dict[str, What]] = {"ck": "pop", "ack": "pop_ack"}
_POP_TAGS_CODES: Final = frozenset(map(tags_code, _POP_TAGS))
_POP_KEY_PARTS: Final = 5
_POP_KEY: Final = "@"  # topic@queue@offset@group@time@broker@ck
_BROKERS_OWN: Final = (
    paths.HALF_TOPIC,
    paths.SCHEDULE_TOPIC,
    TIMER_TOPIC,
    paths.TRANSACTION_CHECK_TOPIC,
)
_WAITING: Final = ("delayed", "timed")
_HALVES: Final = ("half", "half_copy")
_POPS: Final = ("pop", "pop_ack")
_NOT_CONSUMED: Final = (*_WAITING, *_HALVES, *_POPS, "revive", "op", "given_up", "tombstone")


@dataclass(frozen=True, slots=True)
class GroupAt:
    """A consumer group at the queue of a record: its next queue offset, and whether it has passed the record."""

    group: str
    next_offset: int
    consumed: bool


@dataclass(slots=True)
class Step:
    """A record of a message. ``state`` is the fate of a record that is not for consumers, ``due_timestamp_ms`` its delivery time."""

    what: What
    why: str
    message: Message
    state: str | None = None
    due_timestamp_ms: int | None = None
    groups: tuple[GroupAt, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return a row: the place, the time, the reason, and the properties that prove it."""
        message = self.message
        return {
            "what": self.what,
            "topic": message.topic,
            "queue_id": message.queue_id,
            "queue_offset": message.queue_offset,
            "phy_offset": message.phy_offset,
            "size_bytes": message.size_bytes,
            "store_timestamp_ms": message.store_timestamp_ms,
            "why": self.why,
            "state": self.state,
            "due_timestamp_ms": self.due_timestamp_ms,
            "reconsume_times": message.reconsume_times,
            "prepared_transaction_offset": message.prepared_transaction_offset,
            "offset_msg_id": message.offset_msg_id,
            "crc": "ok" if body_crc_ok(message) else "bad",
            "groups": [asdict(group) for group in self.groups],
            "properties": message.properties,
        }


@dataclass(frozen=True, slots=True)
class Way:
    """The records of a message in log order, and a line for each place where it is now."""

    unique_key: str | None
    keys: tuple[str, ...]
    steps: tuple[Step, ...]
    outcome: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """The ways of the newest messages with a key. ``left_out``: at least so many more messages have it."""

    ways: tuple[Way, ...]
    source: str
    left_out: int = 0
    findings: tuple[Finding, ...] = ()


def trace(store: Store, key: str, *, most: int = 10, source: Source = "auto") -> Trace:
    """Trace the newest messages with a unique or user key, or the message of an offset message id.

    ``source`` as for ``query_key``. Raises FailedError where a file cannot be read.
    """
    if source == "auto" and store.queues_in_rocksdb:
        source = "scan"  # without queue files the topics to look up in the index are not known
    config = read_config(store.root)
    query = KeyAnywhere(_topics(store, config), key, MOST_RECORDS)
    answer = query_key(store, query, source)
    found = list(answer.messages)
    if not found and (message_by_id := _by_offset_id(store, key)) is not None:
        if message_by_id.unique_key is not None:
            answer = query_key(store, query._replace(key=message_by_id.unique_key), source)
        found = list(answer.messages) or [message_by_id]
    by_message: dict[str | int, list[Message]] = {}
    for message in found:
        by_message.setdefault(message.unique_key or message.phy_offset, []).append(message)
    tracer = _Tracer(store, config)
    newest = list(by_message.values())[-most:]
    ways = tuple(tracer.way(messages) for messages in newest)
    findings = [*answer.findings, *tracer.progress.findings]
    left_out = len(by_message) - len(newest) + (len(found) >= MOST_RECORDS)
    return Trace(ways, answer.source, left_out, tuple(findings))


def _topics(store: Store, config: ConfigFiles) -> tuple[str, ...]:
    topics = dict.fromkeys((*_BROKERS_OWN, *config.topic_names))
    if not store.queues_in_rocksdb:
        topics |= dict.fromkeys(key.topic for queues in (store.queues, store.batch_queues) for key in queues)
    return tuple(topics)


def _by_offset_id(store: Store, text: str) -> Message | None:
    identifier = parse_offset_message_id(text)
    return None if identifier is None else _record_at(store, identifier.phy_offset)


def _record_at(store: Store, phy_offset: int) -> Message | None:
    message = read_message(store.log, phy_offset)
    return message if message is not None and message.own_phy_offset == phy_offset else None


class _Tracer:
    """The parts of a store that a step needs: queues, groups' progress and the progress of services."""

    def __init__(self, store: Store, config: ConfigFiles) -> None:
        self._store = store
        self._checked = check_progress(offset_table(config))
        self.progress: ProgressTable = read_progress(store.root)
        self._config = config
        self._queue = cache(self._opened)

    @cached_property
    def _delivery(self) -> DeliveryProgress:
        return delivery_progress(self._store, self._config)

    def way(self, found: list[Message]) -> Way:
        """Return the way of a message; ``found`` are its records with the key."""
        messages = {message.phy_offset: message for message in found}
        for message in [*messages.values()]:
            messages |= {linked.phy_offset: linked for linked in self._linked(message)}
            messages |= {popped.phy_offset: popped for popped in self._pops(message)}
        steps: list[Step] = []
        for _, message in sorted(messages.items()):
            steps.append(self._step(message, steps))
        for number, step in enumerate(steps):
            self._judge(step, steps[number + 1 :])
        return Way(found[0].unique_key, tuple(found[0].keys), tuple(steps), tuple(_outcome(steps)))

    def _opened(self, topic: str, queue_id: int) -> Queue | None:
        if self._store.queues_in_rocksdb:
            return None
        opened = open_queue(self._store, topic, queue_id)
        return opened if isinstance(opened, Queue) else None

    def _linked(self, message: Message) -> Iterator[Message]:
        """Yield linked records without this key: those that a record names, and the op record of a half message."""
        origin = parse_offset_message_id(message.properties.get(ORIGIN_MESSAGE_ID, ""))
        named = [origin.phy_offset] if origin is not None else []
        if message.transaction == "commit":
            named.append(message.prepared_transaction_offset)
        for phy_offset in named:
            record = _record_at(self._store, phy_offset)
            if record is not None and record.unique_key == message.unique_key:
                yield record
        if message.topic == paths.HALF_TOPIC and (ops := self._queue(paths.OP_TOPIC, message.queue_id)) is not None:
            op = op_record(ops, message)
            if op is not None:
                yield op

    @cached_property
    def _pop_queues(self) -> list[Queue]:
        """Queues with check points and acknowledgements of pops: the timer's queues and the revive queues."""
        if self._store.queues_in_rocksdb:
            return []
        keys = [k for k in self._store.queues if k.topic == TIMER_TOPIC or k.topic.startswith(_REVIVE_PREFIX)]
        return [opened for key in keys if (opened := self._queue(*key)) is not None]

    def _pops(self, message: Message) -> Iterator[Message]:
        """Yield the check points and acknowledgements of pops of a message that consumers can read."""
        if message.topic in (*_BROKERS_OWN, paths.OP_TOPIC) or message.topic.startswith(_REVIVE_PREFIX):
            return
        for pops in self._pop_queues:
            entries = (
                entry
                for entry in entries_after(pops, message.phy_offset)
                if entry.tags_code in _POP_TAGS_CODES or queue.is_ext_address(entry.tags_code)
            )
            for entry in islice(entries, _MOST_POPS):
                record = read_message(self._store.log, entry.phy_offset, entry.size_bytes)
                if record is not None and _is_pop_of(record, message):
                    yield record

    def _step(self, message: Message, before: list[Step]) -> Step:
        what = _what(message, before)
        due_ms = self._due_ms(message) if what in (*_WAITING, *_POPS) else None
        step = Step(what, _why(what, message, before), message, due_timestamp_ms=due_ms)
        if what not in _NOT_CONSUMED:
            step.groups = tuple(self._groups(message))
        return step

    def _groups(self, message: Message) -> Iterator[GroupAt]:
        for row in self.progress.rows:
            if (row.topic, row.queue_id) == (message.topic, message.queue_id):
                yield GroupAt(row.group, row.offset, row.offset > message.queue_offset)

    def _due_ms(self, message: Message) -> int | None:
        if message.topic == TIMER_TOPIC:
            return timer_due_ms(message)
        entries = self._queue(message.topic, message.queue_id)
        entry = entries.entry(message.queue_offset) if entries is not None else None
        if entries is not None and entry is not None and entry.phy_offset == message.phy_offset:
            if not queue.is_ext_address(entry.tags_code):
                return entry.tags_code
            if (unit := entries.ext_of(entry.tags_code)) is not None:
                return unit.tags_code
        return message.store_timestamp_ms + delay_table(self._store).delay_ms(message.queue_id + 1)

    def _judge(self, step: Step, later: list[Step]) -> None:
        """Set the state of a record that is not for consumers."""
        message = step.message
        if step.what in _HALVES:
            step.state = self._half_state(message, later)
        elif step.what == "delayed":
            waits = self._delivery.level_waits(message.queue_id, message.queue_offset)
            step.state = _wait_state(message, later, waits=waits)
        elif step.what == "timed":
            due_ms = step.due_timestamp_ms
            waits = self._delivery.timer_waits(message.queue_offset, message.phy_offset, due_ms)
            step.state = _wait_state(message, later, waits=waits)

        elif step.what == "pop":
            step.state = _pop_state(message, later)

    def _half_state(self, half: Message, later: list[Step]) -> str:
        for step in later:
            other = step.message
            if step.what == "commit" and other.prepared_transaction_offset == half.phy_offset:
                return "committed"
            if step.what == "op" and _ends(other, half):
                return "rolled_back"  # a commit record would have come before the op record
            if step.what == "half_copy":
                return "asked_again"
            if step.what == "given_up":
                return "given_up"
        return "given_up" if half.queue_offset < self._checked.get(half.queue_id, 0) else "pending"


def _ends(op: Message, half: Message) -> bool:
    return op.queue_id == half.queue_id and half.queue_offset in decided_numbers(op.body)


def _is_for_revival(message: Message) -> bool:
    return message.properties.get(REAL_TOPIC, "").startswith(_REVIVE_PREFIX)


def _is_pop_of(record: Message, message: Message) -> bool:
    """Return True for the check point of a pop that delivered the message, and for its acknowledgement."""
    parts = (record.unique_key or "").split(_POP_KEY)
    if parts[:2] != [message.topic, str(message.queue_id)]:
        return False
    if record.tags == "ack":
        return parts[2:3] == [str(message.queue_offset)]
    return record.tags == "ck" and message.queue_offset in _popped_offsets(record.body)


def _pop_of(record: Message) -> tuple[str, str]:
    """Return the group and the time (ms) of a pop, from the key of its check point or acknowledgement."""
    parts = (record.unique_key or "").split(_POP_KEY)
    return (parts[3], parts[4]) if len(parts) > _POP_KEY_PARTS else ("?", "")


def _pop_state(pop: Message, later: Iterable[Step]) -> str:
    for step in later:
        if step.what == "pop_ack" and _pop_of(step.message) == _pop_of(pop):
            return "ended"
        if step.what == "pop_retry":
            return "came_again"
    return "open"


def _popped_offsets(body: bytes) -> list[int]:
    """Return the queue offsets of a check point: its start plus each distance."""
    try:
        check_point = json.loads(body) if len(body) <= _LONGEST_CHECK_POINT_BYTES else {}
        return [check_point["so"] + distance for distance in check_point["d"]]
    except (ValueError, TypeError, KeyError, RecursionError):
        return []


def _place(message: Message) -> tuple[str, str]:
    """Return the topic and queue id that a waiting or hidden message is for."""
    return message.properties.get(REAL_TOPIC, ""), message.properties.get(REAL_QID, "")


def _is_delivery(record: Message, waited: Message) -> bool:
    same = (record.topic, str(record.queue_id)) == _place(waited)
    return same and record.reconsume_times == waited.reconsume_times and record.phy_offset > waited.phy_offset


def _wait_state(message: Message, later: Iterable[Step], *, waits: bool) -> str:
    for step in later:
        if _is_delivery(step.message, message):
            return "delivered"
        if step.what == "timed" and message.topic == TIMER_TOPIC and _place(step.message) == _place(message):
            return "rolled"
    return "waiting" if waits else "passed"


def _what(message: Message, before: list[Step]) -> What:
    topic, properties = message.topic, message.properties
    if message.is_tombstone:
        return "tombstone"
    if topic == paths.HALF_TOPIC:
        return "half_copy" if {TRANSACTION_CHECK_TIMES, FIRST_HALF_NUMBER} & properties.keys() else "half"
    of_topic: dict[str, What] = {
        paths.OP_TOPIC: "op",
        paths.TRANSACTION_CHECK_TOPIC: "given_up",
        paths.SCHEDULE_TOPIC: "delayed",
        TIMER_TOPIC: _POP_TAGS.get(message.tags or "", "timed") if _is_for_revival(message) else "timed",
    }
    if topic in of_topic:
        return of_topic[topic]
    if topic.startswith(paths.DLQ_PREFIX):
        return "dead_letter"
    if topic.startswith(paths.RETRY_PREFIX):
        return "pop_retry" if FIRST_POP_TIME in properties else "retry"
    if topic.startswith(_REVIVE_PREFIX):
        return "revive"
    if message.transaction == "commit":
        return "commit"
    return "delivered" if _waited(message, before) is not None else "stored"


def _waited(message: Message, before: list[Step]) -> Step | None:
    """Return the step in which the delivered message waited."""
    waited = (step for step in before if step.what in _WAITING and _is_delivery(message, step.message))
    return next(waited, None)


_OF_POPS: Final = {
    "pop": "group {} popped it",
    "pop_ack": "group {} acknowledged it, or hid it again",
    "revive": "its time had come: the broker looks whether group {} acknowledged it",
}


def _why(what: What, message: Message, before: list[Step]) -> str:
    properties, times = message.properties, message.reconsume_times
    real = "/".join(_place(message))
    match what:
        case "half":
            return f"for {real}, hidden until producer group {properties.get(PRODUCER_GROUP, '?')} decides"
        case "half_copy":
            return f"check {properties.get(TRANSACTION_CHECK_TIMES, '?')} of the producer, which puts it at the queue's end"
        case "op":
            ended = [n for n in decided_numbers(message.body) if any(n == s.message.queue_offset for s in before)]
            return f"ends the half message at {', '.join(map(str, ended)) or '?'}"
        case "commit":
            return f"committed, from the half message at {message.prepared_transaction_offset}"
        case "given_up":
            return f"no decision, checks {properties.get(TRANSACTION_CHECK_TIMES, '?')}; was for {real}"
        case "delayed":
            back = f", given back {_times(times)}" if RETRY_TOPIC in properties else ""
            return f"for {real}, at delay level {message.queue_id + 1}{back}"
        case "timed":
            dropped = properties.get(TIMER_DEL_UNIQKEY)
            return f"asks the timer to drop {dropped}" if dropped else f"for {real}, in the timer"
        case "delivered":
            waited = _waited(message, before)
            of_timer = waited is not None and waited.what == "timed"
            return "its time had come in the timer" if of_timer else "its delay level's time had come"
        case "retry":
            return f"its group gave it back, try {times}, from {properties.get(RETRY_TOPIC, '?')}"
        case "pop_retry":
            return f"popped and not acknowledged in time, try {times}"
        case "dead_letter":
            return f"its group gave it back {_times(times)}, from {properties.get(RETRY_TOPIC, '?')}"
        case "pop" | "pop_ack" | "revive":
            return _OF_POPS[what].format(_pop_of(message)[0])
        case "tombstone":
            return "put by a recovery where the record was lost"
    return "as sent"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _outcome(steps: list[Step]) -> Iterator[str]:
    """Yield a line for each place where the message is now."""
    for number, step in enumerate(steps):
        message, later = step.message, steps[number + 1 :]
        place = f"{message.topic}/{message.queue_id}"
        real = "/".join(_place(message))
        if step.state == "waiting":
            yield f"waits for {real}"
        elif step.state == "passed":
            yield f"passed over on its way to {real}: no delivered record is in the log"
        elif step.state == "pending":
            yield f"pending for {real}: no decision yet, checks {message.properties.get(TRANSACTION_CHECK_TIMES, 0)}"
        elif step.state in ("rolled_back", "given_up"):
            yield f"{step.state.replace('_', ' ')}, never in {real}"
        elif step.state == "open":
            yield f"popped by group {_pop_of(message)[0]} and not acknowledged yet"
        elif step.what == "dead_letter":
            yield f"dead letter in {place}"
        elif step.what not in _NOT_CONSUMED and not _was_given_back(step, later):
            yield f"in {place}: {_consumed(step.groups)}"


def _was_given_back(step: Step, later: list[Step]) -> bool:
    """Return True if the group of a retry topic has returned the message once more."""
    if step.what not in ("retry", "pop_retry"):
        return False
    group = step.message.topic.removeprefix(paths.RETRY_PREFIX)
    next_topics = {step.message.topic, f"{paths.DLQ_PREFIX}{group}"}
    return any({other.message.topic, _place(other.message)[0]} & next_topics for other in later)


def _consumed(groups: tuple[GroupAt, ...]) -> str:
    if not groups:
        return "no group has progress there"
    return f"{sum(group.consumed for group in groups)} of {len(groups)} groups have consumed it"
