"""Queues that are as recovery builds them need no explanation: check compares bytes and walks no entry."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from store_core.check import batch_queues, queues
from store_core.check.store import check_store
from store_core.layout import paths
from store_core.layout.queue import BATCH_ENTRY, ENTRY
from store_core.storage.settings import load_settings
from store_core.storage.store import QueueKey, Store
from tests.damage import Damageable


def explained(root: Path, settings: Path, monkeypatch: pytest.MonkeyPatch) -> set[QueueKey]:
    """The queues whose entries a check compares one by one with their records."""
    found: set[QueueKey] = set()
    compare, explain = queues._QueueCheck._compare, batch_queues._BatchCheck._explain

    def compared(self: queues._QueueCheck) -> None:
        found.add(self.key)
        compare(self)

    def explained(self: batch_queues._BatchCheck) -> None:
        found.add(self.key)
        explain(self)

    monkeypatch.setattr(queues._QueueCheck, "_compare", compared)
    monkeypatch.setattr(batch_queues._BatchCheck, "_explain", explained)
    with Store(load_settings(settings, root=root)) as store:
        check_store(store)
    return found


@pytest.mark.parametrize("base", ["load-497", "load-533", "cqext-497", "cqext-533"])
def test_only_the_damaged_queue_is_explained(
    base: str,
    damageable: Callable[..., Damageable],
    settings_of: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Queues with extension units too: entries hold addresses then, and the units are built along."""
    store = damageable(base)
    assert explained(store.root, settings_of(base), monkeypatch) == set()
    message = store.message(len(store.truth["messages"]) // 2)
    path, at = store.queue_file(message["topic"], message["queueId"], message["queueOffset"])
    data = bytearray(path.read_bytes())
    data[at + ENTRY.offset_of("size_bytes") + 3] ^= 1
    path.write_bytes(data)
    assert explained(store.root, settings_of(base), monkeypatch) == {QueueKey(message["topic"], message["queueId"])}


def test_a_batch_queue_is_explained_if_it_is_damaged(
    damageable: Callable[..., Damageable], settings_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, settings = damageable("bcq-533"), settings_of("bcq-533")
    assert explained(store.root, settings, monkeypatch) == set()
    path = next(
        path for path in sorted((store.root / paths.BATCHCONSUMEQUEUE).rglob("0" * 20)) if any(path.read_bytes())
    )
    data = bytearray(path.read_bytes())
    data[BATCH_ENTRY.offset_of("size_bytes") + 3] ^= 1
    path.write_bytes(data)
    key = QueueKey(path.parent.parent.name, int(path.parent.name))
    assert explained(store.root, settings, monkeypatch) == {key}
