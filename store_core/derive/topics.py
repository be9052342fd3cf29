"""Complete topics.json with topics of the log or the queues that the configuration lacks (store format 9.3)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from store_core.layout import marks, paths
from store_core.storage.store import QueueKey

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
