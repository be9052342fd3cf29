"""The log as rows, its tail, groups' progress, and what a store holds."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from store_core.codec.record import Message
from store_core.export.rows import schema
from store_core.export.tables.messages import MessagesTable
from store_core.export.tables.table import Where, schema_of
from store_core.findings import Finding
from store_core.layout.paths import segment_name
from store_core.read import info, tail
from store_core.read.info import describe_store
from store_core.read.log import LogFilter, LogRange, read_log, start_for_time
from store_core.read.progress import lags, read_progress
from store_core.read.records import read_message
from store_core.read.rules import rules_of
from store_core.read.tail import follow, last_messages
from store_core.storage.sequence import SegmentSequence
from store_core.storage.store import Store
from tests import stores
from tests.conftest import GoldenStore, StoreCopy
from tests.damage import Damageable


def starts(store: Store, wanted: LogFilter) -> list[int]:
    return [row.phy_offset for row in read_log(store, wanted) if isinstance(row, Message)]


def told(name: str) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = stores.truth(name)["messages"]
    return messages


@pytest.mark.parametrize("name", stores.GOLDEN)
def test_rows_are_the_messages_and_the_blanks(golden: GoldenStore, name: str) -> None:
    with Store.open(golden(name)) as store:
        rows = list(read_log(store, LogFilter(with_ranges=True)))
    assert [r.phy_offset for r in rows if isinstance(r, Message)] == [m["phyOffset"] for m in told(name)]
    blanks = [(r.phy_offset, r.size_bytes) for r in rows if isinstance(r, LogRange) and r.kind == "blank"]
    walked = [segment["blank"] for segment in stores.truth(name)["log"]["files"] if segment.get("blank")]
    assert blanks == [(blank["at"], blank["size"]) for blank in walked]
    assert {r.kind for r in rows if isinstance(r, LogRange)} <= {"blank", "zeros"}


def test_filters(golden: GoldenStore) -> None:
    messages = told("load-533")
    middle = messages[1000]
    with Store.open(golden("load-533")) as store:
        expected = [m["phyOffset"] for m in messages if middle["phyOffset"] <= m["phyOffset"] < 800_000]
        assert starts(store, LogFilter(middle["phyOffset"], 800_000)) == expected
        begin, end = messages[500]["storeTimestamp"], messages[1500]["storeTimestamp"]
        expected = [m["phyOffset"] for m in messages if begin <= m["storeTimestamp"] <= end]
        assert starts(store, LogFilter(begin_ms=begin, end_ms=end)) == expected
        expected = [m["phyOffset"] for m in messages if m["topic"] == "Calm_bills" and m["queueId"] == 1]
        assert starts(store, LogFilter(topics=frozenset({"Calm_bills"}), queue_id=1)) == expected
        assert starts(store, LogFilter(topics=frozenset({"Calm_bills"}), queue_id=1, limit=7)) == expected[:7]
        assert starts(store, LogFilter(begin_ms=messages[-1]["storeTimestamp"] + 1)) == []
        assert starts(store, LogFilter(limit=0)) == []


def test_an_end_alone_has_no_begin(damageable: Callable[..., Damageable]) -> None:
    """Store times in front of 1970 are earlier than any end."""
    store = damageable("load-533")
    for number, time_ms in ((3, -5), (4, 0), (5, -(1 << 63))):
        store.set_field(number, "store_timestamp_ms", time_ms)
    messages = store.truth["messages"]
    with Store.open(store.root) as opened:
        end = messages[10]["storeTimestamp"]
        earlier = [m["phyOffset"] for n, m in enumerate(messages) if n in (3, 4, 5) or m["storeTimestamp"] <= end]
        assert starts(opened, LogFilter(end_ms=end)) == earlier
        assert starts(opened, LogFilter(end_ms=-1)) == [messages[number]["phyOffset"] for number in (3, 5)]
        assert messages[3]["phyOffset"] not in starts(opened, LogFilter(begin_ms=0))


def test_segments_that_are_much_too_old_are_not_read(store_copy: StoreCopy) -> None:
    """Their first bytes are looked at; the rest might as well be gone."""
    store = Damageable(store_copy("load-533"), stores.truth("load-533"))
    day_ms = 86_400_000
    last_start = (len(store.segments) - 1) * store.segment_size_bytes
    for number, message in enumerate(store.truth["messages"]):
        if message["phyOffset"] < last_start:
            store.set_field(number, "store_timestamp_ms", message["storeTimestamp"] - day_ms)
    store.zero(1000, 5000)
    rest = [m["phyOffset"] for m in store.truth["messages"] if m["phyOffset"] >= last_start]
    seen: list[int] = []
    wanted = LogFilter(begin_ms=store.truth["messages"][0]["storeTimestamp"])
    with Store.open(store.root) as opened:
        rows = read_log(opened, wanted, on_table=lambda table: seen.append(table.window_phy_offset))
        assert [row.phy_offset for row in rows] == rest
    # The segment in front is read, for its end may be young.
    assert sorted(set(seen)) == [last_start - store.segment_size_bytes, last_start]


@pytest.mark.parametrize("name", stores.GOLDEN)
def test_the_last_messages(golden: GoldenStore, name: str) -> None:
    messages = told(name)
    with Store.open(golden(name)) as store:
        for count in (0, 1, 7, len(messages), len(messages) + 5):
            found, end = last_messages(store, count)
            assert [m.phy_offset for m in found] == [m["phyOffset"] for m in messages[max(len(messages) - count, 0) :]]
            assert end == messages[-1]["phyOffset"] + messages[-1]["storeSize"]
        topic = messages[0]["topic"]
        found, _ = last_messages(store, 3, frozenset([topic]))
        assert [m.phy_offset for m in found] == [m["phyOffset"] for m in messages if m["topic"] == topic][-3:]


@pytest.mark.parametrize("topics", [(), ("Calm_bills",)])
def test_the_last_messages_are_read_one_by_one(
    golden: GoldenStore, topics: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def reading(log: SegmentSequence, at: int) -> Message | None:
        read.append(at)
        return read_message(log, at)

    monkeypatch.setattr(tail, "read_message", reading)
    with Store.open(golden("load-533")) as store:
        found, _ = last_messages(store, 5, frozenset(topics))
        next(found)
        assert len(read) == 1
        assert len(list(found)) == 4
        assert len(read) == 5


@pytest.mark.parametrize(("gone", "code", "severity"), [((0, 1), "L025", "warning"), ((1,), "L006", "error")])
def test_the_last_messages_that_go_before_they_are_read_are_told(
    damageable: Callable[[str], Damageable], gone: tuple[int, ...], code: str, severity: str
) -> None:
    damage = damageable("load-533")
    places = [message["phyOffset"] for message in damage.truth["messages"]]
    findings: list[Finding] = []
    with Store.open(damage.root) as store:
        rows, _ = last_messages(store, len(places), findings=findings)
        segments = [store.log.segments[number] for number in gone]
        assert next(rows).phy_offset == places[0]
        for segment in segments:
            segment.path.unlink()
        store.cache.close()  # files that are open stay readable
        read = [places[0], *(row.phy_offset for row in rows)]
    left = [at for at in places if not any(s.phy_offset <= at < s.end_phy_offset for s in segments)]
    assert read[1:] == [at for at in left if at != places[0]]
    [found] = findings
    first = next(at for at in places[1:] if at not in left)
    assert (found.code, found.severity, found.phy_offset) == (code, severity, first)
    assert found.size_bytes == segments[-1].end_phy_offset - first
    assert found.message == f"{len(places) - len(read)} messages went away while the log was read"


def test_where_a_log_ends_is_not_looked_up_record_by_record(
    golden: GoldenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def reading(log: SegmentSequence, at: int) -> Message | None:
        read.append(at)
        return read_message(log, at)

    monkeypatch.setattr(info, "read_message", reading)
    last = told("load-533")[-1]
    with Store.open(golden("load-533")) as store:
        assert info.log_end(store, [0]) == (last["phyOffset"] + last["storeSize"], last["storeTimestamp"])
    assert read == [0]


class GrowingLog:
    """A log that gets its bytes back piece by piece, each time somebody waits for it."""

    def __init__(self, root: Path, keep_bytes: int, pieces: list[int]) -> None:
        self.root = root
        self.whole = {path.name: path.read_bytes() for path in sorted((root / "commitlog").iterdir())}
        self.size = len(next(iter(self.whole.values())))
        self.pieces = pieces
        self.waits = 0
        for name in self.whole:
            if int(name) >= keep_bytes:
                (root / "commitlog" / name).unlink()
        self.show(keep_bytes)

    def show(self, end: int) -> None:
        """The log up to an offset, zeros behind; files appear when they are reached."""
        start = max(end - 1, 0) // self.size * self.size
        for name, data in self.whole.items():
            if int(name) <= start:
                shown = data[: max(min(end - int(name), self.size), 0)]
                path = self.root / "commitlog" / name
                with path.open("r+b" if path.exists() else "w+b") as file:
                    file.write(shown.ljust(self.size, b"\0"))

    def wait(self, seconds: float) -> None:
        self.waits += 1
        assert self.pieces, "waited although everything was there"
        self.show(self.pieces.pop(0))


def test_following_a_log_that_grows_by_torn_pieces(store_copy: StoreCopy) -> None:
    root = store_copy("load-533")
    messages = told("load-533")
    end = messages[-1]["phyOffset"] + messages[-1]["storeSize"]
    first = messages[1000]
    # Pieces end in the middle of records, in front of blanks, inside a blank's eight bytes, and at segments' ends.
    cuts = [*range(first["phyOffset"] + 10, end, 37_111), 655062, 655066, 655070, 655360, end]
    log = GrowingLog(root, first["phyOffset"] + 3, sorted(cuts))
    with Store.open(root) as store:
        left = [m["phyOffset"] for m in messages[1000:]]
        rows = follow(store, first["phyOffset"], sleep=log.wait)
        assert [m.phy_offset for m in islice(rows, len(left))] == left
    assert log.waits == len(cuts)


@pytest.mark.parametrize(
    ("gone", "start", "code"), [((0, 131072), 131072, "L025"), ((131072,), 131072, "L006"), ((131072,), 0, "L006")]
)
def test_following_goes_on_where_a_segment_went_away_and_tells_so(
    gone: tuple[int, ...], start: int, code: str, store_copy: StoreCopy
) -> None:
    root = store_copy("load-533")
    lost: list[Finding] = []
    for at in gone:
        (root / "commitlog" / segment_name(at)).unlink()
    with Store.open(root) as store:
        row = next(row for row in follow(store, start, on_loss=lost.append) if row.phy_offset >= 131072)
    assert row.phy_offset == 262144
    assert [(found.code, found.phy_offset, found.size_bytes) for found in lost] == [(code, 131072, 131072)]


def test_following_a_log_that_has_no_file_yet_loses_nothing(store_copy: StoreCopy) -> None:
    root = store_copy("load-533")
    lost: list[Finding] = []
    (root / "commitlog").rename(root / "away")
    with Store.open(root) as store:
        rows = follow(
            store, 0, sleep=lambda _: (root / "away").rename(root / "commitlog") and None, on_loss=lost.append
        )
        (root / "away" / segment_name(0)).unlink()
        assert (next(rows).phy_offset, lost) == (131072, [])


@pytest.mark.parametrize("name", stores.WITH_QUEUE_FILES)
def test_progress_and_lag(golden: GoldenStore, name: str) -> None:
    truth = stores.truth(name)
    ends = {(q["topic"], q["queueId"]): (q["min"], q["max"]) for q in truth["afterLoad"]["queues"]}
    with Store.open(golden(name)) as store:
        table = read_progress(store.root)
        rows = list(lags(store, table, rules_of(store)))
    found: dict[str, dict[str, int]] = {}
    for row in table.rows:
        found.setdefault(f"{row.topic}@{row.group}", {})[str(row.queue_id)] = row.offset
    assert found == (truth["consumerOffsets"] or {})
    assert table.findings == ()
    for lag in rows:
        known = ends.get((lag.topic, lag.queue_id))
        # 4.x opens delay queues that have no folder yet.
        if known is not None and lag.max_offset is not None:
            assert (lag.min_offset, lag.max_offset, lag.lag) == (*known, known[1] - lag.offset)
    assert len(rows) == len(table.rows)


def test_progress_from_the_copy(store_copy: StoreCopy) -> None:
    root = store_copy("load-533")
    (root / "config/consumerOffset.json").write_bytes(b"{ torn")
    table = read_progress(root)
    assert table.rows
    assert [found.code for found in table.findings] == ["P003"]


@pytest.mark.parametrize("name", stores.GOLDEN)
def test_what_a_store_holds(golden: GoldenStore, name: str) -> None:
    truth = stores.truth(name)
    last = truth["messages"][-1]
    with Store.open(golden(name)) as store:
        described = describe_store(store, rules_of(store))
    log = described["commitlog"]
    assert (log["min_phy_offset"], log["max_phy_offset"]) == (0, last["phyOffset"] + last["storeSize"])
    assert log["first_store_timestamp_ms"] == truth["messages"][0]["storeTimestamp"]
    assert log["last_store_timestamp_ms"] == last["storeTimestamp"]
    assert log["segment_size_bytes"] == int(truth["properties"]["mappedFileSizeCommitLog"])
    if name in stores.WITH_QUEUE_FILES:
        ends = {(q["topic"], q["queueId"]): (q["min"], q["max"]) for q in truth["afterLoad"]["queues"] if q["entries"]}
        assert {(q["topic"], q["queue_id"]): (q["min_offset"], q["max_offset"]) for q in described["queues"]} == ends
    expected = ["S001"] if name in stores.KILLED else ["Q015"] if name in stores.WITHOUT_QUEUE_FILES else []
    assert [found.code for found in described["findings"]] == expected


@pytest.mark.parametrize("days", [-2, 2])
@pytest.mark.parametrize("segment", [1, 2, 7])
def test_one_wrong_store_time_leaves_out_nothing(
    damageable: Callable[..., Damageable], segment: int, days: int
) -> None:
    """Times have no checksum, and that of a segment's first record tells what lies in front of it."""
    store = damageable("load-533")
    messages = told("load-533")
    record = next(n for n, m in enumerate(messages) if m["phyOffset"] == segment * store.segment_size_bytes)
    store.set_field(record, "store_timestamp_ms", messages[record]["storeTimestamp"] + days * 86_400_000)
    begin, end = messages[0]["storeTimestamp"], messages[-1]["storeTimestamp"]
    others = [m["phyOffset"] for n, m in enumerate(messages) if n != record]
    with Store.open(store.root) as opened:
        assert starts(opened, LogFilter(begin_ms=begin, end_ms=end)) == others
        table = MessagesTable([("a", opened)])
        at = ds.field("store_time")
        low, high = (pa.scalar(ms * 1000, schema.TIME) for ms in (begin, end))
        where = Where((at >= low) & (at <= high), schema_of(table.columns))
        found = [row for batch in table.batches(["phy_offset"], where) for row in batch.column(0).to_pylist()]
        assert found == others


def test_what_is_too_old_is_left_out(damageable: Callable[..., Damageable]) -> None:
    store = damageable("load-533")
    messages = told("load-533")
    for number, message in enumerate(messages):
        hours = message["phyOffset"] // store.segment_size_bytes * 2
        store.set_field(number, "store_timestamp_ms", message["storeTimestamp"] + hours * 3_600_000)
    with Store.open(store.root) as opened:
        for segment in range(8):
            begin = messages[0]["storeTimestamp"] + segment * 7_200_000
            assert start_for_time(opened, begin) == max(segment - 1, 0) * store.segment_size_bytes
