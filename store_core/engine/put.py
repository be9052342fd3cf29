"""Store a message as a broker does: its checks, added properties, delay and timer (store behaviour 4.1, 4.6, 4.7)."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Final

from store_core.broker.load import BATCH_TYPE
from store_core.codec.config_parse import Shown
from store_core.codec.properties import DELAY, REAL_QID, REAL_TOPIC, TRAN_MSG, UNIQ_KEY
from store_core.derive.dispatch import MULTI_DISPATCH
from store_core.derive.topics import topic_entry
from store_core.engine import properties as names
from store_core.engine.checks import Case, RefusedError, checked, refusal
from store_core.engine.live_store import LiveStore
from store_core.engine.message import NewMessage, PutResult, PutStatus
from store_core.engine.properties import make_unique_key
from store_core.engine.record import NewRecord, Stored
from store_core.errors import FailedError, UsageError
from store_core.kernel.encode import Encoded
from store_core.layout import paths, record, timer
from store_core.storage.config_text import release_layout, render_topics

DEFAULT_QUEUES: Final = 4  # a client's request when it sends to a topic that does not exist yet
_COMPACTION: Final = ("cleanup.policy", "COMPACTION")
_KNOWN_QUEUE_TYPES: Final = ("", "SimpleCQ", BATCH_TYPE)
_TIMER_REQUESTS: Final = (names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS, names.TIMER_DELIVER_MS)
_ENDS_NAME: Final = chr(record.NAME_VALUE_SEPARATOR)
_ENDS: Final = chr(record.PROPERTY_SEPARATOR)
_CRC_PROPERTY: Final = record.PROPERTY_CRC_NAME.decode()


def put(live: LiveStore, message: NewMessage, *, create_topic: bool = False, half: bool = False) -> PutResult:
    """Store a message and return the broker's answer. ``half``: as the first half of a transaction.

    ``create_topic``: a topic that is not configured is created, as by a broker with autoCreateTopicEnable. Raises UsageError for messages that cannot
    be written offline, FailedError where the system refuses or the store cannot take the message.
    """
    new = accepted(live, message, create_topic, half)
    return new if isinstance(new, PutResult) else answer(live.append(*new))


def put_all(live: LiveStore, messages: Sequence[NewMessage], *, create_topic: bool = False) -> list[PutResult]:
    """Store messages together and return an answer for each, in their order: what is refused is left out of the log.

    Raises as ``put``; before the first byte is written for what cannot be written offline.
    """
    answers = [accepted(live, message, create_topic, half=False) for message in messages]
    new = [one for one in answers if not isinstance(one, PutResult)]
    stored = iter(live.append_all(new) if new else ())
    return [one if isinstance(one, PutResult) else answer(next(stored)) for one in answers]


def answer(stored: Stored) -> PutResult:
    """Return the broker's answer for a record in the log."""
    status = PutStatus.PUT_OK if stored.is_durable else PutStatus.FLUSH_DISK_TIMEOUT
    return PutResult(status, stored.topic, stored.queue_id, stored)


def accepted(
    live: LiveStore, message: NewMessage, create_topic: bool, half: bool
) -> tuple[NewRecord, Encoded] | PutResult:
    """Return the record to store and its bytes at place 0, or the broker's refusal; a topic that is to be created is."""
    _refuse_unsupported(live, message, half)
    config = live.topic(message.topic)
    queue_id = _queue_id(message, config)
    is_known = _is_known(live, message.topic)
    case = Case(live, message, queue_id, create_topic or is_known, _queue_limit(config))
    try:
        if (check := refusal(case)) is not None:
            raise RefusedError(check.status, check.reason)
        new = _as_record(live, message, queue_id)
        new = as_half(live, new) if half else rescheduled(live, new)
        encoded = checked(live, new)
    except RefusedError as refused:
        return PutResult(refused.status, message.topic, message.queue_id, reason=refused.reason)
    if not is_known:
        with live.lock:
            if not _is_known(live, message.topic):
                make_topic(live, message.topic, queue_id)
    return new, encoded


def _refuse_unsupported(live: LiveStore, message: NewMessage, half: bool) -> None:
    numbers = (message.queue_id, message.flag, message.sys_flag, message.born_timestamp_ms, message.reconsume_times)
    if any(type(number) is not int for number in numbers if number is not None):
        raise UsageError("a number of the message is no int", to_do="give whole numbers")
    if message.sys_flag < 0 or (not half and message.sys_flag & record.TRANSACTION_MASK):
        to_do = "begin a transaction with half, and end it with commit or rollback"
        raise UsageError(f"sys_flag {message.sys_flag} is a part of a transaction", to_do=to_do)
    for name, value in message.properties.items():
        if not name or not value or _ENDS_NAME in name or _ENDS in name or _ENDS_NAME in value or _ENDS in value:
            raise UsageError(
                f"property {name!r} cannot be stored", to_do="give a name and a value without 0x01 and 0x02"
            )
    if MULTI_DISPATCH in message.properties:
        raise UsageError(
            "messages for several light queues are not written offline", to_do=f"leave {MULTI_DISPATCH} out"
        )
    if half and message.properties.get(DELAY):
        raise UsageError("a transaction cannot be delayed", to_do="leave the delay level out")
    config = live.topic(message.topic)
    attributes = config["attributes"] if config is not None else {}
    if attributes.get(_COMPACTION[0]) == _COMPACTION[1]:
        raise FailedError(
            f"{message.topic} is a compaction topic, which a broker serves from files of its own",
            to_do="send the message to a running broker",
        )
    if attributes.get("queue.type", "") not in _KNOWN_QUEUE_TYPES:
        raise FailedError(f"the queues of {message.topic} are in RocksDB", to_do="send the message to a running broker")


def _is_known(live: LiveStore, topic: str) -> bool:
    """Return True if the topic is configured; without any configuration, if it has queues."""
    if live.config.topics.source == "none" or live.config.in_rocksdb:  # also if the file is too large to be read
        return any(key.topic == topic for key in (*live.store.queues, *live.store.batch_queues))
    return live.topic(topic) is not None


def _queue_limit(config: Shown | None) -> int | None:
    return max(config["read_queues"], config["write_queues"]) if config is not None else None


def _queue_id(message: NewMessage, config: Shown | None) -> int:
    """Return the wanted queue, else a random one, as in brokers; the first where their number is unknown."""
    if message.queue_id is not None:
        return message.queue_id
    return random.randrange(config["write_queues"]) if config is not None and config["write_queues"] > 0 else 0


def make_topic(live: LiveStore, topic: str, queue_id: int) -> None:
    """Configure a topic as a broker does when a producer sends to it."""
    single = topic.startswith((paths.RETRY_PREFIX, paths.DLQ_PREFIX))
    queues = max(1 if single else DEFAULT_QUEUES, queue_id + 1)
    layout = release_layout(live.config, live.rules.config_layout)
    new = {topic: topic_entry(topic, queues, with_attributes=layout != "4")}
    live.replace_config(live.config.topics.name, render_topics(live.config, new, live.now_ms(), layout))


def _as_record(live: LiveStore, message: NewMessage, queue_id: int) -> NewRecord:
    """Return the record with the properties that a broker adds to a producer's."""
    now_ms = live.now_ms()
    born_host = live.host(message.born_host)
    properties = {k: v for k, v in message.properties.items() if k != _CRC_PROPERTY}
    if live.rules.adds_unique_key and not properties.get(UNIQ_KEY):
        properties[UNIQ_KEY] = make_unique_key(born_host, now_ms)
    if live.cluster is not None:
        properties[names.CLUSTER] = live.cluster
    return NewRecord(
        topic=message.topic,
        queue_id=queue_id,
        body=message.body or b"",
        properties=properties,
        born_timestamp_ms=now_ms if message.born_timestamp_ms is None else message.born_timestamp_ms,
        born_host=born_host,
        flag=message.flag,
        sys_flag=message.sys_flag,
        reconsume_times=message.reconsume_times,
    )


def moved(new: NewRecord, topic: str, queue_id: int, more: Mapping[str, str]) -> NewRecord:
    """Return the record in another queue; its properties keep its real topic and queue."""
    properties = {**new.properties, **more, REAL_TOPIC: new.topic, REAL_QID: str(new.queue_id)}
    return new._replace(topic=topic, queue_id=queue_id, properties=properties)


def rescheduled(live: LiveStore, new: NewRecord) -> NewRecord:
    """Return a delayed message in its level's queue, one with a time in the timer's, others unchanged; raises RefusedError."""
    level = _delay_level(new.properties)
    if live.rules.knows_timers:
        if level > 0:
            new = new._replace(properties={k: v for k, v in new.properties.items() if k not in _TIMER_REQUESTS})
        elif names.TIMER_OUT_MS not in new.properties and any(name in new.properties for name in _TIMER_REQUESTS):
            return _timed(live, new)
    if level <= 0:
        return new
    level = min(level, len(live.delays.delays_ms))
    return moved(new, paths.SCHEDULE_TOPIC, level - 1, {DELAY: str(level)})


def _delay_level(properties: Mapping[str, str]) -> int:
    try:
        return int(properties.get(DELAY, "0"))
    except ValueError as error:
        raise RefusedError(PutStatus.MESSAGE_ILLEGAL, f"{DELAY} is no number") from error


def _timed(live: LiveStore, new: NewRecord) -> NewRecord:
    """Return the message in the timer's topic, from which a broker's timer takes it at its next start."""
    settings = live.store.settings
    if not settings.flag("timerWheelEnable", True):
        raise RefusedError(PutStatus.WHEEL_TIMER_NOT_ENABLE, "timerWheelEnable is false")
    now_ms = live.now_ms()
    try:
        deliver_ms = _deliver_ms(new.properties, now_ms)
    except ValueError as error:
        raise RefusedError(PutStatus.WHEEL_TIMER_MSG_ILLEGAL, "the time is no number") from error
    if deliver_ms <= now_ms:
        if names.TIMER_DEL_UNIQKEY in new.properties:
            raise RefusedError(PutStatus.WHEEL_TIMER_MSG_ILLEGAL, "the time to take it back is over")
        return new
    longest_seconds = int(settings.value("timerMaxDelaySec", str(timer.DEFAULT_LONGEST_DELAY_SECONDS)))
    if deliver_ms - now_ms > longest_seconds * 1000:
        raise RefusedError(PutStatus.WHEEL_TIMER_MSG_ILLEGAL, f"it is due in more than {longest_seconds} seconds")
    precision_ms = int(settings.value("timerPrecisionMs", str(timer.DEFAULT_PRECISION_MS)))
    due_ms = (deliver_ms - 1) // precision_ms * precision_ms  # an exact multiple becomes a unit earlier
    return moved(new, timer.TIMER_TOPIC, 0, {names.TIMER_OUT_MS: str(due_ms)})


def _deliver_ms(properties: Mapping[str, str], now_ms: int) -> int:
    if (seconds := properties.get(names.TIMER_DELAY_SEC)) is not None:
        return now_ms + int(seconds) * 1000
    if (delay_ms := properties.get(names.TIMER_DELAY_MS)) is not None:
        return now_ms + int(delay_ms)
    return int(properties[names.TIMER_DELIVER_MS])


def as_half(live: LiveStore, new: NewRecord) -> NewRecord:
    """Return the first half of a transaction: hidden in the half topic until it is committed or rolled back (4.8)."""
    extra = {TRAN_MSG: "true"}
    if live.rules.adds_transaction_id and (key := new.properties.get(UNIQ_KEY)):
        extra[names.TRANSACTION_ID] = key
    new = new._replace(sys_flag=new.sys_flag & ~record.TRANSACTION_MASK)
    return moved(new, paths.HALF_TOPIC, 0, extra)
