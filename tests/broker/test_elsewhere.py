"""What a broker makes of parts of a store that are elsewhere: a log folder that is not there, and an index file that is a link."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from store_core.broker.load import load
from store_core.broker.versions import Version, behaviour_of
from store_core.layout import paths
from store_core.read.log_files import missing_log
from store_core.storage.settings import load_settings
from store_core.storage.store import Store
from tests import stores
from tests.broker.conftest import OpenStore
from tests.broker.running import RunningBroker
from tests.conftest import StoreCopy

RELEASES: Final = (("4.9.7", "load-497"), ("5.3.3", "load-533"))
_MADE_SECONDS: Final = 30


def numbers(folder: Path) -> list[int]:
    return sorted(int(path.name) >> 17 for path in folder.iterdir())


@pytest.mark.leaves_damage("a broker is asked what it makes of it")
@pytest.mark.parametrize(("version", "base"), RELEASES)
def test_a_broker_makes_a_log_folder_anew_and_goes_on_without_what_was_in_it(
    version: str, base: str, store_copy: StoreCopy, tmp_path: Path, running_broker: Callable[..., RunningBroker]
) -> None:
    """So a folder that is not there is one that no broker has seen yet, or one whose disk is gone: a finding."""
    root, second = store_copy(base, "clean"), tmp_path / "disk/commitlog"
    log = root / paths.COMMITLOG
    for segment in sorted(log.iterdir())[1::2]:
        segment.unlink()
    second.parent.mkdir()
    before, named = numbers(log), f"{log},{second}"
    with Store.open(root, load_settings(root=root, values={"storePathCommitLog": named})) as store:
        assert [found.code for found in missing_log(store)] == ["S010"]
    running_broker(version, root, stores.properties_text(base), commitlog=named)
    end = time.monotonic() + _MADE_SECONDS
    while not second.exists():
        assert time.monotonic() < end
        time.sleep(0.1)
    assert numbers(log)[: len(before)] == before
    assert not {1, 3} & {*numbers(log), *numbers(second)}


@pytest.mark.leaves_damage("a broker is asked what it makes of it")
@pytest.mark.parametrize("leads", ["into a folder", "nowhere"])
@pytest.mark.parametrize(("version", "base"), RELEASES)
def test_an_index_file_that_is_a_link_is_loaded_as_by_a_broker(
    version: str, base: str, leads: str, store_copy: StoreCopy, tmp_path: Path, open_store: OpenStore
) -> None:
    """The file that such a link names is made where that can be; else the index is not loaded, as where a folder stands."""
    root = store_copy(base, "clean")
    target = tmp_path / ("made" if leads == "into a folder" else "not there/made")
    first = min((root / paths.INDEX).iterdir())
    first.unlink()
    first.symlink_to(target)
    with Store.open(root) as store:
        ours = load(store, behaviour_of(Version.parse(version)))
    told = open_store(version, root, stores.properties_text(base), start_ms=0)
    assert (not ours.refusal) is told["load"]["ok"]
    if told["load"]["ok"]:
        assert len(ours.index.files) == len(told["afterLoad"]["indexFiles"])
    assert target.exists() is (leads == "into a folder")
