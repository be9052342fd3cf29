"""Decide why a broker refuses a message, from a table in the broker's order (store behaviour 4.1)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

from store_core.codec.properties import format_properties
from store_core.codec.text import utf16_length
from store_core.derive.dispatch import INNER_NUM
from store_core.engine.live_store import LiveStore
from store_core.engine.message import NewMessage, PutStatus
from store_core.engine.record import NewRecord
from store_core.engine.rules import PutRules
from store_core.layout import paths, record

TOPIC_LIMIT: Final = 127
LONG_TOPIC_LIMIT_BYTES: Final = 255
_TOPIC: Final = re.compile(paths.TOPIC_NAME)
_RESERVED: Final = frozenset(
    (
        paths.SCHEDULE_TOPIC,
        paths.HALF_TOPIC,
        paths.OP_TOPIC,
        paths.TRANSACTION_CHECK_TOPIC,
        paths.SELF_TEST_TOPIC,
        paths.OFFSET_MOVED_TOPIC,
    )
)
_SOUND_TOPICS: Final = 1 << 16
_SLACK_BYTES: Final = 256 << 10  # room for new pages of queue and index


class RefusedError(Exception):
    """A broker refuses the message. Raised and caught inside ``engine``."""

    def __init__(self, status: PutStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class Case(NamedTuple):
    """A message and the inputs of its checks. ``queue_limit``: None where the number of queues is unknown."""

    live: LiveStore
    message: NewMessage
    queue_id: int
    is_known: bool
    queue_limit: int | None


@dataclass(frozen=True, slots=True)
class Check:
    """A reason to refuse; ``rule`` selects the releases that have it. ``of_topic``: it depends on the topic and the settings alone."""

    status: PutStatus
    reason: str
    fails: Callable[[Case], bool]
    rule: Callable[[PutRules], bool] = lambda rules: True
    of_topic: bool = False


def _limited_by_bytes(topic: str) -> bool:
    return not topic.startswith(paths.RETRY_PREFIX) and len(topic.encode(errors="replace")) > TOPIC_LIMIT


def _is_slave(case: Case) -> bool:
    settings = case.live.store.settings
    return settings.value("brokerRole").strip() == "SLAVE" and not (
        case.live.rules.slave_may_duplicate and settings.flag("duplicationEnable")
    )


def _raw_properties(case: Case) -> str:
    return format_properties(case.message.properties, case.live.rules.final_separator).decode(errors="replace")


_UNAVAILABLE, _ILLEGAL = PutStatus.SERVICE_NOT_AVAILABLE, PutStatus.MESSAGE_ILLEGAL

# fmt: off
CHECKS: Final = (
    Check(_UNAVAILABLE, "the broker is a slave", _is_slave, of_topic=True),
    Check(_UNAVAILABLE, "the disk is full: make room on the store's file system, and put it again",
          lambda c: not c.live.has_room(len(c.message.body or b"") + _SLACK_BYTES)),
    Check(_ILLEGAL, "a topic consists of letters, digits and % | _ -",
          lambda c: _TOPIC.fullmatch(c.message.topic) is None, of_topic=True),
    Check(_ILLEGAL, "the topic is longer than 127 characters",
          lambda c: utf16_length(c.message.topic) > TOPIC_LIMIT, lambda r: not r.topic_limit_in_bytes, of_topic=True),
    Check(_ILLEGAL, "the topic is longer than 127 bytes",
          lambda c: _limited_by_bytes(c.message.topic), lambda r: r.topic_limit_in_bytes, of_topic=True),
    Check(_ILLEGAL, "the topic is longer than 255 bytes",
          lambda c: len(c.message.topic.encode(errors="replace")) > LONG_TOPIC_LIMIT_BYTES, of_topic=True),
    Check(_ILLEGAL, "clients may not send to this topic", lambda c: c.message.topic in _RESERVED, of_topic=True),
    Check(_ILLEGAL, "the topic does not exist", lambda c: not c.is_known),
    Check(_ILLEGAL, "the topic has no such queue",
          lambda c: c.queue_id < 0 or (c.queue_limit is not None and c.queue_id >= c.queue_limit)),
    Check(_ILLEGAL, "the properties are longer than 32767 characters",
          lambda c: utf16_length(_raw_properties(c)) > record.MAX_PROPERTIES_SIZE_BYTES,
          lambda r: r.long_properties_illegal),
    Check(_ILLEGAL, "there is no body", lambda c: c.message.body is None, lambda r: r.refuses_missing_body),
    Check(_ILLEGAL, f"{INNER_NUM} belongs to inner batches",
          lambda c: INNER_NUM in c.message.properties, lambda r: r.checks_inner_batch),
)
# fmt: on


def refusal(case: Case) -> Check | None:
    """Return the first reason to refuse a message, None where a broker accepts it. What depends on the topic alone is checked once a topic."""
    rules, topic, sound = case.live.rules, case.message.topic, case.live.sound_topics
    of_message, checks = _checks(rules)
    if topic in sound:
        return next((check for check in of_message if check.fails(case)), None)
    found = next((check for check in checks if check.fails(case)), None)
    if found is None:
        if len(sound) >= _SOUND_TOPICS:
            sound.clear()
        sound.add(topic)
    return found


@cache
def _checks(rules: PutRules) -> tuple[tuple[Check, ...], tuple[Check, ...]]:
    """Return a release's checks: those of a message whose topic is sound, and all."""
    checks = tuple(check for check in CHECKS if check.rule(rules))
    return tuple(check for check in checks if not check.of_topic), checks


def checked_size(live: LiveStore, new: NewRecord) -> int:
    """Return the record's size. Raises RefusedError where the encoder refuses it: properties, body or the whole are too long."""
    limit = live.longest_body_bytes
    try:
        size = len(live.encoded(new).data)
    except ValueError as error:
        raise RefusedError(PutStatus.PROPERTIES_SIZE_EXCEEDED, str(error)) from error
    if len(new.body) > limit:
        raise RefusedError(_ILLEGAL, f"the body is longer than {limit} bytes")
    if size > limit + record.RECORD_OVERHEAD_LIMIT_BYTES:
        raise RefusedError(_ILLEGAL, f"the record is longer than {limit + record.RECORD_OVERHEAD_LIMIT_BYTES} bytes")
    if size > live.largest_record_bytes:
        raise RefusedError(_ILLEGAL, f"the record does not fit into a segment of {live.segment_size_bytes} bytes")
    return size
