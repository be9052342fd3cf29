"""The oracle says today what the same real code said when the golden data were recorded; then it may judge what we write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests import stores
from tests.broker import oracle
from tests.broker.conftest import OpenStore
from tests.broker.running import RunningBroker
from tests.conftest import DamagedStore, GoldenStore, StoreCopy


def _written_by(base: str) -> str:
    return str(stores.truth(base)["written_by"])


@pytest.mark.parametrize(
    ("base", "case"),
    [
        ("load-533", "untouched/clean"),
        ("load-533", "flip-body-mid/crash"),
        ("load-533", "log-last-short/clean"),
        ("load-497", "torn-tail/crash"),
    ],
)
def test_the_oracle_repeats_the_recorded_outcome(
    open_store: OpenStore, damaged: DamagedStore, base: str, case: str
) -> None:
    name, exit = case.split("/")
    recorded = stores.outcomes(base)[case]
    told = open_store(_written_by(base), damaged(base, name, exit), stores.properties_text(base))
    assert oracle.steady(told) == oracle.steady(recorded)


def test_the_oracle_reads_every_record_as_recorded(open_store: OpenStore, golden: GoldenStore) -> None:
    told = open_store(
        "5.3.3", golden("load-533"), stores.properties_text("load-533"), messages=True, entries=True, start_ms=0
    )
    truth = stores.truth("load-533")
    assert told["messages"] == truth["messages"]
    assert {(q["topic"], q["queueId"]): q["entries"] for q in told["afterLoad"]["queues"]} == {
        (q["topic"], q["queueId"]): q["entries"] for q in truth["afterLoad"]["queues"]
    }


def _by_offset(messages: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    return {message["phyOffset"]: message for message in messages}


@pytest.mark.parametrize("version", oracle.VERSIONS)
def test_every_release_serves_an_untouched_store(open_store: OpenStore, golden: GoldenStore, version: str) -> None:
    truth = stores.truth("load-533")
    known = _by_offset(truth["messages"])
    query = next(q for q in truth["keyQueries"] if q["phyOffsets"] and q["end"] == (1 << 63) - 1)
    requests = [
        oracle.pull("Calm_audit", 0, 500),
        oracle.keys(query["topic"], query["key"], query["max"], query["begin"], query["end"]),
        oracle.look(truth["messages"][7]["phyOffset"]),
        oracle.put("Calm_audit", 0, "one more", {"KEYS": "later"}),
        oracle.pull("no_such_topic", 0, 0),
    ]
    told = open_store(version, golden("load-533"), stores.properties_text("load-533"), requests=requests, stop=False)
    pulled, queried, looked, stored, nothing = told["answers"]
    assert (pulled["status"], pulled["nextBeginOffset"], pulled["maxOffset"]) == ("FOUND", 517, 517)
    assert [m["queueOffset"] for m in pulled["messages"]] == list(range(500, 517))
    assert all(m.items() <= known[m["phyOffset"]].items() for m in pulled["messages"])
    assert [m["phyOffset"] for m in queried["messages"]] == query["phyOffsets"]
    assert looked["phyOffset"] == truth["messages"][7]["phyOffset"]
    assert (stored["status"], stored["phyOffset"], stored["queueOffset"]) == ("PUT_OK", 975542, 517)
    assert nothing["status"] == "NO_MESSAGE_IN_QUEUE"  # a store makes the queue that it is asked for


@pytest.mark.parametrize("version", oracle.VERSIONS[:2])
def test_a_running_broker_serves_a_store_to_a_real_client(
    running_broker: Callable[..., RunningBroker], store_copy: StoreCopy, version: str
) -> None:
    root = store_copy("load-533")
    broker = running_broker(version, root, stores.properties_text("load-533"))
    pulled = broker.pull("Calm_bills")
    known = _by_offset(stores.truth("load-533")["messages"])
    assert {queue: (q["min"], q["max"]) for queue, q in pulled.items()} == {
        "Calm_bills-0": (0, 285),
        "Calm_bills-1": (0, 292),
    }
    for queue in pulled.values():
        assert [m["queueOffset"] for m in queue["messages"]] == list(range(queue["min"], queue["max"]))
        assert all(m["bodyCRC"] == known[m["phyOffset"]]["bodyCRC"] for m in queue["messages"])
    sent = broker.send("Calm_bills")
    assert {queue: (s["status"], s["queueOffset"]) for queue, s in sent.items()} == {
        "Calm_bills-0": ("SEND_OK", 285),
        "Calm_bills-1": ("SEND_OK", 292),
    }
    assert (root / "abort").exists()
    broker.stop()
    assert not (root / "abort").exists()
