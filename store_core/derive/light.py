"""Find expired light queues of 5.5, which a broker removes while their records stay under the parent topic (store format 10.7)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from store_core.codec.coerce import ConfigError, as_int
from store_core.layout import paths
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
