"""Whole queues as columns are what pull gives one by one."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from store_core.errors import FailedError
from store_core.layout.queue import FILLER_SIZE_BYTES
from store_core.read import bulk
from store_core.read.bulk import QueueTable, read_queue
from store_core.read.maps import LogMaps
from store_core.read.pull import open_queue
from store_core.read.queue import Queue
from store_core.read.records import read_message
from store_core.storage.store import Store
from tests import stores
from tests.conftest import GoldenStore, StoreCopy
from tests.damage import Damageable

_SAME = (
    "magic",
    "body_crc",
    "queue_id",
    "flag",
    "own_phy_offset",
    "sys_flag",
    "born_timestamp_ms",
    "store_timestamp_ms",
    "reconsume_times",
    "prepared_transaction_offset",
)


def check(queue: Queue, tables: Iterable[QueueTable]) -> int:
    """Every row against the record read by itself; gives the number of good ones."""
    entries = [*queue.entries(queue.min_offset, queue.max_offset)]
    rows = ((table, row) for table in tables for row in range(len(table)))
    good = 0
    for entry, (table, row) in zip(entries, rows, strict=True):
        found = (
            table.queue_offset[row],
            table.phy_offset[row],
            table.size_bytes[row],
            table.tags_code[row],
        )
        assert found == tuple(entry)
        message = read_message(queue.log, entry.phy_offset, entry.size_bytes)
        fits = message is not None and message.size_bytes == entry.size_bytes
        assert bool(table.good[row]) == fits
        if message is None or not fits:
            assert (table.records.magic[row], table.body(row), table.topic(row)) == (0, b"", b"")
            continue
        assert {name: getattr(table.records, name)[row] for name in _SAME} == {
            name: getattr(message, name) for name in _SAME
        }
        assert table.records.queue_offset[row] == message.queue_offset
        assert (table.body(row), table.properties(row)) == (message.body, message.raw_properties)
        assert table.topic(row).decode() == message.topic
        assert table.message(row) == message
        good += 1
    return good


@pytest.mark.parametrize("name", stores.WITH_QUEUE_FILES)
@pytest.mark.parametrize("gathered_size_bytes", [1 << 14, bulk.GATHERED_SIZE_BYTES])
def test_columns_are_the_records(
    golden: GoldenStore, monkeypatch: pytest.MonkeyPatch, name: str, gathered_size_bytes: int
) -> None:
    monkeypatch.setattr(bulk, "GATHERED_SIZE_BYTES", gathered_size_bytes)
    with Store.open(golden(name)) as store:
        for key in store.queues:
            queue = open_queue(store, *key)
            assert isinstance(queue, Queue)
            assert check(queue, read_queue(queue)) == queue.max_offset


def test_maps_may_be_kept(golden: GoldenStore) -> None:
    with Store.open(golden("load-533")) as store:
        maps = LogMaps()
        for key in store.queues:
            queue = open_queue(store, *key)
            assert isinstance(queue, Queue)
            assert check(queue, read_queue(queue, maps=maps)) == queue.max_offset
        maps.close()


def test_part_of_a_queue(golden: GoldenStore) -> None:
    with Store.open(golden("load-533")) as store:
        queue = open_queue(store, "Calm_audit", 0)
        assert isinstance(queue, Queue)
        numbers = [int(n) for table in read_queue(queue, 190, 410) for n in table.queue_offset]
    assert numbers == list(range(190, 410))


def test_hostile_entries_and_records(store_copy: StoreCopy) -> None:
    store = Damageable(store_copy("load-533"), stores.truth("load-533"))
    own = [n for n, m in enumerate(store.truth["messages"]) if (m["topic"], m["queueId"]) == ("Calm_audit", 0)]
    hostile = {
        3: (0, FILLER_SIZE_BYTES, 0),
        5: (131071, 100, 0),
        7: (1 << 62, 100, 0),
        9: ((1 << 63) - 50, 100, 0),
        11: (2869, 323, 0),
        13: (2868, 91, 0),
        15: (2868, 2000, 0),
        17: (1048576 - 91, 91, 0),
    }
    for number, entry in hostile.items():
        store.set_entry("Calm_audit", 0, number, entry)
    for number, (field, value) in {
        20: ("body_length", 1 << 30),
        21: ("body_length", -5),
        22: ("sys_flag", 0x30),
        23: ("sys_flag", 0x10),
        24: ("magic", 0),
        25: ("magic", -626843477),
        26: ("size_bytes", 0x7FFFFFFF),
    }.items():
        store.set_field(own[number], field, value)
    store.lose(3)
    with Store.open(store.root) as opened:
        queue = open_queue(opened, "Calm_audit", 0)
        assert isinstance(queue, Queue)
        good = check(queue, read_queue(queue))
    assert 0 < good < 517 - len(hostile)


def test_a_file_that_cannot_be_read_is_told(store_copy: StoreCopy) -> None:
    root = store_copy("load-533")
    with Store.open(root) as store:
        queue = open_queue(store, "Calm_audit", 0)
        assert isinstance(queue, Queue)
        count = queue.max_offset
        segment = store.log.segments[1].path
        segment.unlink()
        gone = [bool(good) for table in read_queue(queue) for good in table.good]
        assert len(gone) == count
        assert 0 < sum(gone) < count  # as after a broker's own cleaning
        segment.mkdir()
        with pytest.raises(FailedError, match="cannot read") as told:
            list(read_queue(queue))
        assert told.value.path == str(segment)


def test_a_file_that_is_cut_while_the_queue_is_read(store_copy: StoreCopy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "GATHERED_SIZE_BYTES", 1 << 14)
    root = store_copy("load-533")
    with Store.open(root) as store:
        queue = open_queue(store, "Calm_audit", 0)
        assert isinstance(queue, Queue)
        segment = store.log.segments[1]
        tables = read_queue(queue)
        first = next(tables)
        assert first.good.all()
        cut_at = segment.phy_offset + 50_000
        with segment.path.open("r+b") as file:
            file.truncate(50_000)
        for table in tables:
            lost = (table.phy_offset < segment.end_phy_offset) & (table.phy_offset + table.size_bytes > cut_at)
            assert table.good.tolist() == (~lost).tolist()
