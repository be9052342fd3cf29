"""Complete topics.json with topics that it lacks (store format 9.3), and find light queues that a broker of 5.5 has removed (10.7)."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from store_core.codec.coerce import ConfigError, as_int
from store_core.layout import marks, paths
from store_core.storage.config_files import read_config
from store_core.storage.store import QueueKey, Store

if TYPE_CHECKING:
    from store_core.derive.spool import RowsByQueue


_SEPARATOR: Final = "$"
_PARTS: Final = 3
_TYPE, _LIGHT = "message.type", "LITE"
_EXPIRATION: Final = "lite.topic.expiration"  # minutes; 0 and less: never
_MS_PER_MINUTE: Final = 60_000


def parent_of(topic: str) -> str | None:
    """Return the parent topic in the name ``%LMQ%$PARENT$LIGHT``; None for any other name."""
    parts = topic.split(_SEPARATOR)
    return parts[1] if len(parts) == _PARTS and parts[0] == paths.LMQ_PREFIX and all(parts) else None


def expired_light_queues(store: Store, rows: RowsByQueue, *, now_ms: int | None = None) -> frozenset[QueueKey]:
    """Return the light queues without files whose newest message is so old that a broker has removed them.

    ``rows``: the log's messages by queue. ``now_ms``: None for the clock's time. The age limit is an attribute of the parent.
    """
    missing = [key for key in rows.queue_keys() if key not in store.queues and parent_of(key.topic)]
    if not missing:
        return frozenset()
    config = read_config(store.root)
    parents = {parent_of(key.topic) or "" for key in missing}
    kept_ms = {name: _kept_ms(topic["attributes"]) for name in parents if (topic := config.topic(name))}
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    found = []
    for key in missing:
        kept = kept_ms.get(parent_of(key.topic) or "", 0)
        newest = max((int(part["store_timestamp_ms"].max()) for part in rows.rows(key) if len(part)), default=now)
        if kept and newest + kept < now:
            found.append(key)
    return frozenset(found)


def _kept_ms(attributes: Mapping[str, str]) -> int:
    """Return how long a topic's light queues are kept after their newest message, ms; 0: for ever, or it has none."""
    if attributes.get(_TYPE) != _LIGHT:
        return 0
    try:
        return max(as_int(attributes.get(_EXPIRATION, "0"), _EXPIRATION), 0) * _MS_PER_MINUTE
    except ConfigError:
        return 0


_TABLE: Final = "topicConfigTable"
_VERSION: Final = "dataVersion"
_READ_AND_WRITE: Final = 6
# Brokers know these without an entry, or write it themselves, so a missing entry is no loss.
_KNOWN_TO_BROKERS: Final = frozenset(
    (paths.SCHEDULE_TOPIC, paths.HALF_TOPIC, paths.OP_TOPIC, paths.TRANSACTION_CHECK_TOPIC)
)
_MOST_QUEUES: Final = 2**31 - 1
_RMQCTL_TOPICS: Final = frozenset((marks.FILLER_TOPIC, marks.TOMBSTONE_TOPIC))


def needs_configuration(topic: str) -> bool:
    """Return True if a broker serves a topic only if topics.json names it."""
    is_special = topic.startswith((paths.LMQ_PREFIX, paths.SYSTEM_TOPIC_PREFIX))
    return not is_special and topic not in _KNOWN_TO_BROKERS and topic not in _RMQCTL_TOPICS


def missing_topics(keys: Iterable[QueueKey], configured: Collection[str]) -> dict[str, int]:
    """Return the topics without configuration, and how many queues each needs: its largest queue id plus 1, within a broker's limit."""
    found: dict[str, int] = {}
    for topic, queue_id in keys:
        if topic not in configured and needs_configuration(topic):
            found[topic] = max(found.get(topic, 0), min(queue_id + 1, _MOST_QUEUES))
    return dict(sorted(found.items()))


def completed_topics(
    document: Mapping[str, Any],
    missing: Mapping[str, int],
    *,
    with_attributes: bool,
    batch_topics: Collection[str] = (),
) -> dict[str, Any]:
    """Return a topics.json document with entries for the missing topics after the existing ones, and the data version increased.

    ``with_attributes``: entries have the member that 5.x writes, in which a topic with batch queues says so.
    """
    completed = dict(document)
    table = dict(completed.get(_TABLE) or {})
    for topic, queues in missing.items():
        table[topic] = topic_entry(topic, queues, with_attributes=with_attributes, batch=topic in batch_topics)
    completed[_TABLE] = table
    if isinstance(version := completed.get(_VERSION), Mapping) and missing:
        completed[_VERSION] = {**version, "counter": int(version.get("counter", 0)) + 1}
    return completed


def topic_entry(topic: str, queues: int, *, with_attributes: bool, batch: bool = False) -> dict[str, Any]:
    """Return a member of the topic table as a broker creates a topic by default: readable and writable, single tags."""
    entry: dict[str, Any] = {"attributes": {"queue.type": "BatchCQ"} if batch else {}} if with_attributes else {}
    return entry | {
        "order": False,
        "perm": _READ_AND_WRITE,
        "readQueueNums": queues,
        "topicFilterType": "SINGLE_TAG",
        "topicName": topic,
        "topicSysFlag": 0,
        "writeQueueNums": queues,
    }
