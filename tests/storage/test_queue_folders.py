"""The queues of a store, of which a broker may have tens of thousands."""

from __future__ import annotations

import gc
from pathlib import Path
from weakref import WeakSet

import pytest

from store_core.broker.start import start_broker
from store_core.broker.versions import RELEASES, groups_of
from store_core.read.dump import all_queues
from store_core.storage import store as store_module
from store_core.storage.sequence import SegmentSequence
from store_core.storage.store import QueueKey, Store

_QUEUES = 40
_FEW = 4


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "commitlog").mkdir()
    for number in range(_QUEUES):
        folder = tmp_path / "consumequeue" / f"topic_{number // 8}" / str(number % 8)
        folder.mkdir(parents=True)
        (folder / f"{0:020d}").write_bytes(bytes(20 if number == 3 else 4000))
    return tmp_path


def test_only_some_queues_are_held_at_a_time(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """50,000 sequences at a time, with their paths and lists, took 100 MB."""
    monkeypatch.setattr(store_module, "_MOST_MADE", _FEW)
    alive: WeakSet[SegmentSequence] = WeakSet()
    with Store.open(root) as store:
        assert len(store.queues) == _QUEUES
        for queues in (store.queues.values(), (dumped.queue.files for dumped in all_queues(store))):
            for files in queues:
                alive.add(files)
                assert files.file_size_bytes == 4000  # all of them tell it
                del files
                gc.collect(0)
                assert len(alive) <= _FEW + 2


def test_a_predicted_start_holds_no_more(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_MOST_MADE", _FEW)
    made: WeakSet[SegmentSequence] = WeakSet()
    make = store_module.QueueFolders._make

    def noted(folders: store_module.QueueFolders, key: QueueKey) -> SegmentSequence:
        made.add(found := make(folders, key))
        return found

    monkeypatch.setattr(store_module.QueueFolders, "_make", noted)
    behaviour = groups_of(RELEASES)[-1][0]
    (root / "consumequeue" / "topic_0" / "3" / ("0" * 20)).write_bytes(bytes(4000))  # a short file may be a refusal
    with Store.open(root) as store:
        start = start_broker(store, behaviour)
        assert len(start.queues) == _QUEUES
        gc.collect()
        assert len(made) <= _FEW + 2


def test_queues_are_found_by_key_and_in_order(root: Path) -> None:
    (root / "consumequeue" / "topic_0" / "3" / "foreign").write_bytes(b"x")
    with Store.open(root) as store:
        keys = list(store.queues)
        assert keys == sorted(QueueKey(f"topic_{n // 8}", n % 8) for n in range(_QUEUES))
        assert QueueKey("topic_9", 0) not in store.queues
        assert store.queues.get(QueueKey("topic_9", 0)) is None
        files = store.queues[QueueKey("topic_0", 3)]
        assert [(s.name, s.phy_offset, s.size_bytes) for s in files.segments] == [("0" * 20, 0, 20)]
        assert [stray.path.name for stray in files.strays] == ["foreign"]
        assert [queue.topic for queue in all_queues(store, "topic_1")] == ["topic_1"] * 8
