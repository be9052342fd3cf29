"""Records that a write put over others: they go, those that they lie over are told, and what is to be had nowhere else goes back."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from store_core.layout import paths, record
from store_core.recovery.keep_options import KeepOptions
from tests import stores
from tests.conftest import GoldenStore
from tests.damage import Damageable
from tests.recovery.recovering import Opener, apply_to, assert_kept, harm, is_queued, mended, place, places

DamageableOf = Callable[..., Damageable]
SettingsOf = Callable[[str], Path]
BASES = ("load-497", "load-533", "clean-540")


def _opener(base: str, settings_of: SettingsOf) -> Opener:
    return Opener(settings_of(base), stores.truth(base)["written_by"])


def _numbers(store: Damageable) -> tuple[int, int]:
    """A record, and one far behind it with another one in front of it and behind."""
    messages = [n for n, m in enumerate(store.truth["messages"]) if is_queued(m) and m["bodyLength"]]
    return messages[len(messages) // 4], messages[len(messages) * 3 // 4]


@pytest.mark.product
@pytest.mark.parametrize("queues", ["whole", "missing"])
@pytest.mark.parametrize("base", BASES)
def test_a_copy_over_others_goes(
    base: str, queues: str, golden: GoldenStore, damageable: DamageableOf, settings_of: SettingsOf
) -> None:
    """What lay there is lost, as its entry tells, or the number that its queue lacks; the record that was copied stays as it is."""
    store = damageable(base, "crash")
    one, other = _numbers(store)
    store.copy_record(one, to=store.message(other)["phyOffset"])
    if queues == "missing":
        (store.root / paths.CONSUMEQUEUE).rename(store.root.parent / "queues")
    recovery, found = mended(golden(base), store.root, base, _opener(base, settings_of))
    assert places(recovery.lost) == found.lost_places
    assert place(store.message(one)) not in found.lost_places
    assert_kept(golden(base), store.root, base, found.intact)
    opener = _opener(base, settings_of)
    assert opener.recover(store.root).plan.steps == ()
    assert {f.code for f in opener.check(store.root)} <= {"L015", "L016", "P002"}


@pytest.mark.product(1)
@pytest.mark.parametrize("base", BASES)
def test_what_is_nowhere_else_goes_back(
    base: str, golden: GoldenStore, damageable: DamageableOf, settings_of: SettingsOf
) -> None:
    """A write that went to a wrong place, and is missing at the right one."""
    store = damageable(base, "crash")
    one, other = _numbers(store)
    message = store.message(one)
    store.copy_record(one, to=store.message(other)["phyOffset"])
    store.zero(message["phyOffset"], message["storeSize"])
    recovery, found = mended(golden(base), store.root, base, _opener(base, settings_of))
    assert (message["phyOffset"], ["phy_offset"]) in [(r["phy_offset"], r["fields"]) for r in recovery.repaired]
    assert place(message) not in places(recovery.lost) == found.lost_places
    assert_kept(golden(base), store.root, base, found.intact)


@pytest.mark.product(1)
@pytest.mark.parametrize("base", BASES)
def test_two_in_each_others_place(
    base: str, golden: GoldenStore, damageable: DamageableOf, settings_of: SettingsOf
) -> None:
    store = damageable(base, "crash")
    messages = store.truth["messages"]
    sizes: dict[int, int] = {}
    for number, message in enumerate(messages):
        if is_queued(message) and message["bodyLength"] and sizes.setdefault(message["storeSize"], number) != number:
            break
    one, other = sizes[message["storeSize"]], number
    data = store.read(messages[one]["phyOffset"], messages[one]["storeSize"])
    store.copy_record(other, to=messages[one]["phyOffset"])
    store.write(messages[other]["phyOffset"], data)
    recovery, _ = mended(golden(base), store.root, base, _opener(base, settings_of))
    assert recovery.lost == ()
    assert {r["phy_offset"] for r in recovery.repaired} == {messages[n]["phyOffset"] for n in (one, other)}
    assert_kept(golden(base), store.root, base, messages)


@pytest.mark.product(1)
@pytest.mark.parametrize("base", BASES)
def test_a_copy_that_reaches_into_the_next_record(
    base: str, golden: GoldenStore, damageable: DamageableOf, settings_of: SettingsOf
) -> None:
    """Its begin is made good, to the byte, whatever of it the copy had overwritten."""
    for reach in (1, 2, 4, 8):
        store = damageable(base, "crash")
        messages = store.truth["messages"]
        pairs = [
            (n, k)
            for k, (m, after) in enumerate(pairwise(messages))
            if k > len(messages) // 2 and is_queued(after) and after["phyOffset"] == m["phyOffset"] + m["storeSize"]
            for n in range(len(messages) // 2)
            if messages[n]["storeSize"] == m["storeSize"] + reach
        ]
        one, other = pairs[0]
        store.copy_record(one, to=messages[other]["phyOffset"])
        recovery, found = mended(golden(base), store.root, base, _opener(base, settings_of))
        assert places(recovery.lost) <= {place(messages[other])}
        assert_kept(golden(base), store.root, base, [*found.intact, messages[other + 1]])


@pytest.mark.product(1)
@pytest.mark.parametrize("base", BASES)
def test_a_record_whose_own_place_alone_is_wrong_stays(
    base: str, golden: GoldenStore, damageable: DamageableOf, settings_of: SettingsOf
) -> None:
    """Its entry leads to it, wherever it says that it lies: there may even be such a record."""
    store = damageable(base, "crash")
    one, other = _numbers(store)
    store.set_field(other, "own_phy_offset", store.message(one)["phyOffset"])
    found = harm(golden(base), store.root, base)
    recovery = _opener(base, settings_of).recover(store.root)
    assert recovery.lost == ()
    apply_to(recovery, store.root)
    assert_kept(golden(base), store.root, base, [*found.intact, *found.harmed])


@pytest.mark.leaves_damage("the copy is left where it is")
def test_an_open_hole_keeps_the_copy(damageable: DamageableOf, settings_of: SettingsOf) -> None:
    store = damageable("load-533", "crash")
    one, other = _numbers(store)
    at = store.copy_record(one, to=store.message(other)["phyOffset"])
    before = store.read(at, record.HEAD.size_bytes)
    recovery = _opener("load-533", settings_of).recover(store.root, options=KeepOptions(fill=False))
    apply_to(recovery, store.root)
    assert store.read(at, record.HEAD.size_bytes) == before
