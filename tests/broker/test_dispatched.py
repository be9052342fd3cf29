"""A start comes to the same whatever it reads at once, and whatever waits for its queues."""

from __future__ import annotations

import random
import shutil
from collections import defaultdict
from typing import Any

import pytest

from store_core.broker import dispatch, walk
from store_core.broker.queue_recovery import QueueState
from store_core.broker.start import start_broker
from store_core.broker.versions import RELEASES, Version, Watched, behaviour_of, groups_of
from store_core.layout import paths
from store_core.layout.queue import ENTRY
from store_core.recovery.prediction.outcome import Outcome
from store_core.recovery.prediction.predict import outcome_of
from store_core.storage.settings import load_settings
from store_core.storage.store import Store
from tests.conftest import DamagedStore, GoldenStore, StoreCopy

STORES = (
    "load-533",
    "load-497",
    "clean-430",
    "clean-540",
    "crash-497",
    "bcq-533",
    "lmq-533",
    "propcrc-533",
)
GROUPS = groups_of(RELEASES)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows are small, and queues take few entries at once."""
    monkeypatch.setattr(walk, "WINDOW_SIZE_BYTES", 16 << 10)
    monkeypatch.setattr(dispatch, "MOST_WAITING", 100)


def _outcomes(store: Store) -> list[tuple[Outcome, list[str]]]:
    return [outcome_of(store, behaviour) for behaviour, _ in GROUPS]


def _at_once(store: Store) -> list[tuple[Outcome, list[str]]]:
    """Return the outcomes of starts that read large windows and whose queues take all entries at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(walk, "WINDOW_SIZE_BYTES", 4 << 20)
        patch.setattr(dispatch, "MOST_WAITING", 1 << 30)
        return _outcomes(store)


@pytest.mark.product(5)
@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("exit", ["clean", "crash"])
@pytest.mark.parametrize(
    ("name", "missing"),
    [
        *((name, missing) for name in STORES for missing in ("one queue", "queues and index")),
        *((name, missing) for name in ("load-533", "crash-497") for missing in ("", "queues")),
    ],
)
def test_every_start_comes_to_the_same(name: str, exit: str, missing: str, store_copy: StoreCopy) -> None:
    root = store_copy(name, exit)
    if "queues" in missing:
        for tree in (paths.CONSUMEQUEUE, paths.BATCHCONSUMEQUEUE, paths.CONSUMEQUEUE_EXT):
            shutil.rmtree(root / tree, ignore_errors=True)
    if "one" in missing:
        shutil.rmtree(max((root / paths.CONSUMEQUEUE).iterdir()))
    if "index" in missing:
        shutil.rmtree(root / paths.INDEX, ignore_errors=True)
    with Store.open(root, load_settings(None, root)) as store:
        assert _outcomes(store) == _at_once(store)


@pytest.mark.product
@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("exit", ["clean", "crash"])
@pytest.mark.parametrize(
    "case", ["flip-body-mid", "zero-page-mid", "ghost-tail", "cq-tail-lost", "cq-hole", "log-missing-mid"]
)
def test_every_start_on_a_damaged_store_comes_to_the_same(case: str, exit: str, damaged: DamagedStore) -> None:
    with Store.open(damaged("load-533", case, exit)) as store:
        assert _outcomes(store) == _at_once(store)


@pytest.mark.product(4)
@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("seed", range(24))
def test_every_start_on_a_store_damaged_at_random_comes_to_the_same(seed: int, store_copy: StoreCopy) -> None:
    draw = random.Random(seed)
    root = store_copy(draw.choice(("load-533", "load-497", "clean-540", "crash-497")), draw.choice(("clean", "crash")))
    for _ in range(draw.randrange(4)):
        path = draw.choice(sorted((root / paths.COMMITLOG).iterdir()))
        path.write_bytes(_damaged(draw, path.read_bytes()))
    kept = draw.choice((0.0, 0.9, 1.0))
    for path in sorted((root / paths.CONSUMEQUEUE).glob("*/*/*")):
        data = path.read_bytes()
        used = len(data.rstrip(b"\0")) // ENTRY.size_bytes
        path.write_bytes(data[: int(used * kept) * ENTRY.size_bytes].ljust(len(data), b"\0"))
    with Store.open(root, load_settings(None, root)) as store:
        assert _outcomes(store) == _at_once(store)


def _damaged(draw: random.Random, data: bytes) -> bytes:
    at, length = draw.randrange(len(data)), draw.randrange(1, 3000)
    end = min(at + length, len(data))
    match draw.randrange(4):
        case 0:
            return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]
        case 1:
            return data[:at] + bytes(end - at) + data[end:]
        case 2:
            return data[:at]
        case _:
            start = draw.randrange(len(data) - (end - at) + 1)
            return data[:at] + data[start : start + end - at] + data[end:]


@pytest.mark.product(1)
@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("entries", [50, 700, 3000])
def test_an_index_that_rolls(entries: int, store_copy: StoreCopy) -> None:
    """Keys that do not fit into the newest index file are counted record by record."""
    root = store_copy("load-533", "crash")
    shutil.rmtree(root / paths.INDEX)
    shutil.rmtree(root / paths.CONSUMEQUEUE)
    (root / "broker.conf").write_text(f"maxIndexNum={entries}\nmaxHashSlotNum=100\n")
    with Store.open(root, load_settings(root / "broker.conf", root)) as store:
        shared = _outcomes(store)
        assert shared == _at_once(store)
        assert any(outcome.index_rebuilt for outcome, _ in shared)


def test_a_queue_takes_the_rows_of_all_segments_at_once(store_copy: StoreCopy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only blanks lie between the segments: 300 segments and 64 queues were 19,200 turns of each start."""
    root = store_copy("clean-533", "crash")
    shutil.rmtree(root / paths.CONSUMEQUEUE)
    (root / paths.CHECKPOINT).unlink()  # so that a start begins with the first segment
    turns: dict[str, int] = defaultdict(int)
    put = QueueState.put

    def counted(queue: QueueState, *columns: Any) -> None:
        turns[str(queue.key)] += 1
        put(queue, *columns)

    monkeypatch.setattr(QueueState, "put", counted)
    with Store.open(root) as store:
        assert len(store.log.segments) > 3
        for behaviour, _ in GROUPS[-2:]:
            outcome_of(store, behaviour)
            assert set(turns.values()) == {1}
            turns.clear()


def test_columns_about_light_queues_are_not_read_without_any(golden: GoldenStore) -> None:
    """Releases that differ in these columns alone take one path."""
    for name, is_read in (("load-533", False), ("lmq-533", True)):
        watched = Watched(behaviour_of(Version.parse("5.3.3")))
        with Store.open(golden(name)) as store, start_broker(store, watched.behaviour):
            differing = watched.answered_otherwise(behaviour_of(Version.parse("4.9.2")))
        assert bool(differing & {"multi_dispatch", "no_lists", "passes_light_folders"}) is is_read, name
