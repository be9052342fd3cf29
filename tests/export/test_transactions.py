"""The tables of transactions and of delayed messages against what producers did and real brokers made of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow.dataset as ds
import pytest

from store_core.layout import paths
from store_core.layout.timer import TIMER_TOPIC
from store_core.read.transactions import TransactionTracker
from store_core.scan.log import scan_log
from store_core.storage.store import Store
from tests import stores
from tests.conftest import GoldenStore
from tests.damage import Damageable
from tests.export.test_tables import moment, rows_of, tables

# What the producer said when it was asked, by the property of that name -> what becomes of the half message.
_WHEN_ASKED = {"commit": "committed", "rollback": "rolled_back", "never": "given_up"}
_AT_ONCE = {"tx-commit": "committed", "tx-rollback": "rolled_back"}


def messages_of(name: str, topic: str) -> list[dict[str, Any]]:
    return [m for m in stores.truth(name)["messages"] if m["topic"] == topic]


def told_states(name: str) -> dict[int, str]:
    """States of half messages by their queue offset, by what their producer has answered."""
    halves = {m["queueOffset"]: m["properties"] for m in messages_of(name, paths.HALF_TOPIC)}
    return {
        queue_offset: _AT_ONCE.get(kind) or _WHEN_ASKED[halves[queue_offset]["check"]]
        for kind, _, _, queue_offset, _ in stores.truth(name)["acknowledged"]
        if kind.startswith("tx-")
    }


@pytest.mark.parametrize("name", [*stores.CLEAN, "ipv6-533"])
def test_transactions_end_as_their_producer_said(golden: GoldenStore, name: str) -> None:
    with tables(golden(name)) as known:
        rows = rows_of(known["transactions"])
        assert known["transactions"].findings == []
    assert {row["queue_offset"]: row["state"] for row in rows} == told_states(name)
    assert len(rows) >= 12


@pytest.mark.parametrize("name", stores.CLEAN)
def test_transactions_name_their_records(golden: GoldenStore, name: str) -> None:
    halves: dict[str, list[dict[str, Any]]] = {}
    for message in messages_of(name, paths.HALF_TOPIC):
        halves.setdefault(message["properties"]["UNIQ_KEY"], []).append(message)
    given_up = {m["properties"]["UNIQ_KEY"]: m for m in messages_of(name, paths.TRANSACTION_CHECK_TOPIC)}
    commits = {m["preparedTransactionOffset"]: m for m in stores.truth(name)["messages"] if m["sysFlag"] & 12 == 8}
    ops = {m["phyOffset"] for m in messages_of(name, paths.OP_TOPIC)}
    with tables(golden(name)) as known:
        rows = {row["unique_key"]: row for row in rows_of(known["transactions"])}
    assert rows.keys() == halves.keys()
    for key, row in rows.items():
        first, last = halves[key][0], halves[key][-1]
        properties = last["properties"]
        assert (row["phy_offset"], row["last_phy_offset"]) == (first["phyOffset"], last["phyOffset"])
        assert (row["queue_offset"], row["last_queue_offset"]) == (first["queueOffset"], last["queueOffset"])
        assert (row["half_messages"], row["store_time"]) == (len(halves[key]), moment(first["storeTimestamp"]))
        assert row["checks"] == int(properties.get("TRANSACTION_CHECK_TIMES", 0)) == len(halves[key]) - 1
        assert (row["real_topic"], row["real_queue_id"]) == (properties["REAL_TOPIC"], int(properties["REAL_QID"]))
        assert (row["producer_group"], row["keys"]) == (properties["PGROUP"], properties.get("KEYS", "").split())
        commit, moved = commits.get(row["last_phy_offset"]), given_up.get(key)
        assert row["commit_phy_offset"] == (commit and commit["phyOffset"])
        assert row["given_up_phy_offset"] == (moved and moved["phyOffset"])
        assert (row["op_phy_offset"] in ops) == (row["state"] != "given_up")
        if ended := commit or moved:
            assert row["end_time"] == moment(ended["storeTimestamp"])


def test_transactions_that_are_open(damageable: Callable[..., Damageable]) -> None:
    """A crash before the first op record: 5.x writes those of some seconds as one."""
    store = damageable("clean-533")
    first_op = messages_of("clean-533", paths.OP_TOPIC)[0]["phyOffset"]
    while len(store.segments) * store.segment_size_bytes > first_op:
        store.lose(-1)
    for name in (paths.CONSUMER_OFFSET_JSON, paths.CONSUMER_OFFSET_JSON + paths.BAK_SUFFIX):
        (store.root / name).unlink(missing_ok=True)
    with tables(store.root) as known:
        rows = rows_of(known["transactions"])
    assert {(row["state"], row["op_phy_offset"], row["checks"]) for row in rows} == {
        ("committed", None, 0),
        ("pending", None, 0),
    }
    committed = {
        number for number, state in told_states("clean-533").items() if state == "committed" and number % 4 > 1
    }
    assert {row["queue_offset"] for row in rows if row["state"] == "committed"} == committed
    assert len(rows) == 40


def test_transactions_whose_commit_cannot_be_read(damageable: Callable[..., Damageable]) -> None:
    store = damageable("clean-497")
    messages = store.truth["messages"]
    number = next(n for n, m in enumerate(messages) if m["sysFlag"] & 12 == 8)
    damaged = messages[number]
    store.flip(number, "body")
    with tables(store.root) as known:
        rows = {row["queue_offset"]: row for row in rows_of(known["transactions"])}
        assert [found.code for found in known["transactions"].findings] == ["L001"]
    told = told_states("clean-497")
    unknown = {number for number, row in rows.items() if row["state"] == "unknown"}
    # Of two that were still open the end came after what cannot be read: one of them may have been committed there.
    open_then = {n for n, row in rows.items() if row["phy_offset"] < damaged["phyOffset"] < row["last_phy_offset"]}
    half = next(n for n, row in rows.items() if row["phy_offset"] == damaged["preparedTransactionOffset"])
    assert unknown == {half, *open_then} == {1, 2}
    assert {n: row["state"] for n, row in rows.items() if n not in unknown} == {
        n: state for n, state in told.items() if n not in unknown
    }


def test_of_too_many_open_ones_the_oldest_are_not_followed(golden: GoldenStore) -> None:
    with Store.open(golden("clean-533")) as store:
        tracker = TransactionTracker(most_open=10)
        for table in scan_log(store):
            tracker.add(table)
        found = [*tracker.ended(), *tracker.rest()]
    states = Counter(each.state(1 << 62) for each in found)
    assert states["unknown"] > 10
    assert states.keys() <= {"committed", "unknown", "given_up", "rolled_back"}


@pytest.mark.parametrize("name", [*stores.CLEAN, "load-497", "load-533", "cqext-497", "cqext-533"])
def test_messages_of_delay_levels_wait_until_they_are_due(golden: GoldenStore, name: str) -> None:
    """The longest levels are due hours after a broker was stopped; all others it had delivered."""
    told = [m for m in messages_of(name, paths.SCHEDULE_TOPIC) if m["queueId"] >= 16]
    with tables(golden(name)) as known:
        rows = rows_of(known["delayed"], where=ds.field("level").is_valid())
        assert known["delayed"].findings == []
    due = {row["phy_offset"]: (row["deliver_time"], row["level"], row["queue_offset"]) for row in rows}
    assert due == {m["phyOffset"]: (moment(m["tagsCode"]), m["queueId"] + 1, m["queueOffset"]) for m in told}
    assert len(due) >= 4
    properties = {m["phyOffset"]: m["properties"] for m in told}
    for row in rows:
        mine = properties[row["phy_offset"]]
        assert (row["real_topic"], str(row["real_queue_id"])) == (mine["REAL_TOPIC"], mine["REAL_QID"])
        assert (row["unique_key"], row["keys"]) == (mine["UNIQ_KEY"], mine.get("KEYS", "").split())


@pytest.mark.parametrize("name", ["clean-533", "clean-540"])
def test_messages_of_the_timer_wait_unless_they_were_put_in_their_place(golden: GoldenStore, name: str) -> None:
    told = messages_of(name, TIMER_TOPIC)
    delivered = {
        (m["properties"]["UNIQ_KEY"], m["properties"]["TIMER_OUT_MS"])
        for m in stores.truth(name)["messages"]
        if "TIMER_DEQUEUE_MS" in m["properties"]
    }
    with tables(golden(name)) as known:
        rows = rows_of(known["delayed"], where=ds.field("level").is_null())
    waiting = [
        m for m in told if (m["properties"]["UNIQ_KEY"], m["properties"]["TIMER_OUT_MS"]) not in delivered
    ]  # fmt: skip
    assert len(delivered) == 10
    assert {row["phy_offset"]: row["deliver_time"] for row in rows} == {
        m["phyOffset"]: moment(int(m["properties"]["TIMER_OUT_MS"])) for m in waiting
    }
    assert Counter(row["real_topic"].partition("_")[0] for row in rows)["rmq"] == len(waiting) - 4


def test_without_progress_all_of_them_wait(damageable: Callable[..., Damageable]) -> None:
    store = damageable("clean-533")
    for name in (paths.DELAY_OFFSET_JSON, paths.DELAY_OFFSET_JSON + paths.BAK_SUFFIX, paths.TIMERCHECK):
        (store.root / name).unlink(missing_ok=True)
    with tables(store.root) as known:
        rows = rows_of(known["delayed"], ["topic"])
    told = Counter(m["topic"] for m in store.truth["messages"])
    assert Counter(row["topic"] for row in rows) == {
        topic: told[topic] for topic in (paths.SCHEDULE_TOPIC, TIMER_TOPIC)
    }


def test_a_waiting_message_that_cannot_be_read_is_told(damageable: Callable[..., Damageable]) -> None:
    store = damageable("clean-533")
    number = next(n for n, m in enumerate(store.truth["messages"]) if m["queueId"] == 17)
    lost = store.message(number)
    store.flip(number, "magic")
    with tables(store.root) as known:
        (row,) = rows_of(known["delayed"], where=ds.field("phy_offset") == lost["phyOffset"])
    assert (row["deliver_time"], row["level"]) == (moment(lost["tagsCode"]), 18)
    assert (row["real_topic"], row["real_queue_id"], row["store_time"], row["keys"]) == (None, None, None, [])
