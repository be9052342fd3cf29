"""Lost messages are counted as ranges of queue offsets, however many there are."""

from __future__ import annotations

from store_core.recovery.lost_messages import MOST_RECORDS, LostMessages
from store_core.recovery.lost_record import LostRecord, LostRun
from store_core.storage.store import QueueKey

ORDERS, BILLS = QueueKey("Orders", 0), QueueKey("Bills", 3)


def test_numbers_alone_take_no_room() -> None:
    """A trillion of them; those of known records count once, and are reported with their size and keys."""
    known = [LostRecord(*ORDERS, 7, 4096, 200, ("K7",)), LostRecord(*ORDERS, 8, 4296, 100, batch_size=2)]
    lost = LostMessages(known, [(ORDERS, 5, 1 << 40), (BILLS, 0, 3), (ORDERS, 7, 3)])
    assert lost.runs() == [
        LostRun("Bills", 3, 0, 2, 3, 0),
        LostRun("Orders", 0, 5, (1 << 40) + 4, 1 << 40, 300, ("K7",)),
    ]
    first = lost.first()
    assert [record.phy_offset for record in first[:3]] == [4096, 4296, None]
    assert [(r.topic, r.queue_offset) for r in first[2:7]] == [
        *(("Bills", number) for number in range(3)),
        ("Orders", 5),
        ("Orders", 6),
    ]
    assert len(first) == MOST_RECORDS
    assert {r.queue_offset for r in first if r.topic == "Orders" and r.phy_offset is None}.isdisjoint({7, 8, 9})
