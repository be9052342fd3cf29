"""How far a stream goes in a log that is being written: torn writes, rolls, damage, cuts, limits, and data that is gone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from store_core.errors import FailedError, UsageError
from store_core.export.source.options import SourceOptions, parse_options
from store_core.export.source.planning import (
    followers,
    refuse_copies,
    refuse_renamed,
    shared_out,
    starts_of,
    stream_readings,
)
from store_core.export.source.reading import read_messages, read_ranges
from tests import stores
from tests.conftest import GoldenStore
from tests.damage import Damageable
from tests.export.log_writer import LogWriter
from tests.export.sources import source_ranges, source_table
from tests.export.test_copies import lag
from tests.export.test_splits import SEGMENT_BYTES, record_of


class Stream:
    """A stream over one store without Spark: batches from offset to offset; ``restart`` forgets all but the offset."""

    def __init__(self, root: Path, **options: str | int) -> None:
        given = {"path": f"a={root}", "columns": "phy_offset,crc", "quietMs": 0}
        self.options: SourceOptions = parse_options({k: str(v) for k, v in (given | options).items()})
        self.now_s = 0.0
        self.rows: list[tuple[int, str]] = []
        self.batches = 0
        self.restart()
        starts = starts_of(self.options, self.followers)
        self.offsets = {name: follower.first(starts[name]) for name, follower in self.followers.items()}

    def restart(self) -> None:
        self.followers = followers(self.options)
        for follower in self.followers.values():
            follower._clock = lambda: self.now_s

    def poll(self) -> bool:
        """One trigger; whether it went on, though perhaps over no record."""
        most = self.options.max_bytes_per_trigger
        end = shared_out(self.followers, self.offsets, most, None)
        read = read_messages if self.options.table == "messages" else read_ranges
        for reading in stream_readings(self.options, self.offsets, end):
            for batch in read(reading):
                self.rows += [tuple(row.values()) for row in batch.to_pylist()]
        went_on = end != self.offsets
        self.batches += went_on
        self.offsets = end
        return went_on

    def drain(self) -> None:
        while self.poll():
            pass

    @property
    def at(self) -> int:
        return self.offsets["a"]


def told(name: str) -> list[tuple[int, str]]:
    return [(message["phyOffset"], "ok") for message in stores.truth(name)["messages"]]


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


@pytest.fixture
def one_segment(damageable: Callable[..., Damageable]) -> Damageable:
    """A log at work in its first segment, with some hundred records, and the queues of the whole log."""
    store = damageable("load-533")
    for segment in store.segments[1:]:
        segment.unlink()
    return store


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
    at = {"a": 0}
    while (found := shared_out(follower, at, options.max_bytes_per_trigger, target)) != at:
        at = found
    assert at == target


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


def test_a_stream_begins_where_it_is_told(golden: GoldenStore) -> None:
    offsets = [offset for offset, _ in told("load-533")]
    stream = Stream(golden("load-533"), startingOffset=offsets[40] + 1)
    stream.drain()
    assert [row[0] for row in stream.rows] == offsets[41:]
    assert Stream(golden("load-533"), startingOffset="latest", quietMs=0).poll() is False
    with pytest.raises(UsageError, match="startingOffset"):
        Stream(golden("load-533"), fromOffset=5)


def test_each_store_begins_where_it_is_told(golden: GoldenStore) -> None:
    at = told("load-533")[40][0]
    paths = ",".join(
        f"{name}={golden(store)}" for name, store in (("a", "load-533"), ("b", "ipv6-533"), ("c", "clean-533"))
    )
    stream = Stream(golden("load-533"), path=paths, startingOffset=f'{{"a": {at}, "b": "latest"}}')
    alone = Stream(golden("ipv6-533"), startingOffset="latest")
    assert stream.offsets == {"a": at, "b": alone.at, "c": 0}
    assert alone.at > 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": 0, "elsewhere": 1}', r"names 'elsewhere'.*: the stores are a"),
        ('{"a": 0', "is no JSON"),
        ('{"a": true}', "is no number: 'True'"),
        ('{"a": -1}', "is no number: '-1'"),
        ("soon", "is no number: 'soon'.*earliest, latest or digits"),
    ],
)
def test_a_begin_that_makes_no_sense_is_told(golden: GoldenStore, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Stream(golden("load-533"), startingOffset=text)


def test_expired_segments_are_an_error_or_passed(damageable: Callable[..., Damageable]) -> None:
    store = damageable("load-533")
    strict = Stream(store.root, maxBytesPerTrigger=5000)
    lenient = Stream(store.root, maxBytesPerTrigger=5000, failOnDataLoss="false")
    for stream in (strict, lenient):
        stream.poll()
    begin = dict(strict.offsets)
    taken = len(lenient.rows)
    for segment in store.segments[:2]:
        segment.unlink()
    with pytest.raises(FailedError, match=f"has read a up to {strict.at}, and the log begins at {2 * SEGMENT_BYTES}"):
        strict.poll()
    with pytest.raises(FailedError, match="failOnDataLoss"):
        stream_readings(strict.options, begin, {"a": 3 * SEGMENT_BYTES})
    lenient.drain()
    assert [row[0] for row in lenient.rows[taken:]] == [
        offset for offset, _ in told("load-533") if offset >= 2 * SEGMENT_BYTES
    ]


def test_a_begin_that_has_expired_is_an_error_or_passed(damageable: Callable[..., Damageable]) -> None:
    store = damageable("load-533")
    store.segments[0].unlink()
    left = [offset for offset, _ in told("load-533") if offset >= SEGMENT_BYTES]
    assert len(left) < len(told("load-533"))
    with pytest.raises(
        FailedError, match=rf"is to begin at 0, and the log of a begins at {SEGMENT_BYTES} .*: give option"
    ):
        Stream(store.root, startingOffset=0)
    with pytest.raises(UsageError, match=r"is to begin at 99999999, and the log of a ends at \d+"):
        Stream(store.root, startingOffset=99999999)
    for options in ({"startingOffset": 0, "failOnDataLoss": "false"}, {"startingOffset": SEGMENT_BYTES}, {}):
        stream = Stream(store.root, **options)
        stream.drain()
        assert [row[0] for row in stream.rows] == left


def test_a_stream_stays_where_all_that_it_has_read_expires(damageable: Callable[..., Damageable]) -> None:
    store = damageable("load-533")
    last = store.segments[-1]
    store.zero(int(last.name), last.stat().st_size)
    store.write(int(last.name) - 16, b"old " * 4)  # a blank's end is what was there
    stream = Stream(store.root)
    stream.drain()
    assert stream.at == int(last.name)
    for segment in store.segments[:-1]:
        segment.unlink()
    assert not stream.poll()


def test_a_segment_that_goes_between_planning_and_reading(damageable: Callable[..., Damageable]) -> None:
    store = damageable("load-533")
    lost = store.segments[1]
    for fails in ("true", "false"):
        stream = Stream(store.root, failOnDataLoss=fails)
        readings = stream_readings(stream.options, {"a": 0}, {"a": 3 * SEGMENT_BYTES})
        kept = lost.read_bytes()
        lost.unlink()
        if fails == "true":
            with pytest.raises(FailedError, match="a segment went away before it was read"):
                [batch for reading in readings for batch in read_messages(reading)]
        else:
            rows = sum(len(batch) for reading in readings for batch in read_messages(reading))
            gone = range(SEGMENT_BYTES, 2 * SEGMENT_BYTES)
            assert rows == sum(offset < 3 * SEGMENT_BYTES and offset not in gone for offset, _ in told("load-533"))
        lost.write_bytes(kept)


def test_a_log_that_was_cut_is_an_error(damageable: Callable[..., Damageable]) -> None:
    store = damageable("load-533")
    stream = Stream(store.root)
    stream.drain()
    for segment in store.segments[2:]:
        segment.unlink()
    stream.restart()
    with pytest.raises(FailedError, match="the log ends in front of it"):
        stream.poll()


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("written_on", [False, True])
def test_a_log_that_was_cut_inside_its_segment_is_an_error(
    one_segment: Damageable, restarted: bool, written_on: bool
) -> None:
    """Zeros are left, or other records, over the place where the stream stands."""
    stands, cut = (one_segment.message(record)["phyOffset"] for record in (300, 250))
    behind = one_segment.segment_size_bytes - stands
    one_segment.zero(stands, behind)
    stream = Stream(one_segment.root)
    stream.drain()
    assert stream.at == stands
    one_segment.zero(cut, stands - cut)
    if written_on:
        size = one_segment.message(0)["storeSize"]
        for at in range(cut, stands + size, size):
            one_segment.write(at, record_of(one_segment, 0, at))
    if restarted:
        stream.restart()
    with pytest.raises(
        FailedError, match=r"the stream has read a up to \d+, and .*cut.*: start the query with another checkpoint"
    ):
        stream.poll()
    passing = Stream(one_segment.root, failOnDataLoss="false", startingOffset="latest")
    passing.offsets = stream.offsets
    passing.poll()
    assert passing.at >= stream.at


def test_a_log_that_was_written_anew_is_an_error(damageable: Callable[..., Damageable]) -> None:
    store = damageable("load-533")
    first = store.message(0)
    stream = Stream(store.root, startingOffset=store.message(5)["phyOffset"])
    raw = store.read(0, first["storeSize"])
    # One record where there were several, all of it right.
    size = store.message(6)["phyOffset"]
    store.set_field(0, "size_bytes", size)
    store.set_field(0, "body_length", first["bodyLength"] + size - first["storeSize"])
    tail = raw[store.field_at(0, "body") + first["bodyLength"] :]
    store.write(size - len(tail), tail)
    stream.restart()
    with pytest.raises(FailedError, match="no record starts there any more"):
        stream.poll()


def test_a_limit_is_shared_among_stores(golden: GoldenStore, tmp_path: Path) -> None:
    options = parse_options({"path": f"a={golden('load-533')},b={golden('ipv6-533')}", "quietMs": "0"})
    found = followers(options)
    begin = {"a": 0, "b": 0}
    end = shared_out(found, begin, 100_000, None)
    assert 0 < end["a"] <= 60_000
    assert 0 < end["b"] <= 60_000
    assert shared_out(found, begin, None, {"a": 5000, "b": 0}) == {"a": 5000, "b": 0}


def test_a_stream_takes_no_copies(golden: GoldenStore, damageable: Callable[..., Damageable]) -> None:
    slave = lag(damageable("load-533"), 1500).root
    paths = {"path": f"{golden('load-533')},{slave},{golden('crash-533')}"}
    with pytest.raises(UsageError, match=r"are copies of one log.*2 times: name one of them in option\(\"path\"\)"):
        refuse_copies(parse_options(paths))
    refuse_copies(parse_options(paths | {"keepCopies": "true"}))
    refuse_copies(parse_options({"path": f"{golden('load-533')},{golden('crash-533')}"}))


@pytest.mark.parametrize(
    ("known", "now", "is_refused"),
    [("a", "a", False), ("ab", "a", False), ("a", "ab", False), ("a", "b", True), ("ab", "bc", True), ("", "a", False)],
)
def test_a_store_of_another_name_is_not_read_once_more(known: str, now: str, is_refused: bool) -> None:
    if is_refused:
        with pytest.raises(UsageError, match="stands in its place: name the stores as before"):
            refuse_renamed(known, now)
    else:
        refuse_renamed(known, now)


@pytest.mark.parametrize("behind", [1, 5000])
def test_a_begin_behind_the_newest_record_is_an_error_though_the_file_goes_on(
    damageable: Callable[..., Damageable], behind: int
) -> None:
    """The broker goes on in the rest of the file: a stream that began behind it would never see that."""
    store = damageable("load-533")
    last = store.segments[-1]
    end = next(offset for offset, _ in told("load-533") if offset > int(last.name) + 20_000)
    store.zero(end, int(last.name) + last.stat().st_size - end)
    for offset in (end + behind, int(last.name) + last.stat().st_size):
        with pytest.raises(UsageError, match=rf"is to begin at {offset}, and the log of a ends at \d+"):
            Stream(store.root, startingOffset=offset)
    assert Stream(store.root, startingOffset=end).at == end


@pytest.mark.parametrize("restarts", [False, True])
def test_a_cut_in_front_of_a_segments_start_is_an_error(
    damageable: Callable[..., Damageable], *, restarts: bool
) -> None:
    """Where the stream stands at the begin of a segment, what is in front of it is a blank, mostly of zeros."""
    store = damageable("load-533")
    first, others = store.segments[0], store.segments[1:]
    for segment in others:
        segment.unlink()
    (others[0]).write_bytes(bytes(SEGMENT_BYTES))
    stream = Stream(store.root)
    stream.drain()
    assert stream.at == SEGMENT_BYTES
    stream.drain()
    if restarts:
        stream.restart()
    records = [message for message in stores.truth("load-533")["messages"] if message["phyOffset"] < SEGMENT_BYTES]
    cut = records[-5]["phyOffset"]
    store.zero(cut, SEGMENT_BYTES - cut)
    with pytest.raises(FailedError, match=r"the log (was cut|ends) in front of it"):
        stream.drain()
    assert first.stat().st_size == SEGMENT_BYTES


def test_a_stream_at_a_segments_start_goes_on_after_a_restart(damageable: Callable[..., Damageable]) -> None:
    store = damageable("load-533")
    second = store.segments[1]
    kept = second.read_bytes()
    for segment in store.segments[1:]:
        segment.unlink()
    stream = Stream(store.root)
    for made_ahead in (False, True):
        if made_ahead:
            second.write_bytes(bytes(SEGMENT_BYTES))
        stream.restart()
        stream.drain()
        assert stream.at == SEGMENT_BYTES
    second.write_bytes(kept)
    stream.restart()
    stream.drain()
    assert [row[0] for row in stream.rows] == [at for at, _ in told("load-533") if at < 2 * SEGMENT_BYTES]
