"""recover --sibling: what another copy of the log gives back, what it does not, and which copy is none."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from store_core.errors import NotAStoreError, PlanOutOfDateError, UsageError
from store_core.layout import paths
from store_core.mend.applying.apply import apply
from store_core.mend.applying.undo import undo
from store_core.mend.plans.plan_json import load_plan, save_plan
from store_core.mend.recover import Recovery
from store_core.mend.salvage.options import KeepOptions
from store_core.storage.remote_path import path_of
from tests import stores
from tests.conftest import DamagedStore, GoldenStore, StoreCopy, differences
from tests.damage import Damageable
from tests.mend.recovering import VERSIONS, Opener, apply_to, assert_kept, harm, is_queued, log_bytes, places
from tests.object_stores import ObjectStore

SettingsOf = Callable[[str], Path]
OpenerOf = Callable[[str], Opener]
DamageableOf = Callable[..., Damageable]
CASES: Final = (
    "blank-mid-broken",
    "cq-removed-flip-mid",
    "flip-body-mid",
    "log-last-empty",
    "log-mid-short",
    "log-missing-mid",
    "magic-first-mid",
    "torn-tail",
    "zero-page-mid",
)


@pytest.fixture
def opener_of(settings_of: SettingsOf) -> OpenerOf:
    return lambda base: Opener(settings_of(base), stores.truth(base)["written_by"])


def with_siblings(*roots: Path, **more: Any) -> KeepOptions:
    return KeepOptions(siblings=roots, **more)


def assert_as_it_was(opener: Opener, root: Path, golden: Path, base: str, options: KeepOptions) -> Recovery:
    """Recovered, with nothing lost: every record of the truth at its place, nothing left to do; and undone again."""
    before = stores.snapshot(root)
    recovery = opener.recover(root, options=options)
    assert differences(before, stores.snapshot(root)) == []
    assert (recovery.lost, recovery.given_up) == ((), ())
    applied = apply_to(recovery, root)
    assert applied is not None
    assert opener.recover(root, options=options).plan.steps == ()
    assert opener.recover(root).plan.steps == ()
    assert [f.code for f in opener.check(root) if f.severity != "info"] == []
    after = opener.predict(root)
    assert after == recovery.after.as_json()
    assert (after["starts"], after["lost_messages"], after["ghosts"]) == (True, 0, [])
    assert_kept(golden, root, base, stores.truth(base)["messages"])
    undo(root, applied.undo_id, apply=True)
    now = {path: entry for path, entry in stores.snapshot(root).items() if not path.startswith(".rmqctl")}
    assert differences(before, now) == []
    return recovery


def taken_records(recovery: Recovery) -> int:
    return sum(int(one["records"]) for one in recovery.siblings)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("base", VERSIONS)
def test_a_copy_gives_everything_back(
    base: str,
    case: str,
    golden: GoldenStore,
    damaged: DamagedStore,
    opener_of: OpenerOf,
    read_only: Callable[[Path], Path],
) -> None:
    if case not in stores.cases(base):
        pytest.skip("no such case of this store")
    root, sibling = damaged(base, case, "crash"), read_only(golden(base))
    found = harm(golden(base), root, base)
    recovery = assert_as_it_was(opener_of(base), root, golden(base), base, with_siblings(sibling))
    assert taken_records(recovery) == len(found.harmed)
    assert [one["sibling"] for one in recovery.siblings] == [str(sibling)]
    assert any(str(sibling) in note for note in recovery.notes)


@pytest.mark.parametrize("name", ["lmq-533", "bcq-533", "propcrc-533", "ipv6-533", "clean-430", "cqext-533"])
def test_records_of_every_kind_come_back(
    name: str, golden: GoldenStore, damageable: DamageableOf, opener_of: OpenerOf
) -> None:
    store = damageable(name, "crash")
    store.zero(store.end_phy_offset // 2 // 4096 * 4096, 4096)
    recovery = opener_of(name).recover(store.root, options=with_siblings(golden(name)))
    assert recovery.lost == ()
    apply_to(recovery, store.root)
    assert log_bytes(store.root) == log_bytes(golden(name))


def test_several_copies_help_each_other(golden: GoldenStore, damageable: DamageableOf, opener_of: OpenerOf) -> None:
    """Two records lost here; each copy has lost one of them."""
    store, one, other = (damageable("load-533", "crash") for _ in range(3))
    first, second = 900, 901
    for number in (first, second):
        store.zero(store.message(number)["phyOffset"], store.message(number)["storeSize"])
    one.zero(one.message(first)["phyOffset"], 50)
    other.flip(second, "body")
    for roots in ((one.root, other.root), (other.root, one.root)):
        recovery = assert_as_it_was(
            opener_of("load-533"), store.root, golden("load-533"), "load-533", with_siblings(*roots)
        )
        assert [len(taken["ranges"]) for taken in recovery.siblings] == [1, 1]


@pytest.mark.parametrize("field", ["body", "own_phy_offset", "properties"])
def test_a_record_that_does_not_check_out_is_not_taken(
    field: str, damageable: DamageableOf, opener_of: OpenerOf
) -> None:
    name = "propcrc-533"
    store, sibling = damageable(name, "crash"), damageable(name)
    number = next(
        n for n, m in enumerate(store.truth["messages"]) if n > 5 and m["bodyLength"] and m["storeSize"] > 120
    )
    store.zero(store.message(number)["phyOffset"], store.message(number)["storeSize"])
    sibling.flip(number, field)
    message = store.message(number)
    recovery = opener_of(name).recover(store.root, options=with_siblings(sibling.root))
    assert (taken_records(recovery), places(recovery.lost)) == (
        0, {(message["topic"], message["queueId"], message["queueOffset"])},
    )  # fmt: skip
    assert any("nothing was taken" in note for note in recovery.notes)


def part(store: Damageable, record: int) -> None:
    """From a record on another history: written at other times."""
    for number, message in enumerate(store.truth["messages"]):
        if number >= record:
            store.set_field(number, "store_timestamp_ms", message["storeTimestamp"] + 60_000)


def test_a_copy_that_parted_in_front_gives_nothing(damageable: DamageableOf, opener_of: OpenerOf) -> None:
    store, sibling = damageable("load-533", "crash"), damageable("load-533")
    store.flip(900, "body")
    part(sibling, 850)
    recovery = opener_of("load-533").recover(store.root, options=with_siblings(sibling.root))
    assert taken_records(recovery) == 0


@pytest.mark.parametrize("field", ["body", "reconsume_times", "own_phy_offset", "size_bytes"])
@pytest.mark.parametrize("beside", [-1, 1])
def test_a_copy_with_damage_beside_ours_gives_what_it_has(
    beside: int, field: str, golden: GoldenStore, damageable: DamageableOf, opener_of: OpenerOf
) -> None:
    """Others tell that it is one; what is damaged there is not taken for what is good here."""
    store, sibling = damageable("load-533", "crash"), damageable("load-533")
    store.zero(store.message(900)["phyOffset"], store.message(900)["storeSize"])
    sibling.flip(900 + beside, field)
    assert_as_it_was(opener_of("load-533"), store.root, golden("load-533"), "load-533", with_siblings(sibling.root))


@pytest.mark.parametrize("kept", [slice(3, None), slice(None, 3)])
def test_a_copy_that_begins_or_ends_in_a_hole(
    kept: slice, golden: GoldenStore, damageable: DamageableOf, opener_of: OpenerOf
) -> None:
    """A slave that joined late, a backup of an earlier day; two segments are lost here."""
    store, sibling = damageable("load-533", "crash"), damageable("load-533")
    for path in set(sibling.segments) - set(sibling.segments[kept]):
        path.unlink()
    for number in (3, 2):
        store.lose(number)
    size = store.segment_size_bytes
    there = {int(path.name) for path in (*store.segments, *sibling.segments)}
    gone = [m for m in store.truth["messages"] if m["phyOffset"] // size * size not in there]
    recovery = opener_of("load-533").recover(store.root, options=with_siblings(sibling.root))
    assert places(recovery.lost) == {(m["topic"], m["queueId"], m["queueOffset"]) for m in gone if is_queued(m)}
    apply_to(recovery, store.root)
    assert_kept(golden("load-533"), store.root, "load-533", [m for m in store.truth["messages"] if m not in gone])


@pytest.mark.parametrize("copies", [1, 2])
def test_the_end_goes_on_behind_what_a_copy_has_lost(
    copies: int, golden: GoldenStore, damageable: DamageableOf, opener_of: OpenerOf
) -> None:
    """The last segments are gone; each copy has lost another page of them."""
    store = damageable("load-533", "crash")
    siblings = [damageable("load-533") for _ in range(copies)]
    for path in store.segments[6:]:
        path.unlink()
    for number, sibling in enumerate(siblings):
        sibling.zero((6 + number) * store.segment_size_bytes + 40_960, 4096)
    found = harm(golden("load-533"), siblings[0].root, "load-533")
    options = with_siblings(*(sibling.root for sibling in siblings))
    if copies == 2:
        assert_as_it_was(opener_of("load-533"), store.root, golden("load-533"), "load-533", options)
        return
    recovery = opener_of("load-533").recover(store.root, options=options)
    assert places(recovery.lost) == found.lost_places
    apply_to(recovery, store.root)
    assert_kept(golden("load-533"), store.root, "load-533", found.intact)
    assert opener_of("load-533").recover(store.root, options=options).plan.steps == ()


@pytest.mark.parametrize("where", [60_000, 110_000])
def test_tombstones_of_a_copy_are_no_messages(
    where: int, golden: GoldenStore, damageable: DamageableOf, opener_of: OpenerOf
) -> None:
    """It was mended before: what another copy has comes from there, and without one the lost ones are told."""
    store, mended_one = damageable("load-533", "crash"), damageable("load-533", "crash")
    mended_one.zero(where, 4096)
    found = harm(golden("load-533"), mended_one.root, "load-533")
    apply_to(opener_of("load-533").recover(mended_one.root), mended_one.root)
    store.zero(where - 8192, 20_000)
    opener = opener_of("load-533")
    alone = opener.recover(store.root, options=with_siblings(mended_one.root))
    assert places(alone.lost) == found.lost_places
    both = with_siblings(mended_one.root, golden("load-533"))
    assert_as_it_was(opener, store.root, golden("load-533"), "load-533", both)


@pytest.mark.parametrize("where", [60_000, 300_000, 900_000])
def test_a_copy_that_turns_up_later(
    where: int, golden: GoldenStore, damageable: DamageableOf, opener_of: OpenerOf
) -> None:
    """Tombstones stand for the lost messages by then; they give way."""
    store, opener = damageable("load-533", "crash"), opener_of("load-533")
    store.zero(where, 9000)
    assert apply_to(opener.recover(store.root), store.root) is not None
    options = with_siblings(golden("load-533"))
    recovery = opener.recover(store.root, options=options)
    assert recovery.lost == ()
    apply_to(recovery, store.root)
    assert log_bytes(store.root) == log_bytes(golden("load-533"))
    assert opener.recover(store.root, options=options).plan.steps == ()
    assert_kept(golden("load-533"), store.root, "load-533", stores.truth("load-533")["messages"])


def test_a_stale_page_that_reaches_into_the_record_in_front(
    golden: GoldenStore, damageable: DamageableOf, opener_of: OpenerOf
) -> None:
    """Its properties' end is overwritten, where no checksum looks: it comes from the copy as well."""
    store = damageable("load-533", "crash")
    base = 3 * store.segment_size_bytes
    store.write(base + 9 * 4096, store.read(3 * 4096, 4096))
    options = with_siblings(golden("load-533"))
    assert_as_it_was(opener_of("load-533"), store.root, golden("load-533"), "load-533", options)


def test_a_torn_record_of_a_copy_is_the_last_choice(
    golden: GoldenStore, damageable: DamageableOf, opener_of: OpenerOf
) -> None:
    store, torn = damageable("load-533", "crash"), damageable("load-533")
    number = next(n for n, m in enumerate(store.truth["messages"]) if n > 500 and m["properties"].get("TAGS"))
    message = store.message(number)
    end = message["phyOffset"] + message["storeSize"]
    store.zero(message["phyOffset"] - 300, message["storeSize"] + 300)
    torn.zero(end - 20, 20)
    opener = opener_of("load-533")
    both = with_siblings(torn.root, golden("load-533"))
    assert_as_it_was(opener, store.root, golden("load-533"), "load-533", both)
    assert opener.recover(store.root, options=with_siblings(torn.root)).lost == ()


def test_the_end_goes_on_behind_a_damaged_record(
    golden: GoldenStore, damageable: DamageableOf, opener_of: OpenerOf
) -> None:
    """Our copy is older by more than a segment; the sibling has a damaged record, for which a tombstone stands."""
    store, sibling = damageable("load-533", "crash"), damageable("load-533")
    messages = store.truth["messages"]
    size = store.segment_size_bytes
    cut = next(n for n, m in enumerate(messages) if m["phyOffset"] > 3 * size + 1000)
    start = messages[cut]["phyOffset"]
    store.zero(start, 4 * size - start)
    for path in store.segments[4:]:
        path.unlink()
    whole = opener_of("load-533").recover(store.root, options=with_siblings(golden("load-533")))
    assert taken_records(whole) == len(messages[cut:])
    assert (whole.lost, whole.after.lost_messages) == ((), 0)
    bad = next(n for n, m in enumerate(messages) if m["phyOffset"] > 5 * size and m["bodyLength"])
    sibling.flip(bad, "body")
    recovery = opener_of("load-533").recover(store.root, options=with_siblings(sibling.root))
    assert taken_records(recovery) == len(messages[cut:]) - 1
    assert places(recovery.lost) == {(m["topic"], m["queueId"], m["queueOffset"]) for m in [messages[bad]]}
    assert recovery.after.max_phy_offset == store.end_phy_offset
    assert any("behind the last record of this store" in note for note in recovery.notes)
    apply_to(recovery, store.root)
    assert opener_of("load-533").recover(store.root).plan.steps == ()
    assert_kept(golden("load-533"), store.root, "load-533", [*messages[:bad], *messages[bad + 1 :]])
    assert [f.code for f in opener_of("load-533").check(store.root) if f.severity != "info"] == []


def test_nothing_is_asked_for_where_ends_differ(damageable: DamageableOf, opener_of: OpenerOf) -> None:
    """A copy that was written to on its own: what it has behind our end is another log."""
    store, sibling = damageable("load-533", "crash"), damageable("load-533")
    store.tear(200)
    part(sibling, len(store.truth["messages"]) - 2)
    assert taken_records(opener_of("load-533").recover(store.root, options=with_siblings(sibling.root))) == 0


def test_a_store_of_another_kind_is_refused(
    damageable: DamageableOf, golden: GoldenStore, opener_of: OpenerOf, tmp_path: Path
) -> None:
    store = damageable("load-533", "crash")
    store.flip(900, "body")
    with pytest.raises(UsageError, match="not a copy of this store"):
        opener_of("load-533").recover(store.root, options=with_siblings(golden("clean-533")))
    with pytest.raises(UsageError, match="no sibling of itself"):
        opener_of("load-533").recover(store.root, options=with_siblings(store.root / "."))
    empty = tmp_path / "empty"
    (empty / paths.COMMITLOG).mkdir(parents=True)
    with pytest.raises(UsageError, match="no offset in common"):
        opener_of("load-533").recover(store.root, options=with_siblings(empty))


@pytest.mark.parametrize("lost", [1, 3])
def test_a_lost_begin_comes_back_when_asked_for(
    lost: int, golden: GoldenStore, damageable: DamageableOf, opener_of: OpenerOf
) -> None:
    """Nobody can be sure that it has not expired: it is told, with what speaks for a loss."""
    store, opener = damageable("load-533", "crash"), opener_of("load-533")
    begin = lost * store.segment_size_bytes
    for _ in range(lost):
        store.lose(0)
    gone = [m for m in store.truth["messages"] if m["phyOffset"] < begin]
    told = opener.recover(store.root, options=with_siblings(golden("load-533")))
    assert taken_records(told) == 0
    (earlier,) = [one["earlier"] for one in told.siblings]
    assert (earlier["phy_offset"], earlier["size_bytes"]) == (0, begin)
    assert earlier["queue_entries"] == sum(is_queued(m) for m in gone)
    assert earlier["is_young"]
    (note,) = [note for note in told.notes if "--sibling-from 0 takes them" in note]
    assert "queue entries here still point there" in note
    asked = with_siblings(golden("load-533"), sibling_from=100)  # in the first segment
    taken = assert_as_it_was(opener, store.root, golden("load-533"), "load-533", asked)
    assert taken_records(taken) == len(gone)
    assert [one["earlier"] for one in taken.siblings] == [None]


def test_only_what_is_asked_for_of_a_lost_begin(
    golden: GoldenStore, damageable: DamageableOf, opener_of: OpenerOf
) -> None:
    """From the second segment on; the copy has lost a page of it, which is closed."""
    store, sibling, opener = damageable("load-533", "crash"), damageable("load-533"), opener_of("load-533")
    size = store.segment_size_bytes
    for _ in range(3):
        store.lose(0)
    sibling.zero(size + 8192, 4096)
    found = harm(golden("load-533"), sibling.root, "load-533")
    recovery = opener.recover(store.root, options=with_siblings(sibling.root, sibling_from=size + 5))
    assert places(recovery.lost) == found.lost_places
    assert [one["earlier"]["size_bytes"] for one in recovery.siblings] == [size]
    apply_to(recovery, store.root)
    assert opener.recover(store.root).plan.steps == ()
    assert opener.predict(store.root) == recovery.after.as_json()
    assert recovery.after.min_phy_offset == size
    made = store.root / paths.COMMITLOG / paths.segment_name(size)
    following = next(m for m in store.truth["messages"] if m["phyOffset"] == 2 * size)
    assert made.stat().st_mtime_ns == following["storeTimestamp"] * 1_000_000
    assert_kept(golden("load-533"), store.root, "load-533", [m for m in found.intact if m["phyOffset"] >= size])


def test_a_begin_that_nobody_has(damageable: DamageableOf, opener_of: OpenerOf) -> None:
    store, sibling = damageable("load-533", "crash"), damageable("load-533")
    store.lose(0)
    store.lose(0)
    sibling.lose(0)
    with pytest.raises(UsageError, match=r"no sibling has the segment that holds 100") as told:
        opener_of("load-533").recover(store.root, options=with_siblings(sibling.root, sibling_from=100))
    assert told.value.to_do == f"name another copy, or an offset from {store.segment_size_bytes} on"


def test_a_begin_is_not_taken_where_the_copies_differ(damageable: DamageableOf, opener_of: OpenerOf) -> None:
    store, sibling = damageable("load-533", "crash"), damageable("load-533")
    store.lose(0)
    first = next(n for n, m in enumerate(store.truth["messages"]) if m["phyOffset"] == store.segment_size_bytes)
    part(sibling, first)
    with pytest.raises(UsageError, match="not a copy of this store"):
        opener_of("load-533").recover(store.root, options=with_siblings(sibling.root, sibling_from=0))


def test_a_begin_needs_somebody_to_take_it_from() -> None:
    with pytest.raises(UsageError, match="nobody is named"):
        with_siblings(sibling_from=0)


def test_a_sane_store_takes_nothing(store_copy: StoreCopy, golden: GoldenStore, opener_of: OpenerOf) -> None:
    recovery = opener_of("load-533").recover(store_copy("load-533"), options=with_siblings(golden("load-533")))
    assert (recovery.plan.steps, taken_records(recovery)) == ((), 0)


@pytest.mark.leaves_damage("the plan is refused")
@pytest.mark.parametrize("change", ["zero", "lose"])
def test_a_saved_plan_wants_the_same_copy(
    change: str, damageable: DamageableOf, opener_of: OpenerOf, tmp_path: Path
) -> None:
    store, sibling = damageable("load-533", "crash"), damageable("load-533")
    store.lose(4)
    before = stores.snapshot(store.root)
    recovery = opener_of("load-533").recover(store.root, options=with_siblings(sibling.root))
    save_plan(recovery.plan, tmp_path / "plan.json")
    if change == "zero":
        size = sibling.segment_size_bytes
        sibling.zero(next(m["phyOffset"] for m in sibling.truth["messages"] if m["phyOffset"] > 4 * size + 9000), 10)
    else:
        sibling.lose(4)
    from store_core.mend.applying.apply import apply

    with pytest.raises(PlanOutOfDateError, match="differs from what was planned"):
        apply(load_plan(tmp_path / "plan.json"), store.root)
    now = {path: entry for path, entry in stores.snapshot(store.root).items() if not path.startswith(".rmqctl")}
    assert differences(before, now) == []


def test_a_copy_that_grows_meanwhile_gives_what_was_planned(
    golden: GoldenStore, damageable: DamageableOf, opener_of: OpenerOf
) -> None:
    store, sibling = damageable("load-533", "crash"), damageable("load-533")
    messages = store.truth["messages"]
    end, late = messages[-5], messages[-3]
    rest = store.end_phy_offset - end["phyOffset"]
    store.zero(end["phyOffset"], rest)
    later = sibling.read(late["phyOffset"], sibling.end_phy_offset - late["phyOffset"])
    sibling.zero(late["phyOffset"], len(later))
    recovery = opener_of("load-533").recover(store.root, options=with_siblings(sibling.root))
    assert taken_records(recovery) == 2
    sibling.write(late["phyOffset"], later)
    apply_to(recovery, store.root)
    assert [f.code for f in opener_of("load-533").check(store.root) if f.severity != "info"] == []
    assert opener_of("load-533").predict(store.root)["max_phy_offset"] == late["phyOffset"]


def test_what_no_copy_has_is_closed_as_usual(
    golden: GoldenStore, damageable: DamageableOf, opener_of: OpenerOf
) -> None:
    """A missing segment of which the copy has lost a page; the lost ones are skipped."""
    store, sibling = damageable("load-533", "crash"), damageable("load-533")
    at = 4 * store.segment_size_bytes + 40_960
    lost = store.lose(4)
    sibling.zero(at, 4096)
    found = harm(golden("load-533"), sibling.root, "load-533")
    recovery = opener_of("load-533").recover(store.root, options=with_siblings(sibling.root, gaps="skip"))
    assert places(recovery.lost) == found.lost_places
    applied = apply_to(recovery, store.root)
    assert applied is not None
    assert lost.exists()
    assert opener_of("load-533").recover(store.root).plan.steps == ()
    assert_kept(golden("load-533"), store.root, "load-533", found.intact)
    assert opener_of("load-533").predict(store.root) == recovery.after.as_json()


def test_a_copy_whose_log_lies_elsewhere(
    golden: GoldenStore, damageable: DamageableOf, store_copy: StoreCopy, tmp_path: Path
) -> None:
    """Its own properties file tells where; the plan remembers."""
    store, sibling = damageable("load-533", "crash"), store_copy("load-533")
    store.lose(4)
    (sibling / paths.COMMITLOG).rename(tmp_path / "its-log")
    config = tmp_path / "sibling.properties"
    config.write_text(f"storePathRootDir={sibling}\nstorePathCommitLog={tmp_path / 'its-log'}\n")
    options = with_siblings(sibling, sibling_configs=(config,))
    opener = Opener(None, "5.3.3")
    recovery = opener.recover(store.root, options=options)
    assert recovery.lost == ()
    save_plan(recovery.plan, tmp_path / "plan.json")
    assert apply(load_plan(tmp_path / "plan.json"), store.root)
    assert log_bytes(store.root) == log_bytes(golden("load-533"))


def test_a_copy_in_an_object_store(
    golden: GoldenStore, damageable: DamageableOf, opener_of: OpenerOf, object_store: ObjectStore, tmp_path: Path
) -> None:
    """A missing segment, a bad body and the torn end come from there; a saved plan finds the way again."""
    store, sibling = damageable("load-533", "crash"), path_of(object_store.put(golden("load-533")))
    store.lose(4)
    store.flip(100, "body")
    store.tear(30)
    recovery = assert_as_it_was(
        opener_of("load-533"), store.root, golden("load-533"), "load-533", with_siblings(sibling)
    )
    assert [(one["sibling"], len(one["ranges"])) for one in recovery.siblings] == [(str(sibling), 3)]
    save_plan(recovery.plan, tmp_path / "plan.json")
    assert apply(load_plan(tmp_path / "plan.json"), store.root)
    assert log_bytes(store.root) == log_bytes(golden("load-533"))


def test_what_is_no_store_is_told_as_the_sibling(
    damageable: DamageableOf, opener_of: OpenerOf, object_store: ObjectStore, tmp_path: Path
) -> None:
    root = damageable("load-533", "crash").root
    for nothing in (tmp_path / "nothing", path_of("s3://stores/nothing")):
        with pytest.raises(NotAStoreError, match="the sibling is no store: no such") as told:
            opener_of("load-533").recover(root, options=with_siblings(nothing))
        assert (told.value.path, "--sibling" in str(told.value.to_do)) == (str(nothing), True)


def test_a_configuration_needs_its_sibling(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="more configurations than siblings"):
        with_siblings(sibling_configs=(tmp_path,))


def test_ends_of_full_segments_leave_nothing_to_do(damageable: DamageableOf, opener_of: OpenerOf) -> None:
    """Both logs end with a segment's blank: one that is here already is not taken once more."""
    store, sibling = damageable("load-533", "crash"), damageable("load-533")
    for each in (store, sibling):
        each.lose(-1)
    opener, options = opener_of("load-533"), with_siblings(sibling.root)
    apply_to(opener.recover(store.root, options=options), store.root)
    assert opener.recover(store.root, options=options).plan.steps == ()


def test_a_log_without_records_is_told_as_such(damageable: DamageableOf, opener_of: OpenerOf) -> None:
    """Nothing tells that the other one is a copy: look for the disk first."""
    store, sibling = damageable("load-533", "crash"), damageable("load-533")
    for path in store.segments:
        path.write_bytes(bytes(path.stat().st_size))
    recovery = opener_of("load-533").recover(store.root, options=with_siblings(sibling.root))
    assert ([f.code for f in recovery.findings], recovery.plan.steps) == (["S007"], ())


def test_a_stretch_beside_its_place_and_a_lost_end(
    golden: GoldenStore, damageable: DamageableOf, opener_of: OpenerOf
) -> None:
    """What goes back tells that the other one is a copy; what was cut, and all behind, comes from there."""
    store = damageable("load-533", "crash")
    for path in store.segments[4:]:
        path.unlink()
    path = store.segments[-1]
    data = path.read_bytes()
    path.write_bytes((data[:60_000] + data[60_512:]).ljust(len(data), b"\0"))
    store.flip_at(int(path.name) + 90_000)
    options = with_siblings(golden("load-533"))
    assert_as_it_was(opener_of("load-533"), store.root, golden("load-533"), "load-533", options)


@pytest.mark.parametrize(
    ("since", "harm"), [(5, "hole"), (75, "hole"), (300, "hole"), (30, "end"), (75, "end"), (300, "end")]
)
def test_a_copy_that_parted_inside_a_segment_gives_nothing(
    since: int, harm: str, damageable: DamageableOf, opener_of: OpenerOf
) -> None:
    """It lacks a record and goes on with others behind: its records lie across the places where ours begin."""
    store, sibling = damageable("load-533", "crash"), damageable("load-533")
    messages = store.truth["messages"]
    last = len(messages) - 1
    at = messages[last - since]["phyOffset"]
    rest, own = messages[last - since + 1 :], at
    for message in rest:
        record = bytearray(store.read(message["phyOffset"], message["storeSize"]))
        if own % sibling.segment_size_bytes + len(record) + 8 > sibling.segment_size_bytes:
            break
        record[28:36] = own.to_bytes(8, "big")
        sibling.write(own, bytes(record))
        own += len(record)
    sibling.zero(own, sibling.segment_size_bytes - own % sibling.segment_size_bytes)
    for path in sibling.segments:
        if int(path.name) > own:
            path.unlink()
    if harm == "hole":
        number = last - 2 if since < 75 else last - since // 2
        store.zero(messages[number]["phyOffset"], messages[number]["storeSize"] * 3)
    else:
        store.tear(5000)
    recovery = opener_of("load-533").recover(store.root, options=with_siblings(sibling.root))
    assert taken_records(recovery) == 0


def test_a_copy_that_has_some_of_what_tombstones_stand_for(
    golden: GoldenStore, damageable: DamageableOf, opener_of: OpenerOf
) -> None:
    """They were made without queues, and do not begin where records did: all of a run is closed anew."""
    store, sibling = damageable("load-533", "crash"), damageable("load-533")
    opener = opener_of("load-533")
    at = next(n for n, m in enumerate(store.truth["messages"]) if m["phyOffset"] > 3 * store.segment_size_bytes + 2000)
    hole = store.truth["messages"][at : at + 8]
    store.zero(hole[0]["phyOffset"], sum(m["storeSize"] for m in hole))
    sibling.zero(hole[0]["phyOffset"], 40)
    shutil.rmtree(store.root / paths.CONSUMEQUEUE)
    apply_to(opener.recover(store.root), store.root)
    options = with_siblings(sibling.root)
    recovery = opener.recover(store.root, options=options)
    assert taken_records(recovery) == 7
    apply_to(recovery, store.root)
    assert_kept(golden("load-533"), store.root, "load-533", hole[1:])
    assert opener.recover(store.root, options=options).plan.steps == ()
