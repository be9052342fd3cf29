"""Killed at every primitive, with and without what was not synced: the next run finishes or takes back, and undo works."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from store_core.errors import FailedError, PlanOutOfDateError
from store_core.layout import paths
from store_core.recovery.apply.apply import apply
from store_core.recovery.apply.finish_interrupted import Outcome
from store_core.recovery.apply.undo import forget, list_undo, undo
from store_core.recovery.plans.plan import Plan
from store_core.storage.journal import State, unfinished
from tests.recording import Killed, Primitive, RecordingOps, copy_tree, replay, tree, unsynced
from tests.recovery.sample import make_plan, make_tree, make_wide_plan
from tests.recovery.settling import finish_or_roll_back

Tree = dict[str, tuple[object, ...]]


def bytes_of(found: Tree) -> dict[str, object]:
    return {path: data for path, (_, _, data) in found.items()}


class Case:
    """The sample store before its plan, what a whole apply makes of it, and places to crash in."""

    def __init__(self, folder: Path, planned: Callable[[Path], Plan] = make_plan, *, together: bool = False) -> None:
        self.start = folder / "start"
        make_tree(self.start / "store")
        self.plan = planned(self.start / "store")
        self._together = together
        self.before = tree(self.start / "store")
        self.base = folder / "base"
        self.root = self.base / "store"
        self.applied = folder / "applied"

    def fresh(self, start: Path | None = None) -> None:
        replay([], start or self.start, self.base)

    def recorded(self, act: Callable[[RecordingOps], object], start: Path | None = None, **how: object) -> RecordingOps:
        """Do something on a fresh copy; a kill ends it quietly."""
        self.fresh(start)
        return self.record(act, **how)

    def record(self, act: Callable[[RecordingOps], object], **how: object) -> RecordingOps:
        ops = RecordingOps(self.base, together=self._together, **how)  # type: ignore[arg-type]  # the caller's options
        try:
            act(ops)
        except Killed:
            pass
        finally:
            ops.close()
        return ops

    def apply(self, ops: RecordingOps) -> object:
        return apply(self.plan, self.root, ops=ops)

    def undo(self, ops: RecordingOps) -> object:
        return undo(self.root, apply=True, ops=ops)

    def settle(self, ops: RecordingOps) -> object:
        return finish_or_roll_back(self.root, ops=ops)

    def settled(self) -> tuple[Outcome, ...]:
        ops = RecordingOps(self.base, together=self._together)
        try:
            return tuple(one.outcome for one in finish_or_roll_back(self.root, ops=ops))
        finally:
            ops.close()

    def assert_old_or_new(self, after: Tree, gap: bool = False) -> None:
        """Finished or taken back; then, once undone, bit for bit what it was. ``gap``: the root's own time may be lost."""
        self.settled()
        assert unfinished(self.root) is None
        if list_undo(self.root):
            assert bytes_of(tree(self.root)) == bytes_of(after)
            self.record(self.undo)
        now = tree(self.root)
        assert {path for path in now.keys() | self.before.keys() if now.get(path) != self.before.get(path)} <= (
            {"."} if gap else set()
        )
        assert not list_undo(self.root)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(tmp_path_factory.mktemp("crash"))


@pytest.fixture(scope="module")
def whole(case: Case) -> list[Primitive]:
    """The primitives of an apply that nothing stops; its result is left in ``case.applied``."""
    primitives = case.recorded(case.apply).primitives
    copy_applied(case)
    return primitives


def copy_applied(case: Case) -> None:
    """With the hard links between store and kept files, as they are on the disk."""
    case.base.rename(case.applied)


def after_of(case: Case) -> Tree:
    return tree(case.applied / "store")


def in_gap(primitives: list[Primitive], n: int) -> bool:
    """Between the making (or removing) of ``.rmqctl`` and the setting back of its folder's time."""
    return bool(n) and primitives[n - 1].name in ("mkdir", "rmdir") and primitives[n - 1].paths[0] == "store/.rmqctl"


def forgotten(root: Path, id: str, ops: RecordingOps) -> None:
    forget(root, id, ops=ops)


def test_the_recording_sees_every_kind_of_primitive(whole: list[Primitive]) -> None:
    kinds = {primitive.name for primitive in whole}
    assert kinds >= {"create", "write", "truncate", "rename", "link", "unlink", "mkdir", "rmdir", "set_times"}
    assert kinds >= {"sync_file", "sync_folder", "set_owner"}


def test_nothing_foreign_ever_stands_in_a_folder_of_the_broker(case: Case, whole: list[Primitive]) -> None:
    allowed = {f"store/{path}" for path in case.before.keys() | after_of(case).keys()}
    for primitive in whole:
        for path in primitive.paths:
            assert "/.rmqctl" in path or path in allowed | {"store", "store/."}


def test_nothing_is_changed_before_it_is_kept_durably(whole: list[Primitive]) -> None:
    first = next(
        at
        for at, primitive in enumerate(whole)
        if ".rmqctl" not in primitive.paths[-1]
        and primitive.name not in ("sync_folder", "sync_file_system", "set_times")
    )
    data, names = unsynced(whole[:first])
    left = {whole[at].paths[-1].rpartition("/")[2] for at in data | names}
    assert left <= {"reserve"}


@pytest.mark.parametrize("torn", [False, True], ids=["whole", "torn"])
def test_apply_killed_at_every_primitive(case: Case, whole: list[Primitive], torn: bool) -> None:
    outcomes = set()
    for n in range(len(whole)):
        if torn and whole[n].name != "write":
            continue
        case.recorded(case.apply, kill_after=n, torn=torn)
        state = unfinished(case.root)
        outcomes.add(state.state if state else None)
        case.assert_old_or_new(after_of(case), in_gap(whole, n))
    assert {State.PREPARING, State.PREPARED} <= outcomes


@pytest.mark.product(lost=("both", "some"))
@pytest.mark.parametrize("lost", ["bytes", "names", "both", "some"])
def test_apply_and_power_cut_at_every_primitive(case: Case, whole: list[Primitive], lost: str) -> None:
    chance = random.Random(7)
    for n in range(len(whole) + 1):
        data, names = unsynced(whole[:n])
        skip = {"bytes": data, "names": names, "both": data | names}.get(
            lost, {at for at in data | names if chance.random() < 0.5}
        )
        if not skip:
            continue
        replay(whole[:n], case.start, case.base, skip)
        case.assert_old_or_new(after_of(case), gap=any(whole[at].paths[0] in ("store", "store/.") for at in skip))


@pytest.mark.product(1)
@pytest.mark.parametrize("first", [0, 11, 22])
def test_finishing_killed_at_every_primitive(case: Case, whole: list[Primitive], first: int) -> None:
    for n in [at for at in range(len(whole)) if ".rmqctl" not in whole[at].paths[-1]][first::33]:
        steps = 0
        while True:
            case.recorded(case.apply, kill_after=n)
            ops = case.record(case.settle, kill_after=steps)
            if len(ops.primitives) < steps:
                break
            case.assert_old_or_new(after_of(case), in_gap(whole, n) or in_gap(ops.primitives, steps))
            steps += 1


@pytest.fixture(scope="module")
def undoing(case: Case, whole: list[Primitive]) -> list[Primitive]:
    case.recorded(case.apply)
    ops = case.record(case.undo)
    assert tree(case.root) == case.before
    return ops.primitives


@pytest.mark.parametrize("torn", [False, True], ids=["whole", "torn"])
def test_undo_killed_at_every_primitive(case: Case, undoing: list[Primitive], torn: bool) -> None:
    outcomes: set[Outcome] = set()
    for n in range(len(undoing)):
        if torn and undoing[n].name != "write":
            continue
        case.recorded(case.apply)
        case.record(case.undo, kill_after=n, torn=torn)
        outcomes.update(case.settled())
        case.assert_old_or_new(after_of(case), in_gap(undoing, n))
    assert outcomes == {Outcome.UNDONE}


@pytest.mark.product(lost=("both", "some"))
@pytest.mark.parametrize("lost", ["bytes", "names", "both", "some"])
def test_undo_and_power_cut_at_every_primitive(
    case: Case, whole: list[Primitive], undoing: list[Primitive], lost: str
) -> None:
    chance = random.Random(11)
    for n in range(len(undoing) + 1):
        both = [*whole, *undoing[:n]]
        data, names = (({at for at in some if at >= len(whole)}) for some in unsynced(both))
        skip = {"bytes": data, "names": names, "both": data | names}.get(
            lost, {at for at in data | names if chance.random() < 0.5}
        )
        if not skip:
            continue
        replay(both, case.start, case.base, skip)
        case.assert_old_or_new(after_of(case), gap=any(both[at].paths[0] in ("store", "store/.") for at in skip))


def test_forgetting_killed_at_every_primitive(case: Case, whole: list[Primitive]) -> None:
    n = 0
    while True:
        case.recorded(case.apply)
        changed = tree(case.root)
        id = list_undo(case.root)[0].id
        ops = case.record(partial(forgotten, case.root, id), kill_after=n)
        if len(ops.primitives) < n:
            return
        case.settled()
        now = tree(case.root)
        if in_gap(ops.primitives, n):
            now["."] = changed["."]
        assert now == changed
        n += 1


def test_one_refused_primitive_takes_everything_back_at_once(case: Case, whole: list[Primitive]) -> None:
    for n in range(len(whole)):
        error = OSError((errno.ENOSPC, errno.EIO, errno.EROFS)[n % 3], "refused")

        def fault(primitive: Primitive, calls: Iterator[int], n: int = n, error: OSError = error) -> OSError | None:
            return error if next(calls) == n else None

        with pytest.raises(FailedError):
            case.recorded(case.apply, fault=partial(fault, calls=count()))
        journal = unfinished(case.root)
        if journal is None:
            assert not list_undo(case.root)
        case.assert_old_or_new(after_of(case), gap=True)


def test_a_full_disk_at_every_write_loses_nothing(case: Case, whole: list[Primitive]) -> None:
    """From that write on nothing that needs room succeeds; bytes that overwrite others still do."""
    for n in (at for at, primitive in enumerate(whole) if primitive.name in ("create", "write", "mkdir", "link")):
        seen: list[Primitive] = []

        def fault(primitive: Primitive, n: int = n, seen: list[Primitive] = seen) -> OSError | None:
            seen.append(primitive)
            room = primitive.name not in ("create", "write", "mkdir", "link") or (
                primitive.name == "write" and "/.rmqctl/" not in primitive.paths[0] and len(seen) > n + 1
            )
            reserve_gone = any(p.name == "unlink" and p.paths[0].endswith("/reserve") for p in seen)
            return None if len(seen) <= n or room or reserve_gone else OSError(errno.ENOSPC, "No space left on device")

        with pytest.raises(FailedError, match="No space left"):
            case.recorded(case.apply, fault=fault)
        assert unfinished(case.root) is None
        assert not (case.root / paths.OURS).exists()
        assert tree(case.root)["."][0] == case.before["."][0]
        case.assert_old_or_new(after_of(case), gap=True)


def test_too_little_room_is_noticed_before_anything_is_written(case: Case) -> None:
    case.fresh()
    ops = RecordingOps(case.base, free_bytes=1000)
    with pytest.raises(FailedError, match="the disk would be full"):
        apply(case.plan, case.root, ops=ops)
    assert ops.primitives == []


def test_running_apply_again_finishes_the_same_plan(case: Case, whole: list[Primitive]) -> None:
    middle = next(at for at, p in enumerate(whole) if p.name == "rename")
    case.recorded(case.apply, kill_after=middle)
    applied = apply(case.plan, case.root)
    assert applied.finished_earlier
    assert bytes_of(tree(case.root)) == bytes_of(after_of(case))


@pytest.mark.parametrize("path", ["commitlog/00000000000000000000", "consumequeue/T/0/00000000000000000000"])
def test_an_interrupted_change_that_a_broker_has_run_over_is_left_alone(
    case: Case, whole: list[Primitive], path: str
) -> None:
    prepared = (
        next(at for at, p in enumerate(whole) if p.name == "set_times" and p.paths[0].endswith(path))
        if (path.startswith("commitlog"))
        else next(at for at, p in enumerate(whole) if p.name == "rename")
    )
    case.recorded(case.apply, kill_after=prepared)
    with (case.root / path).open("r+b") as file:
        file.seek(105)
        file.write(b"written by a broker")
    mixed = tree(case.root)
    for _ in range(2):
        with pytest.raises(PlanOutOfDateError, match="something else has changed"):
            finish_or_roll_back(case.root)
    with pytest.raises(PlanOutOfDateError, match="something else has changed"):
        apply(case.plan, case.root)
    assert tree(case.root) == mixed
    id = list_undo(case.root)[0].id
    forget(case.root, id, abandon=True)
    assert tree(case.root) == mixed


def test_new_bytes_that_are_lost_mean_going_back(case: Case, whole: list[Primitive]) -> None:
    first = next(at for at, p in enumerate(whole) if p.name == "rename")
    case.recorded(case.apply, kill_after=first)
    staged = case.base / whole[first].paths[0]
    staged.write_bytes(b"")
    assert case.settled() == (Outcome.ROLLED_BACK,)
    assert tree(case.root) == case.before


def test_a_damaged_journal_is_refused(case: Case, whole: list[Primitive]) -> None:
    first = next(at for at, p in enumerate(whole) if p.name == "rename")
    case.recorded(case.apply, kill_after=first)
    journal = next(case.root.glob(".rmqctl/undo/*/journal"))
    data = bytearray(journal.read_bytes())
    data[300] ^= 1
    journal.write_bytes(data)
    mixed = tree(case.root)
    with pytest.raises(FailedError, match="journal is damaged"):
        finish_or_roll_back(case.root)
    assert tree(case.root) == mixed
    assert journal.exists()


def test_copies_keep_their_times(case: Case, tmp_path: Path) -> None:
    copy_tree(case.start, tmp_path / "copy")
    assert tree(tmp_path / "copy/store") == case.before


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    """Of a plan with so many files that they are synced together."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("store_core.storage.sync_batch.FEW", 4)
        yield Case(tmp_path_factory.mktemp("wide"), make_wide_plan, together=True)


@pytest.fixture(scope="module")
def wide_whole(wide: Case) -> list[Primitive]:
    primitives = wide.recorded(wide.apply).primitives
    copy_applied(wide)
    return primitives


@pytest.fixture(scope="module")
def wide_undoing(wide: Case, wide_whole: list[Primitive]) -> list[Primitive]:
    wide.recorded(wide.apply)
    ops = wide.record(wide.undo)
    assert tree(wide.root) == wide.before
    return ops.primitives


def subsets(waiting: set[int], chance: random.Random, times: int) -> Iterator[set[int]]:
    """Of what a power cut may undo, some: all, none but one, and by chance, as a disk writes a batch in its own order."""
    yield waiting
    for share in (chance.choice((0.1, 0.5, 0.9)) for _ in range(times)):
        yield {at for at in waiting if chance.random() < share}


def moments(primitives: list[Primitive]) -> Iterator[tuple[int, int]]:
    """Where to cut the power, with how many subsets: often while the most waits, right before each sync of all."""
    for n in range(1, len(primitives) + 1):
        is_batch = n < len(primitives) and primitives[n].name == "sync_file_system"
        if is_batch or n % 9 == 0 or primitives[n - 1].name.startswith("sync"):
            yield n, 8 if is_batch else 1


def test_many_files_are_synced_together(wide_whole: list[Primitive], wide_undoing: list[Primitive]) -> None:
    for primitives in (wide_whole, wide_undoing):
        syncs = [primitive for primitive in primitives if primitive.name.startswith("sync")]
        assert sum(primitive.name == "sync_file_system" for primitive in syncs) >= 2
        others = {primitive.paths[0].rpartition("/")[2] for primitive in syncs if primitive.name != "sync_file_system"}
        assert not {name for name in others if name.isdecimal()}  # kept, new and queue files, and queues' folders


def test_nothing_of_a_batch_is_in_place_before_all_of_it_is_durable(wide_whole: list[Primitive]) -> None:
    test_nothing_is_changed_before_it_is_kept_durably(wide_whole)


def test_apply_and_power_cut_in_a_batch(wide: Case, wide_whole: list[Primitive]) -> None:
    chance = random.Random(13)
    for n, times in moments(wide_whole):
        data, names = unsynced(wide_whole[:n])
        for skip in subsets(data | names, chance, times):
            replay(wide_whole[:n], wide.start, wide.base, skip)
            gap = any(wide_whole[at].paths[0] in ("store", "store/.") for at in skip)
            wide.assert_old_or_new(after_of(wide), gap)


def test_undo_and_power_cut_in_a_batch(wide: Case, wide_whole: list[Primitive], wide_undoing: list[Primitive]) -> None:
    chance = random.Random(17)
    for n, times in moments(wide_undoing):
        both = [*wide_whole, *wide_undoing[:n]]
        waiting = {at for some in unsynced(both) for at in some if at >= len(wide_whole)}
        for skip in subsets(waiting, chance, times):
            replay(both, wide.start, wide.base, skip)
            gap = any(both[at].paths[0] in ("store", "store/.") for at in skip)
            wide.assert_old_or_new(after_of(wide), gap)


def test_a_refused_sync_of_all_takes_everything_back(wide: Case, wide_whole: list[Primitive]) -> None:
    for wanted in range(sum(primitive.name == "sync_file_system" for primitive in wide_whole)):
        calls = count()

        def fault(primitive: Primitive, calls: Iterator[int] = calls, wanted: int = wanted) -> OSError | None:
            is_it = primitive.name == "sync_file_system" and next(calls) == wanted
            return OSError(errno.EIO, "refused") if is_it else None

        with pytest.raises(FailedError, match="refused"):
            wide.recorded(wide.apply, fault=fault)
        assert unfinished(wide.root) is None
        wide.assert_old_or_new(after_of(wide), gap=True)
