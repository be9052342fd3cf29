"""Lower progress that is after the end of its queue: consumers, the delay service, the timer (store behaviour 12)."""

from __future__ import annotations

from collections.abc import Mapping

from store_core.codec.json_dialect import dumps
from store_core.layout import paths, timer
from store_core.storage.config_files import ConfigFiles, offset_table
from store_core.storage.config_text import release_layout, render_consumer_offsets
from store_core.storage.store import QueueKey, Store


def lowered_progress(store: Store, ends: Mapping[QueueKey, int], config: ConfigFiles) -> dict[str, bytes]:
    """Return progress files with progress after a queue's new end set to that end, by their path in the store.

    Otherwise a group would not get the messages to which a broker gives the lost messages' queue offsets. Progress in
    queues that ``ends`` does not contain is kept.
    """
    lowered = {
        (group, topic, queue_id): ends[QueueKey(topic, queue_id)]
        for (group, topic, queue_id), offset in offset_table(config).items()
        if offset > ends.get(QueueKey(topic, queue_id), offset)
    }
    files = {config.progress.name: render_consumer_offsets(config, lowered).encode()} if lowered else {}
    return {**files, **_delay_progress(config, ends), **_timer_check(store, ends)}


def _delay_progress(config: ConfigFiles, ends: Mapping[QueueKey, int]) -> dict[str, bytes]:
    """Return the file of the delay service's progress, if a level's changes."""
    file = config.delay_offsets
    offsets = {
        level: min(offset, ends.get(QueueKey(paths.SCHEDULE_TOPIC, level - 1), 0))
        for level, offset in config.delay_levels.items()
    }
    if offsets == config.delay_levels:
        return {}
    document = {**file.tree, "offsetTable": offsets}
    return {file.name: dumps(document, layout=release_layout(config)).encode()}


def _timer_check(store: Store, ends: Mapping[QueueKey, int]) -> dict[str, bytes]:
    """Return the file of the timer's progress in its topic, if that changes."""
    data = store.cache.read(store.root / paths.TIMERCHECK, 0, timer.CHECK_FILE_SIZE_BYTES)
    if len(data) < timer.CHECK.size_bytes:
        return {}
    fields = timer.CHECK.read(data)
    end = ends.get(QueueKey(timer.TIMER_TOPIC, 0), 0)
    if fields["last_timer_queue_offset"] <= end and fields["master_timer_queue_offset"] <= end:
        return {}
    for name in ("last_timer_queue_offset", "master_timer_queue_offset"):
        fields[name] = min(fields[name], end)
    return {paths.TIMERCHECK: timer.CHECK.struct.pack(*fields.values()) + data[timer.CHECK.size_bytes :]}
