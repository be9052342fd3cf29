"""Lists of light queues: names and numbers as the entries that lead to a record say, and lists at which dispatch would fail."""

from __future__ import annotations

import shutil

import pytest

from store_core.derive.dispatch import light_queues
from store_core.layout import paths
from store_core.read.records import read_message
from store_core.recovery.lmq_lists import _under_damage, relisted
from store_core.storage.settings import load_settings
from store_core.storage.store import Store
from tests import stores
from tests.conftest import GoldenStore, StoreCopy
from tests.damage import Damageable
from tests.recovery.recovering import DamageableOf, Opener, SettingsOf, apply_to, recovered

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


@pytest.mark.product
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


@pytest.mark.parametrize(("at", "size_bytes"), [(780, 20), (400, 100)])
@pytest.mark.parametrize("queue", ["%LMQ%alpha", "%LMQ%beta0"])
@pytest.mark.parametrize("name", ["lmq-497", "lmq-533"])
def test_entries_out_of_place_renumber_no_record(
    name: str, queue: str, at: int, size_bytes: int, golden: GoldenStore, store_copy: StoreCopy, settings_of: SettingsOf
) -> None:
    """Entries that stand twice move all behind them: the records' own numbers bear each other out."""
    root = store_copy(name)
    path = root / paths.CONSUMEQUEUE / queue / "0" / paths.segment_name(0)
    data = path.read_bytes()
    path.write_bytes((data[: at + size_bytes] + data[at:])[: len(data)])
    opener = Opener(settings_of(name), stores.truth(name)["written_by"])
    recovery = opener.recover(root)
    assert (recovery.lost, recovery.repaired) == ((), ())
    assert not any(step.path.startswith(paths.COMMITLOG) for step in recovery.plan.steps)
    apply_to(recovery, root)
    assert path.read_bytes() == (golden(name) / path.relative_to(root)).read_bytes()
    assert opener.recover(root).plan.steps == ()


@pytest.mark.parametrize("name", ["lmq-497", "lmq-533"])
def test_entries_out_of_place_renumber_no_record_behind_a_hole(
    name: str, damageable: DamageableOf, settings_of: SettingsOf
) -> None:
    store, opener = damageable(name), Opener(settings_of(name), stores.truth(name)["written_by"])
    numbers = {m["phyOffset"]: dict(light_queues(m["properties"])).get("%LMQ%alpha") for m in store.truth["messages"]}
    holes = [m for m in store.truth["messages"] if numbers[m["phyOffset"]] is not None][-4:-3]
    for gone in holes:
        store.zero(gone["phyOffset"], gone["storeSize"])
    path = store.root / paths.CONSUMEQUEUE / "%LMQ%alpha" / "0" / paths.segment_name(0)
    data = path.read_bytes()
    path.write_bytes((data[:420] + data[400:])[: len(data)])
    recovery = opener.recover(store.root)
    assert recovery.repaired == ()
    apply_to(recovery, store.root)
    with Store.open(store.root, load_settings(settings_of(name), store.root)) as mended:
        for phy_offset, number in numbers.items():
            if number is not None and phy_offset != holes[0]["phyOffset"]:
                message = read_message(mended.log, phy_offset)
                assert message is not None
                assert dict(light_queues(message.properties))["%LMQ%alpha"] == number
    assert opener.recover(store.root).plan.steps == ()


@pytest.mark.product(6)
@pytest.mark.parametrize(("first", "size_bytes"), [(0, 2), (-4, 10), (-12, 13), (-30, 35), (-60, 100)])
@pytest.mark.parametrize("of", [NAMES_IN_LIST, NUMBERS_IN_LIST], ids=["names", "numbers"])
@pytest.mark.parametrize("name", ["lmq-497", "lmq-533"])
def test_lists_under_zeros_are_made_anew(
    name: str,
    of: bytes,
    first: int,
    size_bytes: int,
    golden: GoldenStore,
    damageable: DamageableOf,
    settings_of: SettingsOf,
) -> None:
    """From the entries of all queues of the record; a hole may begin in front of a list, or end behind it."""
    store, opener = damageable(name), Opener(settings_of(name), stores.truth(name)["written_by"])
    number, _, _ = listing(store, nearest=4)
    message, at = store.message(number), store.field_at(number, "properties")
    end = message["phyOffset"] + message["storeSize"]
    value = at + store.read(at, end - at).find(of) + len(of)
    start = max(value + first, at)
    store.zero(start, min(size_bytes, end - start))
    recovery = opener.recover(store.root)
    assert recovery.lost == ()
    assert [repair["fields"] for repair in recovery.repaired] == [["properties"]]
    apply_to(recovery, store.root)
    assert [found.code for found in opener.check(store.root) if found.severity != "info"] == []
    with Store.open(store.root, load_settings(settings_of(name), store.root)) as mended:
        again = read_message(mended.log, message["phyOffset"])
        assert again is not None
        assert dict(light_queues(again.properties)) == dict(light_queues(message["properties"]))
    assert opener.recover(store.root).plan.steps == ()


def test_a_property_beside_a_list_is_not_written_over() -> None:
    """An entry that gives another number of more digits than the record has room for."""
    assert (
        _under_damage(b"a\x01b\x02INNER_MULTI_QUEUE_OFFSET\x019\x02TAGS\x01t", b"INNER_MULTI_QUEUE_OFFSET\x0110")
        is None
    )


@pytest.mark.parametrize(
    ("of", "byte"), [(b"INNER_MULTI_DISPATCH", 1), (b"INNER_MULTI_QUEUE_OFFSET", 1), (b"%LMQ%", 5)]
)
@pytest.mark.parametrize("name", ["lmq-497", "lmq-533"])
def test_a_tombstone_lists_the_light_queues_whose_entries_lead_to_it(
    name: str, of: bytes, byte: int, damageable: DamageableOf, settings_of: SettingsOf
) -> None:
    """A record with a wrong body is lost; its list is damaged as well, so that only the entries tell what a list has to say."""
    store, opener = damageable(name), Opener(settings_of(name), stores.truth(name)["written_by"])
    number, _, _ = listing(store, nearest=4)
    message, at = store.message(number), store.field_at(number, "properties")
    text = store.read(at, message["phyOffset"] + message["storeSize"] - at)
    store.flip(number, "body")
    store.flip_at(at + text.find(of) + byte)
    recovery = opener.recover(store.root)
    apply_to(recovery, store.root)
    assert sum(run.messages or 0 for run in recovery.lost) == 1
    assert [found.code for found in opener.check(store.root) if found.severity != "info"] == []
    with Store.open(store.root, load_settings(settings_of(name), store.root)) as mended:
        tombstone = read_message(mended.log, message["phyOffset"])
        assert tombstone is not None
        listed = dict(light_queues(message["properties"]))
        assert listed.items() <= dict(light_queues(tombstone.properties)).items()
