"""Commands that mend read the log no more often than they have to, and with several threads come to the same."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from store_core.check import store as checking
from store_core.errors import FailedError
from store_core.layout import paths
from store_core.recovery import damage_scan as survey
from store_core.recovery import derived_files as derived
from store_core.recovery import lost_from_queues as evidence
from store_core.recovery import queue_gaps as gaps
from store_core.recovery.apply import prepare
from store_core.recovery.apply.apply import apply
from store_core.recovery.keep_options import KeepOptions
from store_core.recovery.rebuild import rebuild
from store_core.recovery.recover import Policy, recover
from store_core.recovery.truncate import truncate
from store_core.scan import log
from store_core.scan import parallel as side_by_side
from store_core.scan.frames import FrameTable
from store_core.scan.log import Progress
from store_core.scan.walk_progress import WalkProgress
from store_core.storage.lock import StoreLock
from store_core.storage.settings import load_settings
from store_core.storage.store import Store
from tests.conftest import DamagedStore, GoldenStore, StoreCopy
from tests.damage import Damageable
from tests.rmqctl.calls import call
from tests.stores import sha256

Walked = list[int]
CASES: Final = ("flip-body-mid", "zero-page-mid", "log-missing-mid", "ghost-tail", "torn-tail")


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> Walked:
    """The threads of every walk over a whole log."""
    walks: Walked = []

    def counting(store: Store, **how: Any) -> Iterator[FrameTable]:
        walks.append(how["options"].jobs)
        return log.scan_log(store, **how)

    for module in (survey, derived, checking):
        monkeypatch.setattr(module, "scan_log", counting)
    return walks


@pytest.fixture
def no_builder(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is applied must have been built while it was planned."""

    def asked(name: str) -> Any:
        raise FailedError(f"{name} was asked to build", to_do="use what was built while planning")

    monkeypatch.setattr(prepare, "builder_named", asked)


def _queues(root: Path) -> dict[str, str]:
    files = (path for path in (root / paths.CONSUMEQUEUE).rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): sha256(path) for path in files}


@pytest.mark.usefixtures("no_builder")
def test_a_rebuild_walks_once(store_copy: StoreCopy, walked: Walked) -> None:
    root = store_copy("load-533")
    before = _queues(root)
    for path in (max((root / paths.INDEX).iterdir()), *(root / name for name in before if "/0/" in name)):
        path.unlink()
    with StoreLock(root) as lock, ExitStack() as keep:
        result = rebuild(keep.enter_context(Store.open(root)), "all", jobs=2, keep=keep)
        assert apply(result.plan, root, lock=lock, made=result.made)
    assert walked == [2]
    assert _queues(root) == before


def test_recover_walks_a_sane_log_once_and_checks_it_once(store_copy: StoreCopy, walked: Walked) -> None:
    with Store.open(store_copy("load-533")) as store:
        assert not recover(store).plan.steps
    assert walked == [1, 1]


def test_recover_walks_a_log_that_will_be_another_once_more(damaged: DamagedStore, walked: Walked) -> None:
    with Store.open(damaged("load-533", "flip-body-mid")) as store:
        assert recover(store, jobs=3).plan.steps
    assert walked == [3, 3, 3]


@pytest.mark.leaves_damage("policy broker leaves progress behind the cut")
@pytest.mark.usefixtures("no_builder")
@pytest.mark.parametrize("policy", ["keep", "broker"])
def test_what_was_planned_is_what_is_applied(damaged: DamagedStore, policy: Policy) -> None:
    root = damaged("load-533", "flip-body-mid")
    with StoreLock(root) as lock, ExitStack() as keep:
        recovery = recover(keep.enter_context(Store.open(root)), policy, keep=keep)
        apply(recovery.plan, root, lock=lock, made=recovery.made)
    with Store.open(root) as store:
        assert not rebuild(store, "queues").plan.steps
        assert not rebuild(store, "index").plan.steps


@pytest.mark.usefixtures("no_builder")
def test_a_planned_cut_is_what_is_applied(store_copy: StoreCopy) -> None:
    root = store_copy("load-533")
    with StoreLock(root) as lock, ExitStack() as keep:
        store = keep.enter_context(Store.open(root))
        cut = truncate(store, store.log.segments[2].phy_offset, keep=keep)
        apply(cut.plan, root, lock=lock, made=cut.made)
    with Store.open(root) as store:
        assert not rebuild(store, "all").plan.steps


@pytest.mark.usefixtures("no_builder")
def test_without_the_lock_it_is_built_anew(store_copy: StoreCopy) -> None:
    """Nobody knows what happened to the store in between."""
    root = store_copy("load-533")
    for path in (root / paths.INDEX).iterdir():
        path.unlink()
    settings = load_settings(root=root, values={"maxHashSlotNum": "500", "maxIndexNum": "2000"})
    with ExitStack() as keep:
        result = rebuild(keep.enter_context(Store.open(root, settings)), "index", keep=keep)
        with pytest.raises(FailedError, match="was asked to build"):
            apply(result.plan, root, made=result.made)


def _in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for what in ("PIECE_SIZE_BYTES", "BARE_PIECE_SIZE_BYTES", "PATCHED_PIECE_SIZE_BYTES"):
        monkeypatch.setattr(side_by_side, what, 4096)
    monkeypatch.setattr(side_by_side, "WORTH_BYTES", 0)


@pytest.mark.product(2)
@pytest.mark.parametrize("case", CASES)
def test_threads_change_nothing(damaged: DamagedStore, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _in_small_pieces(monkeypatch)
    root = damaged("load-533", case)
    with Store.open(root) as one, Store.open(root) as other:
        assert recover(one, jobs=3).as_json() == recover(other).as_json()


def test_threads_take_the_same_from_a_sibling(
    damageable: Callable[..., Damageable], golden: GoldenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log that several threads walk is a view, partly read from another store."""
    store = damageable("load-533")
    for number in range(100, 2000, 200):
        store.zero(store.message(number)["phyOffset"], 2000)
    _in_small_pieces(monkeypatch)
    options = KeepOptions(siblings=(golden("load-533"),))
    with Store.open(store.root) as one, Store.open(store.root) as other:
        found = recover(one, options=options, jobs=3).as_json()
        assert found["siblings"]
        assert found == recover(other, options=options).as_json()


@pytest.mark.parametrize("command", [("recover",), ("rebuild", "all")])
def test_commands_take_jobs(damaged: DamagedStore, command: tuple[str, ...]) -> None:
    root = damaged("load-533", "cq-queue-missing")
    alone = call(*command, "-s", root, "-o", "json")
    assert call(*command, "-s", root, "-o", "json", "--jobs", "2").json == alone.json
    assert call(*command, "-s", root, "--apply", "--jobs", "2").code == 0


def test_work_on_damage_is_told_besides_the_walks(
    damageable: Callable[..., Damageable], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies between two walks takes its time, too, where much is damaged."""
    for module in (evidence, gaps):
        monkeypatch.setattr(module, "FEWEST_ROWS", 1 << 30)  # many at once would be told at once
    store = damageable("load-533", "crash")
    first, last = store.message(100), store.message(180)
    store.zero(first["phyOffset"], last["phyOffset"] - first["phyOffset"])
    shutil.rmtree(store.queue_file(first["topic"], first["queueId"], first["queueOffset"])[0].parent)
    pieces: list[tuple[int, list[int]]] = []
    real = WalkProgress.piece

    def seen(walks: WalkProgress, size_bytes: int) -> Progress | None:
        told, calls = real(walks, size_bytes), list[int]()
        pieces.append((size_bytes, calls))
        assert told is not None

        def tell(done_bytes: int) -> None:
            calls.append(done_bytes)
            told(done_bytes)

        return tell

    monkeypatch.setattr(WalkProgress, "piece", seen)
    done, total = [0], [0]
    with Store.open(store.root) as opened:
        recover(opened, on_progress=done.append, on_total=total.append)
    assert done == sorted(done)
    assert done[-1] <= total[-1]
    assert len(pieces) >= 4
    for size_bytes, calls in pieces:
        assert calls == sorted(calls)
        assert not size_bytes or calls[-1] <= 2 * size_bytes  # a widened region is larger
    assert sum(len(calls) > 50 for _, calls in pieces) == 2  # the hole, and again with what had no place yet


def test_where_nobody_counts_what_is_walked_nothing_is_told_besides() -> None:
    told: list[int] = []
    assert WalkProgress(told.append, 100, planned=2).piece(50) is None
    totals: list[int] = []
    walks = WalkProgress(told.append, 100, planned=2, on_total=totals.append)
    for begin, size in ((walks.next, 100), (lambda: walks.piece(50), 50), (walks.next, 100)):
        work = begin()
        assert work is not None
        work(size // 2)
        work(size)
    assert told == [50, 100, 125, 150, 200, 250]
    assert totals == [200, 250, 250]
