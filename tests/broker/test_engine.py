"""What put wrote, given to real store code: it opens it as its own, finds nothing to do, serves it and counts on."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from store_core.engine.message import NewMessage, PutStatus
from store_core.engine.progress import commit_offset
from store_core.engine.put import put
from store_core.engine.record import Stored
from store_core.engine.transactions import commit
from store_core.errors import StoreInUseError
from store_core.read.progress import read_progress
from tests import stores
from tests.broker import oracle
from tests.broker.conftest import OpenStore
from tests.broker.running import RunningBroker
from tests.conftest import StoreCopy
from tests.engine.writing import Written

ORDERS = {
    "load-533": "Calm_orders",
    "load-497": "Soft_orders",
    "clean-540": "Port_orders",
    "load-551-aged": "Long_orders",
    "clean-430": "Barn_orders",
    "clean-514": "Dock_orders",
    "bcq-533": "Bcq_inner",
    "propcrc-533": "Crc_orders",
    "ipv6-533": "Six_orders",
    "cqext-533": "Ext_orders",
    "cqext-497": "Ext_orders",
}
OPENED = [
    ("load-533", "5.3.3"),
    ("load-533", "5.4.0"),
    ("load-497", "4.9.7"),
    ("clean-540", "5.4.0"),
    ("load-551-aged", "5.5.1"),
    ("clean-430", "4.3.0"),
    ("clean-514", "5.1.4"),
    ("bcq-533", "5.3.3"),
    ("propcrc-533", "5.3.3"),
    ("ipv6-533", "5.3.3"),
    ("cqext-497", "4.9.7"),
    ("cqext-533", "5.3.3"),
]
COUNT = 230  # over the end of a segment, a queue file and an index file
LOOSE = ("rocksdbstore/", "compaction/")  # rewritten at every start, whatever the store


def body_of(number: int) -> bytes:
    return f"{number} größer".encode() * (100 + number)


def write_many(written: Written, topic: str) -> list[Stored]:
    """Messages into queue 0, every tenth of them delayed by a long level in between."""
    stored = []
    with written.live(flush="async") as live:
        for number in range(COUNT):
            properties = {"KEYS": f"ours{number} shared", "TAGS": f"T{number % 3}", "own": "größer"}
            if number % 10 == 9:
                assert put(live, NewMessage(topic, b"late", 0, {**properties, "DELAY": "18"})).stored is not None
            result = put(live, NewMessage(topic, body_of(number), 0, properties, flag=7))
            assert result.stored is not None
            stored.append(result.stored)
    return stored


@pytest.mark.parametrize(("name", "version"), OPENED)
def test_a_real_store_takes_it_for_its_own(
    open_store: OpenStore, store_copy: StoreCopy, name: str, version: str
) -> None:
    written, topic = Written.of(name, store_copy(name)), ORDERS[name]
    stored = write_many(written, topic)
    first, last = stored[0], stored[-1]
    requests = [
        oracle.pull(topic, 0, first.queue_offset),
        oracle.pull(topic, 0, last.queue_offset),
        oracle.keys(topic, "ours17"),
        oracle.look(stored[50].phy_offset),
        oracle.put(topic, 0, "theirs", {"KEYS": "theirs"}),
    ]
    told = open_store(version, written.root, stores.properties_text(name), requests=requests, messages=True)
    changed = told["diffAfterLoad"]
    assert told["load"] == {"ok": True}
    assert [p for p in (*changed["created"], *changed["changed"], *changed["deleted"]) if not p.startswith(LOOSE)] == []
    assert told["afterLoad"]["maxPhyOffset"] == last.phy_offset + last.size_bytes
    ours = {m["phyOffset"]: m for m in told["messages"]}
    for number, one in enumerate(stored):
        seen = ours[one.phy_offset]
        expected: dict[str, Any] = {
            "topic": topic,
            "queueId": 0,
            "queueOffset": one.queue_offset,
            "storeSize": one.size_bytes,
            "storeTimestamp": one.store_timestamp_ms,
            "msgId": one.offset_msg_id,
            "flag": 7,
            "bodySha256": hashlib.sha256(body_of(number)).hexdigest(),
        }
        assert {key: seen[key] for key in expected} == expected
        assert seen["properties"].items() >= {"KEYS": f"ours{number} shared", "own": "größer"}.items()
    begun, ended, by_key, looked, theirs = told["answers"]
    assert begun["status"] == ended["status"] == "FOUND"
    assert begun["messages"][0]["phyOffset"] == first.phy_offset
    assert [m["phyOffset"] for m in ended["messages"]] == [last.phy_offset]
    assert [m["phyOffset"] for m in by_key["messages"]] == [stored[17].phy_offset]
    assert looked["queueOffset"] == stored[50].queue_offset
    assert (theirs["status"], theirs["phyOffset"]) == ("PUT_OK", last.phy_offset + last.size_bytes)
    assert theirs["queueOffset"] == last.queue_offset + 1
    # What the real store wrote behind ours fits it: everything against everything finds nothing.
    assert told["afterStart"]["abortAfterShutdown"] is False
    assert Written.of(name, Path(told["root"])).problems() == []


@pytest.mark.parametrize(("name", "version"), [("load-533", "5.3.3"), ("load-497", "4.9.7"), ("clean-540", "5.4.0")])
def test_size_limits_are_those_of_the_real_store(
    open_store: OpenStore, store_copy: StoreCopy, name: str, version: str
) -> None:
    topic, root = ORDERS[name], store_copy(name)
    limit = {"maxMessageSize": "5000"}
    cases = [
        ("x" * 5000, {"k": "v"}),
        ("x" * 5001, {"k": "v"}),
        ("x", {"a": "x" * 32000}),
        ("x", {"a": "x" * 33000}),
        ("x", {"a": "ß" * 16000}),
        ("x", {"a": "ß" * 17000}),
    ]
    requests = [oracle.put(topic, 0, body, properties) for body, properties in cases]
    text = stores.properties_text(name) + "maxMessageSize=5000\n"
    told = open_store(version, root, text, requests=requests, stop=False)
    written = Written.of(name, root, **limit)
    with written.live(flush="async") as live:
        ours = [str(put(live, NewMessage(topic, body.encode(), 0, p)).status) for body, p in cases]
    assert ours == [answer["status"] for answer in told["answers"]]
    assert set(ours) > {"PUT_OK", "MESSAGE_ILLEGAL"}


@pytest.mark.parametrize(("name", "version"), [("load-533", "5.3.3"), ("load-497", "4.9.7")])
def test_a_broker_delivers_it_to_a_real_consumer(
    running_broker: Callable[..., RunningBroker], store_copy: StoreCopy, name: str, version: str
) -> None:
    """A plain, a delayed and a committed message, and the progress of a group."""
    written, topic = Written.of(name, store_copy(name)), ORDERS[name]
    ends = [written.end_of(topic, queue_id) for queue_id in range(4)]
    with written.live() as live:
        put(live, NewMessage(topic, b"plain", 0))
        put(live, NewMessage(topic, b"delayed", 1, {"DELAY": "1"}))
        half = put(live, NewMessage(topic, b"committed", 2, {"PGROUP": "p"}), half=True).stored
        rolled_back = put(live, NewMessage(topic, b"never", 3, {"PGROUP": "p"}), half=True).stored
        assert half is not None
        assert rolled_back is not None
        assert commit(live, half.phy_offset).status == PutStatus.PUT_OK
        commit_offset(live, "late_readers", topic, 0, ends[0])
    broker = running_broker(version, written.root, stores.properties_text(name))
    with pytest.raises(StoreInUseError):
        written.put(topic, b"beside a broker")
    deadline = time.monotonic() + 30
    while (pulled := broker.pull(topic))[f"{topic}-1"]["max"] <= ends[1] and time.monotonic() < deadline:
        time.sleep(0.5)
    for queue_id, body in enumerate((b"plain", b"delayed", b"committed")):
        queue = pulled[f"{topic}-{queue_id}"]
        assert queue["max"] == ends[queue_id] + 1
        message = queue["messages"][-1]
        assert message["queueOffset"] == ends[queue_id]
        assert message["bodySha256"] == hashlib.sha256(body).hexdigest()
    assert pulled[f"{topic}-3"]["max"] == ends[3]
    broker.stop()
    assert read_progress(written.root).offset_of("late_readers", topic, 0) == ends[0]
    assert written.problems() == []


def test_a_brokers_timer_takes_a_timed_message(
    running_broker: Callable[..., RunningBroker], store_copy: StoreCopy
) -> None:
    written, topic = Written.of("clean-533", store_copy("clean-533")), "Shop_orders"
    end = written.end_of(topic, 1)
    with written.live() as live:
        assert put(live, NewMessage(topic, b"timed", 1, {"TIMER_DELAY_SEC": "3"})).stored is not None
    broker = running_broker("5.3.3", written.root, stores.properties_text("clean-533"))
    deadline = time.monotonic() + 40
    while (pulled := broker.pull(topic))[f"{topic}-1"]["max"] <= end and time.monotonic() < deadline:
        time.sleep(0.5)
    assert pulled[f"{topic}-1"]["messages"][-1]["bodySha256"] == hashlib.sha256(b"timed").hexdigest()
