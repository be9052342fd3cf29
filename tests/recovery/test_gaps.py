"""recover --gaps skip and --no-fill: what stands for a lost message, and what a broker does where a hole stays open."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from store_core.errors import UsageError
from store_core.layout import marks, paths, queue
from store_core.recovery.apply.undo import undo
from store_core.recovery.keep_options import KeepOptions
from store_core.recovery.lost_record import LostRecord
from store_core.recovery.prediction.predict import predict
from store_core.recovery.queue_gaps import GapEntries, _dead_runs
from store_core.recovery.recover import recover
from store_core.recovery.skipped_offsets import QueueBounds, Skipping
from store_core.storage.store import QueueKey, Store
from tests import stores
from tests.conftest import DamagedStore, GoldenStore, differences
from tests.damage import Damageable
from tests.recovery.recovering import (
    Opener,
    Place,
    after_repairs,
    apply_to,
    assert_kept,
    batch_size,
    harm,
    is_queued,
    mended,
    places,
)

SettingsOf = Callable[[str], Path]
OpenerOf = Callable[[str], Opener]
DamageableOf = Callable[..., Damageable]
SKIP: Final = KeepOptions("skip")
OPEN: Final = KeepOptions(fill=False)
HOLES: Final = {"L001", "L002", "L003", "L006", "L008", "L013"}
CASES: Final = (
    "cq-removed-flip-mid",
    "flip-body-mid",
    "log-missing-mid",
    "log-mid-short",
    "magic-first-mid",
    "zero-page-mid",
    "torn-tail",
)


@pytest.fixture
def opener_of(settings_of: SettingsOf) -> OpenerOf:
    return lambda base: Opener(settings_of(base), stores.truth(base)["written_by"])


def entry_of(root: Path, truth: dict[str, Any], place: Place) -> dict[str, int]:
    store = Damageable(root, truth)
    path, at = store.queue_file(*place)
    found: dict[str, int] = queue.ENTRY.read(path.read_bytes()[at : at + queue.ENTRY.size_bytes])
    return found


def expected_dead(name: str, lost: set[Place]) -> set[Place]:
    """Numbers of ordinary queues between two messages that are kept, not in the first segment: by the truth alone."""
    truth = stores.truth(name)
    size, first = int(truth["properties"]["mappedFileSizeCommitLog"]), int(truth["log"]["files"][0]["file"])
    dead = set()
    for topic, queue_id in {place[:2] for place in lost}:
        mine = [m for m in truth["messages"] if is_queued(m) and (m["topic"], m["queueId"]) == (topic, queue_id)]
        segment = {m["queueOffset"]: m["phyOffset"] // size for m in mine}
        odd = {m["queueOffset"] for m in mine if batch_size(m) > 1 or "INNER_MULTI_DISPATCH" in m["properties"]}
        gone = sorted(
            n for t, q, n in lost if (t, q) == (topic, queue_id) and n not in odd and segment[n] > first // size
        )
        if topic == paths.SCHEDULE_TOPIC or topic.startswith("RMQ_SYS_"):
            continue
        kept = {m["queueOffset"] for m in mine} - set(gone)
        if gone and not any(n < gone[0] for n in kept):
            gone = gone[1:]
        if gone and not any(n > gone[-1] for n in kept):
            gone = gone[:-1]
        dead |= {(topic, queue_id, n) for n in gone}
    return dead


@pytest.mark.product
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("base", stores.BASES)
def test_lost_messages_are_skipped(
    base: str, case: str, golden: GoldenStore, damaged: DamagedStore, opener_of: OpenerOf
) -> None:
    if case not in stores.cases(base):
        pytest.skip("no such case of this store")
    opener, root, truth = opener_of(base), damaged(base, case, "crash"), stores.truth(base)
    before = stores.snapshot(root)
    found = harm(golden(base), root, base)
    recovery = opener.recover(root, options=SKIP)
    found = after_repairs(found, recovery)
    assert places(recovery.lost) == found.lost_places
    applied = apply_to(recovery, root)
    assert applied is not None
    again, by_default = opener.recover(root, options=SKIP), opener.recover(root)
    assert (again.plan.steps, by_default.plan.steps) == ((), ())  # nothing undoes it, either
    assert (again.lost, by_default.lost) == ((), ())  # it was told once
    assert {f.code for f in opener.check(root) if f.severity != "info"} == set()
    after = opener.predict(root)
    assert after == recovery.after.as_json()
    assert (after["starts"], after["lost_messages"]) == (True, 0)
    assert_kept(golden(base), root, base, found.intact)

    size = int(truth["properties"]["mappedFileSizeCommitLog"])
    dead = {place for place in found.lost_places if _is_dead(entry_of(root, truth, place), size)}
    assert dead == expected_dead(base, found.lost_places)
    assert bool(dead) == any("dead entr" in note for note in recovery.notes)
    assert bool(found.lost_places - dead and case != "torn-tail") == any(
        "cannot be skipped" in note for note in recovery.notes
    )

    undo(root, applied.undo_id, apply=True)
    now = {path: entry for path, entry in stores.snapshot(root).items() if not path.startswith(".rmqctl")}
    assert differences(before, now) == []


def _is_dead(entry: dict[str, int], segment_size_bytes: int) -> bool:
    return (entry["size_bytes"], entry["tags_code"], (entry["phy_offset"] + 1) % segment_size_bytes) == (100, 0, 0)


def test_the_end_of_a_queue_is_never_dead(damageable: DamageableOf, opener_of: OpenerOf) -> None:
    store = damageable("load-533", "crash")
    messages = [m for m in store.truth["messages"] if is_queued(m) and m["bodyLength"] and "TOPIC" not in m["topic"]]
    ends = {(m["topic"], m["queueId"]): m for m in messages}
    message = next(iter(ends.values()))
    store.flip(store.truth["messages"].index(message), "body")
    recovery = opener_of("load-533").recover(store.root, options=SKIP)
    assert ["it is the last of its queue" in note for note in recovery.notes] == [True]
    apply_to(recovery, store.root)
    codes = {f.code for f in opener_of("load-533").check(store.root) if f.phy_offset == message["phyOffset"]}
    assert codes == {"L016"}


def test_which_of_several_may_be_skipped(golden: GoldenStore) -> None:
    """Of a run at an end only the outermost one gets a tombstone; order must hold in the log and in the numbering."""
    at = 300_000  # in the third segment

    def lost(number: int, topic: str = "T", **more: Any) -> LostRecord:
        return LostRecord(topic, 0, number, at + number, 200, **more)

    def split(first: tuple[int, int] | None, last: tuple[int, int] | None, *records: LostRecord) -> dict[int, str]:
        key = QueueKey(records[0].topic, 0)
        bounds = QueueBounds({key: first} if first else {}, {key: last} if last else {})
        with Store.open(golden("load-533")) as store:
            skipping = Skipping(store, bounds)
        skipping.look_at(records)
        skipping.decide()
        kept, dead = skipping.parted(records)
        assert {*kept, *dead} == set(records)
        assert {lost for lost, _ in skipping.kept.first} == set(kept)
        return {lost.queue_offset: why for lost, why in skipping.kept.first}

    run = (lost(5), lost(6), lost(7))
    assert split((100, 0), (at + 900, 20), *run) == {}
    assert split(None, None, *run) == {5: "it is the first of its queue", 7: "it is the last of its queue"}
    assert split((at + 900, 20), (at + 900, 20), *run) == {5: "it is the first of its queue"}
    assert split((100, 0), (at + 900, 6), *run) == {7: "it is the last of its queue"}  # numbering began anew
    assert split((100, 0), (at + 900, 20), lost(5, paths.HALF_TOPIC)) == {5: "the broker itself reads its queue"}
    assert split((100, 0), (at + 900, 20), lost(5, batch_size=3)) == {5: "several queue entries belong to it"}
    assert split((100, 0), (at + 900, 20), replace(lost(5), phy_offset=500)) == {
        5: "its segment is the log's first one"
    }


def test_a_batch_queue_has_no_dead_entries(golden: GoldenStore) -> None:
    """A record of one message in such a queue, and one of an ordinary queue at the same place."""
    records = [LostRecord(topic, 0, 5, 300_000, 200) for topic in ("Bcq_inner", "T")]
    bounds = QueueBounds(*({QueueKey(r.topic, 0): place for r in records} for place in ((100, 0), (400_000, 9))))
    with Store.open(golden("bcq-533")) as store:
        skipping = Skipping(store, bounds)
    skipping.look_at(records)
    skipping.decide()
    assert skipping.parted(records) == ([records[0]], [records[1]])
    assert skipping.kept.first == [(records[0], "a batch queue has no dead entries")]


def test_dead_entries_are_seen_in_all_files_of_a_queue(damageable: DamageableOf) -> None:
    store = damageable("load-533", "crash")
    folder = next(f for f in sorted(store.root.glob("consumequeue/*/*")) if len([*f.iterdir()]) > 2)
    names = sorted(path.name for path in folder.iterdir())
    per_file = (folder / names[0]).stat().st_size // queue.ENTRY.size_bytes
    first = int(names[0]) // queue.ENTRY.size_bytes
    dead = store.segment_size_bytes - 1, queue.DEAD_ENTRY_SIZE_BYTES, 0
    for number in (first + per_file - 1, first + per_file, first + 2 * per_file):
        name = names[(number - first) // per_file]
        with (folder / name).open("r+b") as file:
            file.seek((number - first) % per_file * queue.ENTRY.size_bytes)
            file.write(queue.ENTRY.struct.pack(*dead))
    with Store.open(store.root) as opened:
        key = QueueKey(folder.parent.name, int(folder.name))
        stop = first + 2 * per_file + 2
        assert [*_dead_runs(opened, key, first, stop)] == [
            (first, first + per_file - 1, None),
            (first + per_file - 1, first + per_file + 1, dead),
            (first + per_file + 1, first + 2 * per_file, None),
            (first + 2 * per_file, first + 2 * per_file + 1, dead),
            (first + 2 * per_file + 1, stop, None),
        ]


def test_entries_for_gaps_are_runs() -> None:
    """In whatever order they come."""
    entries, key = GapEntries(), QueueKey("T", 0)
    for first, stop, at in ((50, 60, 7), (10, 12, 1), (12, 15, 1), (15, 16, 2)):
        entries.add(key, first, stop, (at, 100, 0))
    told = {n: entry[0] for n in range(70) if (entry := entries.of(key, n)) is not None}
    assert told == {10: 1, 11: 1, 12: 1, 13: 1, 14: 1, 15: 2} | dict.fromkeys(range(50, 60), 7)
    assert entries.of(QueueKey("T", 1), 10) is None


def test_nothing_is_skipped_in_the_first_segment(damageable: DamageableOf, opener_of: OpenerOf) -> None:
    store = damageable("load-533", "crash")
    number = next(n for n, m in enumerate(store.truth["messages"]) if n > 30 and m["bodyLength"] and is_queued(m))
    store.flip(number, "body")
    skipping, usual = (opener_of("load-533").recover(store.root, options=o) for o in (SKIP, None))
    assert [step.row() for step in skipping.plan.steps] == [step.row() for step in usual.plan.steps]
    assert any("its segment is the log's first one" in note for note in skipping.notes)


@pytest.mark.product
@pytest.mark.leaves_damage("holes are left open on purpose")
@pytest.mark.parametrize("exit", ["crash", "clean"])
@pytest.mark.parametrize("case", CASES)
def test_an_open_hole_stays_and_the_rest_is_mended(
    case: str, exit: str, golden: GoldenStore, damaged: DamagedStore, opener_of: OpenerOf
) -> None:
    base = "load-533" if case in stores.cases("load-533") else "crash-533"
    opener, root = opener_of(base), damaged(base, case, exit)
    before = stores.snapshot(root)
    found = harm(golden(base), root, base)
    recovery = opener.recover(root, options=OPEN)
    found = after_repairs(found, recovery)
    assert places(recovery.lost) == found.lost_places
    applied = apply_to(recovery, root)
    again = opener.recover(root, options=OPEN)
    assert again.plan.steps == ()
    if case == "flip-body-mid":  # its entry stays, as a broker leaves it
        assert places(again.lost) == found.lost_places
    after = opener.predict(root)
    assert after == recovery.after.as_json()
    assert after["ghosts"] == []
    left = {f.code for f in opener.check(root) if f.severity != "info"}
    assert left <= HOLES
    is_hole = case not in ("torn-tail", "magic-first-mid")  # the latter is repaired
    assert bool(left) == is_hole
    assert any("stays open" in note for note in recovery.notes) == is_hole
    if after["lost_messages"]:
        assert any(f"lose {after['lost_messages']} messages" in note for note in recovery.notes)
    now = stores.snapshot(root)
    if applied is None:
        return
    undo(root, applied.undo_id, apply=True)
    now = {path: entry for path, entry in stores.snapshot(root).items() if not path.startswith(".rmqctl")}
    assert differences(before, now) == []


def test_a_tombstone_is_no_hole(damageable: DamageableOf, opener_of: OpenerOf) -> None:
    """What was closed before stays closed, whatever is asked for later."""
    store = damageable("load-533", "crash")
    store.zero(store.message(900)["phyOffset"], 400)
    apply_to(opener_of("load-533").recover(store.root), store.root)
    for options in (SKIP, OPEN):
        assert opener_of("load-533").recover(store.root, options=options).plan.steps == ()
    assert marks.TOMBSTONE_PROPERTY.encode() in store.read(store.message(900)["phyOffset"], 400)


@pytest.mark.parametrize("options", [SKIP, OPEN])
def test_policy_broker_has_no_such_choice(options: KeepOptions, damaged: DamagedStore, opener_of: OpenerOf) -> None:
    with pytest.raises(UsageError, match="closes no holes"):
        opener_of("load-533").recover(damaged("load-533", "flip-body-mid", "crash"), "broker", options)
    with pytest.raises(UsageError, match="unknown gaps"):
        KeepOptions("hope")  # type: ignore[arg-type]  # what a shell may give


def test_numbers_of_a_lost_queue_get_tombstones_as_long_as_there_is_room(
    damageable: DamageableOf, opener_of: OpenerOf
) -> None:
    """Queues and a stretch of the log are gone: nothing says which numbers stood where, but between which messages."""
    opener, store = opener_of("load-533"), damageable("load-533", "crash")
    size, messages = store.segment_size_bytes, store.truth["messages"]
    segment = max(m["phyOffset"] // size for m in messages) // 2
    inside = [m for m in messages if m["phyOffset"] // size == segment][10:90]
    gone = [m for m in inside if is_queued(m)]
    store.zero(inside[0]["phyOffset"], inside[-1]["phyOffset"] + inside[-1]["storeSize"] - inside[0]["phyOffset"])
    shutil.rmtree(store.root / paths.CONSUMEQUEUE)
    recovery = opener.recover(store.root)
    applied = apply_to(recovery, store.root)
    assert applied is not None
    at = f"{paths.COMMITLOG}/{paths.segment_name(segment * size)}"
    assert len([step for step in recovery.plan.steps if step.path == at]) == 1
    lost = {(m["topic"], m["queueId"], m["queueOffset"]) for m in gone if batch_size(m) == 1}
    told = {(f.topic, f.queue_id, f.queue_offset) for f in opener.check(store.root) if f.code == "L016"}
    assert len(lost) > 50
    assert told == lost
    assert {f.code for f in opener.check(store.root) if f.severity != "info"} == set()
    with Store.open(store.root) as opened:
        for key, files in opened.queues.items():
            entries = [entry_of(store.root, store.truth, (*key, n)) for t, q, n in sorted(lost) if (t, q) == key]
            ends = [entry["phy_offset"] for entry in entries]
            assert ends == sorted(ends), files
    again = opener.recover(store.root)
    assert (again.plan.steps, again.lost) == ((), ())


def test_holes_on_both_sides_of_a_segments_end_stay_apart(damageable: DamageableOf, opener_of: OpenerOf) -> None:
    """Each of the two files gets its own bytes: one is too short, the other is gone."""
    store = damageable("load-497", "crash")
    cut, gone = len(store.segments) - 3, len(store.segments) - 2
    both = store.segments[cut], store.segments[gone]
    store.lose(gone)
    store.cut(cut, 105_244)
    recovery = opener_of("load-497").recover(store.root)
    steps = [step for step in recovery.plan.steps if step.path.startswith(paths.COMMITLOG)]
    assert {store.root / step.path for step in steps} == set(both)
    assert recovery.after.starts
    assert recovery.after.lost_messages == 0


def test_tombstones_make_room_for_others(golden: GoldenStore, damageable: DamageableOf, opener_of: OpenerOf) -> None:
    """Entries of one queue that another queue's took the place of, and a lost segment: there is no room but beside the tombstones."""
    store = damageable("load-497", "crash")
    segment = len(store.segments) // 2
    start = int(store.segments[segment].name)
    within = [m for m in store.truth["messages"] if 0 <= m["phyOffset"] - start < store.segment_size_bytes]
    queues = [[m for m in within if (m["topic"], m["queueId"]) == ("Soft_orders", n)] for n in (1, 2)]
    for mine, other in zip(queues[0][3:13], queues[1][3:13], strict=True):
        store.set_entry(
            mine["topic"],
            mine["queueId"],
            mine["queueOffset"],
            (other["phyOffset"], other["storeSize"], other["tagsCode"]),
        )
    store.lose(segment)
    recovery, found = mended(golden("load-497"), store.root, "load-497", opener_of("load-497"))
    assert places(recovery.lost) == found.lost_places
    assert not [note for note in recovery.notes if "dead entr" in note]
    assert opener_of("load-497").recover(store.root).plan.steps == ()


@pytest.mark.leaves_damage("holes stay open")
@pytest.mark.parametrize("options", [OPEN, None])
def test_what_follows_is_the_worst_that_a_possible_release_does(
    options: KeepOptions | None, damageable: DamageableOf
) -> None:
    """Once the store is as a clean stop leaves it, releases differ that were alike before: the open hole lies where only some look."""
    store = damageable("load-533", "crash")
    for segment in (0, 1, 5):
        store.zero(segment * store.segment_size_bytes + 40_000, 4096)
    with Store.open(store.root) as opened:
        recovery = recover(opened, "keep" if options else "broker", options=options)
    apply_to(recovery, store.root)
    with Store.open(store.root) as opened:
        assert predict(opened).outcome.as_json() == recovery.after.as_json()
