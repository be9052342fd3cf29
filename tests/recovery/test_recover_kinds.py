"""recover on stores with queues and records of every kind: light and batch queues, ConsumeQueueExt, property CRCs, delays, timers, expired parts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from store_core.derive.dispatch import MULTI_DISPATCH
from store_core.layout import index, paths, queue
from store_core.layout.schema import Layout
from store_core.recovery.apply.undo import undo
from store_core.recovery.plans.plan import Op
from tests import stores
from tests.conftest import GoldenStore, StoreCopy, differences
from tests.damage import Damageable
from tests.recovery.recovering import Opener, after_repairs, apply_to, assert_kept, harm, places

SettingsOf = Callable[[str], Path]
DamageableOf = Callable[..., Damageable]

NAMES: Final = (
    "bcq-533", "clean-430", "clean-497", "clean-514", "clean-533", "clean-540", "compact-533",
    "cqext-497", "cqext-533", "ipv6-533", "lmq-497", "lmq-533", "propcrc-533",
)  # fmt: skip
DAMAGES: Final[dict[str, Callable[[Damageable], object]]] = {
    "a body": lambda store: store.flip(_with_body(store, 3), "body"),
    "a head": lambda store: store.zero(store.message(_with_body(store, 5))["phyOffset"], 60),
    "a page": lambda store: store.zero(store.end_phy_offset // 2 // 4096 * 4096, 4096),
    "a segment": lambda store: store.lose(len(store.segments) // 2),
    "the end": lambda store: store.tear(40),
}


def _with_body(store: Damageable, part: int) -> int:
    """Number of a record with a body, of a kind of its own if there is one, about a part into the log."""
    messages = store.truth["messages"]
    listed = [n for n, m in enumerate(messages) if {"INNER_MULTI_DISPATCH", "INNER_NUM"} & m["properties"].keys()]
    numbers = listed or range(len(messages))
    behind = [n for n in numbers if n > len(messages) // part and messages[n]["bodyLength"]]
    return behind[0]


def recovered(opener: Opener, root: Path, golden: Path, name: str, *, forced: bool = False) -> None:
    before = stores.snapshot(root)
    found = harm(golden, root, name)
    recovery = opener.recover(root)
    found = after_repairs(found, recovery)
    if forced:  # what only a property CRC covers is lost, too
        found.changed.clear()
    assert places(recovery.lost) == found.lost_places
    assert sum(run.messages or 0 for run in recovery.lost) == len(found.lost_places)
    assert not recovery.given_up
    applied = apply_to(recovery, root)
    assert applied is not None
    assert opener.recover(root).plan.steps == ()
    assert [f.code for f in opener.check(root) if f.severity != "info"] == []
    after = opener.predict(root)
    assert after == recovery.after.as_json()
    assert (after["starts"], after["lost_messages"], after["ghosts"], after["delivered_early"]) == (True, 0, [], [])
    kept = [m for m in found.intact if name != "bcq-533" or m["topic"] != "Bcq_inner"]  # its entries are others
    assert_kept(golden, root, name, kept)
    undo(root, applied.undo_id, apply=True)
    now = {path: entry for path, entry in stores.snapshot(root).items() if not path.startswith(".rmqctl")}
    assert differences(before, now) == []


@pytest.mark.product
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", NAMES)
def test_every_kind_of_store_is_recovered(
    name: str, damage: str, golden: GoldenStore, damageable: DamageableOf, settings_of: SettingsOf
) -> None:
    store = damageable(name, "crash")
    DAMAGES[damage](store)
    opener = Opener(settings_of(name), stores.truth(name)["written_by"])
    recovered(opener, store.root, golden(name), name)


@pytest.mark.parametrize("damage", DAMAGES)
def test_new_records_carry_a_property_crc_where_the_broker_wants_it(
    damage: str, golden: GoldenStore, damageable: DamageableOf, settings_of: SettingsOf
) -> None:
    """The broker's own check, with forceVerifyPropCRC, walks over everything that was written."""
    name = "propcrc-533"
    store = damageable(name, "crash")
    DAMAGES[damage](store)
    config = settings_of(name)
    config.write_text(config.read_text() + "forceVerifyPropCRC=true\n")
    recovered(Opener(config, "5.3.3"), store.root, golden(name), name, forced=True)


def test_a_wrong_property_crc_is_damage_only_where_the_broker_wants_it(
    damageable: DamageableOf, settings_of: SettingsOf
) -> None:
    store = damageable("propcrc-533")
    damaged_at = stores.extra_truth("propcrc")[
        "damaged"
    ]  # what real brokers made of this: cut there when forced, else kept all
    number = next(n for n, m in enumerate(store.truth["messages"]) if m["phyOffset"] == damaged_at)
    store.flip(number, "properties", byte=3)
    config = settings_of("propcrc-533")
    assert Opener(config, "5.3.3").recover(store.root).plan.steps == ()
    config.write_text(config.read_text() + "forceVerifyPropCRC=true\n")
    message = store.message(number)
    forced = Opener(config, "5.3.3").recover(store.root)
    assert forced.prediction.outcome.max_phy_offset == message["phyOffset"]
    assert places(forced.lost) == {(message["topic"], message["queueId"], message["queueOffset"])}
    assert (forced.after.starts, forced.after.lost_messages) == (True, 0)


KEPT_FOR_NO_TIME: Final = "fileReservedTime=0"  # the records of the golden stores are seconds old


def opener_of_expired(config: Path, written_by: str) -> Opener:
    """An opener with a configuration by which records as young as these expire."""
    config.write_text(f"{config.read_text()}\n{KEPT_FOR_NO_TIME}\n")
    return Opener(config, written_by)


def expire(root: Path, segments: int) -> int:
    """Delete what a broker deletes once its first segments have expired (store behaviour 11); gives the new begin."""
    log = sorted((root / paths.COMMITLOG).iterdir())
    begin = int(log[segments].name)
    for path in log[:segments]:
        path.unlink()
    for tree, entry in ((paths.CONSUMEQUEUE, queue.ENTRY), (paths.BATCHCONSUMEQUEUE, queue.BATCH_ENTRY)):
        for folder in (root / tree).glob("*/*"):
            _delete_front(folder, partial(_last_entry, entry), begin)
    _delete_front(root / paths.INDEX, index.HEADER.read, begin, "end_phy_offset")
    return begin


def _last_entry(layout: Layout, data: bytes) -> dict[str, Any]:
    return layout.read(data[-layout.size_bytes :])


def _delete_front(folder: Path, last: Callable[[bytes], dict[str, Any]], begin: int, field: str = "phy_offset") -> None:
    for path in sorted(folder.iterdir())[:-1]:
        if last(path.read_bytes())[field] >= begin:
            break
        path.unlink()


EXPIRED: Final = [
    (name, count)
    for name in ("bcq-533", "clean-430", "clean-497", "clean-540", "compact-533", "cqext-497", "cqext-533", "ipv6-533", "lmq-533", "load-497", "load-533")
    for count in range(1, len(stores.truth(name)["log"]))
]  # fmt: skip


@pytest.mark.parametrize(("name", "segments"), EXPIRED, ids=[f"{name}-{count}" for name, count in EXPIRED])
def test_what_has_expired_is_left_alone(
    name: str, segments: int, damageable: DamageableOf, settings_of: SettingsOf, read_only: Callable[[Path], Path]
) -> None:
    root = damageable(name).root
    expire(root, segments)
    opener = opener_of_expired(settings_of(name), stores.truth(name)["written_by"])
    recovery = opener.recover(read_only(root))
    assert recovery.plan.steps == ()
    assert (recovery.lost, recovery.after.lost_messages) == ((), 0)
    assert [f.code for f in opener.check(root) if f.severity != "info"] == []


@pytest.mark.parametrize("name", ["load-533", "load-497", "clean-540", "cqext-497", "cqext-533", "lmq-533"])
def test_damage_behind_what_has_expired(name: str, damageable: DamageableOf, settings_of: SettingsOf) -> None:
    """Index and queues keep what they know of expired records; numbering and the index's earlier files stay."""
    store = damageable(name)
    begin = expire(store.root, 1)
    before = stores.snapshot(store.root)
    number = next(
        n for n, m in enumerate(store.truth["messages"]) if m["phyOffset"] >= begin and m["bodyLength"] and "KEYS" in m["properties"]
    )  # fmt: skip
    opener = opener_of_expired(settings_of(name), stores.truth(name)["written_by"])
    queues = opener.predict(store.root)["queues"]
    store.flip(number, "body")
    recovery = opener.recover(store.root)
    message = store.message(number)
    assert places(recovery.lost) == {(message["topic"], message["queueId"], message["queueOffset"])}
    apply_to(recovery, store.root)
    assert opener.recover(store.root).plan.steps == ()
    assert [f.code for f in opener.check(store.root) if f.severity != "info"] == []
    assert opener.predict(store.root)["queues"] == queues
    gone = {path for path in before.keys() - stores.snapshot(store.root).keys() if not path.startswith(paths.INDEX)}
    assert gone == set()


def test_an_idle_queue_keeps_its_numbering(damageable: DamageableOf, settings_of: SettingsOf) -> None:
    """Of a queue all of whose records have expired one file stays, whose end the next message's number is."""
    store = damageable("load-533")
    expire(store.root, 1)
    folder = store.root / paths.CONSUMEQUEUE / paths.SCHEDULE_TOPIC / "0"
    (file,) = folder.iterdir()
    kept = file.read_bytes()
    entries = -(-len(kept.rstrip(b"\0")) // queue.ENTRY.size_bytes)
    with file.open("r+b") as opened:  # entries behind the last one, for records that never were
        opened.seek(entries * queue.ENTRY.size_bytes)
        opened.write(queue.ENTRY.struct.pack(1 << 40, 200, 0))
    opener = Opener(settings_of("load-533"), "5.3.3")
    apply_to(opener.recover(store.root), store.root)
    assert file.read_bytes() == kept
    span = opener.predict(store.root)["queues"][paths.SCHEDULE_TOPIC]["0"]
    assert span["max_offset"] == entries


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("load-533", "consumequeue/Calm_bills/0"),
        ("load-533", "consumequeue/Calm_new/3"),
        ("bcq-533", "batchconsumequeue/Bcq_inner/0"),
    ],
)
def test_a_queue_file_of_zeros_is_told_and_removed(
    name: str, folder: str, store_copy: StoreCopy, settings_of: Callable[[str], Path]
) -> None:
    """Brokers take its first place for an entry (tests/broker/test_mended.py), so check says what recover removes."""
    root, opener = store_copy(name), Opener(settings_of(name), "5.3.3")
    newest = max((root / folder).iterdir(), default=None) if (root / folder).exists() else None
    size = newest.stat().st_size if newest is not None else 4000
    file = root / folder / paths.segment_name(int(newest.name) + size if newest is not None else 0)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(bytes(size))
    path = str(file.relative_to(root))
    assert [(f.code, f.file) for f in opener.check(root) if f.code[0] == "Q"] == [("Q017", path)]
    recovery = opener.recover(root)
    assert [(step.op, step.path) for step in recovery.plan.steps] == [(Op.REMOVE_FILE, path)]
    assert [f.advice for f in recovery.findings if f.code == "Q017"] == ["The plan removes it."]
    apply_to(recovery, root)
    assert [f for f in opener.check(root) if f.code[0] == "Q"] == []
    if newest is None:  # of a topic without configuration, which check tells
        file.parent.rmdir()
        file.parent.parent.rmdir()


@pytest.mark.parametrize("moved", ["Ext_orders/3", "Ext_audit"])
def test_ext_files_that_are_gone_are_built_anew(
    moved: str, golden: GoldenStore, damageable: DamageableOf, settings_of: SettingsOf
) -> None:
    store, opener = damageable("cqext-533", "crash"), Opener(settings_of("cqext-533"), "5.3.3")
    folder = store.root / paths.CONSUMEQUEUE_EXT / moved
    folder.rename(folder.with_name("7"))
    apply_to(opener.recover(store.root), store.root)
    now = stores.contents(store.root / paths.CONSUMEQUEUE_EXT / moved)
    assert now == stores.contents(golden("cqext-533") / paths.CONSUMEQUEUE_EXT / moved)
    assert opener.recover(store.root).plan.steps == ()


def test_tombstones_for_numbers_that_no_entry_tells_have_units_too(
    damageable: DamageableOf, settings_of: SettingsOf
) -> None:
    """Else a second recover would number the units anew."""
    store, opener = damageable("cqext-533", "crash"), Opener(settings_of("cqext-533"), "5.3.3")
    store.lose(2)
    for path in (store.root / paths.CONSUMEQUEUE / "Ext_bills/0").iterdir():
        path.write_bytes(bytes(path.stat().st_size))
    recovery = opener.recover(store.root)
    assert [run.messages for run in recovery.lost if (run.topic, run.queue_id) == ("Ext_bills", 0)]
    apply_to(recovery, store.root)
    assert opener.recover(store.root).plan.steps == ()


@pytest.mark.leaves_damage("the record's own list stays damaged: Q002 tells of its entries")
@pytest.mark.parametrize("name", ["lmq-497", "lmq-533"])
def test_a_light_queue_keeps_the_entry_of_a_record_whose_list_is_damaged(
    name: str, golden: GoldenStore, damageable: DamageableOf, settings_of: SettingsOf
) -> None:
    """No checksum covers a record's properties, so it can be read; consumers of light queues get it by their queue's entry."""
    store, opener = damageable(name, "crash"), Opener(settings_of(name), stores.truth(name)["written_by"])
    messages = stores.truth(name)["messages"]
    record = next(n for n, m in enumerate(messages) if n > len(messages) // 2 and MULTI_DISPATCH in m["properties"])
    start, size = store.message(record)["phyOffset"], store.message(record)["storeSize"]
    store.write(start + store.read(start, size).index(MULTI_DISPATCH.encode()), b"?")
    recovery = opener.recover(store.root)
    assert recovery.lost == ()
    apply_to(recovery, store.root)
    queues = paths.CONSUMEQUEUE
    assert stores.contents(store.root / queues) == stores.contents(golden(name) / queues)
    assert {f.code for f in opener.check(store.root) if f.severity != "info"} <= {"Q002"}
    assert opener.recover(store.root).plan.steps == ()
