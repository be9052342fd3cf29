"""Queues against what real brokers say of them: every entry, min and max of every golden and many damaged stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from store_core.layout.queue import BATCH_ENTRY, ENTRY, FILLER_SIZE_BYTES
from store_core.layout.record import MAX_RECORD_SIZE_BYTES
from store_core.read.entries import good_entries
from store_core.read.pull import open_queue
from store_core.read.queue import BatchQueue, Queue
from store_core.read.records import read_record_bytes
from store_core.read.rules import RULES_4, RULES_5, rules_for, rules_of
from store_core.storage.sequence import SegmentSequence
from store_core.storage.store import QueueKey, Store
from tests import stores
from tests.conftest import DamagedStore, GoldenStore, StoreCopy
from tests.damage import Damageable


@pytest.mark.parametrize("name", stores.WITH_QUEUE_FILES)
def test_every_entry_is_what_the_broker_gives(golden: GoldenStore, name: str) -> None:
    told = stores.truth(name)["afterLoad"]["queues"]
    with Store.open(golden(name)) as store:
        rules = rules_of(store)
        for queue in told:
            opened = open_queue(store, queue["topic"], queue["queueId"], rules)
            if opened is None:  # 4.x opens every delay queue, with or without a folder
                assert (queue["min"], queue["max"], queue["entries"]) == (0, 0, [])
                continue
            assert (opened.min_offset, opened.max_offset) == (queue["min"], queue["max"])
            assert [_as_told(opened, e, len(t)) for e, t in _pairs(opened, queue)] == queue["entries"]
        assert {*store.queues, *store.batch_queues} <= {QueueKey(q["topic"], q["queueId"]) for q in told}


def _pairs(queue: Queue | BatchQueue, told: dict[str, Any]) -> list[tuple[Any, Any]]:
    return list(zip(queue.entries(queue.min_offset, queue.max_offset), told["entries"], strict=True))


def _as_told(queue: Queue | BatchQueue, entry: Any, length: int) -> list[int]:
    if isinstance(queue, BatchQueue):
        return [entry.queue_offset, entry.phy_offset, entry.size_bytes, entry.tags_code, entry.batch_size]
    unit = queue.ext_of(entry.tags_code)
    if unit is None or length == ENTRY_FIELDS:  # 4.x tells the address
        return list(entry)
    return [*entry[:3], unit.tags_code, -1, unit.tags_code, unit.store_timestamp_ms]


ENTRY_FIELDS = 4


@pytest.mark.parametrize("name", ["cqext-497", "cqext-533"])
def test_ext_units_have_the_records_tags_code_and_time(golden: GoldenStore, name: str) -> None:
    told = {m["phyOffset"]: m for m in stores.truth(name)["messages"]}
    seen = 0
    with Store.open(golden(name)) as store:
        for key in store.queues:
            queue = open_queue(store, *key)
            assert isinstance(queue, Queue)
            for entry in queue.entries(queue.min_offset, queue.max_offset):
                unit = queue.ext_of(entry.tags_code)
                assert unit is not None
                message = told[entry.phy_offset]
                assert (unit.tags_code, unit.store_timestamp_ms) == (message["tagsCode"], message["storeTimestamp"])
                seen += 1
    assert seen == len(told)


@pytest.mark.parametrize("name", stores.GOLDEN)
def test_the_family_of_brokers_is_told_by_traces(golden: GoldenStore, name: str) -> None:
    with Store.open(golden(name)) as store:
        assert rules_of(store).major == rules_for(stores.truth(name)["written_by"]).major


# Cases in which the broker cuts nothing but the queue itself, so that load leaves what a reader must see.
_CASES = [
    ("load-497", case)
    for case in (
        "cq-tail-lost",
        "cq-hole",
        "cq-hole-old",
        "cq-foreign",
        "cq-queue-missing",
        "cq-removed",
        "cq-all-tail-lost",
        "cq-ghost-entries",
        "cq-tail-garbage",
        "log-missing-mid",
        "log-missing-first",
        "mid-dead-small",
        "last-dead-entries",
    )
] + [
    ("load-533", case)
    for case in (
        "cq-tail-lost",
        "cq-hole",
        "cq-hole-old",
        "cq-foreign",
        "cq-ghost-entries",
        "log-missing-mid",
        "log-missing-first",
        "mid-dead-small",
        "last-dead-entries",
    )
]


@pytest.mark.parametrize(("base", "case"), _CASES)
def test_ends_of_damaged_queues(damaged: DamagedStore, base: str, case: str) -> None:
    told = stores.outcomes(base)[f"{case}/clean"]["afterLoad"]["queues"]
    with Store.open(damaged(base, case, "clean")) as store:
        rules = rules_for(stores.truth(base)["written_by"])
        found = {}
        for queue in told:
            opened = open_queue(store, queue["topic"], queue["queueId"], rules)
            ends = (0, 0) if opened is None else (opened.min_offset, opened.max_offset)
            found[queue["topic"], queue["queueId"]] = ends
    assert found == {(q["topic"], q["queueId"]): (q["min"], q["max"]) for q in told}


def test_a_queue_that_expired_wholly_keeps_its_number_on_5x(store_copy: StoreCopy) -> None:
    store = Damageable(store_copy("load-533"), stores.truth("load-533"))
    for _ in range(len(store.segments) - 1):
        store.lose(0)
    with Store.open(store.root) as opened:
        first = opened.log.min_phy_offset
        topic, queue_id = "SCHEDULE_TOPIC_XXXX", 17
        on_5 = open_queue(opened, topic, queue_id, RULES_5)
        on_4 = open_queue(opened, topic, queue_id, RULES_4)
    assert on_5 is not None
    assert on_4 is not None
    assert all(m["phyOffset"] < first for m in store.truth["messages"] if m["topic"] == topic)
    assert (on_5.min_offset, on_5.max_offset) == (4, 4)
    assert (on_4.min_offset, on_4.max_offset) == (0, 4)


@pytest.mark.parametrize("kernel", ["compiled", "python"])
def test_good_entries_stops_at_the_first_bad_one(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kernel == "python":
        monkeypatch.setattr("store_core.read.entries._compiled", None)
    good = [ENTRY.struct.pack(i << 20, 65536 * (i + 1), -i) for i in range(50)]
    bad = {
        "size 0": (1, 0, 0),
        "size below 0": (1, -5, 0),
        "offset below 0": (-1, 5, 0),
    }
    filler = ENTRY.struct.pack(0, FILLER_SIZE_BYTES, 0)
    assert good_entries(b"".join(good) + filler, ENTRY) == 51
    for fields in bad.values():
        for place in (0, 1, 49, 50):
            data = b"".join([*good[:place], ENTRY.struct.pack(*fields), *good[place:]])
            assert good_entries(data, ENTRY) == place
    assert good_entries(b"", ENTRY) == 0
    assert good_entries(good[0][:-1], ENTRY) == 0


def test_good_batch_entries_need_an_offset_and_a_batch_size() -> None:
    good = (10, 20, 0, 5, 7, 256, -1, 0)
    for field, value in (("queue_offset", -1), ("batch_size", 0), ("batch_size", -2), ("size_bytes", 0)):
        bad = dict(zip(BATCH_ENTRY.names, good, strict=True)) | {field: value}
        data = BATCH_ENTRY.struct.pack(*good) + BATCH_ENTRY.struct.pack(*bad.values())
        assert good_entries(data, BATCH_ENTRY) == 1


def test_entries_come_in_bulk_as_they_come_one_by_one(golden: GoldenStore) -> None:
    with Store.open(golden("load-533")) as store:
        queue = open_queue(store, "Calm_audit", 0)
        assert isinstance(queue, Queue)
        chunks = [*queue.chunks(150, 450)]
        rows = [row for start, data in chunks for row in enumerate(ENTRY.struct.iter_unpack(data), start)]
        assert rows == [(entry[0], entry[1:]) for entry in queue.entries(150, 450)]
        assert len(rows) == 300
        assert len(chunks) == 3  # of 200 entries a file


def test_a_missing_queue_file_is_stepped_over(store_copy: StoreCopy) -> None:
    root = store_copy("load-533")
    Path(root / "consumequeue/Calm_audit/0/00000000000000004000").unlink()
    with Store.open(root) as store:
        queue = open_queue(store, "Calm_audit", 0)
        assert isinstance(queue, Queue)
        numbers = [entry.queue_offset for entry in queue.entries(0, 517)]
    assert numbers == [*range(200), *range(400, 517)]


def test_a_size_that_lies_makes_no_large_read(golden: GoldenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    with Store.open(golden("load-533")) as store:
        whole = read_record_bytes(store.log, 0)
        reading = SegmentSequence.read

        def counted(log: SegmentSequence, phy_offset: int, size_bytes: int) -> bytes:
            read.append(size_bytes)
            return reading(log, phy_offset, size_bytes)

        monkeypatch.setattr(SegmentSequence, "read", counted)
        assert read_record_bytes(store.log, 0, MAX_RECORD_SIZE_BYTES) == whole
    assert sum(read) <= 1 << 17
