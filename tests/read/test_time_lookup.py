"""Offsets by time against the real store: every look-up of every golden store."""

from __future__ import annotations

from collections import Counter

import pytest

from store_core.read.pull import open_queue
from store_core.read.queue import BatchQueue
from store_core.read.rules import rules_for
from store_core.read.time_lookup import Boundary, offset_by_time
from store_core.storage.store import Store
from tests import stores
from tests.conftest import DamagedStore, GoldenStore

_ASKED: tuple[tuple[str, Boundary | None], ...] = (("plain", None), ("lower", "lower"), ("upper", "upper"))


@pytest.mark.parametrize("name", stores.WITH_QUEUE_FILES)
def test_every_look_up_finds_what_the_broker_finds(golden: GoldenStore, name: str) -> None:
    truth = stores.truth(name)
    seen: Counter[str] = Counter()
    with Store.open(golden(name)) as store:
        for asked in truth["timeQueries"]:
            queue = open_queue(store, asked["topic"], asked["queueId"], rules_for(truth["written_by"]))
            assert queue is not None
            for word, boundary in _ASKED:
                told = asked.get(word)
                if isinstance(told, int):
                    assert offset_by_time(queue, asked["timestamp"], boundary) == told, asked
                    seen[word] += 1
    refused = truth["written_by"] == "5.4.0"  # it answers only once it has started
    assert seen["plain"] == (0 if refused else len(truth["timeQueries"]))
    assert seen["lower"] == seen["upper"] == (seen["plain"] if rules_for(truth["written_by"]).has_boundary else 0)


@pytest.mark.parametrize("name", stores.WITH_QUEUE_FILES)
def test_lower_and_upper_hold_by_the_messages_times(golden: GoldenStore, name: str) -> None:
    truth = stores.truth(name)
    times: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for message in truth["messages"]:
        place = message["topic"], message["queueId"]
        times.setdefault(place, []).append((message["queueOffset"], message["storeTimestamp"]))
    with Store.open(golden(name)) as store:
        for (topic, queue_id), known in sorted(times.items())[:12]:
            queue = open_queue(store, topic, queue_id)
            assert queue is not None
            if isinstance(queue, BatchQueue):
                continue  # a broker's search of those does not hold what it is named after
            if [t for _, t in known] != sorted(t for _, t in known):
                continue
            for time_ms in {0, *(t + d for _, t in known[:: max(1, len(known) // 5)] for d in (-1, 0, 1)), 1 << 50}:
                later = [o for o, t in known if t >= time_ms]
                earlier = [o for o, t in known if t <= time_ms]
                assert offset_by_time(queue, time_ms, "lower") == (later[0] if later else queue.max_offset)
                assert offset_by_time(queue, time_ms, "upper") == (earlier[-1] if earlier else queue.min_offset)


def test_records_that_are_gone_do_not_mislead(damaged: DamagedStore) -> None:
    truth = stores.truth("load-533")
    with Store.open(damaged("load-533", "log-missing-mid", "clean")) as store:
        gap = store.log.gaps()[0]
        known = [m for m in truth["messages"] if (m["topic"], m["queueId"]) == ("Calm_audit", 0)]
        left = [m for m in known if not gap.phy_offset <= m["phyOffset"] < gap.phy_offset + gap.size_bytes]
        queue = open_queue(store, "Calm_audit", 0)
        assert queue is not None
        for time_ms in (
            known[len(known) // 2]["storeTimestamp"],
            known[0]["storeTimestamp"],
            left[-1]["storeTimestamp"],
        ):
            later = [m["queueOffset"] for m in left if m["storeTimestamp"] >= time_ms]
            assert offset_by_time(queue, time_ms, "lower") == later[0]
