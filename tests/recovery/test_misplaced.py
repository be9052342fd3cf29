"""Sound records in queues that they do not belong to: told by what another queue lacks, where there are no entries to ask."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from store_core.layout import paths, record
from tests import stores
from tests.conftest import GoldenStore
from tests.damage import Damageable
from tests.recovery.recovering import (
    DamageableOf,
    Opener,
    SettingsOf,
    apply_to,
    assert_kept,
    harm,
    is_queued,
    mended,
    places,
    recovered,
)
from tests.recovery.test_repair import number_of

NAMES = ("load-533", "load-497", "clean-540")


def _opener(name: str, settings_of: SettingsOf) -> Opener:
    return Opener(settings_of(name), stores.truth(name)["written_by"])


def _without_queues(store: Damageable) -> Damageable:
    shutil.rmtree(store.root / paths.CONSUMEQUEUE)
    return store


def _first_of(store: Damageable, number: int) -> int:
    """The first record of the queue of another one."""
    wanted = store.message(number)
    return next(
        n
        for n, m in enumerate(store.truth["messages"])
        if is_queued(m) and all(m[name] == wanted[name] for name in ("topic", "queueId")) and m["bodyLength"]
    )


@pytest.mark.product
@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize(
    ("field", "byte", "mask"), [("topic", 0, 1), ("topic", 2, 0x80), ("queue_id", 3, 0x40), ("queue_id", 0, 0x10)]
)
@pytest.mark.parametrize("name", NAMES)
def test_a_queue_of_its_own_by_one_byte(
    name: str,
    field: str,
    byte: int,
    mask: int,
    is_first: bool,
    damageable: DamageableOf,
    golden: GoldenStore,
    settings_of: SettingsOf,
) -> None:
    """The queue whose number is missing there gets it back: else a consumer of it meets a filler, and passes over more than that."""
    store = _without_queues(damageable(name))
    number = number_of(store)
    number = _first_of(store, number) if is_first else number
    store.flip(number, field, byte, mask)
    (repair,) = recovered(_opener(name, settings_of), store, golden(name)).repaired
    assert (repair["fields"], repair["phy_offset"]) == ([field], store.message(number)["phyOffset"])


def test_a_queue_that_may_be_stays(damageable: DamageableOf, settings_of: SettingsOf) -> None:
    """A topic beside another one of nearly its name, which lacks a number that was lost elsewhere."""
    store = _without_queues(damageable("load-533", "crash"))
    messages = store.truth["messages"]
    mine = [n for n, m in enumerate(messages) if (m["topic"], m["queueId"]) == ("Calm_orders", 1) and m["bodyLength"]]
    first, second = mine[0], mine[1]
    store.flip(second, "topic", 5, 1)  # Calm_nrders, whose only number is 0
    store.set_field(second, "queue_offset", 0)
    store.zero(messages[first]["phyOffset"], messages[first]["storeSize"])
    recovery = _opener("load-533", settings_of).recover(store.root)
    assert recovery.repaired == ()
    assert ("Calm_orders", 1, 0) in places(recovery.lost)


@pytest.mark.product(1)
@pytest.mark.parametrize("name", NAMES)
def test_a_type_that_no_entry_leads_to(
    name: str, damageable: DamageableOf, golden: GoldenStore, settings_of: SettingsOf
) -> None:
    """A message that one bit made the half of a transaction, which a broker would not dispatch."""
    store = damageable(name)
    number = number_of(store)
    store.flip(number, "sys_flag", 3, record.TRANSACTION_PREPARED)
    (repair,) = recovered(_opener(name, settings_of), store, golden(name)).repaired
    assert repair["fields"] == ["sys_flag"]


@pytest.mark.product(1)
@pytest.mark.parametrize("name", NAMES)
def test_topic_and_number_and_own_place(
    name: str, damageable: DamageableOf, golden: GoldenStore, settings_of: SettingsOf
) -> None:
    store = damageable(name)
    number = number_of(store)
    store.flip(number, "topic", 1, 2)
    store.flip(number, "queue_offset", 2, 1)
    store.flip(number, "own_phy_offset", 3, 4)
    (repair,) = recovered(_opener(name, settings_of), store, golden(name)).repaired
    assert set(repair["fields"]) == {"topic", "queue_offset"}


def test_delayed_messages_have_no_tags_in_their_entries(
    damageable: DamageableOf, golden: GoldenStore, settings_of: SettingsOf
) -> None:
    store = damageable("load-533")
    delayed = [n for n, m in enumerate(store.truth["messages"]) if m["topic"] == paths.SCHEDULE_TOPIC]
    store.flip(delayed[0], "topic", 0, 4)
    (repair,) = recovered(_opener("load-533", settings_of), store, golden("load-533")).repaired
    assert (repair["topic"], repair["fields"]) == (paths.SCHEDULE_TOPIC, ["topic"])


@pytest.mark.product(1)
@pytest.mark.parametrize("name", NAMES)
def test_a_number_given_again_behind_all_others(
    name: str, damageable: DamageableOf, golden: GoldenStore, settings_of: SettingsOf
) -> None:
    """A queue without entries ends with a number that it has already, and another one lacks it right there: all behind it would be hidden."""
    store = _without_queues(damageable(name))
    messages = store.truth["messages"]
    queued = [n for n, m in enumerate(messages) if is_queued(m) and m["bodyLength"]]
    last = {(messages[n]["topic"], messages[n]["queueId"]): n for n in queued}
    number, queue_id = next(
        (n, queue_id)
        for n in reversed(queued)
        for topic, queue_id in last
        if topic == messages[n]["topic"]
        and last[topic, queue_id] < n < last[topic, messages[n]["queueId"]]
        and 0 < messages[n]["queueOffset"] <= messages[last[topic, queue_id]]["queueOffset"]
    )
    store.set_field(number, "queue_id", queue_id)
    (repair,) = recovered(_opener(name, settings_of), store, golden(name)).repaired
    assert (repair["fields"], repair["phy_offset"]) == (["queue_id"], store.message(number)["phyOffset"])


@pytest.mark.product(1)
@pytest.mark.parametrize("name", NAMES)
def test_a_number_whose_entry_leads_nowhere(
    name: str, damageable: DamageableOf, golden: GoldenStore, settings_of: SettingsOf
) -> None:
    """The neighbours tell the number; a damaged entry has no say in it."""
    store = damageable(name)
    number = number_of(store)
    message = store.message(number)
    store.flip(number, "queue_offset", 5, 1)
    path, at = store.queue_file(message["topic"], message["queueId"], message["queueOffset"])
    data = bytearray(path.read_bytes())
    data[at + 7] ^= 1
    path.write_bytes(data)
    (repair,) = recovered(_opener(name, settings_of), store, golden(name)).repaired
    assert (repair["fields"], repair["phy_offset"]) == (["queue_offset"], message["phyOffset"])


@pytest.mark.product
@pytest.mark.parametrize("place", [0, 1, -1])
@pytest.mark.parametrize("name", NAMES)
def test_the_topic_of_another_queue(
    name: str, place: int, damageable: DamageableOf, golden: GoldenStore, settings_of: SettingsOf
) -> None:
    """That queue has the number already, and its entry for it tells of another record: the last of them would hide all behind it."""
    store = damageable(name)
    queued = [(n, m) for n, m in enumerate(store.truth["messages"]) if is_queued(m) and m["bodyLength"]]
    taken = {(m["topic"], m["queueId"], m["queueOffset"]) for _, m in queued}
    number, message, topic = [
        (n, m, topic)
        for topic in sorted({m["topic"] for _, m in queued})
        for n, m in queued
        if topic != m["topic"] and len(topic) == len(m["topic"]) and (topic, m["queueId"], m["queueOffset"]) in taken
    ][place]
    store.write(store.field_at(number, "topic"), topic.encode())
    (repair,) = recovered(_opener(name, settings_of), store, golden(name)).repaired
    assert (repair["fields"], repair["phy_offset"]) == (["topic"], message["phyOffset"])


@pytest.mark.product(1)
@pytest.mark.parametrize("name", NAMES)
def test_a_lost_record_whose_topic_is_none(
    name: str, damageable: DamageableOf, golden: GoldenStore, settings_of: SettingsOf
) -> None:
    """Its entry knows the topic; its head tells one that no queue has."""
    store = damageable(name, "crash")
    number = number_of(store)
    store.flip(number, "topic", 0, 0x40)
    store.flip(number, "body")
    recovery, found = mended(golden(name), store.root, name, _opener(name, settings_of))
    assert places(recovery.lost) == found.lost_places


@pytest.mark.product(1)
@pytest.mark.parametrize("name", NAMES)
def test_numbers_before_a_queues_first_message(
    name: str, damageable: DamageableOf, golden: GoldenStore, settings_of: SettingsOf
) -> None:
    """A hole at the log's begin, and no queues: what lay there gets tombstones, as what lies between two messages does."""
    store = _without_queues(damageable(name, "crash"))
    store.zero(0, 4096)
    found = harm(golden(name), store.root, name)
    opener = _opener(name, settings_of)
    recovery = opener.recover(store.root)
    begun = _queues_with_messages(found.intact)
    assert places(recovery.lost) == {place for place in found.lost_places if place[:2] in begun}
    apply_to(recovery, store.root)
    assert_kept(golden(name), store.root, name, found.intact)
    after = opener.predict(store.root)
    assert {span["min_offset"] for queues in after["queues"].values() for span in queues.values()} == {0}
    assert opener.recover(store.root).plan.steps == ()


def _queues_with_messages(messages: list[dict[str, Any]]) -> set[tuple[str, int]]:
    return {(m["topic"], m["queueId"]) for m in messages if is_queued(m)}
