"""How far a stream goes in a log that is being written: torn writes, rolls, damage and limits."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from store_core.export.source.offsets import Offset
from store_core.export.source.options import parse_options
from store_core.export.source.planning import (
    followers,
    next_offsets,
    stream_readings,
)
from store_core.export.source.reading import read_messages
from tests import stores
from tests.conftest import GoldenStore
from tests.damage import Damageable
from tests.export.log_writer import LogWriter
from tests.export.sources import source_ranges, source_table
from tests.export.streams import Stream, ends_of, told
from tests.export.test_splits import SEGMENT_BYTES, record_of


@pytest.mark.parametrize(
    ("name", "most_bytes", "limit"), [("clean-533", 700, None), ("ipv6-533", 90, None), ("load-533", 9000, 5000)]
)
def test_every_record_of_torn_writes_comes_once(
    golden: GoldenStore, tmp_path: Path, name: str, most_bytes: int, limit: int | None
) -> None:
    writer = LogWriter(golden(name), tmp_path / "live", 7)
    pieces = writer.pieces(most_bytes)
    next(pieces)
    # Nothing is ever quiet for as long as this: only what is followed by something is taken.
    options = {} if limit is None else {"maxBytesPerTrigger": limit}
    stream = Stream(tmp_path / "live", quietMs=1000, **options)
    for number, _ in enumerate(pieces):
        if number % 3 == 0:
            stream.poll()
        if number % 100 == 99:
            stream.restart()
    stream.drain()
    expected = told(name)
    assert stream.rows == expected[:-1], "the newest record has not been quiet yet"
    stream.now_s += 2
    stream.drain()
    assert stream.rows == expected


def test_a_limit_is_kept_and_every_batch_goes_on(golden: GoldenStore) -> None:
    for limit in (1, 4000, 100_000, 300_000):
        stream = Stream(golden("load-533"), maxBytesPerTrigger=limit)
        largest = max(message["storeSize"] for message in stores.truth("load-533")["messages"])
        while True:
            before = stream.at
            if not stream.poll():
                break
            assert 0 < stream.at - before <= max(limit, largest) or stream.at % SEGMENT_BYTES == 0
            if limit == 1 and stream.batches > 300:
                break
        if limit > 1:
            assert stream.rows == told("load-533")
        else:
            assert stream.rows == told("load-533")[: len(stream.rows)]


def test_batches_between_the_same_offsets_are_the_same(golden: GoldenStore) -> None:
    """What a restarted query reads again is what it read before, whatever has been written since."""
    stream = Stream(golden("load-533"), maxBytesPerTrigger=70_000, splitSize=9001)
    stream.poll()
    begin, rows = dict(stream.offsets), len(stream.rows)
    stream.poll()
    again = [
        row["phy_offset"]
        for r in stream_readings(stream.options, begin, stream.offsets)
        for b in read_messages(r)
        for row in b.to_pylist()
    ]
    assert again == [row[0] for row in stream.rows[rows:]]


def count_of(store: Damageable) -> int:
    return source_table(store.root, columns="phy_offset").num_rows


def test_a_torn_record_is_waited_for(one_segment: Damageable) -> None:
    store, last = one_segment, count_of(one_segment) - 1
    # The blank goes, so that the last record is the newest.
    end = store.message(last)["phyOffset"] + store.message(last)["storeSize"]
    store.zero(end, SEGMENT_BYTES - end)
    message = store.message(last)
    raw = store.read(message["phyOffset"], message["storeSize"])
    for size in (1, 5, 20, 50, len(raw) // 2):
        store.write(message["phyOffset"], raw[:size] + bytes(len(raw) - size))
        stream = Stream(store.root)
        stream.drain()
        assert len(stream.rows) == last, size
        store.write(message["phyOffset"], raw)
        stream.drain()
        assert [row[0] for row in stream.rows[last:]] == [message["phyOffset"]]


def test_the_newest_record_is_taken_when_it_has_been_quiet(one_segment: Damageable) -> None:
    store, last = one_segment, count_of(one_segment) - 1
    message = store.message(last)
    end = message["phyOffset"] + message["storeSize"]
    store.zero(end, SEGMENT_BYTES - end)
    stream = Stream(store.root, quietMs=1000)
    stream.drain()
    assert stream.at == message["phyOffset"]
    stream.now_s += 0.9
    assert not stream.poll()
    # Its properties are still being written: the checksum does not cover them.
    store.flip_at(end - 2)
    stream.now_s += 0.2
    assert not stream.poll()
    store.flip_at(end - 2)
    assert not stream.poll()
    stream.now_s += 1
    assert stream.poll()


def test_old_records_behind_the_tail_are_not_taken(one_segment: Damageable) -> None:
    """A broker has cut its log at a record and the queues with it; what lies behind it will be written over."""
    store = one_segment
    cut = store.message(100)
    store.write(cut["phyOffset"], b"\x7f" * cut["storeSize"])
    shutil.rmtree(store.root / "consumequeue")
    stream = Stream(store.root)
    stream.drain()
    stream.now_s += 100
    stream.drain()
    assert (stream.at, len(stream.rows)) == (cut["phyOffset"], 100)
    # The broker goes on: two records with other sizes, over what was there.
    old = store.message(99)
    at = cut["phyOffset"]
    for _ in range(2):
        store.write(at, record_of(store, 99, at))
        at += old["storeSize"]
    stream.drain()
    assert [row[0] for row in stream.rows[100:]] == [cut["phyOffset"], cut["phyOffset"] + old["storeSize"]]


def test_damage_in_the_segment_at_work_is_passed_where_queues_know_what_follows(one_segment: Damageable) -> None:
    store, count = one_segment, count_of(one_segment)
    harmed = store.message(100)
    store.zero(harmed["phyOffset"], harmed["storeSize"])
    stream = Stream(store.root, quietMs=1000)
    stream.drain()
    assert stream.at == store.message(99)["phyOffset"], "the newest record in front has nothing behind it"
    stream.now_s += 1.5
    stream.drain()
    assert len(stream.rows) == count - 1
    assert harmed["phyOffset"] not in [row[0] for row in stream.rows]


@pytest.mark.parametrize("records", [(100,), (100, 150), (100, 150, 151, 200)])
def test_what_is_there_is_read_to_its_end_behind_damage(one_segment: Damageable, records: tuple[int, ...]) -> None:
    """As ``availableNow`` asks: where the log ends first, then batch by batch up to there."""
    for record in records:
        one_segment.zero(one_segment.message(record)["phyOffset"], one_segment.message(record)["storeSize"])
    options = parse_options({"path": f"a={one_segment.root}", "quietMs": "20", "maxBytesPerTrigger": "9000"})
    follower = followers(options)
    target = {name: each.end_now() for name, each in follower.items()}
    assert target == {"a": SEGMENT_BYTES}
    at: dict[str, Offset] = {"a": 0}
    while (found := next_offsets(follower, at, options.max_bytes_per_trigger, target)) != at:
        at = found
    assert ends_of(at) == target


def test_damage_in_a_full_segment_is_passed(damageable: Callable[..., Damageable]) -> None:
    store = damageable("load-533")
    shutil.rmtree(store.root / "consumequeue")
    for row in (50, 51, 200):
        store.zero(store.message(row)["phyOffset"], 60)
    expected = source_table(store.root, columns="phy_offset,crc")
    for limit in (3000, 1 << 30):
        stream = Stream(store.root, maxBytesPerTrigger=limit)
        stream.drain()
        assert stream.rows == [tuple(row.values()) for row in expected.to_pylist()]
    ranges = Stream(
        store.root, table="quarantine", columns="phy_offset,size_bytes,kind,reason,finding", maxBytesPerTrigger=40_000
    )
    for _ in range(200):
        ranges.poll()
    assert ranges.rows == source_ranges(store.root)
