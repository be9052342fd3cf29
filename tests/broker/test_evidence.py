"""Which releases a store's traces leave possible."""

from __future__ import annotations

import re
import shutil

import pytest

from store_core.broker.detect_version import evidence_of
from store_core.broker.versions import RELEASES, Version
from store_core.layout import paths
from store_core.storage.store import Store
from tests import stores
from tests.conftest import GoldenStore, StoreCopy
from tests.surgery import Exit, set_exit

NEWEST = str(RELEASES[-1])  # without traces of its own, a later release is as possible
# What the traces of each golden store narrow the releases down to.
SPANS = {
    "clean-430": ("4.3.0", "4.9.0"),
    "clean-497": ("4.9.1", "4.9.8"),
    "clean-514": ("5.1.0", "5.1.4"),
    "clean-540": ("5.4.0", "5.4.0"),
    "clean-550": ("5.5.0", "5.5.0"),
    "clean-551": ("5.5.1", NEWEST),
    "crash-551": ("5.5.0", NEWEST),
    "crash-551-aged": ("5.5.0", NEWEST),
    "lite-551": ("5.5.0", NEWEST),
    "lmq-551": ("5.5.0", NEWEST),
    "load-551": ("5.5.1", NEWEST),
    "load-551-aged": ("5.5.1", NEWEST),
    "rocks-551": ("5.5.1", NEWEST),
    "crash-497": ("4.9.4", "4.9.8"),
    "crash-540": ("5.4.0", "5.4.0"),
    "cqext-497": ("4.9.4", "4.9.8"),
    "lmq-497": ("4.9.1", "4.9.8"),
    "load-497": ("4.9.4", "4.9.8"),
}
OF_533 = ("5.2.0", "5.3.3")


@pytest.mark.parametrize("name", stores.GOLDEN)
def test_writer_is_among_the_possible(name: str, golden: GoldenStore) -> None:
    with Store.open(golden(name)) as store:
        found = evidence_of(store)
    first, last = (Version.parse(text) for text in SPANS.get(name, OF_533))
    assert found.possible == tuple(release for release in RELEASES if first <= release <= last)
    assert Version.parse(stores.truth(name)["written_by"]) in found.possible
    assert found.evidence


def test_upgraded_store_goes_by_who_ran_last(store_copy: StoreCopy) -> None:
    root = store_copy("clean-497")
    for path in (root / paths.CONFIG).iterdir():
        path.unlink()
    shutil.copytree(store_copy("clean-540") / paths.CONFIG, root / paths.CONFIG, dirs_exist_ok=True)
    shutil.copytree(store_copy("clean-540") / paths.ROCKSDBSTORE, root / paths.ROCKSDBSTORE)
    with Store.open(root) as store:
        found = evidence_of(store)
    assert [str(version) for version in found.possible] == ["5.4.0"]
    assert any("not counted" in line for line in found.evidence)


@pytest.mark.parametrize("exit", ["clean", "crash"])
def test_an_abort_without_content_tells_nothing(exit: Exit, store_copy: StoreCopy) -> None:
    root = store_copy("clean-514")
    set_exit(root, exit)
    with Store.open(root) as store:
        assert not any("process id" in line for line in evidence_of(store).evidence)


def test_bare_log_leaves_what_records_tell(store_copy: StoreCopy) -> None:
    root = store_copy("load-533")
    for path in root.iterdir():
        if path.name != paths.COMMITLOG:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    with Store.open(root) as store:
        found = evidence_of(store)
    assert {Version.parse("5.3.3"), Version.parse("5.4.0"), Version.parse("5.5.1")} <= set(found.possible)
    assert Version.parse("4.9.7") not in found.possible


def test_5_4_that_ran_after_5_5_is_told_by_its_database(store_copy: StoreCopy) -> None:
    root = store_copy("load-551-aged")
    shutil.rmtree(root / paths.ROCKSDBSTORE)
    shutil.copytree(store_copy("clean-540") / paths.ROCKSDBSTORE, root / paths.ROCKSDBSTORE)
    with Store.open(root) as store:
        assert [str(version) for version in evidence_of(store).possible] == ["5.4.0"]


def test_a_queue_offset_alone_tells_that_5_5_ran_at_some_time(store_copy: StoreCopy) -> None:
    root = store_copy("load-551-aged")
    for path in root.iterdir():
        if path.name not in (paths.COMMITLOG, paths.CHECKPOINT):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    with Store.open(root) as store:
        possible = evidence_of(store).possible
    assert possible == tuple(release for release in RELEASES if release >= Version.parse("5.5.0"))


def test_filters_light_topics_and_pops_tell_5_5(golden: GoldenStore) -> None:
    expected = {
        "clean-550": {"POP checkpoints with sp: 5.5 or later"},
        "clean-551": {"POP checkpoints with sp: 5.5 or later", "SQL92 filters without bloomFilterData: 5.5.1 or later"},
        "lite-551": {"light topics in the configuration: 5.5 or later"},
        "clean-540": set(),
    }
    for name, lines in expected.items():
        with Store.open(golden(name)) as store:
            evidence = set(evidence_of(store).evidence)
        assert {line for line in evidence if line.startswith(("POP", "SQL92", "light topics"))} == lines, name


def test_attributes_of_groups_tell_light_topics(store_copy: StoreCopy) -> None:
    root = store_copy("clean-540")
    path = root / paths.CONFIG / "subscriptionGroup.json"
    text = path.read_text()
    path.write_text(re.sub(r'"attributes":\{\s*\}', '"attributes":{"lite.bind.topic":"parent"}', text, count=1))
    assert path.read_text() != text
    with Store.open(root) as store:
        assert any(line.startswith("light topics in the configuration") for line in evidence_of(store).evidence)
