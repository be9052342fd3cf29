"""Answers of real releases where there is nothing to give: beyond a queue's ends, and of keys that nobody has."""

from __future__ import annotations

from typing import Any, Final

import pytest

from store_core.read.pull import open_queue, pull
from store_core.read.query import KeyQuery, query_key
from store_core.read.rules import rules_for
from store_core.storage.settings import load_settings
from store_core.storage.store import Store
from tests import stores
from tests.broker import oracle
from tests.broker.conftest import OpenStore
from tests.conftest import GoldenStore
from tests.recovery.recovering import SettingsOf

STORES: Final = {"4.3.0": "clean-430", "4.9.7": "clean-497", "5.3.3": "clean-533"}


def _ends(name: str) -> tuple[str, int, int]:
    """A queue that begins at 0, and its end."""
    found = next(q for q in stores.truth(name)["afterLoad"]["queues"] if q["min"] == 0 and q["max"] > 10)
    return found["topic"], found["queueId"], found["max"]


def _by_broker(answer: dict[str, Any]) -> tuple[Any, ...]:
    if "status" in answer:
        return answer["status"], answer["nextBeginOffset"]
    return answer["indexLastPhyOffset"], answer["indexLastTimestamp"], [m["phyOffset"] for m in answer["messages"]]


@pytest.mark.parametrize("version", STORES)
def test_answers_with_nothing_in_them(
    open_store: OpenStore, golden: GoldenStore, settings_of: SettingsOf, version: str
) -> None:
    name = STORES[version]
    topic, queue_id, end = _ends(name)
    asked_key = next(q for q in stores.truth(name)["keyQueries"] if q["phyOffsets"] and q["end"] == (1 << 63) - 1)
    offsets = (end - 1, end, end + 1, end + 100_000, -1)
    keys = (KeyQuery(asked_key["topic"], asked_key["key"]), KeyQuery(asked_key["topic"], "nobody's"))
    requests = [
        *(oracle.pull(topic, queue_id, offset) for offset in offsets),
        *(oracle.keys(query.topic, query.key) for query in keys),
    ]
    told = open_store(version, golden(name), stores.properties_text(name), requests=requests, start_ms=2000, stop=False)

    with Store.open(golden(name), load_settings(settings_of(name), golden(name))) as store:
        queue = open_queue(store, topic, queue_id, rules_for(version))
        pulled = [pull(queue, topic, queue_id, offset) for offset in offsets]
        answers = [query_key(store, query, "index") for query in keys]
    ours = [
        *((each.status, each.next_begin_offset) for each in pulled),
        *((a.index_last_phy_offset, a.index_last_timestamp_ms, [m.phy_offset for m in a.messages]) for a in answers),
    ]
    assert ours == [_by_broker(answer) for answer in told["answers"]]
