"""Single findings, each made by one stroke on a real store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_core.check import index as index_check
from store_core.check import queues
from store_core.check.index_files import IndexFileView
from store_core.check.log_map import Intervals, OffsetRanges, runs_of, windows_of
from store_core.check.report import MOST_FINDINGS_PER_CODE, Findings
from store_core.check.store import check_store
from store_core.codec.record import encode_record
from store_core.findings import Finding
from store_core.layout import index, marks, paths, record
from store_core.read.index_sizes import IndexSizes, index_sizes
from store_core.read.queue import Queue
from store_core.storage.settings import load_settings
from store_core.storage.store import QueueKey, Store
from tests.conftest import StoreCopy
from tests.damage import Damageable

HOST = bytes((127, 0, 0, 1, 0, 0, 42, 159))


def check(root: Path) -> list[Finding]:
    with Store.open(root) as store:
        return check_store(store).findings


def codes(root: Path) -> list[str]:
    return sorted(f.code for f in check(root))


def replace_record(
    store: Damageable, number: int, topic: str, properties: dict[str, str], sys_flag: int, **own: int
) -> None:
    """Put another record of the same size in place of one of the log."""
    message = store.message(number)

    def made(body: bytes) -> bytes:
        return encode_record(
            topic=topic,
            body=body,
            properties=properties,
            queue_id=own.get("queue_id", 0),
            queue_offset=own.get("queue_offset", 0),
            phy_offset=message["phyOffset"],
            born_timestamp_ms=message["storeTimestamp"],
            born_host=HOST,
            store_timestamp_ms=message["storeTimestamp"],
            store_host=HOST,
            sys_flag=sys_flag,
        )

    store.write(message["phyOffset"], made(bytes(message["storeSize"] - len(made(b"")))))


def test_a_filler_is_told_by_its_exact_shape(damageable: Callable[..., Damageable]) -> None:
    store = damageable("load-533")
    replace_record(store, 700, marks.FILLER_TOPIC, {}, record.TRANSACTION_ROLLBACK)
    found = {f.code: f for f in check(store.root)}
    assert set(found) == {"L015", "Q002", "I002"}
    assert (found["L015"].severity, found["L015"].phy_offset) == ("info", store.message(700)["phyOffset"])
    other = damageable("load-533")
    replace_record(other, 700, marks.FILLER_TOPIC, {"a": "b"}, record.TRANSACTION_ROLLBACK)
    assert "L015" not in codes(other.root)


def test_a_tombstone_stands_where_its_message_was(damageable: Callable[..., Damageable]) -> None:
    store = damageable("load-533")
    message = next(m for m in store.truth["messages"] if m["tagsCode"] == 0)
    number = store.truth["messages"].index(message)
    replace_record(
        store,
        number,
        message["topic"],
        {marks.TOMBSTONE_PROPERTY: marks.TOMBSTONE_VALUE},
        record.TRANSACTION_NONE,
        queue_id=message["queueId"],
        queue_offset=message["queueOffset"],
    )
    found = {f.code: f for f in check(store.root)}
    assert set(found) == {"L016", "I002"}
    assert (found["L016"].topic, found["L016"].queue_offset) == (message["topic"], message["queueOffset"])


def test_dead_entries_are_ours(damageable: Callable[..., Damageable]) -> None:
    store = damageable("load-533")
    lost = store.message(700)
    store.set_entry(lost["topic"], lost["queueId"], lost["queueOffset"], (store.segment_size_bytes * 2 - 1, 100, 0))
    assert codes(store.root) == ["Q006", "Q014"]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda m: (m["phyOffset"], m["storeSize"] + 1, m["tagsCode"]), "Q003"),
        (lambda m: (m["phyOffset"], m["storeSize"], m["tagsCode"] + 1), "Q005"),
    ],
)
def test_one_wrong_field_of_an_entry(
    damageable: Callable[..., Damageable], change: Callable[[dict[str, Any]], tuple[int, int, int]], code: str
) -> None:
    store = damageable("load-533")
    message = next(m for m in store.truth["messages"][700:] if m["topic"] != paths.SCHEDULE_TOPIC)
    store.set_entry(message["topic"], message["queueId"], message["queueOffset"], change(message))
    (found,) = check(store.root)
    assert (found.code, found.topic, found.queue_id, found.queue_offset) == (
        code,
        message["topic"],
        message["queueId"],
        message["queueOffset"],
    )


def test_a_delivery_time_is_checked_against_the_levels_own_delay(damageable: Callable[..., Damageable]) -> None:
    store = damageable("clean-533")
    delayed = [m for m in store.truth["messages"] if m["topic"] == paths.SCHEDULE_TOPIC and m["queueId"] == 2]
    message = delayed[3]
    store.set_entry(
        message["topic"],
        2,
        message["queueOffset"],
        (message["phyOffset"], message["storeSize"], message["tagsCode"] - 5),
    )
    assert codes(store.root) == ["Q005"]


def test_a_filler_at_the_end_poisons_a_queue(damageable: Callable[..., Damageable]) -> None:
    store = damageable("load-533")
    end = max(m["queueOffset"] for m in store.truth["messages"] if m["topic"] == "Calm_audit") + 1
    store.set_entry("Calm_audit", 0, end, (0, 0x7FFFFFFF, 0))
    (found,) = check(store.root)
    assert (found.code, found.queue_offset, found.message) == ("Q010", end, "the queue ends with 1 filler")


def test_a_damaged_ext_unit(store_copy: StoreCopy) -> None:
    root = store_copy("cqext-533")
    file = root / "consumequeue_ext" / "Ext_audit" / "0" / "00000000000000000000"
    data = bytearray(file.read_bytes())
    data[40:42] = b"\0\0"  # the size of the third unit
    file.write_bytes(data)
    (found,) = check(root)
    assert (found.code, found.topic, found.queue_offset) == ("Q016", "Ext_audit", 2)


def test_a_batch_entry_of_another_size(store_copy: StoreCopy) -> None:
    root = store_copy("bcq-533")
    file = root / "batchconsumequeue" / "Bcq_inner" / "0" / "00000000000000000000"
    data = bytearray(file.read_bytes())
    data[11] ^= 1  # the record size of the first entry
    data[46 + 35] ^= 1  # the queue offset of the second
    file.write_bytes(data)
    assert codes(root) == ["Q003", "Q004"]


def test_batch_entries_lost_and_wild(store_copy: StoreCopy) -> None:
    root = store_copy("bcq-533")
    file = root / "batchconsumequeue" / "Bcq_inner" / "0" / "00000000000000000000"
    data = bytearray(file.read_bytes())
    data[46 * 5 + 7] ^= 1  # where the sixth entry's record starts
    file.write_bytes(data)
    assert codes(root) == ["Q001", "Q006"]


def test_an_index_header_that_does_not_fit(store_copy: StoreCopy) -> None:
    root = store_copy("load-533")
    file = min((root / "index").iterdir())
    data = bytearray(file.read_bytes())
    data[31] ^= 1  # end offset
    file.write_bytes(data)
    (found,) = check(root)
    assert (found.code, found.file) == ("I007", f"index/{file.name}")


def test_a_chain_that_runs_in_a_circle(store_copy: StoreCopy) -> None:
    root = store_copy("load-533")
    file = min((root / "index").iterdir())
    data = bytearray(file.read_bytes())
    entry = 40 + 500 * 4 + 20 * 1500
    data[entry + 16 : entry + 20] = (1500).to_bytes(4)  # it follows itself
    file.write_bytes(data)
    (found,) = check(root)
    assert (found.code, found.message) == (
        "I003",
        "entries 1500 to 1500 do not follow the entry before them on their slot",
    )


def test_progress_against_the_queues(store_copy: StoreCopy) -> None:
    root = store_copy("load-533")
    (root / "config" / "consumerOffset.json").write_text(
        '{"offsetTable":{"Calm_audit@g":{0:9999},"Calm_bills@g":{0:3,7:4},"Gone@g":{0:5}}}'
    )
    (root / "config" / "delayOffset.json").write_text('{"offsetTable":{1:77}}')
    found = [(f.code, f.topic, f.queue_id, f.queue_offset) for f in check(root)]
    assert sorted(found) == [
        ("P001", "Calm_audit", 0, 9999),
        ("P006", "Calm_bills", 7, 4),
        ("P006", "Gone", 0, 5),
        ("P007", paths.SCHEDULE_TOPIC, 0, 77),
    ]


def test_broken_config_and_a_topic_nobody_configured(store_copy: StoreCopy) -> None:
    root = store_copy("load-533")
    text = (root / "config" / "topics.json").read_text()
    (root / "config" / "topics.json").write_text(text.replace('"Calm_steps"', '"Calm_stops"'))
    (root / "config" / "subscriptionGroup.json").write_text("{")
    found = [(f.code, f.topic) for f in check(root)]
    assert found == [("P003", None), ("P002", "Calm_steps")]


@pytest.mark.parametrize(("queue_ids", "needed"), [([0], "1 queue"), ([0, 3], "4 queues")])
def test_how_many_queues_a_topic_nobody_configured_needs(
    queue_ids: list[int], needed: str, store_copy: StoreCopy
) -> None:
    root = store_copy("load-533")
    for queue_id in queue_ids:
        (root / "consumequeue" / "Lone" / str(queue_id)).mkdir(parents=True)
        (root / "consumequeue" / "Lone" / str(queue_id) / f"{0:020}").write_bytes(bytes(20))
    [said] = [f.message for f in check(root) if f.code == "P002"]
    assert said.endswith(f"; it needs {needed}")


def test_wrong_kinds_of_entries(store_copy: StoreCopy) -> None:
    root = store_copy("load-533")
    (root / "checkpoint").unlink()
    (root / "lock").unlink()
    (root / "lock").mkdir()
    (root / "consumequeue" / "Calm_audit" / "0" / "note.txt").write_text("?")
    (root / "index" / "folder").mkdir()
    found = [(f.code, f.severity, f.file) for f in check(root)]
    assert found == [
        ("S008", "error", "lock"),
        ("C001", "warning", "checkpoint"),
        ("Q013", "error", "consumequeue/Calm_audit/0/note.txt"),
        ("I006", "error", "index/folder"),
    ]


def test_a_missing_queue_file_and_what_it_held(store_copy: StoreCopy) -> None:
    root = store_copy("load-533")
    (root / "consumequeue" / "Calm_audit" / "0" / "00000000000000004000").unlink()
    found = [(f.code, f.queue_offset, f.size_bytes) for f in check(root) if f.code != "Q006"]
    missing = [f.message for f in check(root) if f.code == "Q006"]
    assert found == [("Q012", None, 4000)]
    assert missing == ["200 messages without an entry"]


def test_lists_are_bounded_and_everything_is_counted() -> None:
    findings = Findings()
    for number in range(MOST_FINDINGS_PER_CODE + 7):
        findings.say("Q001", f"{number}")
    findings.say("Q002", "one")
    assert len(findings.all()) == MOST_FINDINGS_PER_CODE + 2
    assert findings.all()[-1].message == "and 7 more: queue entry without a record"
    assert findings.counts == {"Q001": MOST_FINDINGS_PER_CODE + 7, "Q002": 1}


def test_runs_and_intervals() -> None:
    mask = np.array([True, True, False, True])
    assert list(runs_of(mask, 10)) == [(10, 12), (13, 14)]
    assert list(runs_of(np.zeros(3, bool))) == []
    intervals = Intervals()
    intervals.add_numbers(np.array([4, 5, 6, 1, 2, 9]))
    assert list(intervals.sorted()) == [(1, 3), (4, 7), (9, 10)]
    assert list(intervals.missing(0, 12)) == [(0, 1), (3, 4), (7, 9), (10, 12)]
    assert list(intervals.missing(4, 7)) == []
    ranges = OffsetRanges()
    ranges.add(10, 20)
    ranges.add(30, 31)
    assert ranges.contain(np.array([9, 10, 19, 20, 30, 31])).tolist() == [False, True, True, False, True, False]


def test_a_file_named_amid_an_entry_is_walked_over(store_copy: StoreCopy) -> None:
    root = store_copy("load-533")
    folder = root / "consumequeue" / "Calm_audit" / "0"
    (folder / "00000000000000000000").rename(folder / "00000000000000000007")
    found = {f.code: f for f in check(root)}
    assert {"Q006", "Q013"} <= found.keys()
    assert found["Q013"].file == "consumequeue/Calm_audit/0/00000000000000000007"
    for other in folder.iterdir():  # else it is a foreign file that lies over the next one
        if other.name != "00000000000000000007":
            other.unlink()
    with Store.open(root) as store:
        queue = Queue(store.queues[QueueKey("Calm_audit", 0)], store.log)
        assert [entry.queue_offset for entry in queue.entries(0, 3)] == [1, 2]


def test_a_name_beyond_all_offsets_is_no_segment(store_copy: StoreCopy) -> None:
    root = store_copy("load-533")
    (root / "commitlog" / "99999999999999999999").write_bytes(bytes(131072))
    assert codes(root) == ["L010"]


def test_a_folder_where_the_checkpoint_belongs(store_copy: StoreCopy) -> None:
    root = store_copy("load-533")
    (root / "checkpoint").unlink()
    (root / "checkpoint").mkdir()
    assert codes(root) == ["S008"]


def test_one_segment_in_two_log_folders(store_copy: StoreCopy, tmp_path: Path) -> None:
    root = store_copy("load-533")
    other = root / "commitlog2"
    other.mkdir()
    first = root / "commitlog" / "00000000000000131072"
    (other / first.name).write_bytes(first.read_bytes())
    config = tmp_path / "broker.conf"
    config.write_text(f"storePathRootDir={root}\nstorePathCommitLog={root}/commitlog,{other}\n")
    with Store.open(root, load_settings(config)) as store:
        (found,) = check_store(store).findings
    assert (found.code, found.file, found.message) == (
        "L018",
        "commitlog2/00000000000000131072",
        "the same segment as commitlog/00000000000000131072",
    )


def test_numbers_given_twice_hide_the_older_messages(damageable: Callable[..., Damageable]) -> None:
    """As after a start that lost a queue's tail: the log has the same numbers twice, the queue the later messages."""
    store = damageable("load-533")
    own = [m for m in store.truth["messages"] if (m["topic"], m["queueId"]) == ("Calm_orders", 0)]
    again, hidden = own[-2:], own[-4:-2]
    for message, number in zip(again, (m["queueOffset"] for m in hidden), strict=True):
        store.set_field(store.truth["messages"].index(message), "queue_offset", number)
        store.set_entry("Calm_orders", 0, number, (message["phyOffset"], message["storeSize"], message["tagsCode"]))
        store.set_entry("Calm_orders", 0, message["queueOffset"])
    found = [(f.code, f.severity, f.message) for f in check(store.root) if f.code != "P001"]
    assert found == [("Q006", "warning", "2 messages whose numbers others have")]


@given(st.lists(st.lists(st.integers(0, 40), max_size=8), max_size=6), st.integers(0, 40), st.integers(0, 40))
def test_numbers_in_any_order_are_a_set(given: list[list[int]], begin: int, end: int) -> None:
    intervals, held = Intervals(), set[int]()
    for numbers in given:
        intervals.add_numbers(np.array(numbers, np.int64))
        held.update(numbers)
        runs = list(intervals.sorted())
        assert [n for low, high in runs for n in range(low, high)] == sorted(held)
        assert all(high < low for (_, high), (low, _) in pairwise(runs))
        gaps = [n for low, high in intervals.missing(begin, end) for n in range(low, high)]
        assert gaps == [n for n in range(begin, end) if n not in held]
    assert intervals.end == max((n + 1 for n in held), default=0)


@given(st.sets(st.integers(0, 60)), st.integers(1, 20))
def test_runs_by_the_window(numbers: set[int], most: int) -> None:
    runs = Intervals()
    runs.add_numbers(np.array(sorted(numbers), np.int64))
    seen: list[int] = []
    for at, mask in windows_of(runs.sorted(), most):
        assert 0 < len(mask) <= most
        assert mask[0]
        assert mask[-1]
        seen += (np.flatnonzero(mask) + at).tolist()
    assert seen == sorted(numbers)


def test_thousands_of_damaged_places_are_judged_by_the_window(
    damageable: Callable[..., Damageable], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = damageable("load-533")
    lost = range(1, len(store.truth["messages"]) - 300, 3)
    for number in lost:
        store.set_field(number, "magic", 0)
    judged: list[int] = []
    judge = queues._QueueCheck._judge

    def counted(check: queues._QueueCheck, at: int, *rest: Any) -> Any:
        judged.append(at)
        return judge(check, at, *rest)

    monkeypatch.setattr(queues._QueueCheck, "_judge", counted)
    with Store.open(store.root) as opened:
        report = check_store(opened)
        assert len(judged) <= len(opened.queues)
    pointing = [f for f in report.findings if f.code == "Q001"]
    assert sum(int(f.message.split()[0]) for f in pointing) == len(lost)
    assert report.summary["L002"] >= len(lost) // 2


@pytest.mark.parametrize(
    ("slot", "told"), [(None, {False: True, True: False}), (b"\x7f\xff\xff\xff", {False: True, True: True})]
)
def test_index_entries_that_have_come_since_the_header_was_read(
    slot: bytes | None, told: dict[bool, bool], store_copy: StoreCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker at work writes entries, then their slots, then the header: what is behind the count is no fault, but what is behind
    what the header counts by now."""
    root = store_copy("clean-533")
    newest = max((root / paths.INDEX).iterdir())
    with Store.open(root) as store:
        slots = sizes.slots if (sizes := index_sizes(store).sizes) else 0
    if slot is not None:
        data = bytearray(newest.read_bytes())
        data[index.slot_at(0) : index.slot_at(slots)] = slot * slots
        newest.write_bytes(data)

    def open_view(store: Store, path: Path, sizes: IndexSizes) -> IndexFileView:
        view = real(store, path, sizes)
        header = view.header._replace(index_count=view.header.index_count - 5)
        return replace(view, header=header, entries=view.entries - 5) if path == newest else view

    real = index_check.open_view
    monkeypatch.setattr(index_check, "open_view", open_view)
    for live, is_told in told.items():
        with Store.open(root) as store:
            assert ("I003" in [found.code for found in check_store(store, live=live).findings]) is is_told
