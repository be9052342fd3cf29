"""Check config files, and the progress in them, against the queues (store format 9; store behaviour 12)."""

from __future__ import annotations

from collections.abc import Collection

from store_core.check.report import Findings
from store_core.derive.topics import missing_topics
from store_core.findings import Severity
from store_core.layout import paths
from store_core.read.queue import BatchQueue, Queue
from store_core.storage.config_files import ConfigFiles, offset_table
from store_core.storage.store import QueueKey, Store

Ends = tuple[int, int]


def check_progress(store: Store, config: ConfigFiles, log_keys: Collection[QueueKey], findings: Findings) -> None:
    """Check progress and topics against the queues; without queue files, only the topics.

    ``log_keys`` are the queues of the log's messages.
    """
    for found in config.findings:
        findings.add(found)
    _check_topics(store, config, log_keys, findings)
    if store.queues_in_rocksdb:
        return
    ends = _QueueEnds(store)
    for (group, topic, queue_id), offset in sorted(offset_table(config).items()):
        _check_group(group, QueueKey(topic, queue_id), offset, ends, findings, config.progress.name)
    _check_delay(config, ends, findings, aborted=store.aborted)


def _check_topics(store: Store, config: ConfigFiles, log_keys: Collection[QueueKey], findings: Findings) -> None:
    """Report topics that the log or the queues have and topics.json lacks."""
    if config.in_rocksdb or config.topics.too_large:
        return
    seen = {*log_keys, *(() if store.queues_in_rocksdb else (*store.queues, *store.batch_queues))}
    for topic, queues in missing_topics(seen, config.topic_names).items():
        needed = "1 queue" if queues == 1 else f"{queues} queues"
        message = f"the topic has messages or queues, and no configuration; it needs {needed}"
        findings.say("P002", message, file=config.topics.name, topic=topic)


class _QueueEnds:
    """First and end queue offsets of queues, each read once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[QueueKey, Ends | None] = {}
        self._topics = {key.topic for key in (*store.queues, *store.batch_queues)}

    def of(self, key: QueueKey) -> Ends | None:
        """Return the first and the end offset of a queue; None without such a queue."""
        if key not in self._known:
            self._known[key] = self._read(key)
        return self._known[key]

    def topic_has_queues(self, topic: str) -> bool:
        return topic in self._topics

    def messages_of(self, topic: str) -> int:
        """Return how many queue offsets a topic's queues have."""
        known = [self.of(key) for key in self._store.queues if key.topic == topic]
        return sum(ends[1] - ends[0] for ends in known if ends is not None)

    def _read(self, key: QueueKey) -> Ends | None:
        if (files := self._store.batch_queues.get(key)) is not None:
            batch = BatchQueue(files, self._store.log)
            return batch.min_offset, batch.max_offset
        if (files := self._store.queues.get(key)) is not None and files.segments:
            queue = Queue(files, self._store.log)
            return queue.min_offset, queue.max_offset
        return None


def _check_group(group: str, key: QueueKey, offset: int, ends: _QueueEnds, findings: Findings, file: str) -> None:
    known = ends.of(key)
    if known is None:
        if offset > 0:
            what = "the queue" if ends.topic_has_queues(key.topic) else "the topic"
            message = f"group {group} has progress {offset}, and {what} has no messages here"
            findings.say("P006", message, file=file, topic=key.topic, queue_id=key.queue_id, queue_offset=offset)
        return
    first, end = known
    if offset > end:
        code, message = "P001", f"group {group} is at {offset}, the queue ends at {end}"
    elif offset < first:
        code, message = "P005", f"group {group} is at {offset}, the queue begins at {first}"
    else:
        return
    findings.say(code, message, file=file, topic=key.topic, queue_id=key.queue_id, queue_offset=offset)


def _check_delay(config: ConfigFiles, ends: _QueueEnds, findings: Findings, *, aborted: bool) -> None:
    if config.has_lost(config.delay_offsets) and (messages := ends.messages_of(paths.SCHEDULE_TOPIC)):
        message = (
            f"{config.delay_offsets.name} is missing: all {messages} messages of the delay queues are to be delivered"
        )
        unwritten: Severity | None = "info" if aborted else None  # it is first written after ten seconds
        findings.say("P009", message, file=config.delay_offsets.name, topic=paths.SCHEDULE_TOPIC, severity=unwritten)
    for level, offset in sorted(config.delay_levels.items()):
        key = QueueKey(paths.SCHEDULE_TOPIC, level - 1)
        first, end = ends.of(key) or (0, 0)
        if not first <= offset <= end:
            expired: Severity | None = "info" if offset < first else None  # the messages in between have expired
            findings.say(
                "P007",
                f"level {level} is at {offset}, its queue goes from {first} to {end}",
                file=config.delay_offsets.name,
                topic=key.topic,
                queue_id=key.queue_id,
                queue_offset=offset,
                severity=expired,
            )
