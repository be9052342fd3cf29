"""put: messages of all kinds, over the ends of segments, queue files and index files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from store_core.codec.message_id import parse_unique_key
from store_core.codec.record import Message
from store_core.engine.message import NewMessage, PutStatus
from store_core.engine.put import put
from store_core.engine.queues import NewEntry, PlainQueueWriter
from store_core.engine.record import Stored
from store_core.layout import paths, queue
from store_core.read.index import Index
from store_core.read.records import read_message
from store_core.storage.config_files import read_config
from store_core.storage.settings import load_settings
from store_core.storage.store import QueueKey
from tests import stores
from tests.conftest import StoreCopy
from tests.engine.writing import Writable, Written

# A topic with room for another message, of each store; its queue 0 is written to.
TOPICS = {
    "load-533": "Calm_orders",
    "load-497": "Soft_orders",
    "load-551-aged": "Long_orders",
    "clean-551": "Pier_orders",
    "clean-540": "Port_orders",
    "clean-533": "Shop_orders",
    "clean-514": "Dock_orders",
    "clean-497": "Mill_orders",
    "clean-430": "Barn_orders",
    "bcq-533": "Bcq_inner",
    "propcrc-533": "",
    "ipv6-533": "",
    "cqext-497": "",
    "cqext-533": "",
    "lmq-533": "",
    "compact-533": "Cmp_plain",
}
NAMES = sorted(TOPICS)
_SMALL_FILES = {"mappedFileSizeCommitLog": "65536", "mappedFileSizeConsumeQueue": "4000"} | {
    "maxHashSlotNum": "500",
    "maxIndexNum": "2000",
}


def topic_of(written: Written) -> str:
    """A topic that users of the store write to."""
    if TOPICS[written.name]:
        return TOPICS[written.name]
    with written.store() as store:
        system = ("RMQ_SYS", "SCHEDULE", "rmq_sys", "%", "TRANS_CHECK")
        return min(key.topic for key in store.queues if not key.topic.startswith(system))


def record_at(written: Written, stored: Stored | None) -> Message:
    assert stored is not None
    with written.store() as store:
        message = read_message(store.log, stored.phy_offset)
    assert message is not None
    return message


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


@pytest.mark.parametrize("name", NAMES)
def test_one_message_is_where_the_answer_says(writable: Writable, name: str) -> None:
    written = writable(name)
    topic = topic_of(written)
    end = written.end_of(topic, 0)
    log_end = max(m["phyOffset"] + m["storeSize"] for m in stores.truth(name)["messages"])
    last_ms = max(m["storeTimestamp"] for m in stores.truth(name)["messages"])
    result = written.put(topic, "größer".encode(), KEYS="k1 k2", TAGS="TagA", own="mine")
    assert (result.status, result.topic, result.queue_id) == (PutStatus.PUT_OK, topic, 0)
    stored = result.stored
    message = record_at(written, stored)
    assert stored is not None
    assert (stored.phy_offset, stored.queue_offset) == (log_end, end)
    assert stored.store_timestamp_ms >= last_ms
    assert message.store_timestamp_ms == stored.store_timestamp_ms
    assert (message.own_phy_offset, message.size_bytes) == (stored.phy_offset, stored.size_bytes)
    assert (message.body, message.topic, message.keys, message.tags) == ("größer".encode(), topic, ["k1", "k2"], "TagA")
    assert message.properties["own"] == "mine"
    assert message.offset_msg_id == stored.offset_msg_id
    assert written.bodies(topic, 0, end) == ["größer".encode()]


@pytest.mark.product(5)
@pytest.mark.parametrize("name", NAMES)
def test_segments_queue_files_and_index_files_are_filled_and_followed(writable: Writable, name: str) -> None:
    written = writable(name)
    topic, batch = topic_of(written), name == "bcq-533"
    trees = [
        paths.COMMITLOG,
        f"{paths.BATCHCONSUMEQUEUE if batch else paths.CONSUMEQUEUE}/{topic}/0",
        paths.INDEX,
        f"{paths.CONSUMEQUEUE_EXT}/{topic}/0",
    ]
    before = [files_in(written.root / tree) for tree in trees]
    end = written.end_of(topic, 0)
    # As many as to fill the rest of the newest file and the whole of the next: 200 or 100 entries a file.
    count = 420
    many = " ".join(f"key{n}" for n in range(8))
    with written.live(flush="async") as live:
        for number in range(count):
            properties = {"KEYS": f"n{number} {many}", "TAGS": f"T{number % 3}"}
            result = put(live, NewMessage(topic, b"%d" % number * (400 + number % 200), 0, properties))
            assert result.stored is not None
            assert result.stored.queue_offset == end + number
    after = [files_in(written.root / tree) for tree in trees]
    for older, newer in zip(before, after, strict=True):
        assert newer[: len(older)] == older
    assert all(len(newer) >= len(older) + 2 for older, newer in zip(before[:3], after[:3], strict=True))
    assert len(after[3]) >= len(before[3]) + 2 or not before[3]
    assert [body[: len(b"%d" % n)] for n, body in enumerate(written.bodies(topic, 0, end))] == [
        b"%d" % n for n in range(count)
    ]


def test_a_record_that_leaves_just_room_for_its_blank_fits(writable: Writable) -> None:
    written = writable("load-533")
    with written.live() as live:
        first = put(live, NewMessage("Calm_audit", b"", 0)).stored
        assert first is not None
        left = live.segment_size_bytes - (first.phy_offset + first.size_bytes) % live.segment_size_bytes
        fitting = put(live, NewMessage("Calm_audit", b"x" * (left - 8 - first.size_bytes), 0)).stored
        assert fitting is not None
        rolled = put(live, NewMessage("Calm_audit", b"", 0)).stored
        assert rolled is not None
    assert fitting.phy_offset == first.phy_offset + first.size_bytes
    assert (fitting.phy_offset + fitting.size_bytes + 8) % live.segment_size_bytes == 0
    assert rolled.phy_offset == fitting.phy_offset + fitting.size_bytes + 8


def test_a_record_one_byte_longer_goes_to_the_next_segment(writable: Writable) -> None:
    written = writable("load-533")
    with written.live() as live:
        first = put(live, NewMessage("Calm_audit", b"", 0)).stored
        assert first is not None
        left = live.segment_size_bytes - (first.phy_offset + first.size_bytes) % live.segment_size_bytes
        rolled = put(live, NewMessage("Calm_audit", b"x" * (left - 7 - first.size_bytes), 0)).stored
    assert rolled is not None
    assert rolled.phy_offset == first.phy_offset + first.size_bytes + left


def test_a_blank_that_ends_the_log_is_written_over(writable: Writable) -> None:
    """As left by a broker that was stopped between the blank and the record that did not fit."""
    written = writable("load-533")
    with written.live() as live:
        first = put(live, NewMessage("Calm_audit", b"", 0)).stored
        assert first is not None
        left = live.segment_size_bytes - (first.phy_offset + first.size_bytes) % live.segment_size_bytes
        end = first.phy_offset + first.size_bytes
    with written.store() as store:
        segment = store.log.segments[-1]
    with segment.path.open("r+b") as file:
        file.seek(end % segment.size_bytes)
        file.write(left.to_bytes(4, "big") + bytes.fromhex("CBD43194"))
    again = written.put("Calm_audit", b"").stored
    assert again is not None
    assert again.phy_offset == end


@pytest.mark.parametrize("name", ["load-533", "load-497", "clean-540"])
def test_a_delayed_message_waits_in_its_levels_queue(writable: Writable, name: str) -> None:
    written = writable(name)
    topic = topic_of(written)
    result = written.put(topic, DELAY="3", TAGS="TagA")
    message = record_at(written, result.stored)
    assert result.stored is not None
    assert (message.topic, message.queue_id) == (paths.SCHEDULE_TOPIC, 2)
    assert (message.properties["REAL_TOPIC"], message.properties["REAL_QID"]) == (topic, "0")
    with written.store() as store:
        data = store.queues[QueueKey(paths.SCHEDULE_TOPIC, 2)].read(
            result.stored.queue_offset * queue.ENTRY.size_bytes, queue.ENTRY.size_bytes
        )
    assert queue.ENTRY.read(data)["tags_code"] == message.store_timestamp_ms + 3000  # the golden brokers' third level
    assert record_at(written, written.put(topic, DELAY="99").stored).properties["DELAY"] == "18"


def test_a_message_with_a_time_goes_to_the_timer(writable: Writable) -> None:
    written = writable("clean-533")
    with written.live(now_ms=lambda: 1_900_000_000_500) as live:
        seconds = put(live, NewMessage("Shop_orders", b"", 1, {"TIMER_DELAY_SEC": "2", "TIMER_DELAY_MS": "9"})).stored
        exact = put(live, NewMessage("Shop_orders", b"", 1, {"TIMER_DELIVER_MS": "1900000003000"})).stored
        past = put(live, NewMessage("Shop_orders", b"", 1, {"TIMER_DELIVER_MS": "1900000000500"})).stored
        level = put(live, NewMessage("Shop_orders", b"", 1, {"TIMER_DELAY_SEC": "2", "DELAY": "1"})).stored
        far = put(live, NewMessage("Shop_orders", b"", 1, {"TIMER_DELAY_SEC": str(3 * 86400 + 1)}))
        bad = put(live, NewMessage("Shop_orders", b"", 1, {"TIMER_DELAY_SEC": "soon"}))
        late = put(live, NewMessage("Shop_orders", b"", 1, {"TIMER_DELIVER_MS": "1", "TIMER_DEL_UNIQKEY": "x"}))
    assert [record_at(written, s).properties.get("TIMER_OUT_MS") for s in (seconds, exact, past, level)] == [
        "1900000002000",
        "1900000002000",
        None,
        None,
    ]
    assert [record_at(written, s).topic for s in (seconds, past, level)] == [
        "rmq_sys_wheel_timer",
        "Shop_orders",
        paths.SCHEDULE_TOPIC,
    ]
    assert record_at(written, seconds).properties["REAL_QID"] == "1"
    assert "TIMER_DELAY_SEC" not in record_at(written, level).properties
    assert {far.status, bad.status, late.status} == {PutStatus.WHEEL_TIMER_MSG_ILLEGAL}


def test_without_a_wheel_a_message_with_a_time_is_refused(writable: Writable) -> None:
    result = writable("load-533").put("Calm_orders", TIMER_DELAY_SEC="2")  # its broker had timerWheelEnable=false
    assert result.status == PutStatus.WHEEL_TIMER_NOT_ENABLE


def test_a_release_before_timers_knows_no_times(writable: Writable) -> None:
    written = writable("load-497")
    assert record_at(written, written.put("Soft_orders", TIMER_DELAY_SEC="2").stored).topic == "Soft_orders"


def test_5_gives_a_unique_key_of_the_java_clients_form(writable: Writable) -> None:
    written = writable("load-533")
    with written.live() as live:
        stored = [put(live, NewMessage("Calm_audit", b"", 0, born_host="10.1.2.3:5")).stored for _ in range(2)]
    keys = [record_at(written, one).unique_key or "" for one in stored]
    told = [parse_unique_key(key, stored[0].store_timestamp_ms if stored[0] else 0) for key in keys]
    assert all(re.fullmatch("[0-9A-F]{32}", key) for key in keys)
    assert [one.address for one in told if one] == ["10.1.2.3", "10.1.2.3"]
    first, second = (one.counter for one in told if one)
    assert second == first + 1
    assert record_at(written, written.put("Calm_audit", UNIQ_KEY="mine").stored).unique_key == "mine"


def test_4_leaves_the_unique_key_to_the_client(writable: Writable) -> None:
    written = writable("load-497")
    assert record_at(written, written.put("Soft_audit").stored).unique_key is None


def test_the_cluster_of_the_configuration_is_added(writable: Writable) -> None:
    written = writable("load-533", brokerClusterName="north")
    assert record_at(written, written.put("Calm_audit").stored).properties["CLUSTER"] == "north"
    assert record_at(written, written.put("Calm_audit", CLUSTER="south").stored).properties["CLUSTER"] == "north"
    with written.live(cluster="west") as live:
        stored = put(live, NewMessage("Calm_audit", b"")).stored
    assert record_at(written, stored).properties["CLUSTER"] == "west"


@pytest.mark.parametrize(
    ("name", "topic", "cluster"),
    [
        ("clean-430", "Barn_orders", None),
        ("load-497", "Soft_orders", "golden"),
        ("clean-514", "Dock_orders", "golden"),
        ("load-533", "Calm_orders", "golden"),
        ("clean-540", "Port_orders", "golden"),
    ],
)
def test_without_configuration_the_newest_records_tell_the_cluster(
    store_copy: StoreCopy, name: str, topic: str, cluster: str | None
) -> None:
    written = Written(name, root := store_copy(name), load_settings(root=root))
    assert record_at(written, written.put(topic).stored).properties.get("CLUSTER") == cluster


@pytest.mark.parametrize(
    ("release", "cluster"), [("4.3.0", None), ("4.5.2", None), ("4.6.0", "DefaultCluster"), ("4.9.0", "DefaultCluster")]
)
def test_a_named_release_adds_what_its_brokers_add(store_copy: StoreCopy, release: str, cluster: str | None) -> None:
    root = store_copy("clean-430")
    written = Written("clean-430", root, load_settings(root=root, broker_version=release))
    properties = record_at(written, written.put("Barn_orders", CLUSTER="mine").stored).properties
    assert properties["CLUSTER"] == (cluster or "mine")


def test_a_store_without_records_has_the_default_cluster(tmp_path: Path) -> None:
    (root := tmp_path / "store").mkdir()
    (root / "commitlog").mkdir()
    written = Written("new", root, load_settings(root=root, broker_version="5.3.3", values=_SMALL_FILES))
    with written.live() as live:
        stored = put(live, NewMessage("orders", b"", 0), create_topic=True).stored
    assert record_at(written, stored).properties["CLUSTER"] == "DefaultCluster"


@pytest.mark.parametrize(
    ("settings", "option", "expected"),
    [
        ({}, None, "127.0.0.1:10911"),
        ({"brokerIP1": "10.0.0.9", "listenPort": "7777"}, None, "10.0.0.9:7777"),
        ({"brokerIP1": "fe80::9"}, None, "[fe80::9]:10911"),
        ({}, "[::1]:5", "[::1]:5"),
    ],
)
def test_the_store_host(writable: Writable, settings: dict[str, str], option: str | None, expected: str) -> None:
    written = writable("load-533", **settings)
    with written.live(store_host=option) as live:
        result = put(live, NewMessage("Calm_audit", b"", 0, born_host="[::7]:8"))
    message = record_at(written, result.stored)
    assert (message.store_host, message.born_host) == (expected, "[::7]:8")


def test_without_a_configured_address_the_newest_records_host_is_taken(writable: Writable) -> None:
    written = writable("load-533", brokerIP1="")
    last = stores.truth("load-533")["messages"][-1]
    assert record_at(written, written.put("Calm_audit").stored).store_host == last["storeHost"].replace("|", ":")


def test_store_times_do_not_go_back(writable: Writable) -> None:
    written = writable("load-533")
    last_ms = max(m["storeTimestamp"] for m in stores.truth("load-533")["messages"])
    with written.live(now_ms=lambda: 5) as live:
        times = [s.store_timestamp_ms for s in (put(live, NewMessage("Calm_audit", b"", 0)).stored for _ in "ab") if s]
    assert times == [last_ms, last_ms]


def test_a_long_retry_topic_makes_a_v2_record(writable: Writable) -> None:
    written = writable("clean-533")
    topic = "%RETRY%" + "g" * 200
    with written.live() as live:
        result = put(live, NewMessage(topic, b"again", 0), create_topic=True)
    assert record_at(written, result.stored).magic == -626843477
    assert written.bodies(topic, 0, 0) == [b"again"]


def test_a_topic_can_be_configured_on_the_way(writable: Writable) -> None:
    written = writable("load-533")
    assert written.put("Calm_new", queue_id=5).status == PutStatus.MESSAGE_ILLEGAL
    before = (written.root / paths.TOPICS_JSON).read_bytes()
    with written.live() as live:
        assert put(live, NewMessage("Calm_new", b"", 5), create_topic=True).status == PutStatus.PUT_OK
    topics = read_config(written.root).topics
    assert (topics.source, topics.value["topics"]["Calm_new"]["write_queues"]) == ("main", 6)
    assert (written.root / f"{paths.TOPICS_JSON}.bak").read_bytes() == before
    assert written.put("Calm_new", queue_id=0).status == PutStatus.PUT_OK


def test_queues_of_the_topics_number_are_drawn(writable: Writable) -> None:
    written = writable("load-533")
    with written.live(flush="async") as live:
        drawn = {put(live, NewMessage("Calm_orders", b"")).queue_id for _ in range(60)}
    assert drawn == {0, 1, 2, 3}


def test_an_empty_store_gets_its_first_message(tmp_path: Path) -> None:
    (tmp_path / "store" / paths.COMMITLOG).mkdir(parents=True)
    values = {"mappedFileSizeCommitLog": "65536", "mappedFileSizeConsumeQueue": "4000", "brokerVersion": ""}
    sizes = {"maxHashSlotNum": "10", "maxIndexNum": "40"}
    written = Written("new", tmp_path / "store", load_settings(root=tmp_path / "store", values={**values, **sizes}))
    with written.live() as live:
        result = put(live, NewMessage("first", b"1", 0, {"KEYS": "k"}), create_topic=True)
    assert result.stored is not None
    assert (result.stored.phy_offset, result.stored.queue_offset) == (0, 0)
    assert (tmp_path / "store" / paths.CHECKPOINT).stat().st_size == 4096
    assert (written.problems(), written.not_as_derived()) == ([], [])


def test_several_log_folders_are_taken_in_turn(writable: Writable) -> None:
    written = writable("load-533")
    other = written.root / "commitlog2"
    other.mkdir()
    values = {**written.settings.values, "storePathCommitLog": f"{written.root / 'commitlog'},{other}"}
    both = Written("load-533", written.root, load_settings(root=written.root, values=values))
    with both.live(flush="async") as live:
        for _ in range(4):
            assert put(live, NewMessage("Calm_audit", b"x" * 100_000, 0)).stored is not None
    assert (files_in(other), both.problems()) == (
        [f"{131072 * n:020d}" for n in (9, 11)],
        [],
    )
    for path in sorted(other.iterdir()):
        path.rename(written.root / "commitlog" / path.name)
    other.rmdir()


def test_a_queue_that_begins_later_starts_with_fillers(writable: Writable) -> None:
    """Worked example of the format reference: (0, 2147483647, 0) in front of the first entry of the file."""
    written = writable("load-533")
    with written.live() as live:
        writer = PlainQueueWriter(live.store, live.files, QueueKey("begins_later", 0), None)
        writer.append([NewEntry(203, 77, 100, -5, 1)])
    folder = written.root / paths.CONSUMEQUEUE / "begins_later" / "0"
    assert files_in(folder) == [f"{4000:020d}"]
    data = (folder / f"{4000:020d}").read_bytes()
    filler = bytes.fromhex("00000000000000007FFFFFFF0000000000000000")
    assert data[:60] == 3 * filler
    assert queue.ENTRY.struct.unpack(data[60:80]) == (77, 100, -5)
    assert data[80:] == bytes(4000 - 80)
    (folder / f"{4000:020d}").unlink()
    folder.rmdir()
    folder.parent.rmdir()


def test_the_index_is_asked_for_what_was_put(writable: Writable) -> None:
    from store_core.codec.tags import index_key_hash, index_text_hash

    written = writable("clean-540")
    stored = written.put("Port_orders", KEYS="fresh1 fresh2", TAGS="FreshTag", UNIQ_KEY="U-1").stored
    assert stored is not None
    with written.store() as store, Index(store) as found:
        hashes = [index_key_hash("Port_orders", key) for key in ("fresh1", "fresh2", "U-1")]
        hashes.append(index_text_hash("Port_orders#T#FreshTag"))  # 5.4.0 indexes tags
        assert [found.query(one, 64)[0] for one in hashes] == [stored.phy_offset] * 4


def test_without_an_index_none_is_begun(writable: Writable) -> None:
    written = writable("load-533", messageIndexEnable="false")
    before = stores.contents(written.root / paths.INDEX)
    written.put("Calm_audit", KEYS="k")
    assert stores.contents(written.root / paths.INDEX) == before
    # Whoever disabled it knows that the index lacks this record; put it right for the closing check.
    from store_core.recovery.apply.apply import apply
    from store_core.recovery.rebuild import rebuild

    with written.store() as store:
        plan = rebuild(store, "index").plan
    apply(plan, written.root)
