"""Damaged heads: repaired where everything is implied by something else, else a tombstone as ever."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from store_core.layout import paths, record
from store_core.mend.applying.undo import undo
from store_core.mend.recover import Recovery
from store_core.mend.salvage.lists import relisted
from store_core.storage.settings import load_settings
from store_core.storage.store import Store
from tests import stores
from tests.conftest import GoldenStore, differences
from tests.damage import Damageable
from tests.mend.recovering import Opener, apply_to, is_queued, log_bytes, places

SettingsOf = Callable[[str], Path]
DamageableOf = Callable[..., Damageable]
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


def recovered(opener: Opener, store: Damageable, golden: Path) -> Recovery:
    """Recovered to what stood before the damage, byte for byte, and undone again."""
    before = stores.snapshot(store.root)
    recovery = opener.recover(store.root)
    assert recovery.lost == ()
    applied = apply_to(recovery, store.root)
    assert applied is not None
    assert log_bytes(store.root) == log_bytes(golden)
    assert opener.recover(store.root).plan.steps == ()
    assert [f.code for f in opener.check(store.root) if f.severity != "info"] == []
    assert opener.predict(store.root) == recovery.after.as_json()
    undo(store.root, applied.undo_id, apply=True)
    now = {path: entry for path, entry in stores.snapshot(store.root).items() if not path.startswith(".rmqctl")}
    assert differences(before, now) == []
    return recovery


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


NAMES_IN_LIST, NUMBERS_IN_LIST = b"INNER_MULTI_DISPATCH\x01", b"INNER_MULTI_QUEUE_OFFSET\x01"


def listing(store: Damageable, *, nearest: int = 0, queues: int = 2) -> tuple[int, int, bytes]:
    """The last record, or the one ``nearest`` before it, in so many light queues, with a number of several digits in each: which, and
    its numbers and where they lie."""
    for number in reversed(range(len(store.truth["messages"]) - nearest)):
        message, at = store.message(number), store.field_at(number, "properties")
        text = store.read(at, message["phyOffset"] + message["storeSize"] - at)
        place = text.find(NUMBERS_IN_LIST) + len(NUMBERS_IN_LIST)
        numbers = text[place:].partition(b"\x02")[0]
        parts = numbers.split(b",")
        if NUMBERS_IN_LIST in text and len(parts) == queues and all(len(part) > 1 for part in parts):
            return number, at + place, numbers
    raise AssertionError(f"no record lists {queues} light queues")


@pytest.mark.parametrize("bad", [b"x", b"-", b" ", b"\xff"])
@pytest.mark.parametrize("name", ["lmq-497", "lmq-533"])
def test_a_number_of_a_light_queue_comes_from_its_entry(
    name: str, bad: bytes, golden: GoldenStore, damageable: DamageableOf, settings_of: SettingsOf
) -> None:
    store = damageable(name)
    number, at, numbers = listing(store)
    for place in (1, len(numbers) - 1):
        store.write(at + place, bad)
    opener = Opener(settings_of(name), stores.truth(name)["written_by"])
    told = [f.phy_offset for f in opener.check(store.root) if f.code == "L023"]
    assert told == [store.message(number)["phyOffset"]]
    recovery = recovered(opener, store, golden(name))
    assert [repair["fields"] for repair in recovery.repaired] == [["properties"]]


@pytest.mark.parametrize(
    ("bad", "good"),
    [(b"%b,x", b"%b0x"), (b"x,%b", b",,%b"), (b",%b", b"0%b")],
    ids=["the last", "the first", "none"],
)
def test_a_list_without_entries_is_passed_over(
    bad: bytes, good: bytes, damageable: DamageableOf, settings_of: SettingsOf
) -> None:
    """The light queues are gone, too: with one byte changed no broker fails at the list, and none gets a wrong number."""
    store = damageable("lmq-533")
    number, at, numbers = listing(store)
    rest = b"7" * (len(numbers) - len(bad) + 2)
    store.write(at, bad % rest)
    for folder in (store.root / paths.CONSUMEQUEUE).glob(f"{paths.LMQ_PREFIX}*"):
        shutil.rmtree(folder)
    opener = Opener(settings_of("lmq-533"), "5.3.3")
    recovery = opener.recover(store.root)
    assert [(r["phy_offset"], r["fields"]) for r in recovery.repaired] == [
        (store.message(number)["phyOffset"], ["properties"])
    ]
    apply_to(recovery, store.root)
    assert store.read(at, len(numbers)) == good % rest
    assert opener.recover(store.root).plan.steps == ()
    assert [f.code for f in opener.check(store.root) if f.severity == "error"] == []


@pytest.mark.parametrize(
    "part",
    [
        "a letter of a name",
        "a name that is another queue's",
        "a digit",
        "the names' name",
        "the numbers' name",
        "the mark",
    ],
)
@pytest.mark.parametrize("name", ["lmq-497", "lmq-533"])
def test_a_list_is_what_the_entries_of_light_queues_say(
    name: str, part: str, golden: GoldenStore, damageable: DamageableOf, settings_of: SettingsOf
) -> None:
    """Else the light queue would lack a number, for which an entry without a message hides others."""
    store = damageable(name)
    number, at, numbers = listing(store)
    message, properties = store.message(number), store.field_at(number, "properties")
    text = store.read(properties, message["phyOffset"] + message["storeSize"] - properties)
    names = text.index(NAMES_IN_LIST)
    last = text.index(b"%LMQ%beta", names) + len(b"%LMQ%beta")
    where, new = {
        "a letter of a name": (last - 2, b"\xb4"),
        "a name that is another queue's": (last, b"0" if text[last : last + 1] != b"0" else b"1"),
        "a digit": (at + len(numbers) - 1 - properties, b"0" if numbers[-1:] != b"0" else b"1"),
        "the names' name": (names + 3, b"n"),
        "the numbers' name": (text.index(NUMBERS_IN_LIST) + 7, b"_"),
        "the mark": (names + len(NAMES_IN_LIST) - 1, b"\x03"),
    }[part]
    store.write(properties + where, new)
    opener = Opener(settings_of(name), stores.truth(name)["written_by"])
    recovery = recovered(opener, store, golden(name))
    assert [(r["phy_offset"], r["fields"]) for r in recovery.repaired] == [(message["phyOffset"], ["properties"])]


def test_a_number_that_does_not_fit_is_not_cut_short(damageable: DamageableOf, settings_of: SettingsOf) -> None:
    """Its entry tells three digits, and damage left room for one: a first digit would be another number."""
    store = damageable("lmq-533")
    number, at, numbers = listing(store, queues=1)
    assert len(numbers) == 3
    store.write(at, b"x\x02z")
    phy_offset = store.message(number)["phyOffset"]
    with Store.open(store.root, load_settings(settings_of("lmq-533"), store.root)) as opened:
        (repair,) = relisted(opened, [phy_offset])
    assert (repair.phy_offset, repair.changes) == (phy_offset, ((at, b","),))


def test_entries_of_another_batch_queue_move_nothing(
    golden: GoldenStore, damageable: DamageableOf, settings_of: SettingsOf
) -> None:
    """Both queues have the same numbers at many places, so that some join there."""
    store = damageable("bcq-533")
    one, other = (next((store.root / paths.BATCHCONSUMEQUEUE / "Bcq_inner" / number).iterdir()) for number in "01")
    other.write_bytes(one.read_bytes())
    recovery = recovered(Opener(settings_of("bcq-533"), "5.3.3"), store, golden("bcq-533"))
    assert recovery.repaired == ()


def test_a_list_without_entries_is_what_its_queue_lacks(
    golden: GoldenStore, damageable: DamageableOf, settings_of: SettingsOf
) -> None:
    """All queues are gone: a queue of nearly the same name has just that number, which misses in the middle of another."""
    store = damageable("lmq-533")
    number, _, _ = listing(store, nearest=60)
    at = store.field_at(number, "properties")
    message = store.message(number)
    text = store.read(at, message["phyOffset"] + message["storeSize"] - at)
    store.flip_at(at + text.index(b"%LMQ%alpha") + 2)
    shutil.rmtree(store.root / paths.CONSUMEQUEUE)
    recovery = recovered(Opener(settings_of("lmq-533"), "5.3.3"), store, golden("lmq-533"))
    assert [repair["fields"] for repair in recovery.repaired] == [["properties"]]
