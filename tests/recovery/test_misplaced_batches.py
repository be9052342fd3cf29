"""Whole records of batch queues with a damaged queue id or number go back to where they were."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from store_core.layout import paths
from tests import stores
from tests.conftest import GoldenStore
from tests.damage import Damageable
from tests.recovery.recovering import Opener, apply_to, log_bytes

NAME = "bcq-533"
FIRST, MIDDLE, LAST = 0, 123, 237  # records of one message each, which alone have their number in the head


@pytest.mark.product(4)
@pytest.mark.parametrize(
    ("record", "field", "value"),
    [
        (FIRST, "queue_offset", 1 << 20),
        (FIRST, "queue_id", 1),
        (MIDDLE, "queue_offset", 0),
        (MIDDLE, "queue_offset", 309),
        (MIDDLE, "queue_offset", 1 << 40),
        (MIDDLE, "queue_id", 0),
        (LAST, "queue_offset", 3),
        (LAST, "queue_offset", 1 << 50),
        (LAST, "queue_id", 0),
    ],
)
def test_the_entries_tell(
    record: int,
    field: str,
    value: int,
    golden: GoldenStore,
    damageable: Callable[..., Damageable],
    settings_of: Callable[[str], Path],
) -> None:
    store, opener = damageable(NAME, "crash"), Opener(settings_of(NAME), "5.3.3")
    store.set_field(record, field, value)
    recovery = opener.recover(store.root)
    assert [(one["phy_offset"], one["fields"]) for one in recovery.repaired] == [
        (store.message(record)["phyOffset"], [field])
    ]
    assert (recovery.lost, recovery.after.lost_messages) == ((), 0)
    apply_to(recovery, store.root)
    assert log_bytes(store.root) == log_bytes(golden(NAME))
    assert stores.contents(store.root / "batchconsumequeue") == stores.contents(golden(NAME) / "batchconsumequeue")


@pytest.mark.product(1)
@pytest.mark.parametrize("value", [0, 308, 1 << 40])
def test_without_a_queue_the_numbers_beside_it_tell(
    value: int, golden: GoldenStore, damageable: Callable[..., Damageable], settings_of: Callable[[str], Path]
) -> None:
    store, opener = damageable(NAME, "crash"), Opener(settings_of(NAME), "5.3.3")
    shutil.rmtree(store.root / paths.BATCHCONSUMEQUEUE)
    store.set_field(MIDDLE, "queue_offset", value)
    recovery = opener.recover(store.root)
    assert len(recovery.repaired) == 1
    apply_to(recovery, store.root)
    assert log_bytes(store.root) == log_bytes(golden(NAME))
    assert stores.contents(store.root / "batchconsumequeue") == stores.contents(golden(NAME) / "batchconsumequeue")
