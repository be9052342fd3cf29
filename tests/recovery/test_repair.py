"""Damaged heads: repaired where everything is implied by something else, else a tombstone as ever."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any, Final

import pytest

from store_core.layout import paths, record
from tests import stores
from tests.conftest import GoldenStore
from tests.damage import Damageable
from tests.recovery.recovering import DamageableOf, Opener, SettingsOf, apply_to, is_queued, places, recovered

NAMES: Final = (
    "load-533",
    "load-497",
    "clean-430",
    "clean-540",
    "ipv6-533",
    "propcrc-533",
    "cqext-533",
    "lmq-533",
    "bcq-533",
)
# Fields of which every byte may be damaged alone; the lengths are found by their own names.
FIELDS: Final = ("size_bytes", "magic", "body_length", "topic_length", "properties_length")


def number_of(store: Damageable, *, part: int = 2) -> int:
    messages = store.truth["messages"]
    return next(
        n
        for n, m in enumerate(messages)
        if n >= len(messages) // part
        and m["bodyLength"] > 0
        and m["queueId"] > 0
        and m["queueOffset"] > 0
        and m["sysFlag"] & 0xC == 0
        and m["topic"] != "SCHEDULE_TOPIC_XXXX"
        and "INNER_NUM" not in m["properties"]
    )


def field_at(store: Damageable, number: int, field: str) -> tuple[int, int]:
    """Where a field of a record lies, and how long it is."""
    message = store.message(number)
    if field == "topic_length":
        width = record.topic_length_layout(message["magic"]).size_bytes
        return store.field_at(number, "topic") - width, width
    if field == "properties_length":
        width = record.PROPERTIES_LENGTH.size_bytes
        return store.field_at(number, "properties") - width, width
    layout = record.MIDDLE if field == "body_length" else record.HEAD
    return store.field_at(number, field), layout.field(field).size_bytes


@pytest.mark.product
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("name", NAMES)
def test_a_single_field_is_implied_by_the_rest(
    name: str, field: str, golden: GoldenStore, damageable: DamageableOf, settings_of: SettingsOf
) -> None:
    store = damageable(name)
    number = number_of(store)
    at, width = field_at(store, number, field)
    was = store.read(at, width)
    store.write(at, bytes(byte ^ 0x55 for byte in was))
    recovery = recovered(Opener(settings_of(name), stores.truth(name)["written_by"]), store, golden(name))
    (repair,) = recovery.repaired
    message = store.message(number)
    assert (repair["topic"], repair["queue_id"], repair["queue_offset"], repair["phy_offset"], repair["fields"]) == (
        message["topic"], message["queueId"], message["queueOffset"], message["phyOffset"], [field],
    )  # fmt: skip
    assert any("repaired" in note for note in recovery.notes)


WIPED: Final = {
    "size and magic": (0, 8),
    "magic and queue": (4, 8),
    "the number and the place": (20, 36),
}


@pytest.mark.parametrize("wiped", WIPED)
def test_several_implied_fields_side_by_side(
    wiped: str, golden: GoldenStore, damageable: DamageableOf, settings_of: SettingsOf
) -> None:
    store = damageable("load-533")
    number = number_of(store)
    low, high = WIPED[wiped]
    at = store.message(number)["phyOffset"]
    store.zero(at + low, high - low)
    if low > 8:  # so far the record is well-formed
        store.zero(at, 4)
        # Between both lies the user's flag, which nothing vouches for.
        recovery = Opener(settings_of("load-533"), "5.3.3").recover(store.root)
        assert (recovery.repaired, len(places(recovery.lost))) == ((), 1)
        return
    recovered(Opener(settings_of("load-533"), "5.3.3"), store, golden("load-533"))


def test_a_property_crc_vouches_for_all_between(
    golden: GoldenStore, damageable: DamageableOf, settings_of: SettingsOf
) -> None:
    store = damageable("propcrc-533")
    number = number_of(store)
    at = store.message(number)["phyOffset"]
    store.zero(at, 4)
    store.zero(at + 20, 16)
    recovered(Opener(settings_of("propcrc-533"), "5.3.3"), store, golden("propcrc-533"))


def test_a_checksum_is_repaired_only_by_a_property_crc(
    golden: GoldenStore, damageable: DamageableOf, settings_of: SettingsOf
) -> None:
    store = damageable("propcrc-533")
    store.flip(number_of(store), "body_crc", mask=0x40)
    recovery = recovered(Opener(settings_of("propcrc-533"), "5.3.3"), store, golden("propcrc-533"))
    assert [repair["fields"] for repair in recovery.repaired] == [["body_crc"]]
    plain = damageable("load-533")
    plain.flip(number_of(plain), "body_crc", mask=0x40)
    assert Opener(settings_of("load-533"), "5.3.3").recover(plain.root).repaired == ()


def test_records_without_a_queue_entry_prove_themselves(
    golden: GoldenStore, damageable: DamageableOf, settings_of: SettingsOf
) -> None:
    """The queues are gone: place, lengths and the body's checksum are enough for size and magic, not for a length."""
    store = damageable("load-533")
    shutil.rmtree(store.root / paths.CONSUMEQUEUE)
    number = number_of(store)
    store.zero(store.message(number)["phyOffset"], 8)
    recovery = recovered(Opener(settings_of("load-533"), "5.3.3"), store, golden("load-533"))
    assert [repair["fields"] for repair in recovery.repaired] == [["size_bytes", "magic"]]
    at, _ = field_at(store, number, "topic_length")
    store.flip_at(at)
    assert Opener(settings_of("load-533"), "5.3.3").recover(store.root).repaired == ()


def test_several_records_one_behind_the_other(
    golden: GoldenStore, damageable: DamageableOf, settings_of: SettingsOf
) -> None:
    store = damageable("load-533")
    number = number_of(store)
    for n in range(number, number + 5):
        store.flip(n, "magic", mask=0xFF)
    recovery = recovered(Opener(settings_of("load-533"), "5.3.3"), store, golden("load-533"))
    assert len(recovery.repaired) == 5


def test_the_last_record_of_the_log(golden: GoldenStore, damageable: DamageableOf, settings_of: SettingsOf) -> None:
    store = damageable("load-533")
    last = len(store.truth["messages"]) - 1
    assert is_queued(store.message(last))
    store.flip(last, "size_bytes", byte=3)
    recovery = recovered(Opener(settings_of("load-533"), "5.3.3"), store, golden("load-533"))
    assert len(recovery.repaired) == 1


def _body(store: Damageable, number: int) -> None:
    store.flip(number, "body")


def _entry(store: Damageable, number: int) -> None:
    message = store.message(number)
    path, at = store.queue_file(message["topic"], message["queueId"], message["queueOffset"])
    data = bytearray(path.read_bytes())
    data[at + 19] ^= 1  # the tags code's last byte
    path.write_bytes(bytes(data))


def _time(store: Damageable, number: int) -> None:
    store.set_field(number, "store_timestamp_ms", 1)


@pytest.mark.parametrize("also", [_body, _entry, _time])
def test_what_does_not_fit_is_not_repaired(
    also: Callable[[Damageable, int], None], damageable: DamageableOf, settings_of: SettingsOf
) -> None:
    store = damageable("load-533")
    number = number_of(store)
    message: dict[str, Any] = store.message(number)
    store.flip(number, "size_bytes", byte=2)
    also(store, number)
    opener = Opener(settings_of("load-533"), "5.3.3")
    recovery = opener.recover(store.root)
    assert recovery.repaired == ()
    assert places(recovery.lost) == {(message["topic"], message["queueId"], message["queueOffset"])}
    apply_to(recovery, store.root)
    assert opener.recover(store.root).plan.steps == ()


@pytest.mark.product(12)
@pytest.mark.parametrize("byte", range(91))
def test_every_byte_of_a_head_in_turn(
    byte: int, golden: GoldenStore, damageable: DamageableOf, settings_of: SettingsOf
) -> None:
    """Whatever byte is damaged: the record comes back as it was, or is lost, or is readable with that byte, as brokers read it."""
    store = damageable("clean-533")
    number = number_of(store)
    message = store.message(number)
    at = store.flip_at(message["phyOffset"] + byte, 0x81)
    damaged = store.read(message["phyOffset"], message["storeSize"])
    opener = Opener(settings_of("clean-533"), "5.3.3")
    recovery = opener.recover(store.root)
    apply_to(recovery, store.root)
    now = store.read(message["phyOffset"], message["storeSize"])
    was = bytes([damaged[byte] ^ 0x81])
    place = (message["topic"], message["queueId"], message["queueOffset"])
    original = damaged[:byte] + was + damaged[byte + 1 :]
    assert at == message["phyOffset"] + byte
    fields = [field_at(store, number, name) for name in ("queue_id", "queue_offset")]
    if any(start <= at < start + width for start, width in fields):  # well-formed, but its queue knows better
        assert now == original
        assert len(recovery.repaired) == 1
    elif place in places(recovery.lost):
        assert now not in (original, damaged)
        assert recovery.repaired == ()
    else:
        assert now in (original, damaged)
        assert bool(recovery.repaired) <= (now == original)
    assert opener.recover(store.root).plan.steps == ()


@pytest.mark.product(3)
@pytest.mark.parametrize("field", ["queue_id", "queue_offset"])
@pytest.mark.parametrize("name", ["load-533", "load-497", "clean-540", "cqext-533"])
def test_a_record_goes_back_to_its_queue_and_number(
    name: str, field: str, damageable: DamageableOf, golden: GoldenStore, settings_of: SettingsOf
) -> None:
    """No checksum covers these fields; the entry and its neighbours do."""
    store = damageable(name)
    number = number_of(store)
    opener = Opener(settings_of(name), stores.truth(name)["written_by"])
    for byte, mask in (
        (3, 1),
        (3, 0xFF),
        (0, 0x40),
    ):  # a neighbour's number or queue, one far away, and one that cannot be
        store.flip(number, field, byte, mask)
        (repair,) = recovered(opener, store, golden(name)).repaired
        assert (repair["fields"], repair["phy_offset"]) == ([field], store.message(number)["phyOffset"])
        store.flip(number, field, byte, mask)


@pytest.mark.parametrize("last", [True, False])
def test_at_a_queues_ends_too(
    last: bool, damageable: DamageableOf, golden: GoldenStore, settings_of: SettingsOf
) -> None:
    store = damageable("load-533")
    messages = [m for m in store.truth["messages"] if is_queued(m) and m["bodyLength"] and m["topic"] == "Calm_orders"]
    mine = [m for m in messages if m["queueId"] == messages[0]["queueId"]]
    number = store.truth["messages"].index(mine[-1 if last else 0])
    store.flip(number, "queue_id", 3, 0x20)
    opener = Opener(settings_of("load-533"), "5.3.3")
    (repair,) = recovered(opener, store, golden("load-533")).repaired
    assert repair["fields"] == ["queue_id"]


@pytest.mark.parametrize(
    "fields", [("queue_offset", "queue_id"), ("queue_id", "queue_offset"), ("queue_id", "queue_id")]
)
def test_two_beside_each_other(
    fields: tuple[str, str], damageable: DamageableOf, golden: GoldenStore, settings_of: SettingsOf
) -> None:
    store = damageable("load-533")
    messages = [m for m in store.truth["messages"] if is_queued(m) and m["topic"] == "Calm_orders"]
    mine = [m for m in messages if m["queueId"] == messages[0]["queueId"]]
    middle = next(n for n in range(5, len(mine)) if all(m["bodyLength"] for m in mine[n - 1 : n + 3]))
    for message, field in zip(mine[middle : middle + 2], fields, strict=True):
        store.flip(store.truth["messages"].index(message), field, 0, 0x20)
    opener = Opener(settings_of("load-533"), "5.3.3")
    assert len(recovered(opener, store, golden("load-533")).repaired) == 2


@pytest.mark.parametrize("has_body", [True, False])
def test_a_number_that_cannot_be(
    has_body: bool, damageable: DamageableOf, golden: GoldenStore, settings_of: SettingsOf
) -> None:
    """Its neighbours in the log leave it room at one number; a broker that builds the queue anew would leave a gap instead."""
    store = damageable("clean-497")
    mine = [m for m in store.truth["messages"] if (m["topic"], m["queueId"]) == ("Mill_audit", 0)]
    message = next(m for m in mine[10:-2] if bool(m["bodyLength"]) is has_body)
    store.flip(store.truth["messages"].index(message), "queue_offset", 3, 0x10)
    shutil.rmtree(store.root / paths.CONSUMEQUEUE / "Mill_audit")
    (repair,) = recovered(Opener(settings_of("clean-497"), "4.9.7"), store, golden("clean-497")).repaired
    assert (repair["fields"], repair["queue_offset"]) == (["queue_offset"], message["queueOffset"])


@pytest.mark.parametrize("name", ["load-533", "load-497", "clean-540", "cqext-533", "ipv6-533"])
def test_a_topic_that_no_queue_has(
    name: str, damageable: DamageableOf, golden: GoldenStore, settings_of: SettingsOf
) -> None:
    """A broker would deliver it to nobody, and its queue would miss a message."""
    store = damageable(name)
    number = number_of(store)
    message = store.message(number)
    behind = record.PROPERTIES_LENGTH.size_bytes + sum(
        len(f"{k}{v}".encode()) + 2 for k, v in message["properties"].items()
    )
    data = store.read(message["phyOffset"], message["storeSize"])
    at = message["phyOffset"] + data.rindex(message["topic"].encode(), 0, message["storeSize"] - behind + 2)
    opener = Opener(settings_of(name), stores.truth(name)["written_by"])
    for byte, mask in ((0, 0x20), (2, 0x81)):
        store.flip_at(at + byte, mask)
        (repair,) = recovered(opener, store, golden(name)).repaired
        assert (repair["fields"], repair["topic"]) == (["topic"], message["topic"])
        store.flip_at(at + byte, mask)


def test_a_topic_that_a_queue_has(damageable: DamageableOf, golden: GoldenStore, settings_of: SettingsOf) -> None:
    """That queue ends before its number: the entry of its own tells whose it is."""
    store = damageable("load-533")
    messages = [m for m in store.truth["messages"] if is_queued(m) and m["topic"] == "Calm_audit"]
    message = messages[len(messages) // 2]
    data = store.read(message["phyOffset"], message["storeSize"])
    store.write(message["phyOffset"] + data.index(b"Calm_audit"), b"Calm_bills")
    opener = Opener(settings_of("load-533"), "5.3.3")
    (repair,) = recovered(opener, store, golden("load-533")).repaired
    assert (repair["fields"], repair["phy_offset"]) == (["topic"], message["phyOffset"])


@pytest.mark.parametrize("count", [1, 12])
def test_entries_in_the_file_of_another_queue_move_nothing(
    count: int, damageable: DamageableOf, settings_of: SettingsOf
) -> None:
    """As a misdirected write leaves them, where the other queue's own records are lost. Theirs fit where they say they are."""
    store = damageable("load-533", "crash")
    numbers = range(5, 5 + count)
    for message in store.truth["messages"]:
        if message["queueId"] == 0 and message["queueOffset"] in numbers:
            if message["topic"] == "Calm_bills":
                entry = message["phyOffset"], message["storeSize"], message["tagsCode"]
                store.set_entry("Calm_audit", 0, message["queueOffset"], entry)
                store.set_entry("Calm_bills", 0, message["queueOffset"])
            elif message["topic"] == "Calm_audit":
                store.zero(message["phyOffset"], message["storeSize"])
    recovery = Opener(settings_of("load-533"), "5.3.3").recover(store.root)
    assert recovery.repaired == ()
    assert places(recovery.lost) == {("Calm_audit", 0, number) for number in numbers}
    apply_to(recovery, store.root)


def test_an_entry_of_a_foreign_record_moves_nothing(damageable: DamageableOf, settings_of: SettingsOf) -> None:
    """The record's own place has an entry for it: it is the other entry that is wrong."""
    store = damageable("load-533")
    messages = [m for m in store.truth["messages"] if is_queued(m) and m["topic"] == "Calm_orders"]
    one = next(m for m in messages if m["queueId"] == 0 and m["queueOffset"] == 5)
    other = next(m for m in messages if m["queueId"] == 1 and m["queueOffset"] == 5)
    store.flip(store.truth["messages"].index(one), "body")
    store.set_entry("Calm_orders", 0, 5, (other["phyOffset"], other["storeSize"], other["tagsCode"]))
    assert Opener(settings_of("load-533"), "5.3.3").recover(store.root).repaired == ()


def test_place_and_number_under_one_checksum(
    golden: GoldenStore, damageable: DamageableOf, settings_of: SettingsOf
) -> None:
    """Either alone leaves the property CRC wrong; with both right it holds."""
    store = damageable("propcrc-533")
    number = number_of(store)
    store.flip(number, "queue_offset", mask=0x40)
    store.flip(number, "own_phy_offset", mask=0x20)
    recovery = recovered(Opener(settings_of("propcrc-533"), "5.3.3"), store, golden("propcrc-533"))
    assert [repair["fields"] for repair in recovery.repaired] == [["queue_offset", "own_phy_offset"]]
