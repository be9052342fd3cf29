"""recover --sibling: where another log is a copy, and what it gives whatever is damaged beside."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from store_core.errors import UsageError
from store_core.layout import paths, record
from tests import stores
from tests.conftest import GoldenStore
from tests.damage import Damageable
from tests.recovery.recovering import Opener, apply_to, assert_kept, harm, is_queued, log_bytes, places
from tests.recovery.siblings import assert_as_it_was, part, taken_records, with_siblings

SettingsOf = Callable[[str], Path]
OpenerOf = Callable[[str], Opener]
DamageableOf = Callable[..., Damageable]


@pytest.fixture
def opener_of(settings_of: SettingsOf) -> OpenerOf:
    return lambda base: Opener(settings_of(base), stores.truth(base)["written_by"])


def test_a_copy_that_parted_in_front_gives_nothing(damageable: DamageableOf, opener_of: OpenerOf) -> None:
    store, sibling = damageable("load-533", "crash"), damageable("load-533")
    store.flip(900, "body")
    part(sibling, 850)
    recovery = opener_of("load-533").recover(store.root, options=with_siblings(sibling.root))
    assert taken_records(recovery) == 0


@pytest.mark.product
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


@pytest.mark.product(1)
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


@pytest.mark.product(2)
@pytest.mark.parametrize("page", range(5, 21, 3))
def test_a_stale_page_that_reaches_into_the_record_in_front(
    page: int, golden: GoldenStore, damageable: DamageableOf, opener_of: OpenerOf
) -> None:
    """Its properties' end is overwritten, where no checksum looks: it comes from the copy as well."""
    store = damageable("load-533", "crash")
    base = 3 * store.segment_size_bytes
    store.write(base + page * 4096, store.read(3 * 4096, 4096))
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
    assert any("after the last record of this store" in note for note in recovery.notes)
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


def test_a_begin_is_not_taken_where_the_copies_differ(damageable: DamageableOf, opener_of: OpenerOf) -> None:
    store, sibling = damageable("load-533", "crash"), damageable("load-533")
    store.lose(0)
    first = next(n for n, m in enumerate(store.truth["messages"]) if m["phyOffset"] == store.segment_size_bytes)
    part(sibling, first)
    with pytest.raises(UsageError, match="not a copy of this store"):
        opener_of("load-533").recover(store.root, options=with_siblings(sibling.root, sibling_from=0))


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
    assert ([f.code for f in recovery.findings], recovery.plan.steps) == (["S007", "S001"], ())


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


@pytest.mark.product(2)
@pytest.mark.parametrize(
    ("since", "harm"), [(5, "hole"), (75, "hole"), (300, "hole"), (30, "end"), (75, "end"), (300, "end")]
)
def test_a_copy_that_parted_inside_a_segment_gives_nothing(
    since: int, harm: str, damageable: DamageableOf, opener_of: OpenerOf
) -> None:
    """It lacks a record and goes on with others behind: its records lie across the places where ours begin. The one record of it that
    begins where ours does is damaged."""
    store, sibling = damageable("load-533", "crash"), damageable("load-533")
    messages = store.truth["messages"]
    last = len(messages) - 1
    at = messages[last - since]["phyOffset"]
    rest, own = messages[last - since + 1 :], at
    for message in rest:
        data = bytearray(store.read(message["phyOffset"], message["storeSize"]))
        if own % sibling.segment_size_bytes + len(data) + 8 > sibling.segment_size_bytes:
            break
        data[28:36] = own.to_bytes(8, "big")
        sibling.write(own, bytes(data))
        own += len(data)
    sibling.flip_at(at + record.body_at(rest[0]["sysFlag"]))
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
