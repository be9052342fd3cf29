"""What executors are to read: planned on the driver from directory listings."""

from __future__ import annotations

from store_core.export.source.options import SourceOptions, StoreOfSource
from store_core.export.source.reading import Reading
from store_core.export.source.walk import plan
from store_core.read.log import start_for_time
from store_core.storage.live import is_live
from store_core.storage.store import Store


def batch_readings(options: SourceOptions) -> list[Reading]:
    """Everything that is asked for, in splits, store by store in log order. Raises StoreError."""
    return [reading for store in options.stores for reading in _readings_of(store, options)]


def _readings_of(named: StoreOfSource, options: SourceOptions) -> list[Reading]:
    wanted = options.wanted
    with Store.open(named.settings.root, named.settings) as store:
        log = store.log
        start = max(wanted.from_phy_offset or 0, start_for_time(store, wanted.begin_ms), log.min_phy_offset)
        is_table_of_ranges = options.table == "quarantine"
        size = options.split_size_bytes
        if is_table_of_ranges:  # a segment's damage goes from end to end; there is little of it and it is quick to walk
            size = max([size, *(log.file_size_bytes or segment.size_bytes for segment in log.segments)])
        splits = plan(log, start, wanted.to_phy_offset, size)
        is_part = wanted.to_phy_offset is not None and wanted.to_phy_offset < log.max_phy_offset
        tail_told = is_table_of_ranges and not is_part and not is_live(store.root).live
    return [
        Reading(
            named.name,
            named.settings,
            split,
            wanted,
            options.mode,
            options.columns,
            start,
            wanted.to_phy_offset,
            tail_told,
        )
        for split in splits
    ]
