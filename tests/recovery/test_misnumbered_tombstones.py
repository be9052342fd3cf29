"""A lost record's head tells another number than it had, and no queue entry knows better: its neighbours in the queue do."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from store_core.layout import paths, record
from store_core.layout.queue import ENTRY
from tests import stores
from tests.damage import Damageable
from tests.recovery.recovering import Opener, apply_to

NUMBER_AT = record.HEAD.offset_of("queue_offset")


@pytest.mark.product
@pytest.mark.parametrize("byte", [3, 4, 6, 7])
@pytest.mark.parametrize("entry", ["of another size", "gone with its queue"])
@pytest.mark.parametrize("base", ["load-497", "load-533"])
def test_neighbours_know_better(
    base: str,
    entry: str,
    byte: int,
    damageable: Callable[..., Damageable],
    settings_of: Callable[[str], Path],
) -> None:
    opener = Opener(settings_of(base), stores.truth(base)["written_by"])
    store = damageable(base, "crash")
    topics = {"load-497": "Soft_", "load-533": "Calm_"}
    mine = [m for m in store.truth["messages"] if m["topic"].startswith(topics[base]) and m["bodyLength"] > 0]
    lost = mine[len(mine) // 3]
    key, number = (lost["topic"], lost["queueId"]), lost["queueOffset"]
    store.flip_at(lost["phyOffset"] + record.body_at(lost["sysFlag"]))
    store.flip_at(lost["phyOffset"] + NUMBER_AT + byte)
    if entry.startswith("gone"):
        shutil.rmtree(store.root / paths.CONSUMEQUEUE / lost["topic"])
    else:
        store.set_entry(*key, number, (lost["phyOffset"], lost["storeSize"] + 4, 0))
    recovery = opener.recover(store.root)
    assert [(run.topic, run.queue_id, run.first_queue_offset, run.messages) for run in recovery.lost] == [
        (*key, number, 1)
    ]
    apply_to(recovery, store.root)
    path, at = store.queue_file(*key, number)
    assert ENTRY.read(path.read_bytes()[at:])["phy_offset"] == lost["phyOffset"]
    assert opener.recover(store.root).plan.steps == ()
    assert [f for f in opener.check(store.root) if f.severity != "info"] == []
