"""recover brings back config files that no broker could load: from the .bak, a sibling, or what the log and the queues know."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from store_core.layout import paths
from store_core.recovery.apply.undo import undo
from store_core.recovery.keep_options import KeepOptions
from store_core.storage.config_files import read_config
from tests import stores
from tests.conftest import GoldenStore, StoreCopy, differences
from tests.recovery.recovering import Opener, apply_to

SettingsOf = Callable[[str], Path]
NAMES = ("clean-497", "clean-533", "clean-540")


@pytest.fixture
def opener_of(settings_of: SettingsOf) -> Callable[[str], Opener]:
    return lambda name: Opener(settings_of(name), stores.truth(name)["written_by"])


def _break(root: Path, name: str, *, bak: bool | None) -> None:
    """Half a file, as a full disk leaves it. ``bak``: whether the copy is good; None for broken as well."""
    path, copy = root / name, root / (name + paths.BAK_SUFFIX)
    shutil.copy2(path, copy)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    if bak is None:
        shutil.copy2(path, copy)
    elif not bak:
        copy.unlink()


def _codes(opener: Opener, root: Path) -> set[str]:
    return {found.code for found in opener.check(root) if found.code.startswith("P00") and found.severity != "info"}


@pytest.mark.parametrize("name", NAMES)
def test_the_copy_becomes_the_file(name: str, store_copy: StoreCopy, opener_of: Callable[[str], Opener]) -> None:
    root, opener = store_copy(name), opener_of(name)
    for file in (paths.TOPICS_JSON, paths.CONSUMER_OFFSET_JSON):
        _break(root, file, bak=True)
    read, before = read_config(root), stores.snapshot(root)
    assert "P003" in _codes(opener, root)
    applied = apply_to(opener.recover(root), root)
    config = read_config(root)
    assert (config.topics.source, config.progress.source) == ("main", "main")
    assert (config.topics.value, config.progress.value) == (read.topics.value, read.progress.value)
    assert opener.recover(root).plan.steps == ()
    assert applied is not None
    undo(root, apply=True)
    assert differences(before, stores.snapshot(root)) == []


@pytest.mark.product
@pytest.mark.parametrize("bak", [False, None])
@pytest.mark.parametrize("name", NAMES)
def test_topics_are_told_by_the_queues(
    name: str, bak: bool | None, store_copy: StoreCopy, opener_of: Callable[[str], Opener]
) -> None:
    root, opener = store_copy(name), opener_of(name)
    known = read_config(root).topics.value["topics"]
    _break(root, paths.TOPICS_JSON, bak=bak)
    assert opener.predict(root)["starts"] is (bak is not None)
    recovery = opener.recover(root)
    assert recovery.after.starts
    assert [found.advice for found in recovery.findings if found.code == "P004"] == ["The plan mends it."]
    apply_to(recovery, root)
    config = read_config(root)
    assert config.topics.source == "main"
    assert set(config.topics.value["topics"]) <= set(known)
    with_queues = {m["topic"] for m in stores.truth(name)["messages"]} & set(known)
    for topic in with_queues & set(config.topics.value["topics"]):
        assert config.topics.value["topics"][topic]["read_queues"] <= known[topic]["read_queues"]
    assert not {"P002", "P003", "P004"} & _codes(opener, root)


@pytest.mark.parametrize("name", NAMES)
def test_a_sibling_has_what_is_lost(
    name: str, golden: GoldenStore, store_copy: StoreCopy, opener_of: Callable[[str], Opener]
) -> None:
    root, opener = store_copy(name), opener_of(name)
    read = read_config(root)
    for file in (paths.TOPICS_JSON, paths.CONSUMER_OFFSET_JSON):
        _break(root, file, bak=False)
    recovery = opener.recover(root, options=KeepOptions(siblings=(golden(name),)))
    assert {step.why for step in recovery.plan.steps} == {"as the sibling has it"}
    apply_to(recovery, root)
    config = read_config(root)
    assert (config.topics.value, config.progress.value) == (read.topics.value, read.progress.value)


def test_progress_of_a_sibling_ends_where_the_queues_do(
    golden: GoldenStore, store_copy: StoreCopy, opener_of: Callable[[str], Opener]
) -> None:
    """The sibling has consumed what never arrived here, and is not asked for."""
    root, opener = store_copy("clean-533"), opener_of("clean-533")
    sibling = stores.copy_store(golden("clean-533"), root.parent / "sibling")
    text = (sibling / paths.CONSUMER_OFFSET_JSON).read_text()
    offset = max(max(each.values()) for each in read_config(root).consumer_offsets.value["offsets"].values())
    (sibling / paths.CONSUMER_OFFSET_JSON).write_text(text.replace(f":{offset}", f":{offset + 1000}"))
    (root / paths.CONSUMER_OFFSET_JSON).write_bytes(b"")
    (root / (paths.CONSUMER_OFFSET_JSON + paths.BAK_SUFFIX)).unlink(missing_ok=True)
    apply_to(opener.recover(root, options=KeepOptions(siblings=(sibling,))), root)
    assert "P001" not in _codes(opener, root)
    assert read_config(root).consumer_offsets.value["offsets"]


def test_a_copy_without_config_files_stays_one(store_copy: StoreCopy, opener_of: Callable[[str], Opener]) -> None:
    root, opener = store_copy("clean-533"), opener_of("clean-533")
    shutil.rmtree(root / paths.CONFIG)
    recovery = opener.recover(root)
    assert [step.path for step in recovery.plan.steps if step.path.startswith(paths.CONFIG)] == []
    assert [note for note in recovery.notes if "has no config file" in note and "delayed messages" in note]


def test_a_copy_without_config_files_gets_those_of_a_sibling(
    store_copy: StoreCopy, golden: GoldenStore, opener_of: Callable[[str], Opener]
) -> None:
    root, opener = store_copy("clean-533"), opener_of("clean-533")
    shutil.rmtree(root / paths.CONFIG)
    recovery = opener.recover(root, options=KeepOptions(siblings=(golden("clean-533"),)))
    assert not [note for note in recovery.notes if "has no config file" in note]
    apply_to(recovery, root)
    assert read_config(root).topics.value == read_config(golden("clean-533")).topics.value


def test_what_is_missing_beside_a_broken_file_was_lost(
    store_copy: StoreCopy, opener_of: Callable[[str], Opener]
) -> None:
    root, opener = store_copy("clean-533"), opener_of("clean-533")
    shutil.rmtree(root / paths.CONFIG)
    (root / paths.TOPICS_JSON).parent.mkdir()
    (root / paths.TOPICS_JSON).write_bytes(b"{")
    recovery = opener.recover(root)
    assert {paths.TOPICS_JSON, paths.DELAY_OFFSET_JSON} <= {step.path for step in recovery.plan.steps}
    assert not [note for note in recovery.notes if "has no config file" in note]
