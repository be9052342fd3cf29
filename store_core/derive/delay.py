"""Find the delay of each level from the configuration, or from the entries of the delay queues (store format 6.2).

An entry of a delay queue has the delivery time; minus the record's store time it is the level's delay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from store_core.codec.delay_levels import DEFAULT_DELAYS_MS, UNKNOWN_LEVEL_MS, parse_delay_levels
from store_core.errors import UsageError
from store_core.layout import queue, record
from store_core.layout.paths import SCHEDULE_TOPIC
from store_core.storage.sequence import SegmentSequence
from store_core.storage.store import QueueKey, Store

_SAMPLES: Final = 8  # entries read at each end of a delay queue's file
_LONGEST_READ_BYTES: Final = 8 << 20
_LONGEST_DELAY_MS: Final = 366 * 86_400_000  # a larger difference is taken for damage
_MAGICS: Final = (record.MAGIC_V1, record.MAGIC_V2)


@dataclass(frozen=True, slots=True)
class DelayTable:
    """Milliseconds of level 1, 2, …; ``proven``: the levels known from configuration or entries; others are assumed."""

    delays_ms: tuple[int, ...] = DEFAULT_DELAYS_MS
    proven: frozenset[int] = frozenset()

    def delay_ms(self, level: int) -> int:
        """Return the delay of a level above 0, capped at the highest; of an empty table, a broker's delay for unknown levels."""
        return self.delays_ms[min(level, len(self.delays_ms)) - 1] if self.delays_ms else UNKNOWN_LEVEL_MS

    def assumes(self, level: int) -> bool:
        """Return True if this level's delay is not proven."""
        return min(level, len(self.delays_ms)) not in self.proven


def delay_table(store: Store) -> DelayTable:
    """Return the store's delay levels.

    Raises:
        UsageError: the configured table cannot be parsed.
    """
    text = store.settings.delay_levels
    if text is not None:
        try:
            delays = parse_delay_levels(text)
        except ValueError as error:
            raise UsageError(f"messageDelayLevel: {error}", to_do="mend the configuration file") from error
        return DelayTable(delays, frozenset(range(1, len(delays) + 1)))
    from_queues = delays_ms(store)
    if not from_queues:
        return DelayTable()
    levels = range(1, max(*from_queues, len(DEFAULT_DELAYS_MS)) + 1)
    delays = tuple(from_queues.get(level, _default(level)) for level in levels)
    # If every sampled level has its default, the configuration was never changed.
    unchanged = all(from_queues[level] == _default(level) for level in from_queues)
    return DelayTable(delays, frozenset(levels) if unchanged else frozenset(from_queues))


def delays_ms(store: Store) -> Mapping[int, int]:
    """Return the delay by level, for levels whose queue has an entry with its record in the log."""
    sampled = {}
    for key, files in store.queues.items():
        if key.topic == SCHEDULE_TOPIC and (delay := _sampled_delay_ms(store, key, files)) is not None:
            sampled[key.queue_id + 1] = delay
    return sampled


def _default(level: int) -> int:
    return DEFAULT_DELAYS_MS[min(level, len(DEFAULT_DELAYS_MS)) - 1]


def _sampled_delay_ms(store: Store, key: QueueKey, files: SegmentSequence) -> int | None:
    """Return the most frequent delay of a delay queue's sampled entries, or None."""
    counts: Counter[int] = Counter()
    for segment in {files.segments[0], files.segments[-1]} if files.segments else ():
        data = files.read(segment.phy_offset, min(segment.size_bytes, _LONGEST_READ_BYTES))
        whole = len(data) // queue.ENTRY.size_bytes * queue.ENTRY.size_bytes
        entries = [e for e in queue.ENTRY.struct.iter_unpack(data[:whole]) if 0 < e[1] < queue.FILLER_SIZE_BYTES]
        for phy_offset, _, tags_code in (*entries[:_SAMPLES], *entries[-_SAMPLES:]):
            stored = _store_timestamp_ms(store.log, phy_offset)
            delivery = _resolved(store, key, tags_code)
            if stored is not None and 0 < delivery - stored < _LONGEST_DELAY_MS:
                counts[delivery - stored] += 1
    return counts.most_common(1)[0][0] if counts else None


def _resolved(store: Store, key: QueueKey, tags_code: int) -> int:
    """Return the tags code, or if it is an address, the tags code of its ConsumeQueueExt unit; 0 without a unit."""
    if not queue.is_ext_address(tags_code):
        return tags_code
    ext = store.ext_queues.get(key)
    unit = ext.read(queue.ext_offset(tags_code), queue.EXT_UNIT.size_bytes) if ext is not None else b""
    return int(queue.EXT_UNIT.read(unit)["tags_code"]) if len(unit) == queue.EXT_UNIT.size_bytes else 0


def _store_timestamp_ms(log: SegmentSequence, phy_offset: int) -> int | None:
    """Return the store time of the record at an offset; None if no record with that offset starts there."""
    head = log.read(phy_offset, record.HEAD.size_bytes)
    if len(head) < record.HEAD.size_bytes:
        return None
    fields = record.HEAD.read(head)
    if fields["magic"] not in _MAGICS or fields["own_phy_offset"] != phy_offset:
        return None
    data = log.read(phy_offset + record.store_time_at(fields["sys_flag"]), record.STORE_TIME.size_bytes)
    return (
        int(record.STORE_TIME.read(data)["store_timestamp_ms"]) if len(data) == record.STORE_TIME.size_bytes else None
    )
