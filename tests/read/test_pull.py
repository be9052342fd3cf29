"""Pulls: a broker's statuses and rules, and every message of every queue of the golden stores."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from store_core.codec.record import Message
from store_core.errors import FailedError
from store_core.layout.queue import FILLER_SIZE_BYTES
from store_core.read.content import TagFilter
from store_core.read.pull import PullResult, open_queue, pull
from store_core.storage.store import Store
from tests import stores
from tests.conftest import DamagedStore, GoldenStore, StoreCopy
from tests.damage import Damageable

TOPIC = "Calm_audit"


def told_offsets(name: str, topic: str, queue_id: int) -> list[dict[str, Any]]:
    return [m for m in stores.truth(name)["messages"] if (m["topic"], m["queueId"]) == (topic, queue_id)]


def ask(store: Store, offset: int | None, **options: Any) -> PullResult:
    return pull(open_queue(store, TOPIC, 0), TOPIC, 0, offset, **options)


@pytest.mark.parametrize("name", stores.WITH_QUEUE_FILES)
def test_pulling_queue_by_queue_gives_every_message(golden: GoldenStore, name: str) -> None:
    by_offset = {m["phyOffset"]: m for m in stores.truth(name)["messages"]}
    queues = stores.truth(name)["afterLoad"]["queues"]
    with Store.open(golden(name)) as store:
        for told in queues:
            topic, queue_id = told["topic"], told["queueId"]
            queue = open_queue(store, topic, queue_id)
            if queue is None:
                continue
            offset: int = told["min"]
            found: list[Message] = []
            while True:
                result = pull(queue, topic, queue_id, offset)
                if result.status != "FOUND":
                    break
                found += result.messages
                assert result.findings == ()
                offset = result.next_begin_offset
            assert offset == told["max"]
            assert result.status in ("OFFSET_OVERFLOW_ONE", "NO_MESSAGE_IN_QUEUE")
            starts = [m.phy_offset for m in found]
            expected = [e[1] for e in told["entries"] for _ in range(e[4] if "Batch" in told["type"] else 1)]
            assert starts == expected
            assert [m.topic for m in found] == [by_offset[o]["topic"] for o in starts]


def test_inner_batches_come_as_their_messages(golden: GoldenStore) -> None:
    with Store.open(golden("bcq-533")) as store:
        for queue_id in (0, 1):
            queue = open_queue(store, "Bcq_inner", queue_id)
            assert queue is not None
            whole = pull(queue, "Bcq_inner", queue_id, 0, limit=1000)
            assert [m.queue_offset for m in whole.messages] == list(range(615))
            sizes = {e.phy_offset: e.batch_size for e in queue.entries(0, 615)}
            inner = next(m.queue_offset for m in whole.messages if sizes[m.phy_offset] > 2)
            middle = pull(queue, "Bcq_inner", queue_id, inner + 1, limit=1)
            assert middle.messages[0] == whole.messages[inner + 1]
            assert len(middle.messages) == sizes[middle.messages[0].phy_offset] - 1
            assert len({m.unique_key for m in whole.messages}) == 615


@pytest.mark.parametrize(
    ("offset", "status", "next_begin"),
    [
        (None, "FOUND", 32),
        (0, "FOUND", 32),
        (500, "FOUND", 517),
        (516, "FOUND", 517),
        (517, "OFFSET_OVERFLOW_ONE", 517),
        (518, "OFFSET_OVERFLOW_BADLY", 517),
        (-1, "OFFSET_TOO_SMALL", 0),
    ],
)
def test_where_an_offset_lies(golden: GoldenStore, offset: int | None, status: str, next_begin: int) -> None:
    with Store.open(golden("load-533")) as store:
        result = ask(store, offset)
    assert (result.status, result.next_begin_offset) == (status, next_begin)
    assert (result.min_offset, result.max_offset) == (0, 517)
    assert bool(result.messages) == (status == "FOUND")


def test_no_queue(golden: GoldenStore) -> None:
    with Store.open(golden("load-533")) as store:
        assert open_queue(store, "Nobody", 0) is None
        assert open_queue(store, "../commitlog", 0) is None
        result = pull(None, "Nobody", 0, 7)
    assert result == PullResult("Nobody", 0, 7, "NO_MATCHED_LOGIC_QUEUE", 0, 0, 0)


def test_an_empty_queue(store_copy: StoreCopy) -> None:
    root = store_copy("load-533")
    folder = root / "consumequeue/Empty/0"
    folder.mkdir(parents=True)
    (folder / "00000000000000000000").write_bytes(bytes(4000))
    with Store.open(root) as store:
        result = pull(open_queue(store, "Empty", 0), "Empty", 0, 5)
    assert (result.status, result.next_begin_offset) == ("NO_MESSAGE_IN_QUEUE", 0)


def test_queues_in_rocksdb_are_one_clear_error(golden: GoldenStore) -> None:
    with Store.open(golden("rocks-533")) as store, pytest.raises(FailedError, match="RocksDB"):
        open_queue(store, TOPIC, 0)


@pytest.mark.parametrize("expression", ["Aa", "Aa || BB", " créé||Aa ", "Aa||"])
def test_tags_are_compared_as_text(golden: GoldenStore, expression: str) -> None:
    tags = {part.strip() for part in expression.split("||")} - {""}
    wanted = [m["phyOffset"] for m in told_offsets("load-533", TOPIC, 0) if m["properties"].get("TAGS") in tags]
    found: list[Message] = []
    offset = 0
    with Store.open(golden("load-533")) as store:
        while offset < 517:
            result = ask(store, offset, tags=TagFilter.parse(expression))
            found += result.messages
            assert result.next_begin_offset > offset
            offset = result.next_begin_offset
    assert [m.phy_offset for m in found] == wanted
    assert wanted


def test_a_tag_that_only_shares_the_hash_does_not_match(golden: GoldenStore) -> None:
    """``Aa`` and ``BB`` have one hash: the broker lets both pass, its client does not."""
    with Store.open(golden("load-533")) as store:
        result = ask(store, 0, tags=TagFilter.parse("Aa"), limit=517)
    assert {m.tags for m in result.messages} == {"Aa"}
    assert TagFilter.parse("BB").hashes == TagFilter.parse("Aa").hashes  # type: ignore[union-attr]  # neither is everything


def test_no_message_matches(golden: GoldenStore) -> None:
    with Store.open(golden("load-533")) as store:
        result = ask(store, 3, tags=TagFilter.parse("no-such-tag"))
        assert TagFilter.parse("*") is TagFilter.parse(None) is TagFilter.parse(" ") is None
    assert (result.status, result.next_begin_offset, result.messages) == ("NO_MATCHED_MESSAGE", 517, ())


def test_a_lost_segment_is_stepped_over(damaged: DamagedStore) -> None:
    with Store.open(damaged("load-533", "log-missing-mid", "clean")) as store:
        gap = store.log.gaps()[0]
        known = told_offsets("load-533", TOPIC, 0)
        first = next(m["queueOffset"] for m in known if m["phyOffset"] >= gap.phy_offset)
        behind = next(m["queueOffset"] for m in known if m["phyOffset"] >= gap.phy_offset + gap.size_bytes)
        inside = ask(store, first, limit=2)
        assert [m.queue_offset for m in inside.messages] == [behind, behind + 1]
        assert (inside.status, inside.next_begin_offset) == ("FOUND", behind + 2)


def test_only_removed_records(store_copy: StoreCopy) -> None:
    store = Damageable(store_copy("load-533"), stores.truth("load-533"))
    store.lose(len(store.segments) - 1)
    with Store.open(store.root) as opened:
        last = opened.log.max_phy_offset
        first_lost = next(m["queueOffset"] for m in told_offsets("load-533", TOPIC, 0) if m["phyOffset"] >= last)
        result = ask(opened, first_lost)
    assert (result.status, result.next_begin_offset, result.messages) == ("MESSAGE_WAS_REMOVING", 517, ())


def test_a_missing_queue_file(store_copy: StoreCopy) -> None:
    root = store_copy("load-533")
    (root / f"consumequeue/{TOPIC}/0/00000000000000004000").unlink()
    with Store.open(root) as store:
        result = ask(store, 250)
    assert (result.status, result.next_begin_offset, result.messages) == ("OFFSET_FOUND_NULL", 400, ())


@pytest.mark.parametrize(
    ("entry", "codes"),
    [
        ((0, FILLER_SIZE_BYTES, 0), []),  # a filler
        ((131071, 100, 0), []),  # a dead entry
        ((1 << 62, 100, 0), []),
        ((2869, 323, 0), ["Q001"]),  # one byte beside a record
        ((2868, 100, 2112), ["Q003"]),  # a size that lies: shorter
        ((2868, 900, 2112), ["Q003"]),  # longer
    ],
)
def test_hostile_entries(store_copy: StoreCopy, entry: tuple[int, int, int], codes: list[str]) -> None:
    store = Damageable(store_copy("load-533"), stores.truth("load-533"))
    store.set_entry(TOPIC, 0, 1, entry)
    with Store.open(store.root) as opened:
        result = ask(opened, 0, limit=3)
    assert [found.code for found in result.findings] == codes
    delivered = [m.phy_offset for m in result.messages]
    known = [m["phyOffset"] for m in told_offsets("load-533", TOPIC, 0)]
    if codes == ["Q003"]:
        assert delivered == [known[0], known[0], known[2]]
    elif entry[1] == FILLER_SIZE_BYTES or entry[0] == 131071:
        # An unreadable entry hides what lies in front of the next segment's start.
        start = 131072
        assert delivered == [known[0], *[o for o in known[2:] if o >= start][:2]]
    elif codes == ["Q001"]:
        assert delivered == [known[0], known[2], known[3]]
    else:
        assert delivered == [known[0]]


def test_runs_of_plain_entries_answer_as_entry_by_entry(store_copy: StoreCopy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is damaged: what is cut together by the kernel is what the loop over single entries gives."""
    random = Random(8)
    store = Damageable(store_copy("load-533"), stores.truth("load-533"))
    for _ in range(60):
        store.flip_at(random.randrange(store.end_phy_offset), 1 << random.randrange(8))
    for number in random.sample(range(500), 20):
        store.set_entry(TOPIC, 0, number, (random.randrange(store.end_phy_offset), random.choice((0, 91, 300, -1)), 0))
    store.cut(3, 70_000)
    store.lose(1)
    with Store.open(store.root) as opened:
        for key in opened.queues:
            queue = open_queue(opened, *key)
            assert queue is not None
            for offset in range(0, queue.max_offset, 7):
                limit = random.choice((0, 1, 2, 32, 1000))
                together = pull(queue, *key, offset, limit=limit)
                with monkeypatch.context() as patched:
                    patched.setattr("store_core.read.pull.messages_of", lambda *_: [])
                    assert pull(queue, *key, offset, limit=limit) == together


def test_a_long_pull_goes_on_from_chunk_to_chunk(golden: GoldenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store_core.read.queue._CHUNK_ENTRIES", 10)
    with Store.open(golden("load-533")) as store:
        result = ask(store, 3, limit=300)
    assert [m.queue_offset for m in result.messages] == list(range(3, 303))
    assert result.next_begin_offset == 303
