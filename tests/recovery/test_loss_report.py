"""The loss report as data, held against the truth about each store and what real brokers made of it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from store_core.broker.versions import Version
from store_core.layout import paths
from store_core.recovery.loss_report import log_strips as log_map
from store_core.recovery.loss_report.affected import affected_groups
from store_core.recovery.loss_report.build import loss_report
from store_core.recovery.loss_report.model import Loss, LossReport, LostRange, QueueLoss, TimeSpan
from store_core.recovery.prediction.predict import predict
from store_core.recovery.recover import recover
from store_core.storage.settings import load_settings
from store_core.storage.store import Store
from tests import stores
from tests.conftest import DamagedStore, GoldenStore
from tests.damage import Damageable
from tests.recovery.recovering import Place, batch_size, harm, is_queued
from tests.surgery import set_exit

SettingsOf = Callable[[str], Path]
Report = Callable[..., LossReport]
Broken = Callable[..., Damageable]

NOW: Final = 1_795_300_000_000
CASES: Final = (
    ("load-533", "flip-body-mid"),
    ("load-533", "log-missing-mid"),
    ("load-533", "zero-page-mid"),
    ("load-533", "cq-removed-flip-mid"),
    ("load-533", "log-tail-lost"),
    ("load-497", "flip-body-mid"),
    ("load-497", "torn-tail"),
    ("crash-533", "flip-body-mid"),
)
_COMMIT: Final = 8
_TRANSACTION_MASK: Final = 0xC


@pytest.fixture
def report_on(settings_of: SettingsOf) -> Report:
    """``report_on(root, name)``: the report on a copy of a golden store, by the release that wrote it."""

    def made(root: Path, name: str, *, only_predict: bool = False) -> LossReport:
        version = Version.parse(stores.truth(name)["written_by"])
        with Store.open(root, load_settings(settings_of(name), root)) as store:
            found = predict(store, version) if only_predict else recover(store, "keep", version)
            return loss_report(store, found, made_timestamp_ms=NOW)

    return made


def places_in(loss: Loss) -> set[Place]:
    return {
        (queue.topic, queue.queue_id, number)
        for queue in loss.queues
        for lost in queue.ranges
        for number in range(lost.first_queue_offset, lost.last_queue_offset + 1)
    }


def times_of(name: str) -> dict[Place, int]:
    """Store time of every message by its place; of a deleted topic's generations the last."""
    return {
        (m["topic"], m["queueId"], m["queueOffset"] + n): m["storeTimestamp"]
        for m in stores.truth(name)["messages"]
        if is_queued(m)
        for n in range(batch_size(m))
    }


@pytest.mark.product(4)
@pytest.mark.parametrize(("base", "case"), CASES)
def test_what_is_lost_either_way_and_when_it_was_stored(
    base: str, case: str, golden: GoldenStore, damaged: DamagedStore, report_on: Report, read_only: Callable[..., Path]
) -> None:
    root = damaged(base, case, "crash")
    read_only(root)
    report, found, times = report_on(root, base), harm(golden(base), root, base), times_of(base)
    assert report.kept is not None
    loss = report.kept.loss
    assert places_in(loss) == found.lost_places
    assert loss.lost_messages == len(found.lost_places)
    for queue in loss.queues:
        for lost in queue.ranges:
            stored = [
                times[queue.topic, queue.queue_id, n]
                for n in range(lost.first_queue_offset, lost.last_queue_offset + 1)
            ]
            first, last = lost.span.first_timestamp_ms, lost.span.last_timestamp_ms
            assert lost.span.time_from is not None
            assert first is not None  # every case has good messages in front of the damage
            assert first <= min(stored)
            assert last is None or last >= max(stored)
            if lost.span.time_from == "records":
                assert (first, last) == (min(stored), max(stored))
            assert (last is None) == (case in ("log-tail-lost", "torn-tail"))


@pytest.mark.product(4)
@pytest.mark.parametrize(("base", "case"), CASES)
def test_the_map_holds_every_byte(
    base: str, case: str, golden: GoldenStore, damaged: DamagedStore, report_on: Report
) -> None:
    root = damaged(base, case, "crash")
    report, found = report_on(root, base), harm(golden(base), root, base)
    at = report.segments[0].phy_offset
    for strip in report.segments:
        assert strip.phy_offset == at
        for span in strip.spans:
            assert (span.phy_offset, span.size_bytes > 0) == (at, True)
            at = span.end_phy_offset
        assert at == strip.phy_offset + strip.size_bytes
        spans = {kind: sum(s.size_bytes for s in strip.spans if s.kind == kind) for kind in strip.totals}
        assert (spans, strip.is_aggregated) == (strip.totals, False)
    good = sum(strip.totals.get("good", 0) for strip in report.segments)
    assert good == sum(m["storeSize"] for m in (*found.intact, *found.changed))
    # Nothing tells where the records of a lost tail lay but their queues' entries, which are there.
    lost = sum(strip.totals.get("lost", 0) for strip in report.segments)
    assert lost == sum(m["storeSize"] for m in found.harmed if is_queued(m) and m not in found.changed)


@pytest.mark.parametrize(("base", "case"), [c for c in CASES if "mid" in c[1] and "missing" not in c[1]])
def test_what_a_broker_throws_away_is_what_real_ones_threw_away(
    base: str, case: str, damaged: DamagedStore, report_on: Report
) -> None:
    report, times = report_on(damaged(base, case, "crash"), base, only_predict=True), times_of(base)
    real = stores.outcomes(base)[f"{case}/crash"]["afterStart"]
    assert (report.kept, report.broker.max_phy_offset) == (None, real["maxPhyOffset"])
    spans = {(q["topic"], q["queueId"]): range(q["min"], q["max"]) for q in real["queues"]}
    loss = report.broker.loss
    assert loss is not None
    gone = {place for place in times if place[2] not in spans.get(place[:2], ())}
    told = places_in(loss)
    assert told <= gone
    unreadable = len(gone) - len(told)
    assert unreadable <= (0 if "flip" in case else 30)  # lost already: no header is left of them
    for queue in loss.queues:
        stored = [time for place, time in times.items() if place in told and place[:2] == (queue.topic, queue.queue_id)]
        assert (queue.span.first_timestamp_ms, queue.span.last_timestamp_ms) == (min(stored), max(stored))
        assert queue.span.time_from == "records"
    fates = {strip.name: strip.fate for strip in report.segments}
    assert {name for name, fate in fates.items() if fate == "deleted"} == set(report.broker.deleted_commitlog_files)
    assert list(fates.values()).count("cut") == 1


def test_groups_are_seen_from_their_own_progress(damaged: DamagedStore, report_on: Report) -> None:
    base = "load-533"
    report = report_on(damaged(base, "flip-body-mid", "crash"), base)
    loss = report.broker.loss
    assert loss is not None
    lost = places_in(loss)
    expected = {}
    for key, offsets in stores.truth(base)["consumerOffsets"].items():
        topic, group = key.split("@")
        for queue_id, offset in offsets.items():
            numbers = {n for t, q, n in lost if (t, q) == (topic, int(queue_id))}
            if numbers:
                expected[group, topic, int(queue_id)] = (
                    offset,
                    sum(n < offset for n in numbers),
                    sum(n >= offset for n in numbers),
                    "in" if offset in numbers else "beyond" if offset > max(numbers) else "before",
                )
    told = {
        (g.group, g.topic, g.queue_id): (g.offset, g.consumed_messages, g.missed_messages, g.position)
        for g in loss.groups
    }
    assert told == expected
    assert {value[3] for value in expected.values()} == {"in", "beyond"}  # else the case would show nothing
    real = {
        (q["topic"], q["queueId"]): q["max"]
        for q in stores.outcomes(base)["flip-body-mid/crash"]["afterStart"]["queues"]
    }
    assert {(g.max_offset, g.beyond_end) for g in loss.groups} == {
        (real[g.topic, g.queue_id], g.offset > real[g.topic, g.queue_id]) for g in loss.groups
    }


@pytest.mark.parametrize(
    ("offset", "position", "consumed", "missed"),
    [
        (0, "before", 0, 5),
        (9, "before", 0, 5),
        (10, "in", 0, 5),
        (12, "in", 2, 3),
        (13, "between", 3, 2),
        (20, "in", 3, 2),
        (21, "in", 4, 1),
        (22, "beyond", 5, 0),
    ],
)
def test_where_progress_lies(offset: int, position: str, consumed: int, missed: int) -> None:
    ranges = tuple(LostRange(first, last, last + 1 - first, 0, TimeSpan()) for first, last in ((10, 12), (20, 21)))
    queue = QueueLoss("T", 0, ranges, TimeSpan())
    (found,) = affected_groups((queue,), {("g", "T", 0): offset, ("g", "T", 1): 7}, {})
    assert (found.position, found.consumed_messages, found.missed_messages) == (position, consumed, missed)


@pytest.mark.parametrize("name", [*stores.CLEAN, "propcrc-533", "ipv6-533"])
def test_a_clean_store_loses_nothing_and_leaves_no_transaction_open(
    name: str, golden: GoldenStore, report_on: Report
) -> None:
    report = report_on(golden(name), name)
    assert report.kept is not None
    assert report.broker.loss is not None
    for loss in (report.kept.loss, report.broker.loss):
        assert (loss.is_nothing, loss.lost_messages, loss.groups, loss.half_messages.open_messages) == (True, 0, (), 0)
    assert {kind for strip in report.segments for kind in strip.totals} <= {"good", "blank", "unused"}
    queued = [m for m in stores.truth(name)["messages"] if is_queued(m)]
    assert report.readable_messages == len(queued)
    assert (report.first_timestamp_ms, report.last_timestamp_ms) == (
        stores.truth(name)["messages"][0]["storeTimestamp"],
        stores.truth(name)["messages"][-1]["storeTimestamp"],
    )


def halves_open_before(name: str, cut: int) -> set[int]:
    """Queue offsets of half messages without a decision in front of ``cut``, told by the truth alone; 4.x stores."""
    messages = [m for m in stores.truth(name)["messages"] if m["phyOffset"] < cut]
    halves = [m for m in messages if m["topic"] == paths.HALF_TOPIC]
    number_by_digest = {hashlib.sha256(str(n).encode()).hexdigest(): n for n in range(1000)}
    decided = {number_by_digest[m["bodySha256"]] for m in messages if m["topic"] == paths.OP_TOPIC}
    committed = {m["preparedTransactionOffset"] for m in messages if m["sysFlag"] & _TRANSACTION_MASK == _COMMIT}
    newest = {m["properties"]["UNIQ_KEY"]: m["queueOffset"] for m in halves}
    return {
        m["queueOffset"]
        for m in halves
        if m["queueOffset"] not in decided
        and m["phyOffset"] not in committed
        and newest[m["properties"]["UNIQ_KEY"]] == m["queueOffset"]
    }


def test_transactions_whose_decision_goes_with_the_cut(damageable: Broken, report_on: Report) -> None:
    name = "clean-430"
    broken = damageable(name, "crash")
    ops = [m for m in broken.truth["messages"] if m["topic"] == paths.OP_TOPIC]
    lost_op = ops[-2]
    index = next(i for i, m in enumerate(broken.truth["messages"]) if m["phyOffset"] == lost_op["phyOffset"])
    broken.flip(record=index, field="body")
    report = report_on(broken.root, name)
    loss, kept = report.broker.loss, report.kept
    assert loss is not None
    assert kept is not None
    assert report.broker.max_phy_offset == lost_op["phyOffset"]
    halves = loss.half_messages
    # What the whole log leaves undecided, 4.3.0 has given up: its check service has passed it.
    expected = halves_open_before(name, lost_op["phyOffset"]) - halves_open_before(name, broken.end_phy_offset)
    assert expected
    assert {half.queue_offset for half in halves.listed} == expected
    assert all(half.decision_lost and not half.call_again for half in halves.listed)
    assert (halves.open_messages, halves.decision_lost, halves.lost_operations) == (len(expected), len(expected), 2)
    assert halves.lost_messages == sum(
        m["topic"] == paths.HALF_TOPIC and m["phyOffset"] > lost_op["phyOffset"] for m in broken.truth["messages"]
    )
    by_number = {m["queueOffset"]: m for m in broken.truth["messages"] if m["topic"] == paths.HALF_TOPIC}
    for half in halves.listed:
        message = by_number[half.queue_offset]
        assert (half.unique_key, half.topic, half.phy_offset, half.store_timestamp_ms) == (
            message["properties"]["UNIQ_KEY"],
            message["properties"]["REAL_TOPIC"],
            message["phyOffset"],
            message["storeTimestamp"],
        )
    # Kept, the commit record still decides what the lost op record was about.
    assert (kept.loss.half_messages.open_messages, kept.loss.half_messages.lost_operations) == (0, 1)
    assert_delayed(loss, broken, lost_op["phyOffset"])


def assert_delayed(loss: Loss, broken: Damageable, cut: int) -> None:
    text = (broken.root / paths.DELAY_OFFSET_JSON).read_text()
    progress = {int(level): int(offset) for level, offset in re.findall(r"(\d+):(\d+)", text)}
    numbers: dict[int, list[int]] = {}
    for m in broken.truth["messages"]:
        if m["topic"] == paths.SCHEDULE_TOPIC and m["phyOffset"] >= cut:
            numbers.setdefault(m["queueId"] + 1, []).append(m["queueOffset"])
    assert numbers
    assert {d.delay_level: (d.lost_messages, d.not_delivered) for d in loss.delayed} == {
        level: (len(lost), sum(n >= progress[level] for n in lost)) for level, lost in numbers.items()
    }


def test_half_messages_nobody_has_decided(damageable: Broken, report_on: Report) -> None:
    name = "clean-430"
    broken = damageable(name, "crash")
    progress = broken.root / paths.CONSUMER_OFFSET_JSON
    text = progress.read_text()
    whole = f'"{paths.HALF_TOPIC}@CID_RMQ_SYS_TRANS":{{0:56'
    assert text.replace("\n", "").replace("\t", "").count(whole) == 1
    before, _, after = text.partition(f'"{paths.HALF_TOPIC}@CID_RMQ_SYS_TRANS"')
    progress.write_text(before + f'"{paths.HALF_TOPIC}@CID_RMQ_SYS_TRANS"' + after.replace("0:56", "0:50", 1))
    report = report_on(broken.root, name)
    assert report.kept is not None
    listed = report.kept.loss.half_messages.listed
    expected = {n for n in halves_open_before(name, broken.end_phy_offset) if n >= 50}
    assert expected
    assert {half.queue_offset for half in listed} == expected
    assert all(half.call_again and not half.decision_lost for half in listed)


def test_many_damages_stay_exact_in_numbers_and_bounded_in_pictures(
    damageable: Broken, golden: GoldenStore, report_on: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "load-533"
    broken = damageable(name, "crash")
    for index in range(0, len(broken.truth["messages"]), 2):
        broken.flip(record=index, field="body")
    monkeypatch.setattr(log_map, "_SPANS_PER_SEGMENT", (8, 16))
    report, found = report_on(broken.root, name), harm(golden(name), broken.root, name)
    assert report.kept is not None
    assert places_in(report.kept.loss) == found.lost_places
    assert len(found.lost_places) > 1000
    for strip in report.segments:
        assert strip.is_aggregated
        assert len(strip.spans) <= 2 * 16 + 1
        assert sum(span.size_bytes for span in strip.spans) == strip.size_bytes == sum(strip.totals.values())
    lost = sum(strip.totals.get("lost", 0) + strip.totals.get("damaged", 0) for strip in report.segments)
    assert lost == sum(m["storeSize"] for m in found.harmed)


def test_a_broker_that_does_not_start(damaged: DamagedStore, report_on: Report) -> None:
    report = report_on(damaged("load-497", "log-last-empty", "crash"), "load-497")
    assert (report.broker.starts, report.broker.loss) == (False, None)
    assert report.broker.reason
    assert report.kept is not None
    assert report.kept.broker_starts
    assert {strip.fate for strip in report.segments} == {"kept"}


def test_the_store_is_told_from_others(golden: GoldenStore, damageable: Broken, report_on: Report) -> None:
    name = "lmq-533"
    first = report_on(golden(name), name).store
    files = stores.contents(golden(name))
    assert (first.files, first.size_bytes) == (len(files), sum(size for size, _ in files.values()))
    lines = [
        f"{path}\t{(golden(name) / path).stat().st_size}\t{(golden(name) / path).stat().st_mtime_ns}\n"
        for path in files
    ]
    # in the order of a walk through sorted folders: a folder's own files before those below it
    lines.sort(key=lambda line: _walk_order(line.split("\t")[0]))
    assert first.file_list_sha256 == hashlib.sha256("".join(lines).encode()).hexdigest()
    broken = damageable(name)
    set_exit(broken.root, "crash")
    assert report_on(broken.root, name).store.file_list_sha256 != first.file_list_sha256


def _walk_order(path: str) -> list[Any]:
    *folders, name = path.split("/")
    return [*((1, folder) for folder in folders), (0, name)]
