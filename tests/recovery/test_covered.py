"""What entries lead to is remembered exactly, whatever they point to."""

from __future__ import annotations

import random

import numpy as np
import pytest

from store_core.broker.pending_entries import EntrySpool
from store_core.broker.queue_recovery import QueueState
from store_core.broker.versions import Version, behaviour_of
from store_core.layout import record
from store_core.recovery.prediction.queue_coverage import CELL_BITS, Covered, Offsets, Span
from store_core.storage.store import QueueKey


def test_no_two_records_begin_in_one_cell() -> None:
    assert 1 << CELL_BITS <= record.MIN_RECORD_SIZE_BYTES


@pytest.mark.parametrize("spread", [91, 8])
def test_offsets_near_and_far(spread: int) -> None:
    draw = random.Random(spread)
    start, end = 5000, 5000 + 4000 * spread
    added = [draw.randrange(start - 500, end + 500) for _ in range(4000)]
    offsets = Offsets(start, end)
    for at in range(0, len(added), 700):
        offsets.add(np.array(added[at : at + 700], np.int64))
    asked = np.arange(start, end)
    assert set(asked[offsets.has(asked)].tolist()) == {offset for offset in added if start <= offset < end}


@pytest.mark.parametrize("is_rising", [True, False])
def test_entries_of_segment_after_segment(is_rising: bool) -> None:
    draw = random.Random(7)
    offsets = [draw.randrange(100_000) for _ in range(9000)]
    if is_rising:
        offsets.sort()
    sizes = [draw.choice([0, -1, 100, 1 << 30]) for _ in offsets]
    with EntrySpool() as spool:
        queue = QueueState(QueueKey("t", 0), 20 * 10_000, behaviour_of(Version.parse("5.3.3")), None, [], spool=spool)
        for offset, size in zip(offsets, sizes, strict=True):  # as an array of one, in the order they come
            entry = np.zeros(1, queue.layout.dtype)
            entry["phy_offset"], entry["size_bytes"] = offset, size
            queue._appended.add(entry)
        queue.starts, queue._appended_at = [0], 0
        span = Span(queue, 0, 20 * len(offsets), is_rising=is_rising)
        for start, end in ((20_000, 30_000), (30_000, 45_000), (90_000, 100_000)):
            covered = Covered(start, end)
            for starts, ends in span.places(end):
                covered.add(starts, ends)
            asked = np.arange(start, end)
            told = {o for o, size in zip(offsets, sizes, strict=True) if start <= o < end and size == 100}
            assert set(asked[covered.has(asked, asked + 100)].tolist()) == {o for o in told if o + 100 <= end}
            assert not covered.has(asked[asked % 100 == 0], asked[asked % 100 == 0] + 1).any()


def test_an_entry_with_another_size_leads_to_no_record() -> None:
    covered = Covered(1000, 2000)
    covered.add(np.array([1000, 1300, 1700]), np.array([1300, 1690, 2000]))
    asked = np.array([1000, 1300, 1700, 1800]), np.array([1300, 1700, 2000, 2100])
    assert covered.has(*asked).tolist() == [True, False, True, False]
