"""Every status of the put tables (store behaviour 4.1), by release; and what is refused before a broker would be asked."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from store_core.engine.checks import CHECKS
from store_core.engine.live_store import WriteOptions, open_for_writing
from store_core.engine.message import NewMessage, PutStatus
from store_core.engine.put import put
from store_core.engine.record import Stored
from store_core.errors import FailedError, StoreError, UsageError
from store_core.layout import paths
from tests import stores
from tests.engine.writing import Writable

OK, ILLEGAL = PutStatus.PUT_OK, PutStatus.MESSAGE_ILLEGAL
UNAVAILABLE, TOO_LONG = PutStatus.SERVICE_NOT_AVAILABLE, PutStatus.PROPERTIES_SIZE_EXCEEDED
LONG_RETRY = "%RETRY%" + "g" * 200
GREEK = "%RETRY%" + "g" * 119 + "%"  # 127 characters

# Row: what is put, settings, the status by 4.9 and by 5.3.
ROWS: list[tuple[str, dict[str, Any], dict[str, str], PutStatus, PutStatus]] = [
    ("plain", {}, {}, OK, OK),
    ("no body", {"body": None}, {}, OK, ILLEGAL),
    ("empty body", {"body": b""}, {}, OK, OK),
    ("slave", {}, {"brokerRole": "SLAVE"}, UNAVAILABLE, UNAVAILABLE),
    ("duplicating slave", {}, {"brokerRole": "SLAVE", "duplicationEnable": "true"}, UNAVAILABLE, OK),
    ("unknown topic", {"topic": "nobody"}, {}, ILLEGAL, ILLEGAL),
    ("space in topic", {"topic": "no body", "create": True}, {}, ILLEGAL, ILLEGAL),
    ("empty topic", {"topic": "", "create": True}, {}, ILLEGAL, ILLEGAL),
    ("topic of 127", {"topic": "t" * 127, "create": True}, {}, OK, OK),
    ("topic of 128", {"topic": "t" * 128, "create": True}, {}, ILLEGAL, ILLEGAL),
    ("retry topic of 127", {"topic": GREEK, "create": True}, {}, OK, OK),
    ("retry topic of 207", {"topic": LONG_RETRY, "create": True}, {}, ILLEGAL, OK),
    ("retry topic of 256", {"topic": "%RETRY%" + "g" * 249, "create": True}, {}, ILLEGAL, ILLEGAL),
    ("delay topic", {"topic": paths.SCHEDULE_TOPIC}, {}, ILLEGAL, ILLEGAL),
    ("half topic", {"topic": paths.HALF_TOPIC}, {}, ILLEGAL, ILLEGAL),
    ("op topic", {"topic": paths.OP_TOPIC}, {}, ILLEGAL, ILLEGAL),
    ("self test topic", {"topic": "SELF_TEST_TOPIC"}, {}, ILLEGAL, ILLEGAL),
    ("last queue", {"queue_id": 3}, {}, OK, OK),
    ("queue behind the last", {"queue_id": 4}, {}, ILLEGAL, ILLEGAL),
    ("negative queue", {"queue_id": -1}, {}, ILLEGAL, ILLEGAL),
    ("properties of 32000", {"properties": {"a": "x" * 32000}}, {}, OK, OK),
    ("properties of 33000", {"properties": {"a": "x" * 33000}}, {}, ILLEGAL, TOO_LONG),
    ("16000 long characters", {"properties": {"a": "ß" * 17000}}, {}, TOO_LONG, TOO_LONG),
    ("longest body", {"body": b"x" * 5000}, {"maxMessageSize": "5000"}, OK, OK),
    ("body too long", {"body": b"x" * 5001}, {"maxMessageSize": "5000"}, ILLEGAL, ILLEGAL),
    ("record larger than a segment", {"body": b"x" * 131072}, {}, ILLEGAL, ILLEGAL),
    ("inner batch number", {"properties": {"INNER_NUM": "2"}}, {}, OK, ILLEGAL),
    ("delay level that is none", {"properties": {"DELAY": "x"}}, {}, ILLEGAL, ILLEGAL),
    ("delay level 0", {"properties": {"DELAY": "0"}}, {}, OK, OK),
]


@pytest.mark.parametrize("name", ["load-497", "load-533"])
@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_the_status(writable: Writable, name: str, row: tuple[str, dict[str, Any], dict[str, str], Any, Any]) -> None:
    _, what, settings, *expected = row
    topic = {"load-497": "Soft_orders", "load-533": "Calm_orders"}[name]
    message: dict[str, Any] = {"topic": topic, "body": b"body", "queue_id": 0} | {
        k: v for k, v in what.items() if k != "create"
    }
    written = writable(name, **settings)
    before = stores.contents(written.root)
    with written.live() as live:
        result = put(live, NewMessage(**message), create_topic=what.get("create", False))
    assert result.status == expected[name == "load-533"], result.reason
    if result.status == OK:
        assert result.stored is not None
    else:
        assert (result.stored, bool(result.reason)) == (None, True)
        assert stores.contents(written.root) == before


def test_a_full_disk(writable: Writable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store_core.storage.syscalls.FileOps.free_bytes", lambda self, path: 100_000)
    refused = writable("load-533").put("Calm_orders")
    assert refused.status == UNAVAILABLE
    assert "make room" in refused.reason


def test_every_check_fails_somewhere_above(writable: Writable, monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = set()
    for name, topic in (("load-497", "Soft_orders"), ("load-533", "Calm_orders")):
        for _, what, settings, *_ in ROWS:
            message: dict[str, Any] = {"topic": topic, "body": b"", "queue_id": 0} | {
                k: v for k, v in what.items() if k != "create"
            }
            with writable(name, **settings).live() as live:
                monkeypatch.setattr(live, "append", lambda new, size: Stored(new.topic, 0, 0, 0, size, 0, bytes(8)))
                monkeypatch.setattr(live, "replace_config", lambda file, text: None)
                try:
                    reasons.add(put(live, NewMessage(**message), create_topic=what.get("create", False)).reason)
                except AttributeError:
                    continue  # it would have been stored
    [left] = {check.reason for check in CHECKS} - reasons
    assert left.startswith("the disk is full")


@pytest.mark.parametrize(
    ("properties", "error"),
    [
        ({"": "x"}, UsageError),
        ({"a": ""}, UsageError),
        ({"a\x01b": "x"}, UsageError),
        ({"a": "x\x02y"}, UsageError),
        ({"INNER_MULTI_DISPATCH": "%LMQ%a"}, UsageError),
    ],
)
def test_what_cannot_be_put(writable: Writable, properties: dict[str, str], error: type[StoreError]) -> None:
    with writable("load-533").live() as live, pytest.raises(error):
        put(live, NewMessage("Calm_orders", b"", 0, properties))


def test_a_compaction_topic_is_left_to_brokers(writable: Writable) -> None:
    with pytest.raises(FailedError, match="compaction topic"):
        writable("compact-533").put("Cmp_state", KEYS="k")


def test_a_release_before_ipv6_gets_no_ipv6_host(writable: Writable) -> None:
    written = writable("clean-430")
    settings = replace(written.settings, broker_version="4.3.0")
    with (
        pytest.raises(UsageError, match="IPv6"),
        open_for_writing(settings, WriteOptions(store_host="[::1]:1")) as live,
    ):
        put(live, NewMessage("Barn_orders", b"", 0))


@pytest.mark.parametrize("host", ["1.2.3.4:65536", "[::1]:99999"])
def test_a_port_that_no_client_could_decode_is_not_stored(writable: Writable, host: str) -> None:
    written = writable("load-533")
    for options, message in (
        (WriteOptions(store_host=host), NewMessage("Calm_orders", b"", 0)),
        (WriteOptions(), NewMessage("Calm_orders", b"", 0, born_host=host)),
    ):
        with open_for_writing(written.settings, options) as live, pytest.raises(UsageError, match="port"):
            put(live, message)


def test_abort_holds_what_the_release_writes(writable: Writable) -> None:
    for name, topic, expected in (
        ("load-533", "Calm_orders", str(os.getpid()).encode()),
        ("load-497", "Soft_orders", b""),
    ):
        written = writable(name)
        with written.live() as live:
            assert not (written.root / "abort").exists()
            put(live, NewMessage(topic, b"", 0))
            assert (written.root / "abort").read_bytes() == expected
