"""Stores that recover, truncate and rebuild leave, opened by real store code and served by real brokers to real consumers."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from store_core.layout import paths, record
from store_core.layout.queue import ENTRY
from store_core.recovery import lost_from_queues as evidence
from store_core.recovery.keep_options import KeepOptions
from store_core.recovery.rebuild import rebuild
from store_core.recovery.truncate import truncate
from store_core.scan.log import scan_log
from store_core.storage.settings import load_settings
from store_core.storage.store import Store
from tests import stores
from tests.broker.conftest import OpenStore
from tests.broker.oracle import VERSIONS
from tests.broker.outcomes import compare_with_recorded
from tests.broker.running import RunningBroker
from tests.conftest import DamagedStore, GoldenStore, StoreCopy
from tests.damage import Damageable
from tests.recovery.recovering import Opener, apply_to, is_queued, mended, places

SettingsOf = Callable[[str], Path]
_START_MS: Final = 5000
# What the real decoder says of a record, in the truth and in an outcome.
_SAME: Final = ("phyOffset", "storeSize", "topic", "queueId", "queueOffset", "bodySha256", "msgId", "properties")


def opened(
    open_store: OpenStore, version: str, base: str, root: Path, config: Path, after: dict[str, Any]
) -> dict[str, Any]:
    """Let a release open the store; everything must be as predicted, and nothing of it given up or done anew."""
    told = open_store(version, root, stores.properties_text(base), start_ms=_START_MS, stop=False, messages=True)
    told.setdefault("afterStart", {"returned": False})
    assert compare_with_recorded(root, config, told, version) == {}
    state = told["afterStart"]
    spans = {
        (topic, int(queue_id)): (span["min_offset"], span["max_offset"])
        for topic, queues in after["queues"].items()
        for queue_id, span in queues.items()
    }
    assert spans == {(q["topic"], q["queueId"]): (q["min"], q["max"]) for q in state["queues"] if q["max"] > 0}
    assert (after["max_phy_offset"], after["min_phy_offset"]) == (state["maxPhyOffset"], state["minPhyOffset"])
    difference = told["diffAfterLoad"]
    assert [path for path in difference["deleted"] if path != "abort"] == []
    trees = (paths.COMMITLOG, paths.CONSUMEQUEUE, paths.INDEX, paths.BATCHCONSUMEQUEUE)
    assert [path for path in difference["changed"] if path.startswith(trees)] == []
    return told


def assert_served(told: dict[str, Any], kept: list[dict[str, Any]]) -> None:
    """Each of these messages is read by the real decoder as it was."""
    read = {m["phyOffset"]: m for m in told["messages"]}
    wrong = [
        m["phyOffset"]
        for m in kept
        if m["phyOffset"] not in read or any(read[m["phyOffset"]].get(name) != m.get(name) for name in _SAME)
    ]
    assert wrong == []


KEPT: Final = (
    ("4.9.7", "load-497", "flip-body-mid"),
    ("4.9.7", "load-497", "log-missing-mid"),
    ("4.9.7", "load-497", "zero-page-mid"),
    ("4.9.7", "load-497", "end-blank-early"),
    ("5.3.3", "load-533", "flip-body-mid"),
    ("5.3.3", "load-533", "magic-first-mid"),
    ("5.3.3", "load-533", "cq-removed"),
    ("5.3.3", "load-533", "blank-mid-broken"),
    ("5.3.3", "crash-533", "torn-tail"),
    ("5.4.0", "load-533", "log-mid-short"),
    ("5.4.0", "load-533", "zero-page-mid"),
)


@pytest.mark.parametrize(("version", "base", "case"), KEPT, ids=["-".join(case) for case in KEPT])
def test_what_recover_leaves_opens_whole(
    version: str,
    base: str,
    case: str,
    golden: GoldenStore,
    damaged: DamagedStore,
    settings_of: SettingsOf,
    open_store: OpenStore,
) -> None:
    root, config = damaged(base, case, "crash"), settings_of(base)
    recovery, found = mended(golden(base), root, base, Opener(config, version))
    told = opened(open_store, version, base, root, config, recovery.after.as_json())
    assert_served(told, found.intact)


@pytest.mark.parametrize(("version", "base"), [("4.9.7", "load-497"), ("5.4.0", "load-533")])
def test_damage_in_every_other_record_opens_whole(
    version: str,
    base: str,
    golden: GoldenStore,
    damageable: Callable[..., Damageable],
    settings_of: SettingsOf,
    open_store: OpenStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bodies, which become tombstones by the run; topics and numbers of sound records, which go back to their queues."""
    monkeypatch.setattr(evidence, "FEWEST_ROWS", 2)
    store, config = damageable(base, "crash"), settings_of(base)
    first, queued = len(store.truth["messages"]) // 3, [m for m in store.truth["messages"] if is_queued(m)]
    for number, message in enumerate(queued[first : 2 * first]):
        body_at = message["phyOffset"] + record.body_at(message["sysFlag"])
        if number % 8 < 4 and message["bodyLength"]:
            store.flip_at(body_at)
        elif number % 8 == 5:
            store.flip_at(message["phyOffset"] + record.HEAD.offset_of("queue_offset") + 5)
        elif number % 8 == 7 and message["bodyLength"]:
            topic_at = body_at + message["bodyLength"] + record.topic_length_layout(message["magic"]).size_bytes
            store.flip_at(topic_at + number % 7, 1 << number // 56 % 8)
    recovery, found = mended(golden(base), store.root, base, Opener(config, version))
    assert {field for repair in recovery.repaired for field in repair["fields"]} == {"topic", "queue_offset"}
    assert len(places(recovery.lost)) > first // 3
    told = opened(open_store, version, base, store.root, config, recovery.after.as_json())
    assert_served(told, found.intact)


@pytest.mark.parametrize(("version", "base"), [("4.9.7", "load-497"), ("5.4.0", "load-533")])
def test_stretches_that_went_back_open_whole(
    version: str,
    base: str,
    golden: GoldenStore,
    damageable: Callable[..., Damageable],
    settings_of: SettingsOf,
    open_store: OpenStore,
) -> None:
    """A page is missing in one segment, and one is there twice in the last one that is used."""
    store, config = damageable(base, "crash"), settings_of(base)
    last = store.end_phy_offset // store.segment_size_bytes
    for number, edit in ((3, lambda data: data[:40_960] + data[45_056:]), (last, lambda d: d[:8192] + d[4096:])):
        path = store.segments[number]
        data = path.read_bytes()
        path.write_bytes(edit(data)[: len(data)].ljust(len(data), b"\0"))
    there = [path.read_bytes() for path in store.segments]
    kept = [
        m
        for m in store.truth["messages"]
        if any(Damageable(golden(base), store.truth).read(m["phyOffset"], m["storeSize"]) in data for data in there)
    ]
    recovery, _ = mended(golden(base), store.root, base, Opener(config, version))
    told = opened(open_store, version, base, store.root, config, recovery.after.as_json())
    cut = store.segments[last]
    assert_served(told, [m for m in kept if not 0 < int(cut.name) + 8192 - m["phyOffset"] < m["storeSize"]])
    assert len(kept) > len(store.truth["messages"]) - 30


@pytest.mark.parametrize(("version", "base"), [("4.9.7", "load-497"), ("5.3.3", "load-533")])
def test_what_truncate_leaves_opens_whole(
    version: str, base: str, store_copy: StoreCopy, settings_of: SettingsOf, open_store: OpenStore
) -> None:
    root, config = store_copy(base), settings_of(base)
    messages = stores.truth(base)["messages"]
    cut = messages[len(messages) * 2 // 3]["phyOffset"]
    with Store.open(root, load_settings(config, root, broker_version=version)) as store:
        result = truncate(store, cut)
    apply_to(result, root)
    told = opened(open_store, version, base, root, config, result.after.as_json())
    assert told["afterStart"]["maxPhyOffset"] == cut
    assert_served(told, [m for m in messages if m["phyOffset"] < cut])


@pytest.mark.parametrize(("version", "base"), [("4.9.7", "load-497"), ("5.3.3", "load-533")])
def test_what_rebuild_leaves_opens_whole(
    version: str, base: str, store_copy: StoreCopy, settings_of: SettingsOf, open_store: OpenStore
) -> None:
    root, config = store_copy(base), settings_of(base)
    for name in (paths.CONSUMEQUEUE, paths.INDEX):
        shutil.rmtree(root / name)
    with Store.open(root, load_settings(config, root, broker_version=version)) as store:
        result = rebuild(store, "all")
    apply_to(result, root)
    told = opened(open_store, version, base, root, config, result.after.as_json())
    assert_served(told, stores.truth(base)["messages"])


@pytest.mark.parametrize(("version", "base"), [("4.9.7", "load-497"), ("5.4.0", "load-533")])
@pytest.mark.parametrize("lost", [(0, 1), (-1,)], ids=["the begin", "the end"])
def test_segments_from_a_sibling_open_whole(
    lost: tuple[int, ...],
    version: str,
    base: str,
    golden: GoldenStore,
    store_copy: StoreCopy,
    settings_of: SettingsOf,
    open_store: OpenStore,
) -> None:
    """The first ones have gone, or the last one: nothing is left of them but queue entries and a copy."""
    root, config = store_copy(base, "crash"), settings_of(base)
    segments = sorted((root / paths.COMMITLOG).iterdir())
    for number in lost:
        segments[number].unlink()
    options = KeepOptions(siblings=(golden(base),), sibling_from=0)
    recovery = Opener(config, version).recover(root, options=options)
    apply_to(recovery, root)
    told = opened(open_store, version, base, root, config, recovery.after.as_json())
    assert_served(told, stores.truth(base)["messages"])


@pytest.mark.parametrize("version", VERSIONS)
def test_a_queue_file_of_zeros_costs_a_number_unless_it_is_removed(
    version: str, store_copy: StoreCopy, settings_of: SettingsOf, open_store: OpenStore
) -> None:
    """Right at a queue's end brokers take its first place for an entry: no message ever gets that number."""
    root, config = store_copy("load-533"), settings_of("load-533")
    topic, queue_id, full = _full_queue(root, config, version)
    end = full * ENTRY.size_bytes
    file = root / paths.CONSUMEQUEUE / topic / str(queue_id) / paths.segment_name(end)
    file.write_bytes(bytes((file.parent / paths.segment_name(0)).stat().st_size))
    for then, removed in ((full + 1, []), (full, [file])):
        for path in removed:
            apply_to(Opener(config, version).recover(root), root)
            assert not path.exists()
        predicted = Opener(config, version).predict(root)
        told = opened(open_store, version, "load-533", root, config, predicted)
        ends = [q["max"] for q in told["afterStart"]["queues"] if (q["topic"], q["queueId"]) == (topic, queue_id)]
        assert ends == [then]


def _full_queue(root: Path, config: Path, version: str) -> tuple[str, int, int]:
    """Cut the log where the newest file of a queue has become full; the queue, and its end."""
    per_file = int(stores.truth("load-533")["properties"]["mappedFileSizeConsumeQueue"]) // ENTRY.size_bytes
    full = next(
        m for m in stores.truth("load-533")["messages"] if m["queueOffset"] == 2 * per_file - 1 and is_queued(m)
    )
    with Store.open(root, load_settings(config, root, broker_version=version)) as store:
        apply_to(truncate(store, full["phyOffset"] + full["storeSize"]), root)
    return full["topic"], full["queueId"], 2 * per_file


@pytest.mark.parametrize(("version", "base"), [("4.9.7", "load-497"), ("5.3.3", "load-533"), ("5.4.0", "load-533")])
def test_it_stays_so_when_older_files_have_expired(
    version: str,
    base: str,
    golden: GoldenStore,
    damaged: DamagedStore,
    settings_of: SettingsOf,
    open_store: OpenStore,
) -> None:
    root, config = damaged(base, "zero-page-mid", "crash"), settings_of(base)
    _, found = mended(golden(base), root, base, Opener(config, version))
    size = int(stores.truth(base)["properties"]["mappedFileSizeCommitLog"])
    oldest = min(m["phyOffset"] for m in found.harmed) // size * size
    for path in (root / paths.COMMITLOG).iterdir():
        if int(path.name) < oldest:
            path.unlink()
    told = opened(open_store, version, base, root, config, Opener(config, version).predict(root))
    assert told["afterStart"]["minPhyOffset"] == oldest
    assert_served(told, [m for m in found.intact if m["phyOffset"] >= oldest])


@pytest.mark.parametrize(
    ("version", "base", "case"),
    [
        ("4.9.7", "load-497", "magic-first-mid"),
        ("5.3.3", "load-533", "zero-page-mid"),
        ("5.4.0", "load-533", "zero-page-mid"),
    ],
)
def test_a_consumer_gets_every_other_message_once_and_new_ones_go_on(
    version: str,
    base: str,
    case: str,
    golden: GoldenStore,
    damaged: DamagedStore,
    settings_of: SettingsOf,
    running_broker: Callable[..., RunningBroker],
) -> None:
    root = damaged(base, case, "crash")
    recovery, found = mended(golden(base), root, base, Opener(settings_of(base), version))
    lost = places(recovery.lost)
    topics = sorted({m["topic"] for m in stores.truth(base)["messages"] if "TOPIC" not in m["topic"]})
    broker = running_broker(version, root, stores.properties_text(base))
    pulled = broker.pull(*topics)
    for name, queue in pulled.items():
        topic, _, queue_id = name.rpartition("-")
        end = recovery.after.queues[topic][int(queue_id)].max_offset
        # Behind it stands what the delay service has delivered since, for its time has come.
        got = {m["queueOffset"]: m for m in queue["messages"] if m["queueOffset"] < end}
        assert (list(got), queue["odd"]) == (list(range(queue["min"], end)), [])  # tombstones in their places
        readable = [m for m in stores.truth(base)["messages"] if m in found.intact or m in found.changed]
        mine = [m for m in readable if is_queued(m) and (m["topic"], m["queueId"]) == (topic, int(queue_id))]
        assert [n for n in got if (topic, int(queue_id), n) not in lost] == [m["queueOffset"] for m in mine]
        for message in mine:  # a client unpacks what was compressed
            pulled_one = got[message["queueOffset"]]
            assert pulled_one["phyOffset"] == message["phyOffset"]
            assert pulled_one["bodySha256"] == message.get("plainSha256", message["bodySha256"])
    sent = broker.send(*topics)
    assert sent.keys() == pulled.keys()
    assert all(answer["status"] == "SEND_OK" for answer in sent.values())
    assert all(answer["queueOffset"] >= pulled[name]["max"] for name, answer in sent.items())
    broker.stop()
    again = Opener(settings_of(base), version).recover(root)  # a broker of another release has gone on with the index
    assert (again.lost, [step.path for step in again.plan.steps]) == ((), [])


@pytest.mark.broker
@pytest.mark.parametrize(("version", "name"), [("4.9.7", "clean-497"), ("5.3.3", "clean-533")])
def test_delivered_messages_are_not_delivered_again_where_their_progress_was_lost(
    version: str, name: str, store_copy: StoreCopy, settings_of: SettingsOf, tmp_path: Path
) -> None:
    """The messages that were still waiting go out, each once, and no other."""
    root, opener = store_copy(name), Opener(settings_of(name), version)
    for suffix in ("", paths.BAK_SUFFIX):
        (root / (paths.DELAY_OFFSET_JSON + suffix)).unlink()
    apply_to(opener.recover(root), root)
    truth = stores.truth(name)["messages"]
    end = truth[-1]["phyOffset"] + truth[-1]["storeSize"]
    waiting = [m for m in truth if m["topic"] == paths.SCHEDULE_TOPIC and m["queueId"] >= 16]
    with RunningBroker(version, root, stores.properties_text(name), tmp_path / "broker") as broker:
        deadline = time.monotonic() + 40
        while len(_delayed_from(root, end)) < len(waiting) and time.monotonic() < deadline:
            time.sleep(0.2)
        broker.stop()
    assert sorted(_delayed_from(root, end)) == sorted(m["properties"]["UNIQ_KEY"] for m in waiting)


def _delayed_from(root: Path, phy_offset: int) -> list[str]:
    """The unique keys of delivered messages behind an offset."""
    with Store.open(root) as store:
        return [
            message.properties["UNIQ_KEY"]
            for table in scan_log(store, from_phy_offset=phy_offset)
            for message in map(table.message, table.rows(table.messages))
            if message.properties.get("DELAY") and message.topic != paths.SCHEDULE_TOPIC
        ]
