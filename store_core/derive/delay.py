"""How long each delay level waits: from the configuration, or told by the delay queues' own entries (store format 6.2).

An entry of a delay queue holds the delivery time; less the record's store time it is the level's delay.
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

_SAMPLES: Final = 8  # entries asked at each end of a delay queue
_LONGEST_READ_BYTES: Final = 8 << 20
_LONGEST_DELAY_MS: Final = 366 * 86_400_000  # beyond this the difference is not believed
_MAGICS: Final = (record.MAGIC_V1, record.MAGIC_V2)


@dataclass(frozen=True, slots=True)
class DelayTable:
    """Milliseconds of level 1, 2, …; ``proven`` are the levels that configuration or entries tell, the others are assumed."""

    delays_ms: tuple[int, ...] = DEFAULT_DELAYS_MS
    proven: frozenset[int] = frozenset()

    def delay_ms(self, level: int) -> int:
        """Delay of a level above 0, capped at the highest; an empty table adds what a broker adds for unknown levels."""
        return self.delays_ms[min(level, len(self.delays_ms)) - 1] if self.delays_ms else UNKNOWN_LEVEL_MS

    def assumes(self, level: int) -> bool:
        """Whether nothing told this level's delay."""
        return min(level, len(self.delays_ms)) not in self.proven


def delay_table(store: Store) -> DelayTable:
    """The store's delay levels. Raises UsageError where the configuration names a table that is none."""
    text = store.settings.delay_levels
    if text is not None:
        try:
            delays = parse_delay_levels(text)
        except ValueError as error:
            raise UsageError(f"messageDelayLevel: {error}", to_do="mend the configuration file") from error
        return DelayTable(delays, frozenset(range(1, len(delays) + 1)))
    told = delays_ms(store)
    if not told:
        return DelayTable()
    levels = range(1, max(*told, len(DEFAULT_DELAYS_MS)) + 1)
    delays = tuple(told.get(level, _default(level)) for level in levels)
    # Where every level that is told has its default, the configuration was never changed.
    unchanged = all(told[level] == _default(level) for level in told)
    return DelayTable(delays, frozenset(levels) if unchanged else frozenset(told))


def delays_ms(store: Store) -> Mapping[int, int]:
    """Delay by level, of the levels whose queue has an entry with its record at hand."""
    told = {}
    for key, files in store.queues.items():
        if key.topic == SCHEDULE_TOPIC and (delay := _told_by(store, key, files)) is not None:
            told[key.queue_id + 1] = delay
    return told


def _default(level: int) -> int:
    return DEFAULT_DELAYS_MS[min(level, len(DEFAULT_DELAYS_MS)) - 1]


def _told_by(store: Store, key: QueueKey, files: SegmentSequence) -> int | None:
    """The difference that most of the sampled entries agree on."""
    seen: Counter[int] = Counter()
    for segment in {files.segments[0], files.segments[-1]} if files.segments else ():
        data = files.read(segment.phy_offset, min(segment.size_bytes, _LONGEST_READ_BYTES))
        whole = len(data) // queue.ENTRY.size_bytes * queue.ENTRY.size_bytes
        entries = [e for e in queue.ENTRY.struct.iter_unpack(data[:whole]) if 0 < e[1] < queue.FILLER_SIZE_BYTES]
        for phy_offset, _, tags_code in (*entries[:_SAMPLES], *entries[-_SAMPLES:]):
            stored = _store_timestamp_ms(store.log, phy_offset)
            delivery = _resolved(store, key, tags_code)
            if stored is not None and 0 < delivery - stored < _LONGEST_DELAY_MS:
                seen[delivery - stored] += 1
    return seen.most_common(1)[0][0] if seen else None


def _resolved(store: Store, key: QueueKey, tags_code: int) -> int:
    """The tags code itself, or the one of the ConsumeQueueExt unit it is the address of; 0 without a unit."""
    if not queue.is_ext_address(tags_code):
        return tags_code
    ext = store.ext_queues.get(key)
    unit = ext.read(queue.ext_offset(tags_code), queue.EXT_UNIT.size_bytes) if ext is not None else b""
    return int(queue.EXT_UNIT.read(unit)["tags_code"]) if len(unit) == queue.EXT_UNIT.size_bytes else 0


def _store_timestamp_ms(log: SegmentSequence, phy_offset: int) -> int | None:
    """Store time of the record at an offset; None where no record of that offset starts there."""
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
