"""Stores without an index or without times in the checkpoint: check tells the reason of what recover plans, or neither does a thing."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import pytest

from store_core.check.store import check_store
from store_core.findings import Severity
from store_core.layout import paths
from store_core.layout.checkpoint import CHECKPOINT, FILE_SIZE_BYTES
from store_core.read.checkpoint import read_checkpoint
from store_core.recovery.rebuild import rebuild
from store_core.recovery.recover import recover
from store_core.recovery.truncate import truncate
from store_core.storage.settings import Settings, load_settings
from store_core.storage.store import Store
from tests.conftest import StoreCopy

SIZES: Final = {"maxHashSlotNum": "500", "maxIndexNum": "2000"}
NO_INDEX: Final = {**SIZES, "messageIndexEnable": "false"}


def settings_for(root: Path, values: dict[str, str]) -> Settings:
    return load_settings(root=root, values=values)


def found_and_planned(
    root: Path, values: dict[str, str]
) -> tuple[list[tuple[str, Severity]], list[tuple[str, Severity]], set[str]]:
    """What check finds, with severities; what recover finds; the paths that its plan touches, by their first part."""
    with Store.open(root, settings_for(root, values)) as store:
        found = [(f.code, f.severity) for f in check_store(store).findings]
        plan = recover(store)
    told = [(f.code, f.severity) for f in plan.findings]
    return found, told, {step.path.split("/")[0] for step in plan.plan.steps}


def test_a_missing_index_is_told_and_made(store_copy: StoreCopy) -> None:
    root = store_copy("load-533")
    shutil.rmtree(root / "index")
    found, told, planned = found_and_planned(root, SIZES)
    assert found == told == [("I011", "warning")]
    assert paths.INDEX in planned


def test_a_missing_index_that_a_broker_was_told_not_to_keep_is_no_fault(store_copy: StoreCopy) -> None:
    root = store_copy("load-533")
    shutil.rmtree(root / "index")
    assert found_and_planned(root, NO_INDEX) == ([], [], set())
    with Store.open(root, settings_for(root, NO_INDEX)) as store:
        every = [step.path for step in rebuild(store, "all").plan.steps]
        cut = [step.path for step in truncate(store, store.log.segments[2].phy_offset).plan.steps]
        asked = [step.path for step in rebuild(store, "index").plan.steps]
    assert every == []
    assert cut
    assert not [path for path in cut if path.startswith(paths.INDEX)]
    assert asked
    assert all(path.startswith(paths.INDEX) for path in asked)


def test_an_index_that_stands_is_looked_at_whatever_a_broker_is_told(store_copy: StoreCopy) -> None:
    root = store_copy("load-533")
    max((root / "index").iterdir()).unlink()
    found, told, planned = found_and_planned(root, NO_INDEX)
    assert {code for code, _ in found} == {code for code, _ in told} == {"I008"}
    assert planned == {paths.INDEX}


def test_after_a_crash_an_index_may_be_missing(store_copy: StoreCopy) -> None:
    root = store_copy("load-533", "crash")
    shutil.rmtree(root / "index")
    found, _, planned = found_and_planned(root, SIZES)
    assert found == [("S001", "info"), ("I011", "info")]
    assert paths.INDEX in planned


@pytest.mark.parametrize("fields", [3, 2, 1])
def test_times_that_are_not_set_are_told_and_set(store_copy: StoreCopy, fields: int) -> None:
    root = store_copy("load-533")
    before = read_checkpoint(root)
    values = list(CHECKPOINT.read((root / paths.CHECKPOINT).read_bytes()[: CHECKPOINT.size_bytes]).values())
    values[:fields] = [0] * fields
    (root / paths.CHECKPOINT).write_bytes(CHECKPOINT.struct.pack(*values).ljust(FILE_SIZE_BYTES, b"\0"))
    found, told, planned = found_and_planned(root, SIZES)
    assert found == told == [("C005", "warning")]
    assert planned == {paths.CHECKPOINT}
    assert before.physic_msg_timestamp_ms


@pytest.mark.parametrize("name", ["crash-497", "pool-533"])
def test_a_broker_killed_before_its_first_flush_leaves_a_reason(store_copy: StoreCopy, name: str) -> None:
    found, told, planned = found_and_planned(store_copy(name), {})
    assert ("C005", "info") in found
    assert ("C005", "info") in told
    assert paths.CHECKPOINT in planned
