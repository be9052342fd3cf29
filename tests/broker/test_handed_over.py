"""One directory handed from our running store to real brokers and back, some of them killed: a real consumer gets every message once."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from store_core.engine.live_store import WriteOptions
from store_core.engine.message import NewMessage, PutStatus
from store_core.engine.store import MessageStore
from tests import stores
from tests.broker.running import RunningBroker
from tests.conftest import StoreCopy
from tests.engine.writing import Written

pytestmark = pytest.mark.broker
TOPIC = "Soft_orders"
OURS = 60  # more than a segment holds


def put_ours(root: Path, release: str, round_number: int) -> dict[str, tuple[int, int]]:
    """Put messages as a release would; the digest of each body -> its queue and number. Under sync flush."""
    settings = replace(Written.of("load-497", root).settings, broker_version=release)
    told: dict[str, tuple[int, int]] = {}
    with MessageStore.open(root, settings=settings, options=WriteOptions(flush="sync")) as store:
        messages = [
            NewMessage(
                TOPIC,
                f"ours {round_number} {number} ".encode() * 200,
                number % 4,
                {"KEYS": f"o{round_number}n{number}"},
            )
            for number in range(OURS)
        ]
        results = [*(store.put(message) for message in messages[:20]), *store.put_batch(messages[20:])]
        for message, result in zip(messages, results, strict=True):
            assert result.status == PutStatus.PUT_OK
            assert result.stored is not None
            told[hashlib.sha256(message.body or b"").hexdigest()] = result.stored.queue_id, result.stored.queue_offset
    return told


def consumed(pulled: dict[str, Any]) -> list[tuple[str, int, int]]:
    """(digest of the body, queue, number) of each message that a real consumer got."""
    return [
        (message["bodySha256"], message["queueId"], message["queueOffset"])
        for queue in pulled.values()
        for message in queue["messages"]
    ]


@pytest.mark.parametrize(
    "releases",
    [("4.9.7", "5.3.3"), pytest.param(("4.9.7", "5.3.3") * 5, marks=pytest.mark.exhaustive)],
    ids=["two", "ten"],
)
def test_every_message_arrives_once(
    running_broker: Callable[..., RunningBroker], store_copy: StoreCopy, releases: tuple[str, ...]
) -> None:
    root = store_copy("load-497")
    expected: dict[str, tuple[int, int]] = {}
    before: Counter[tuple[str, int, int]] = Counter()
    for number, release in enumerate(releases):
        expected |= put_ours(root, release, number)
        assert not (root / "abort").exists()
        broker = running_broker(release, root, stores.properties_text("load-497") + "flushDiskType=SYNC_FLUSH\n")
        sent = broker.send(TOPIC)
        assert {answer["status"] for answer in sent.values()} == {"SEND_OK"}
        found = Counter(consumed(broker.pull(TOPIC)))
        assert max(found.values()) == 1
        assert before <= found  # what was there stays
        assert {(digest, *place) for digest, place in expected.items()} <= found.keys()
        assert len({(queue_id, queue_offset) for _, queue_id, queue_offset in found}) == len(found)
        before = found
        if number % 3 == 1:
            broker.kill()
            assert os.path.exists(root / "abort")
        else:
            broker.stop()
    put_ours(root, "5.3.3", len(releases))  # after the last one's kill this recovers first
    assert Written.of("load-497", root).problems() == []
