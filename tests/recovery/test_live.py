"""A dry run beside a broker that writes, rolls over and deletes: it tells what a crash at one moment would lead to."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from rmqctl.app import main
from store_core.layout import paths
from store_core.recovery.prediction import live_snapshot as moment
from store_core.recovery.prediction import predict
from store_core.recovery.prediction.live_snapshot import live_snapshot
from store_core.recovery.prediction.loss_book import LossBook
from store_core.recovery.prediction.start_loss import losses
from store_core.recovery.recover import recover
from store_core.storage.settings import load_settings
from store_core.storage.store import Store
from tests.at_work import MESSAGES, SEGMENT_BYTES, STORE, Broker
from tests.beside import locked
from tests.conftest import DamagedStore, StoreCopy

WRITTEN: Final = 1995  # so many records are there when the store is opened, and all of them have entries


@pytest.fixture
def broker(store_copy: StoreCopy) -> Broker:
    return Broker(store_copy(STORE, "crash"))


def opened(root: Path) -> Store:
    return Store.open(root, load_settings(None, root))


def foretold(root: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What the command tells, with the lock in another's hands."""
    with locked(root):
        assert main(["recover", "--predict", "-s", str(root), "-o", "json"]) == 0
    prediction: dict[str, Any] = json.loads(capsys.readouterr().out)["prediction"]
    return prediction


def after_the_start(monkeypatch: pytest.MonkeyPatch, change: Callable[[], None]) -> None:
    """Change something when a start has been played, and what it loses is to be looked for."""

    def changed(*args: Any, **options: Any) -> LossBook:
        change()
        return losses(*args, **options)

    monkeypatch.setattr(predict, "losses", changed)


def test_what_is_written_meanwhile_is_not_lost(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.back_to(WRITTEN, WRITTEN)
    after_the_start(monkeypatch, broker.go_on)
    with locked(broker.root), opened(broker.root) as store:
        recovery = recover(store)
    outcome = recovery.prediction.outcome
    end = MESSAGES[WRITTEN - 1]["phyOffset"] + MESSAGES[WRITTEN - 1]["storeSize"]
    assert (outcome.lost_messages, outcome.max_phy_offset, outcome.deleted_commitlog_files) == (0, end, ())
    assert (recovery.lost, recovery.after.lost_messages) == ((), 0)


def test_what_is_written_meanwhile_is_not_foretold_as_lost(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.back_to(WRITTEN, WRITTEN)
    after_the_start(monkeypatch, broker.go_on)
    assert foretold(broker.root, capsys)["lost_messages"] == 0


def test_a_moment_of_which_the_broker_has_deleted_files(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is foretold anew, for a later moment."""
    moments = expiring(broker, monkeypatch)
    assert foretold(broker.root, capsys)["lost_messages"] == 0
    assert moments == [0, 7 * SEGMENT_BYTES]


@pytest.mark.parametrize("policy", ["keep", "broker"])
def test_a_plan_for_files_that_the_broker_has_deleted(
    policy: str, broker: Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is made anew, for a later moment: also where what the plan would change could no longer be read."""
    (broker.root / paths.ABORT).touch()
    damaged = broker.root / paths.COMMITLOG / paths.segment_name(0)
    data = bytearray(damaged.read_bytes())
    data[MESSAGES[3]["phyOffset"] : MESSAGES[4]["phyOffset"]] = bytes(MESSAGES[3]["storeSize"])
    damaged.write_bytes(data)
    moments = expiring(broker, monkeypatch)
    with locked(broker.root):
        code = main(["recover", "--policy", policy, "-s", str(broker.root), "-o", "json"])
    told = json.loads(capsys.readouterr().out)
    assert (code, told["lost"], moments) == (3, [], [0, 7 * SEGMENT_BYTES]), told["findings"]


@pytest.mark.parametrize("tree", [paths.INDEX, paths.CONSUMEQUEUE])
def test_a_plan_where_the_broker_had_begun_to_delete(
    tree: str, broker: Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The log's files were gone before the moment; what leads there goes behind it."""
    broker.expire(7, trees=())
    moments = expiring(broker, monkeypatch, trees=(tree,))
    with locked(broker.root):
        code = main(["recover", "-s", str(broker.root), "-o", "json"])
    told = json.loads(capsys.readouterr().out)
    assert (code, told["lost"], told["prediction"]["starts"], len(moments)) == (3, [], True, 2), told.get("error")


def expiring(broker: Broker, monkeypatch: pytest.MonkeyPatch, **trees: tuple[str, ...]) -> list[int]:
    """Let the broker delete segments behind the first moment that is looked at. Gives where the log began at each one."""
    moments: list[int] = []
    real = moment.live_snapshot

    @contextmanager
    def then_expiring(store: Store) -> Iterator[Store]:
        with real(store) as view:
            moments.append(view.log.min_phy_offset)
            if len(moments) == 1:
                broker.expire(7, **trees)
            yield view

    monkeypatch.setattr(moment, "live_snapshot", then_expiring)
    return moments


@pytest.mark.parametrize(
    "case", ["flip-body-mid", "torn-tail", "zero-page-mid", "log-mid-short", "cq-removed-flip-mid"]
)
def test_damage_is_foretold_as_of_a_store_at_rest(case: str, damaged: DamagedStore) -> None:
    root = damaged("load-533", case, "crash")
    with opened(root) as store:
        at_rest = predict.predict(store)
    with locked(root), opened(root) as store, live_snapshot(store) as view:
        assert predict.predict(view) == at_rest


def test_a_moment_lasts(broker: Broker) -> None:
    """Each part reads as it was, whatever is written."""
    broker.back_to(WRITTEN, WRITTEN)
    (broker.root / paths.CHECKPOINT).write_bytes(b"before")
    with opened(broker.root) as store, live_snapshot(store) as view:
        segment = view.log.segments[-1]
        before = view.log.read(segment.phy_offset, segment.size_bytes)
        broker.go_on()
        (broker.root / paths.CHECKPOINT).write_bytes(b"behind")
        assert view.log.read(segment.phy_offset, segment.size_bytes) == before
        assert view.cache.read(view.root / paths.CHECKPOINT, 0, 6) == b"before"
        with view.with_log(view.log) as other:
            assert other.cache.read(view.root / paths.CHECKPOINT, 0, 6) == b"before"
            assert other.queues is view.queues
