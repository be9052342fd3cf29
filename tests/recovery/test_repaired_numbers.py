"""Numbers in properties that brokers go by: delay levels, and number and count of inner batches."""

from __future__ import annotations

import shutil
from typing import Final

import pytest

from store_core.layout import paths
from tests import stores
from tests.conftest import GoldenStore
from tests.damage import Damageable
from tests.recovery.recovering import DamageableOf, Opener, SettingsOf, apply_to, places, recovered

NUMBERS: Final = (
    ("load-533", b"DELAY"),
    ("load-497", b"DELAY"),
    ("clean-430", b"DELAY"),
    ("clean-540", b"DELAY"),
    ("propcrc-533", b"DELAY"),
    ("bcq-533", b"INNER_NUM"),
    ("bcq-533", b"INNER_BASE"),
)


def number_in(
    store: Damageable, name: bytes, *, longest: bool = False, is_last: bool = False
) -> tuple[int, int, bytes]:
    """The middle one or the last of the records with a property that a broker reads as a number, or of those where it is
    ``longest``; where that lies, and what it is."""
    found = []
    for number, message in enumerate(store.truth["messages"]):
        start = store.field_at(number, "properties")
        text = store.read(start, message["phyOffset"] + message["storeSize"] - start)
        at = text.find(name + b"\x01") + len(name) + 1
        if at > len(name) and (name != b"DELAY" or message["topic"] == paths.SCHEDULE_TOPIC):
            found.append((number, start + at, text[at:].partition(b"\x02")[0]))
    most = max(len(value) for _, _, value in found)
    found = [each for each in found if len(each[2]) == most or not longest]
    return found[-1 if is_last else len(found) // 2]


@pytest.mark.product
@pytest.mark.parametrize("has_queues", [True, False])
@pytest.mark.parametrize("harm", ["a digit", "all digits", "the mark behind"])
@pytest.mark.parametrize(("name", "number"), NUMBERS)
def test_a_number_that_a_broker_cannot_read_is_implied_by_the_rest(
    name: str,
    number: bytes,
    harm: str,
    has_queues: bool,
    golden: GoldenStore,
    damageable: DamageableOf,
    settings_of: SettingsOf,
) -> None:
    store = damageable(name)
    record_number, at, value = number_in(store, number)
    if harm == "the mark behind":
        assert store.read(at + len(value), 1) == b"\x02"
        store.write(at + len(value), b"\x03")
    else:
        store.write(at, b"x" if harm == "a digit" else b"-" * len(value))
    if not has_queues:
        for folder in (paths.CONSUMEQUEUE, paths.BATCHCONSUMEQUEUE):
            shutil.rmtree(store.root / folder, ignore_errors=True)
    opener = Opener(settings_of(name), stores.truth(name)["written_by"])
    assert [f.phy_offset for f in opener.check(store.root) if f.code == "L022"] == [
        store.message(record_number)["phyOffset"]
    ]
    recovery = recovered(opener, store, golden(name))
    assert [repair["fields"] for repair in recovery.repaired] == [["properties"]]


def test_brokers_of_4_x_take_a_batch_for_any_record(damageable: DamageableOf, settings_of: SettingsOf) -> None:
    """They walk over it; but the records beside it in its queue tell how many messages it must have."""
    store = damageable("bcq-533")
    _, at, _ = number_in(store, b"INNER_NUM")
    store.write(at, b"x")
    shutil.rmtree(store.root / paths.BATCHCONSUMEQUEUE)
    recovery = Opener(settings_of("bcq-533"), "4.9.7").recover(store.root)
    assert ([repair["fields"] for repair in recovery.repaired], recovery.lost) == ([["properties"]], ())


@pytest.mark.parametrize("left", [b"x\x02", b"\x02x", b"1x"])
def test_a_number_that_was_cut_in_two(
    left: bytes, golden: GoldenStore, damageable: DamageableOf, settings_of: SettingsOf
) -> None:
    store = damageable("load-533")
    _, at, value = number_in(store, b"DELAY")
    assert value == b"18"
    store.write(at, left)
    opener = Opener(settings_of("load-533"), "5.3.3")
    if left.startswith(b"\x02"):  # an empty value is none: the record is as any other, at once delivered
        assert opener.recover(store.root).repaired == ()
        return
    recovered(opener, store, golden("load-533"))


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        (b"INNER_BASE", b"%.1b\x02%b"),
        (b"INNER_BASE", b"%.0b9%b"),
        (b"INNER_NUM", b"%.0b9%b"),
        (b"INNER_NUM", b"%.1b\x02%b"),
    ],
)
def test_a_number_of_a_batch_that_is_another_one(
    name: bytes, wrong: bytes, golden: GoldenStore, damageable: DamageableOf, settings_of: SettingsOf
) -> None:
    """It is a number, and a broker believes it: entries of a rebuilt queue would hide all others, or their messages."""
    store = damageable("bcq-533")
    number, at, value = number_in(store, name, longest=True)
    kept = wrong.count(b"\x02") + 1
    store.write(at, wrong % (value, value[kept:]))
    recovery = recovered(Opener(settings_of("bcq-533"), "5.3.3"), store, golden("bcq-533"))
    assert [repair["fields"] for repair in recovery.repaired] == [["properties"]]
    assert recovery.repaired[0]["phy_offset"] == store.message(number)["phyOffset"]


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize(
    ("name", "wrong"),
    [(b"INNER_NUM", b"INNER_NUM\x01\x02"), (b"INNER_NUM", b"INNER_NUn"), (b"INNER_BASE", b"INNER-BASE")],
)
def test_a_batch_that_lacks_a_number(
    name: bytes, wrong: bytes, is_last: bool, golden: GoldenStore, damageable: DamageableOf, settings_of: SettingsOf
) -> None:
    """It counts as one message, so that no consumer gets the others."""
    store = damageable("bcq-533")
    number, at, value = number_in(store, name, longest=name == b"INNER_BASE", is_last=is_last)
    assert len(value) == (3 if name == b"INNER_BASE" else 1)
    store.write(at - len(name) - 1, wrong)
    recovery = recovered(Opener(settings_of("bcq-533"), "5.3.3"), store, golden("bcq-533"))
    assert [(r["fields"], r["phy_offset"]) for r in recovery.repaired] == [
        (["properties"], store.message(number)["phyOffset"])
    ]


def test_a_batch_of_another_topic(golden: GoldenStore, damageable: DamageableOf, settings_of: SettingsOf) -> None:
    store = damageable("bcq-533")
    number, _, _ = number_in(store, b"INNER_NUM")
    for each in (number, number + 1):
        store.flip(each, "topic", mask=0x04)
    recovery = recovered(Opener(settings_of("bcq-533"), "5.3.3"), store, golden("bcq-533"))
    assert [repair["fields"] for repair in recovery.repaired] == [["topic"], ["topic"]]


def test_a_batch_of_a_queue_that_is_none(
    golden: GoldenStore, damageable: DamageableOf, settings_of: SettingsOf
) -> None:
    store = damageable("bcq-533")
    number, _, _ = number_in(store, b"INNER_NUM")
    store.flip(number, "queue_id", byte=1, mask=0x20)
    recovery = recovered(Opener(settings_of("bcq-533"), "5.3.3"), store, golden("bcq-533"))
    assert [repair["fields"] for repair in recovery.repaired] == [["queue_id"]]


def test_a_number_without_room_is_not_made_up(damageable: DamageableOf, settings_of: SettingsOf) -> None:
    """The record is given up, as nothing but its length could make room; its message can be had from the copy that undo has."""
    store = damageable("load-533")
    number, at, value = number_in(store, b"DELAY")
    assert len(value) == 2
    store.write(at, b"x\x02a\x01")
    opener = Opener(settings_of("load-533"), "5.3.3")
    recovery = opener.recover(store.root)
    message = store.message(number)
    assert recovery.repaired == ()
    assert places(recovery.lost) == {(message["topic"], message["queueId"], message["queueOffset"])}
    apply_to(recovery, store.root)
    assert opener.recover(store.root).plan.steps == ()


def test_entries_of_another_batch_queue_move_nothing(
    golden: GoldenStore, damageable: DamageableOf, settings_of: SettingsOf
) -> None:
    """Both queues have the same numbers at many places, so that some join there."""
    store = damageable("bcq-533")
    one, other = (next((store.root / paths.BATCHCONSUMEQUEUE / "Bcq_inner" / number).iterdir()) for number in "01")
    other.write_bytes(one.read_bytes())
    recovery = recovered(Opener(settings_of("bcq-533"), "5.3.3"), store, golden("bcq-533"))
    assert recovery.repaired == ()
