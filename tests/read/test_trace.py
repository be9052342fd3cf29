"""A message's way against the records that real brokers made of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from store_core.layout import paths
from store_core.layout.timer import TIMER_TOPIC
from store_core.read.query import Source
from store_core.read.trace import Way, trace
from store_core.storage.store import Store
from tests import stores
from tests.conftest import GoldenStore
from tests.damage import Damageable

NAME = "clean-533"


def by_unique_key(name: str) -> dict[str, list[dict[str, Any]]]:
    """The records of each message in log order; those of a client's batch share a key, and are left out."""
    found: dict[str, list[dict[str, Any]]] = {}
    for message in stores.truth(name)["messages"]:
        if key := message["properties"].get("UNIQ_KEY"):
            found.setdefault(key, []).append(message)
    return {key: messages for key, messages in found.items() if "_batch" not in messages[0]["topic"]}


def way_of(store: Store, key: str, source: Source = "auto") -> Way:
    (way,) = trace(store, key, source=source).ways
    return way


def some(found: dict[str, Any], topic: str, records: int) -> str:
    """A key whose first record is in a topic, with so many records."""
    return next(key for key, ms in found.items() if topic in ms[0]["topic"] and len(ms) == records)


@pytest.mark.parametrize("name", stores.CLEAN)
def test_all_records_of_a_message_are_there_in_log_order(golden: GoldenStore, name: str) -> None:
    messages = by_unique_key(name)
    moved = [key for key, records in messages.items() if len(records) > 1 or "XXXX" in records[0]["topic"]]
    assert len(moved) > 40
    with Store.open(golden(name)) as store:
        for key in moved:
            steps = way_of(store, key).steps
            found = [step.message.phy_offset for step in steps if step.message.unique_key == key]
            assert found == [m["phyOffset"] for m in messages[key]], key
            assert [step.message.phy_offset for step in steps] == sorted(step.message.phy_offset for step in steps)


@pytest.mark.parametrize("name", stores.CLEAN)
def test_transactions_end_as_their_producer_said(golden: GoldenStore, name: str) -> None:
    asked = {m["queueOffset"]: m for m in stores.truth(name)["messages"] if m["topic"] == paths.HALF_TOPIC}
    ended = {
        "tx-commit": ["half", "commit", "op"],
        "tx-rollback": ["half", "op"],
        "commit": ["half", "half_copy", "commit", "op"],
        "rollback": ["half", "half_copy", "op"],
        "never": ["half", "half_copy", "half_copy", "half_copy", "given_up"],
    }
    if name == "clean-430":  # it leaves what it gives up where it is
        ended["never"].pop()
    states = {"commit": "committed", "rollback": "rolled_back", "never": "given_up"}
    seen = set()
    with Store.open(golden(name)) as store:
        for kind, _, _, queue_offset, _ in stores.truth(name)["acknowledged"]:
            if not kind.startswith("tx-"):
                continue
            properties = asked[queue_offset]["properties"]
            answer = properties["check"] if kind == "tx-unknown" else kind
            seen.add(answer)
            way = way_of(store, properties["UNIQ_KEY"])
            assert [step.what for step in way.steps] == ended[answer]
            last_half = [step for step in way.steps if step.what in ("half", "half_copy")][-1]
            assert last_half.state == states[answer.removeprefix("tx-")]
            assert next(s.state for s in way.steps if s.what == "half") == (
                "asked_again" if "half_copy" in ended[answer] else last_half.state
            )
    assert seen == ended.keys()


@pytest.mark.parametrize("name", [NAME, "clean-430"])
def test_retries_until_the_dead_letter(golden: GoldenStore, name: str) -> None:
    messages = by_unique_key(name)
    key = next(k for k, ms in messages.items() if ms[-1]["topic"].startswith("%DLQ%") and "_again" in ms[0]["topic"])
    with Store.open(golden(name)) as store:
        way = way_of(store, key)
    topics = {"SCHEDULE_TOPIC_XXXX": "delayed", "%RETRY%": "retry", "%DLQ%": "dead_letter"}
    told = [next((w for t, w in topics.items() if m["topic"].startswith(t)), "stored") for m in messages[key]]
    assert [step.what for step in way.steps] == told
    assert {step.state for step in way.steps if step.what == "delayed"} == {"delivered"}
    for step, message in zip(way.steps, messages[key], strict=True):
        if step.what == "delayed":
            assert step.due_timestamp_ms == message["tagsCode"]
    assert way.outcome[-1].startswith("dead letter in %DLQ%")
    assert not any(line.startswith(f"in {messages[key][-1]['properties']['REAL_TOPIC']}/") for line in way.outcome)


@pytest.mark.parametrize("name", stores.CLEAN)
def test_groups_have_consumed_what_is_before_their_progress(golden: GoldenStore, name: str) -> None:
    told = stores.truth(name)["consumerOffsets"]
    consumed = set()
    with Store.open(golden(name)) as store:
        for records in [*by_unique_key(name).values()][::25]:
            for step in way_of(store, records[0]["properties"]["UNIQ_KEY"]).steps:
                place = step.message.topic, str(step.message.queue_id)
                if step.what in ("stored", "delivered", "commit", "retry"):
                    offsets = {
                        key.split("@")[1]: queues[place[1]]
                        for key, queues in told.items()
                        if key.split("@")[0] == place[0] and place[1] in queues
                    }
                    assert {g.group: g.next_offset for g in step.groups} == offsets
                    assert all(g.consumed == (step.message.queue_offset < g.next_offset) for g in step.groups)
                    consumed |= {g.consumed for g in step.groups}
    assert True in consumed


def test_a_group_that_is_behind(golden: GoldenStore) -> None:
    """The consumer of load-533 was stopped before it had everything."""
    root = golden("load-533")
    offsets = stores.truth("load-533")["consumerOffsets"]
    ends = {(q["topic"], q["queueId"]): q["max"] for q in stores.truth("load-533")["afterLoad"]["queues"]}
    topic, group, queue_id, offset = next(
        (*key.split("@"), int(queue_id), offset)
        for key, queues in offsets.items()
        for queue_id, offset in queues.items()
        if 0 < offset < ends[key.split("@")[0], int(queue_id)]
    )
    for wanted, consumed in ((offset - 1, True), (offset, False)):
        message = next(
            m
            for m in stores.truth("load-533")["messages"]
            if (m["topic"], m["queueId"], m["queueOffset"]) == (topic, queue_id, wanted)
        )
        with Store.open(root) as store:
            step = next(
                step
                for step in way_of(store, message["properties"]["UNIQ_KEY"]).steps
                if step.message.phy_offset == message["phyOffset"]
            )
        assert {g.group: g.consumed for g in step.groups}[group] is consumed


def test_what_waits_says_until_when(golden: GoldenStore) -> None:
    messages = by_unique_key(NAME)
    waiting = [ms[0] for ms in messages.values() if len(ms) == 1 and ms[0]["topic"] == paths.SCHEDULE_TOPIC]
    timed = [
        ms[0]
        for ms in messages.values()
        if len(ms) == 1 and ms[0]["topic"] == TIMER_TOPIC and "REVIVE" not in ms[0]["properties"]["REAL_TOPIC"]
    ]
    assert (len(waiting), len(timed)) == (6, 4)
    with Store.open(golden(NAME)) as store:
        for message in (*waiting, *timed):
            properties = message["properties"]
            way = way_of(store, properties["UNIQ_KEY"])
            (step,) = way.steps
            due = message["tagsCode"] if message in waiting else int(properties["TIMER_OUT_MS"])
            assert (step.state, step.due_timestamp_ms) == ("waiting", due)
            assert way.outcome == (f"waits for {properties['REAL_TOPIC']}/{properties['REAL_QID']}",)


@pytest.mark.parametrize("name", ["clean-533", "clean-540"])
def test_pops(golden: GoldenStore, name: str) -> None:
    """Check points and acknowledgements have keys of their own, which say group, queue, offset and time of the pop."""
    messages = by_unique_key(name)
    popped = [ms[0] for ms in messages.values() if ms[0]["topic"].endswith("_pop")]
    assert len(popped) == 24
    with Store.open(golden(name)) as store:
        for message in popped:
            place = f"{message['topic']}@{message['queueId']}@{message['queueOffset']}@"
            acknowledged = {
                m["phyOffset"] for k, ms in messages.items() for m in ms if k.startswith(place) and "@ack" in k
            }
            steps = way_of(store, message["properties"]["UNIQ_KEY"]).steps
            own = [s for s in steps if s.message.properties["UNIQ_KEY"].startswith(place)]
            assert {s.message.phy_offset for s in own if s.what == "pop_ack"} == acknowledged
            assert acknowledged
            first = next(s for s in steps if s.what == "pop")
            assert (first.state, first.message.topic) == ("ended", TIMER_TOPIC)
            whats = [s.what for s in steps]
            came_again = whats.count("pop_retry")
            assert whats.count("revive") == came_again
            pops = [s.state for s in steps[: whats.index("pop_retry")] if s.what == "pop"] if came_again else ["ended"]
            assert pops == ["ended", *["came_again"] * came_again]


def test_a_check_point_has_a_way_of_its_own(golden: GoldenStore) -> None:
    point = next(k for k, ms in by_unique_key(NAME).items() if k.endswith("@ck") and len(ms) == 2)
    with Store.open(golden(NAME)) as store:
        assert [step.what for step in way_of(store, point).steps] == ["pop", "revive"]


@pytest.mark.parametrize("source", ["index", "scan"])
def test_index_and_log_tell_the_same(golden: GoldenStore, source: Source) -> None:
    messages = by_unique_key(NAME)
    keys = [some(messages, "HALF", 5), some(messages, "_again", 8), some(messages, "XXXX", 2)]
    with Store.open(golden(NAME)) as store:
        for key in keys:
            assert way_of(store, key, source) == way_of(store, key)


def test_without_an_index_the_log_is_read(damageable: Callable[..., Damageable]) -> None:
    store = damageable(NAME)
    key = some(by_unique_key(NAME), "_again", 8)
    for path in (store.root / paths.INDEX).iterdir():
        path.unlink()
    with Store.open(store.root) as opened:
        found = trace(opened, key)
    assert (found.source, len(found.ways[0].steps)) == ("scan", 8)


def test_queues_in_rocksdb(golden: GoldenStore) -> None:
    """Neither topics nor progress are known there: the log is read, and what waits may only be told by its records."""
    messages = by_unique_key("rocks-533")
    key = next(k for k, ms in messages.items() if len(ms) > 1)
    with Store.open(golden("rocks-533")) as store:
        found = trace(store, key)
    assert found.source == "scan"
    assert [s.message.phy_offset for s in found.ways[0].steps if s.what != "op"] == [
        m["phyOffset"] for m in messages[key]
    ]


def test_any_records_offset_id_leads_to_the_whole_way(golden: GoldenStore) -> None:
    messages = by_unique_key(NAME)
    key = some(messages, "_again", 8)
    with Store.open(golden(NAME)) as store:
        for record in messages[key]:
            assert way_of(store, record["msgId"]) == way_of(store, key)


def test_the_newest_messages_with_a_user_key(golden: GoldenStore) -> None:
    carriers = [
        key for key, ms in by_unique_key(NAME).items() if "shared10" in ms[0]["properties"].get("KEYS", "").split()
    ]
    with Store.open(golden(NAME)) as store:
        found = trace(store, "shared10", most=1000)
        newest = trace(store, "shared10", most=3)
    assert set(carriers) <= {way.unique_key for way in found.ways}
    assert (found.left_out, newest.left_out) == (0, len(found.ways) - 3)
    assert newest.ways == found.ways[-3:]


def test_an_unknown_key(golden: GoldenStore) -> None:
    with Store.open(golden(NAME)) as store:
        assert trace(store, "no such key").ways == ()
        assert trace(store, "F" * 32).ways == ()
