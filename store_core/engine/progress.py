"""Store a consumer group's progress (store behaviour 12.1; store format 9.1, 9.4)."""

from __future__ import annotations

from store_core.codec.config_fields import KEY_SEPARATOR
from store_core.engine.live_store import LiveStore
from store_core.errors import FailedError, UsageError
from store_core.storage.config_text import release_layout, render_consumer_offsets


def commit_offset(live: LiveStore, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
    """Set the next queue offset that a group will consume, backwards too, as a broker does.

    Raises UsageError for a group that cannot be stored, FailedError where progress is kept in RocksDB or its file cannot
    be written.
    """
    if not group or KEY_SEPARATOR in group:
        raise UsageError(f"{group!r} is no group", to_do=f"give a group's name, without {KEY_SEPARATOR}")
    if type(queue_id) is not int or type(queue_offset) is not int or queue_id < 0 or not 0 <= queue_offset < 1 << 63:
        what = f"{queue_id!r} and {queue_offset!r} are no queue and queue offset"
        raise UsageError(what, to_do="give whole numbers from 0 on")
    if live.config.in_rocksdb:
        raise FailedError("progress is kept in RocksDB", path=str(live.store.root), to_do="reset it with mqadmin")
    layout = release_layout(live.config, live.rules.config_layout)
    updates = {(group, topic, queue_id): queue_offset}
    text = render_consumer_offsets(live.config, updates, layout, timestamp_ms=live.now_ms())
    live.replace_config(live.config.progress.name, text)
