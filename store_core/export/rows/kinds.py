"""Name the kind of a message by its topic, or as a tombstone."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from store_core.layout import paths
from store_core.layout.timer import TIMER_TOPIC

TOMBSTONE: Final = "tombstone"  # replaces a lost message
_KINDS: Final = {
    paths.HALF_TOPIC: "half",
    paths.OP_TOPIC: "op",
    paths.ROCKSDB_HALF_TOPIC: "half",
    paths.ROCKSDB_OP_TOPIC: "op",
    paths.SCHEDULE_TOPIC: "delayed",
    TIMER_TOPIC: "delayed",
    **dict.fromkeys(paths.SYSTEM_TOPICS, "system"),
}
_KIND_PREFIXES: Final = (
    (paths.RETRY_PREFIX, "retry"),
    (paths.DLQ_PREFIX, "dlq"),
    (paths.SYSTEM_TOPIC_PREFIX, "system"),
    (paths.SYSTEM_TOPIC_PREFIX.upper(), "system"),
)


@lru_cache(maxsize=1 << 16)  # windows share most of their topics, and may have thousands
def topic_kind(topic: str) -> str:
    """Return user, half, op, delayed, retry, dlq or system."""
    by_prefix = (kind for prefix, kind in _KIND_PREFIXES if topic.startswith(prefix))
    by_suffix = "system" if topic.endswith(paths.REPLY_TOPIC_SUFFIX) else "user"
    return _KINDS.get(topic) or next(by_prefix, by_suffix)
