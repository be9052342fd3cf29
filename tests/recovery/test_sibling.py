"""recover --sibling: what another copy of the log gives back, what it does not, and which copy is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from store_core.errors import NotAStoreError, PlanOutOfDateError, UsageError
from store_core.layout import paths
from store_core.recovery.apply.apply import apply
from store_core.recovery.plans.plan_json import load_plan, save_plan
from store_core.storage.remote_path import path_of
from tests import stores
from tests.conftest import DamagedStore, GoldenStore, StoreCopy, differences
from tests.damage import Damageable
from tests.object_stores import ObjectStore
from tests.recovery.recovering import VERSIONS, Opener, apply_to, assert_kept, harm, is_queued, log_bytes, places
from tests.recovery.siblings import assert_as_it_was, taken_records, with_siblings

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


@pytest.mark.product
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
    assert "that are missing here" in note
    assert not [note for note in told.notes if "nothing was taken" in note]
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


def test_a_begin_needs_somebody_to_take_it_from() -> None:
    with pytest.raises(UsageError, match="no store is named"):
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
    from store_core.recovery.apply.apply import apply

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
