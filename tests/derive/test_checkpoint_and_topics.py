"""The checkpoint and topics.json as they must be for a log."""

from __future__ import annotations

import pytest

from store_core.derive.checkpoint import rebuilt_checkpoint
from store_core.derive.topics import completed_topics, missing_topics, needs_configuration, topic_entry
from store_core.layout import paths
from store_core.storage.config_files import read_config
from store_core.storage.store import QueueKey
from tests import stores
from tests.conftest import GoldenStore

# A broker of 5.5 that lives less than a minute leaves no queue time.
STOPPED = (*(name for name in stores.CLEAN if "-55" not in name), *stores.BASES, "load-551-aged")


@pytest.mark.parametrize("name", STOPPED)
def test_the_rebuilt_checkpoint_is_the_one_a_clean_stop_left(golden: GoldenStore, name: str) -> None:
    truth = stores.truth(name)
    last = truth["messages"][-1]
    full = [f for f in truth["afterLoad"]["indexFiles"] if f["indexCount"] >= 2000]
    existing = (golden(name) / "checkpoint").read_bytes()
    rebuilt = rebuilt_checkpoint(
        existing,
        last_store_timestamp_ms=last["storeTimestamp"],
        last_phy_offset=last["phyOffset"],
        index_end_timestamp_ms=full[-1]["endTimestamp"] if full else 0,
    )
    assert rebuilt == existing
    assert (int.from_bytes(rebuilt[40:48]) == last["phyOffset"]) is name.endswith("aged")


@pytest.mark.parametrize(
    ("standing", "in_55", "offset"), [(0, False, 0), (0, True, 300), (7, False, 300), (900, True, 300)]
)
def test_the_queue_offset_goes_with_the_queue_time(standing: int, in_55: bool, offset: int) -> None:
    existing = bytes(40) + standing.to_bytes(8) + bytes(4048)
    rebuilt = rebuilt_checkpoint(existing, last_store_timestamp_ms=5, last_phy_offset=300, with_queue_offset=in_55)
    assert (rebuilt[8:16], rebuilt[40:48]) == ((5).to_bytes(8), offset.to_bytes(8))


def test_without_a_checkpoint_later_fields_are_zero() -> None:
    rebuilt = rebuilt_checkpoint(b"", last_store_timestamp_ms=5, last_phy_offset=3)
    assert rebuilt == b"\0\0\0\0\0\0\0\5" * 2 + bytes(4096 - 16)


def test_a_confirmed_offset_behind_the_last_record_is_lowered() -> None:
    existing = bytes(24) + (7).to_bytes(8) + (900).to_bytes(8) + bytes(4056)
    rebuilt = rebuilt_checkpoint(existing, last_store_timestamp_ms=5, last_phy_offset=300)
    assert rebuilt[24:40] == (7).to_bytes(8) + (300).to_bytes(8)


@pytest.mark.parametrize("name", stores.WITH_QUEUE_FILES)
def test_real_stores_lack_no_topic(golden: GoldenStore, name: str) -> None:
    keys = {QueueKey(m["topic"], m["queueId"]) for m in stores.truth(name)["messages"]}
    assert missing_topics(keys, read_config(golden(name)).topic_names) == {}


@pytest.mark.parametrize("name", ["clean-533", "clean-497", "bcq-533"])
def test_completed_entries_are_what_the_broker_had(golden: GoldenStore, name: str) -> None:
    """All topics of the log are forgotten and come back as they were, but for queues that never held a message."""
    tree = read_config(golden(name)).topics.tree
    keys = {QueueKey(m["topic"], m["queueId"]) for m in stores.truth(name)["messages"]}
    missing = missing_topics(keys, ())
    batch = {t for t, e in tree["topicConfigTable"].items() if e.get("attributes", {}).get("queue.type")}
    forgotten = {**tree, "topicConfigTable": {t: e for t, e in tree["topicConfigTable"].items() if t not in missing}}
    completed = completed_topics(
        forgotten, missing, with_attributes=name != "clean-497", batch_topics={"Bcq_inner"} & batch
    )
    assert completed["dataVersion"]["counter"] == tree["dataVersion"]["counter"] + 1
    assert completed["topicConfigTable"].keys() == tree["topicConfigTable"].keys()
    for topic in missing:
        before, after = tree["topicConfigTable"][topic], completed["topicConfigTable"][topic]
        own = {"readQueueNums", "writeQueueNums", "order", "attributes"}
        assert {k: v for k, v in after.items() if k not in own} == {k: v for k, v in before.items() if k not in own}
        assert after.keys() == before.keys()
        assert after["readQueueNums"] == after["writeQueueNums"] <= before["readQueueNums"]
    if name == "bcq-533":
        assert completed["topicConfigTable"]["Bcq_inner"]["attributes"]["queue.type"] == "BatchCQ"


def test_brokers_own_topics_need_no_configuration() -> None:
    topics = [paths.SCHEDULE_TOPIC, "RMQ_SYS_TRANS_OP_HALF_TOPIC", "%LMQ%x", "rmq_sys_wheel_timer", "RMQCTL_FILLER"]
    assert [topic for topic in topics if needs_configuration(topic)] == []
    assert needs_configuration("%RETRY%g")
    assert missing_topics([QueueKey("a", 0), QueueKey("a", 5), QueueKey("b", 1)], ["b"]) == {"a": 6}
    assert missing_topics([QueueKey("a", 2**31 - 1)], ()) == {"a": 2**31 - 1}
    assert topic_entry("a", 6, with_attributes=False)["perm"] == 6
