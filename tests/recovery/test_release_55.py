"""What stores of 5.5 ask for: a queue offset beside the queues' time, light queues that expire, and databases beside the files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from store_core.broker.detect_version import evidence_of
from store_core.broker.start import start_broker
from store_core.broker.versions import Version, behaviour_of
from store_core.check.store import check_store
from store_core.engine.live_store import WriteOptions, open_for_writing
from store_core.engine.message import NewMessage
from store_core.engine.put import put
from store_core.errors import UsageError
from store_core.findings import KINDS
from store_core.layout import paths
from store_core.layout.checkpoint import CHECKPOINT
from store_core.read.checkpoint import read_checkpoint
from store_core.recovery.losses import Planned
from store_core.recovery.rebuild import rebuild, set_checkpoint
from store_core.recovery.truncate import truncate
from store_core.storage.config_files import read_config
from store_core.storage.config_text import render_consumer_offsets, render_topics
from store_core.storage.settings import load_settings
from store_core.storage.store import Store
from tests import stores
from tests.conftest import DamagedStore, GoldenStore, StoreCopy
from tests.recovery.recovering import Opener, apply_to
from tests.rmqctl.calls import call

SettingsOf = Callable[[str], Path]
AGED: Final = "load-551-aged"
ROOM: Final = "%LMQ%$Lite_chat$room0"


def queue_fields(root: Path) -> tuple[int, int]:
    found = read_checkpoint(root)
    return found.logics_msg_timestamp_ms, found.logics_phy_offset


def set_fields(root: Path, **values: int) -> None:
    path = root / paths.CHECKPOINT
    fields = CHECKPOINT.read(path.read_bytes()) | values
    path.write_bytes(CHECKPOINT.struct.pack(*fields.values()).ljust(path.stat().st_size, b"\0"))


def last_before(name: str, phy_offset: int) -> tuple[int, int]:
    """Store time and start of the last record before an offset; zeros without one."""
    found = [m for m in stores.truth(name)["messages"] if m["phyOffset"] < phy_offset]
    return (found[-1]["storeTimestamp"], found[-1]["phyOffset"]) if found else (0, 0)


def end_of(name: str) -> int:
    last = stores.truth(name)["messages"][-1]
    return int(last["phyOffset"] + last["storeSize"])


def planned(root: Path, config: Path, plan: Callable[[Store], Planned], version: str | None = None) -> Planned:
    with Store.open(root, load_settings(config, root, broker_version=version)) as store:
        return plan(store)


def codes(root: Path, config: Path | None = None) -> set[str]:
    with Store.open(root, load_settings(config, root)) as store:
        return {f"{found.code} {found.severity}" for found in check_store(store).findings}


# -- the checkpoint's queue offset (section 11, points 1 and 2 of what a tool must do) --------------------------------


@pytest.mark.parametrize(
    ("base", "version", "standing", "is_set"),
    [
        (AGED, None, 7, True),
        ("load-551", None, 0, True),
        ("load-533", None, 0, False),  # no other release knows the field
        ("load-533", "5.5.1", 0, True),
        ("load-533", None, 7, True),  # 5.5 ran on it once, and may again
    ],
)
def test_rebuild_sets_both_or_none(
    base: str, version: str | None, standing: int, is_set: bool, store_copy: StoreCopy, settings_of: SettingsOf
) -> None:
    root = store_copy(base)
    set_fields(root, logics_phy_offset=standing, logics_msg_timestamp_ms=5)
    apply_to(planned(root, settings_of(base), lambda store: rebuild(store, "checkpoint"), version), root)
    time, offset = last_before(base, end_of(base))
    assert queue_fields(root) == (time, offset if is_set else 0)


@pytest.mark.parametrize("place", [0, 1, 1000, 2000, -1])
def test_a_cut_takes_both_back(place: int, store_copy: StoreCopy, settings_of: SettingsOf) -> None:
    root, at = store_copy(AGED), stores.truth(AGED)["messages"][place]["phyOffset"]
    apply_to(planned(root, settings_of(AGED), lambda store: truncate(store, at)), root)
    assert queue_fields(root) == last_before(AGED, at)


def test_a_cut_leaves_zeros(store_copy: StoreCopy, settings_of: SettingsOf) -> None:
    """The checkpoint of a broker that lived less than a minute promises nothing."""
    root, at = store_copy("load-551"), stores.truth("load-551")["messages"][1000]["phyOffset"]
    apply_to(planned(root, settings_of("load-551"), lambda store: truncate(store, at)), root)
    time, offset = last_before("load-551", at)
    assert queue_fields(root) in ((0, 0), (time, offset))


@pytest.mark.leaves_damage("a broker leaves the groups' progress beyond the end")
@pytest.mark.parametrize("policy", ["keep", "broker"])
@pytest.mark.parametrize("case", ["torn-tail", "log-tail-lost", "log-last-empty"])
def test_recover_takes_both_back(policy: Any, case: str, damaged: DamagedStore, settings_of: SettingsOf) -> None:
    root = damaged(AGED, case, "crash")
    opener = Opener(settings_of(AGED), "5.5.1")
    apply_to(opener.recover(root, policy), root)
    with Store.open(root, load_settings(settings_of(AGED), root)) as store:
        start = start_broker(store, behaviour_of(Version.parse("5.5.1")))
    assert queue_fields(root) == last_before(AGED, start.log.max_phy_offset)


def test_recover_leaves_an_untouched_checkpoint(store_copy: StoreCopy, settings_of: SettingsOf) -> None:
    root = store_copy("load-551")
    (root / paths.CONSUMEQUEUE / "Mild_bills" / "0" / paths.segment_name(0)).unlink()
    plan = Opener(settings_of("load-551"), "5.5.1").recover(root).plan
    assert plan.steps
    assert paths.CHECKPOINT not in {step.path for step in plan.steps}


@pytest.mark.parametrize(
    ("base", "values", "refused"),
    [
        (AGED, {"logics_msg_timestamp_ms": 5}, True),
        (AGED, {"logics_phy_offset": 5}, True),
        (AGED, {"logics_phy_offset": 5, "logics_msg_timestamp_ms": 5}, False),
        (AGED, {"physic_msg_timestamp_ms": 5}, False),
        ("load-533", {"logics_msg_timestamp_ms": 5}, False),
        ("load-533", {"logics_phy_offset": 5}, True),
    ],
)
def test_neither_is_set_alone(
    base: str, values: dict[str, int], refused: bool, store_copy: StoreCopy, settings_of: SettingsOf
) -> None:
    root, config = store_copy(base), settings_of(base)
    if refused:
        with pytest.raises(UsageError, match="without logics_"):
            planned(root, config, lambda store: set_checkpoint(store, values))
        return
    apply_to(planned(root, config, lambda store: set_checkpoint(store, values)), root)
    assert {name: getattr(read_checkpoint(root), name) for name in values} == values


@pytest.mark.parametrize(
    ("base", "topic", "version", "keeps"),
    [
        ("load-551", "Mild_bills", None, True),
        ("load-533", "Calm_bills", None, False),
        ("load-533", "Calm_bills", "5.5", True),
    ],
)
def test_put_moves_both_once_all_is_durable(
    base: str, topic: str, version: str | None, keeps: bool, store_copy: StoreCopy, settings_of: SettingsOf
) -> None:
    root = store_copy(base)
    settings = load_settings(settings_of(base), root, broker_version=version)
    before = queue_fields(root)
    with open_for_writing(settings, WriteOptions()) as live:
        stored = put(live, NewMessage(topic, b"new", queue_id=0)).stored
        assert stored is not None
        between = queue_fields(root)
    assert between == before  # the queues are not on the disk yet
    moved = (stored.store_timestamp_ms, stored.phy_offset if keeps else 0)
    assert queue_fields(root) == moved


# -- what is no damage (points 3 to 5) --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["clean-550", "clean-551", "load-551", "lite-551", "lmq-551"])
def test_a_queue_time_of_0_is_no_fault_of_5_5(name: str, golden: GoldenStore) -> None:
    assert read_checkpoint(golden(name)).logics_msg_timestamp_ms == 0
    assert codes(golden(name)) == set()


def test_a_queue_time_of_0_is_one_of_others(store_copy: StoreCopy) -> None:
    root = store_copy("clean-540")
    set_fields(root, logics_msg_timestamp_ms=0)
    assert codes(root) == {"C005 warning"}


def test_a_queue_offset_beyond_the_log_is_told(store_copy: StoreCopy, settings_of: SettingsOf) -> None:
    root = store_copy(AGED)
    set_fields(root, logics_phy_offset=end_of(AGED))
    assert codes(root) == {"C003 error"}
    apply_to(planned(root, settings_of(AGED), lambda store: rebuild(store, "checkpoint")), root)
    assert codes(root) == set()


def test_nobody_is_told_to_remove_the_queues(damaged: DamagedStore, settings_of: SettingsOf) -> None:
    """5.5 would bring back the newest segment's entries alone; recover builds all of them."""
    assert not [kind.code for kind in KINDS.values() if f"{paths.CONSUMEQUEUE}/" in kind.advice]
    root = damaged(AGED, "cq-removed", "crash")
    opener = Opener(settings_of(AGED), "5.5.1")
    queues = opener.recover(root).after.as_json()["queues"].values()
    assert sum(span["max_offset"] - span["min_offset"] for spans in queues for span in spans.values()) == 2183
    with Store.open(root, load_settings(settings_of(AGED), root)) as store:
        start = start_broker(store, behaviour_of(Version.parse("5.5.1")))
        assert sum(queue.max_offset - queue.min_offset for queue in start.queues) == 18


@pytest.mark.parametrize(("setting", "found"), [("", "L005 warning"), ("writeWithoutMmap=true\n", "L005 info")])
def test_dirt_up_to_the_next_page_is_no_damage(
    setting: str, found: str, damaged: DamagedStore, settings_of: SettingsOf, tmp_path: Path
) -> None:
    """A whole old record lies after the log's end, within the page."""
    root = damaged(AGED, "ghost-tail", "clean")
    config = tmp_path / "dirt.conf"
    config.write_text(stores.properties_text(AGED) + setting)
    assert codes(root, config) == {found}


@pytest.mark.parametrize("setting", ["", "writeWithoutMmap=true\n"])
def test_put_writes_over_dirt(setting: str, store_copy: StoreCopy, tmp_path: Path) -> None:
    root, end = store_copy(AGED), end_of(AGED)
    segment = sorted((root / paths.COMMITLOG).iterdir())[-1]
    with segment.open("r+b") as file:
        file.seek(end - int(segment.name) + 300)
        file.write(b"\x55" * 100)
    config = tmp_path / "dirt.conf"
    config.write_text(stores.properties_text(AGED) + setting)
    topic = stores.truth(AGED)["messages"][-1]["topic"]
    told = call("put", topic, "body", "-c", config, "-s", root, "-o", "json")
    assert told.code == (0 if setting else 1)
    if not setting:
        assert told.json["error"]["message"].startswith("there are bytes after the end of the log")


# -- light topics (point 6) -------------------------------------------------------------------------------------------


def without_room(root: Path, minutes: str | None) -> Path:
    shutil.rmtree(root / paths.CONSUMEQUEUE / ROOM)
    path = root / paths.TOPICS_JSON
    if minutes is not None:
        path.write_text(path.read_text().replace('"LITE"', f'"LITE","lite.topic.expiration":"{minutes}"'))
    return root


@pytest.mark.parametrize(
    ("minutes", "found"), [("1", {"Q022 info"}), ("-1", {"Q006 error"}), (None, {"Q006 error"}), ("x", {"Q006 error"})]
)
def test_an_expired_light_queue_is_normal(
    minutes: str | None,
    found: set[str],
    store_copy: StoreCopy,
    settings_of: SettingsOf,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    last_ms = stores.truth("lite-551")["messages"][-1]["storeTimestamp"]
    monkeypatch.setattr("store_core.derive.topics.time.time_ns", lambda: (last_ms + 3_600_000) * 1_000_000)
    root = without_room(store_copy("lite-551"), minutes)
    assert codes(root) == found
    steps = planned(root, settings_of("lite-551"), lambda store: rebuild(store, "queues")).plan.steps
    assert {step.path.split("/")[1] for step in steps} == (set() if minutes == "1" else {ROOM})


def test_a_light_queue_that_is_too_young_was_lost(store_copy: StoreCopy, monkeypatch: pytest.MonkeyPatch) -> None:
    last_ms = stores.truth("lite-551")["messages"][-1]["storeTimestamp"]
    monkeypatch.setattr("store_core.derive.topics.time.time_ns", lambda: (last_ms + 30_000) * 1_000_000)
    assert codes(without_room(store_copy("lite-551"), "1")) == {"Q006 error"}


def test_light_topics_are_shown(store_copy: StoreCopy) -> None:
    root = store_copy("lite-551")
    path = root / paths.LMQ_CONSUMER_OFFSET_JSON
    tree = json.loads(path.read_text())
    path.write_text(json.dumps({**tree, "lmqOffsetTable": {f"{ROOM}@readers": 30}}))
    rows = call("info", "-s", root, "-o", "json").json["stores"][0]["queues"]
    light = {row["topic"]: row["max_offset"] for row in rows if row["topic"].startswith("%LMQ%")}
    truth = {q["topic"]: q["max"] for q in stores.truth("lite-551")["afterLoad"]["queues"] if "%LMQ%" in q["topic"]}
    assert light == truth
    assert call("lag", "-s", root, "-o", "json").json["groups"] == [
        {"group": "readers", "topic": ROOM, "queue_id": 0, "offset": 30, "min_offset": 0, "max_offset": 40, "lag": 10}
    ]
    dumped = call("dump-cq", ROOM, "0", "-s", root, "--resolve", "-o", "ndjson").lines
    assert len(dumped) == 40
    assert {row["record"]["topic"] for row in dumped} == {"Lite_chat"}


# -- configuration (point 7) ------------------------------------------------------------------------------------------


def test_rewritten_files_keep_the_form_and_what_is_not_known(golden: GoldenStore) -> None:
    config = read_config(golden("clean-550"))
    text = render_consumer_offsets(config, {("new", "Quay_orders", 0): 3}, timestamp_ms=5)
    assert '"pullOffsetTable":{' in text
    assert '"Quay_orders@new":{\n\t\t\t0:3\n\t\t}' in text
    topics = render_topics(config, {}, 5)
    assert '"attributes":{},' in topics
    assert "{\n\t\t\t\t\n" not in topics


def test_5_4_does_not_load_what_5_5_0_wrote(golden: GoldenStore) -> None:
    root = golden("clean-550")
    for version, loads in (("5.4.0", False), ("5.5.0", True), ("5.5.1", True), ("5.3.3", True)):
        told = call("config", "-s", root, "--broker-version", version, "-o", "json")
        assert told.json["files"]["consumerOffset.json"]["broker_loads"] is loads
        assert [found["code"] for found in told.json["findings"]] == ([] if loads else ["P004"])
        start = call("info", "-s", root, "--broker-version", version, "-o", "json").json["stores"][0]["would_start"]
        assert start["starts"] is loads


# -- databases --------------------------------------------------------------------------------------------------------


def test_databases_are_what_they_are(store_copy: StoreCopy) -> None:
    root = store_copy("rocks-551")
    (root / paths.CONSUMEQUEUE).rename(root / paths.CONSUMEQUEUE_ROCKSDB)
    (root / paths.CONSUMEQUEUE).mkdir()
    told = call("info", "-s", root, "-o", "json").json["stores"][0]
    assert told["queues"] is None
    held = {row["folder"]: (row["holds"], row["rocksdb_version"]) for row in told["databases"]}
    assert held[paths.CONSUMEQUEUE_ROCKSDB] == ("queues", "8.4.4")
    assert held[paths.ROCKSDBSTORE] == ("index, timers, half messages", "8.4.4")
    [found] = [f for f in told["findings"] if f["code"] == "Q015"]
    assert found["file"] == paths.CONSUMEQUEUE_ROCKSDB
    assert codes(root) == {"P008 info", "Q015 error"}
    assert call("recover", "-s", root).code == 1


def test_a_database_beside_queue_files_is_told(store_copy: StoreCopy) -> None:
    root = store_copy("clean-551")
    shutil.copytree(root / paths.ROCKSDBSTORE, root / paths.CONSUMEQUEUE_ROCKSDB)
    assert codes(root) == {"Q015 info"}
    with Store.open(root) as store:
        assert {key.topic for key in store.queues} == {path.name for path in (root / paths.CONSUMEQUEUE).iterdir()}


@pytest.mark.parametrize("options", [b"", b"rocksdb_version=8.4.\n", b"\xff" * 4096, b"  rocksdb_version=99999.1.1\n"])
def test_options_that_tell_nothing_are_no_evidence(options: bytes, store_copy: StoreCopy) -> None:
    root = store_copy("load-551")
    for path in (root / paths.ROCKSDBSTORE).glob("OPTIONS-*"):
        path.write_bytes(options)
    with Store.open(root) as store:
        assert not any("RocksDB" in line for line in evidence_of(store).evidence)
