"""expire removes the files that a real store's own clean-up removes, and the release starts on what is left."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from store_core.layout import paths
from tests import stores
from tests.broker import oracle
from tests.broker.conftest import OpenStore
from tests.conftest import StoreCopy
from tests.recovery.recovering import apply_to
from tests.recovery.test_expire import SettingsOf, age, expired

STORES: Final = ("load-533", "load-497", "clean-551", "bcq-533", "cqext-533")


def files(root: Path) -> set[str]:
    trees = (paths.COMMITLOG, paths.CONSUMEQUEUE, paths.BATCHCONSUMEQUEUE, paths.INDEX)
    return {str(file.relative_to(root)) for tree in trees for file in (root / tree).rglob("*") if file.is_file()}


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("name", STORES)
def test_as_a_brokers_own_clean_up(
    name: str, at_once: bool, open_store: OpenStore, store_copy: StoreCopy, settings_of: SettingsOf
) -> None:
    root, config, version = store_copy(name), settings_of(name), stores.truth(name)["written_by"]
    age(root, 3)
    there = files(root)
    asked = oracle.expire(72, at_once=at_once)
    outcome = open_store(version, root, stores.properties_text(name), requests=[asked], start_ms=3000)
    left = files(Path(outcome["root"]))
    planned = expired(root, config, version, hours=72, free_bytes=1 << 40 if at_once else 0)
    removed = {step.path for step in planned.plan.steps}
    assert removed == there - left, outcome["answers"]
    assert len(removed) >= 3
    apply_to(planned, root)
    started = open_store(version, root, stores.properties_text(name), start_ms=3000)
    assert started["load"]["ok"]
    assert started["afterLoad"]["minPhyOffset"] == outcome["answers"][0]["minPhyOffset"] == planned.after.min_phy_offset
