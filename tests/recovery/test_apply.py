"""Applying and undoing plans when nothing goes wrong, and refusing when the store is not as expected."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from store_core.errors import FailedError, NotAStoreError, PlanOutOfDateError, UsageError
from store_core.recovery.apply.apply import apply
from store_core.recovery.apply.undo import forget, list_undo, undo
from store_core.recovery.plans.draft import Draft
from store_core.recovery.plans.plan import Built, work_size_bytes
from store_core.recovery.plans.plan_json import load_plan, save_plan
from store_core.storage.journal import unfinished
from tests.recording import tree
from tests.recovery.sample import LONG_AGO_NS, SEGMENT_SIZE_BYTES, make_plan, make_tree, toy_bytes
from tests.recovery.settling import finish_or_roll_back

CHANGED_SEGMENT = "commitlog/00000000000000000000"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "store")


def test_making_a_plan_changes_nothing(root: Path) -> None:
    before = tree(root)
    make_plan(root)
    assert tree(root) == before
    assert not (root / ".rmqctl").exists()


def test_every_step_does_what_it_says(root: Path) -> None:
    before = tree(root)
    apply(make_plan(root), root)
    after = tree(root)
    bytes_of = {path: data for path, (_, _, data) in after.items()}
    old = {path: data for path, (_, _, data) in before.items()}
    log = [f"commitlog/{number * SEGMENT_SIZE_BYTES:020d}" for number in range(4)]
    filler = b"filler head" + bytes(300) + b"tail"
    first, third = old[log[0]], old[log[2]]
    assert isinstance(first, bytes)
    assert isinstance(third, bytes)
    assert bytes_of[log[0]] == first[:100] + filler + first[100 + len(filler) : 3000] + bytes(SEGMENT_SIZE_BYTES - 3000)
    assert bytes_of[log[2]] == third[:10] + toy_bytes("r", 300) + third[310:500] + bytes(400) + third[900:1000]
    assert log[3] not in after
    assert "abort" not in after
    assert "consumequeue/Gone" not in after
    assert bytes_of["checkpoint"] == bytes(range(24)) + bytes(16)
    assert bytes_of["consumequeue/U/3/00000000000000000000"] == toy_bytes("q", 700)
    assert bytes_of["consumequeue/T/1/00000000000000000000"] == b"queue" + bytes(5000)
    assert bytes_of["config/topics.json"] == b'{"b":2}'


def test_modification_times_are_data(root: Path) -> None:
    before = tree(root)
    apply(make_plan(root), root)
    after = tree(root)
    assert after[CHANGED_SEGMENT][1] == before[CHANGED_SEGMENT][1]
    assert after["checkpoint"][1] == before["checkpoint"][1]
    assert after["consumequeue/T/0/00000000000000000000"][1] == LONG_AGO_NS + 7
    assert after["consumequeue/U/3/00000000000000000000"][1] == LONG_AGO_NS + 8


def test_a_replaced_file_keeps_mode_and_a_new_one_is_like_its_folder(root: Path) -> None:
    (root / "consumequeue").chmod(0o750)
    apply(make_plan(root), root)
    assert (root / "consumequeue/T/0/00000000000000000000").stat().st_mode & 0o777 == 0o640
    assert (root / "consumequeue/U/3").stat().st_mode & 0o777 == 0o750
    assert (root / "consumequeue/U/3/00000000000000000000").stat().st_mode & 0o777 == 0o640


def test_undo_gives_everything_back_bit_for_bit(root: Path) -> None:
    before = tree(root)
    applied = apply(make_plan(root), root)
    changed = tree(root)
    shown = undo(root)
    assert tree(root) == changed
    assert (shown.id, shown.applied) == (applied.undo_id, False)
    done = undo(root, apply=True)
    assert done.items == shown.items
    assert tree(root) == before
    assert not (root / ".rmqctl").exists()


def test_undo_goes_back_change_by_change(root: Path) -> None:
    states = [tree(root)]
    for number in range(3):
        draft = Draft(root)
        draft.write_range(CHANGED_SEGMENT, number * 10, b"change %d" % number)
        draft.write_file(f"config/{number}.json", b"new")
        apply(draft.plan("truncate"), root)
        states.append(tree(root))
    assert [change.id[:4] for change in list_undo(root)] == ["0003", "0002", "0001"]
    for expected in reversed(states[:-1]):
        undo(root, apply=True)
        assert tree(root) == expected
    with pytest.raises(UsageError, match="nothing to undo"):
        undo(root)


def test_a_change_in_the_middle_can_be_undone_unless_a_later_one_touched_its_files(root: Path) -> None:
    for name in ("checkpoint", "abort", "checkpoint"):
        draft = Draft(root)
        draft.write_range(name, 0, b"x" + name.encode() + str(len(list_undo(root))).encode())
        apply(draft.plan("checkpoint"), root)
    first, second, third = (change.id for change in reversed(list_undo(root)))
    with pytest.raises(PlanOutOfDateError, match=f"undo {third} first"):
        undo(root, first)
    undo(root, second, apply=True)
    assert (root / "abort").read_bytes() == b""
    with pytest.raises(PlanOutOfDateError):
        undo(root, first, apply=True)


def test_undo_refuses_when_something_else_changed_a_file(root: Path) -> None:
    apply(make_plan(root), root)
    with (root / CHANGED_SEGMENT).open("r+b") as file:
        file.seek(2000)
        file.write(b"a broker was here")
    changed = tree(root)
    for really in (False, True):
        with pytest.raises(PlanOutOfDateError, match="something else has changed"):
            undo(root, apply=really)
    assert tree(root) == changed


def test_undo_leaves_the_time_of_a_folder_that_was_used_since(root: Path) -> None:
    before = tree(root)
    apply(make_plan(root), root)
    (root / "config/new.json").write_bytes(b"{}")
    report = undo(root, apply=True)
    assert report.later_folders == ("config",)
    after = tree(root)
    assert after.pop("config/new.json")
    assert {path for path in before if before[path] != after[path]} == {"config"}


def test_damaged_kept_bytes_are_noticed_before_anything_is_changed(root: Path) -> None:
    undo_id = apply(make_plan(root), root).undo_id
    kept = root / ".rmqctl/undo" / undo_id / "kept/0"
    kept.write_bytes(kept.read_bytes()[:-1] + b"?")
    changed = tree(root)
    with pytest.raises(FailedError, match="kept bytes are damaged"):
        undo(root, apply=True)
    assert tree(root) == changed


def test_forgetting_leaves_the_change_and_no_trace(root: Path) -> None:
    undo_id = apply(make_plan(root), root).undo_id
    changed = tree(root)
    forget(root, undo_id)
    assert tree(root) == changed
    assert not (root / ".rmqctl").exists()
    with pytest.raises(UsageError):
        forget(root, undo_id)


def test_a_saved_plan_is_the_same_plan(root: Path, tmp_path: Path) -> None:
    plan = make_plan(root)
    save_plan(plan, tmp_path / "PLAN.json")
    loaded = load_plan(tmp_path / "PLAN.json")
    assert loaded == plan
    assert loaded.id == plan.id
    before = tree(root)
    apply(loaded, root)
    undo(root, apply=True)
    assert tree(root) == before


def test_a_plan_is_applied_once(root: Path) -> None:
    plan = make_plan(root)
    undo_id = apply(plan, root).undo_id
    changed = tree(root)
    with pytest.raises(PlanOutOfDateError, match=f"applied already, as {undo_id}"):
        apply(plan, root)
    assert tree(root) == changed


@pytest.mark.parametrize(
    "path",
    [
        CHANGED_SEGMENT,
        "commitlog/00000000000000008192",
        "commitlog/00000000000000012288",
        "config/topics.json",
        "index/20260101000000000",
        "consumequeue/Gone/0/00000000000000000000",
    ],
)
@pytest.mark.parametrize("how", ["flip", "grow", "remove"])
def test_a_plan_for_another_state_is_refused(root: Path, path: str, how: str) -> None:
    plan = make_plan(root)
    file = root / path
    data = bytearray(file.read_bytes())
    if how == "flip":
        place = {CHANGED_SEGMENT: 105, "commitlog/00000000000000008192": 2000}.get(path, 0)
        data[place] ^= 1
        file.write_bytes(data)
    elif how == "grow":
        file.write_bytes(data + b"more")
    else:
        file.unlink()
    before = tree(root)
    with pytest.raises(PlanOutOfDateError, match="changed since the plan was made"):
        apply(plan, root)
    assert tree(root) == before
    assert not (root / ".rmqctl").exists()


def test_a_file_that_appeared_or_a_folder_that_filled_is_another_state(root: Path) -> None:
    plan = make_plan(root)
    (root / "consumequeue/Gone/0/00000000000000000600").write_bytes(b"")
    with pytest.raises(PlanOutOfDateError, match="would remain"):
        apply(plan, root)
    (root / "consumequeue/Gone/0/00000000000000000600").unlink()
    (root / "consumequeue/U/3").mkdir(parents=True)
    (root / "consumequeue/U/3/00000000000000000000").write_bytes(b"")
    with pytest.raises(PlanOutOfDateError, match="there is a file already"):
        apply(plan, root)


def test_a_check_that_fails_takes_everything_back(root: Path) -> None:
    before = tree(root)

    def check(changed: Path) -> None:
        assert not (changed / "abort").exists()
        raise FailedError("not good")

    with pytest.raises(FailedError, match="not good"):
        apply(make_plan(root), root, check=check)
    assert tree(root) == before
    assert unfinished(root) is None


def test_a_builder_that_makes_other_bytes_is_noticed(root: Path) -> None:
    before = tree(root)
    for built in (
        Built("toy", {"letter": "z", "size_bytes": 50}, 50, crc32c=1),
        Built("toy", {"letter": "z", "size_bytes": 50}, 49),
    ):
        draft = Draft(root)
        draft.create_file("index/x", built=built)
        with pytest.raises(PlanOutOfDateError, match="what was built differs"):
            apply(draft.plan("rebuild"), root)
    draft = Draft(root)
    draft.create_file("index/x", built=Built("nobody", {}))
    with pytest.raises(FailedError, match="not known here"):
        apply(draft.plan("rebuild"), root)
    assert tree(root) == before


def test_a_builder_may_leave_the_size_open_or_end_early(root: Path) -> None:
    draft = Draft(root)
    draft.create_file("index/open", built=Built("toy", {"letter": "z", "size_bytes": 50}))
    draft.create_file("index/short", built=Built("toy", {"letter": "y", "size_bytes": 50}, 80))
    apply(draft.plan("rebuild"), root)
    assert (root / "index/open").read_bytes() == toy_bytes("z", 50)
    assert (root / "index/short").read_bytes() == toy_bytes("y", 50) + bytes(30)


def test_a_store_without_lock_gets_it_back_that_way(root: Path) -> None:
    (root / "lock").unlink()
    os.utime(root, ns=(LONG_AGO_NS, LONG_AGO_NS))
    before = tree(root)
    apply(make_plan(root), root)
    assert (root / "lock").read_bytes() == b"lock"
    undo(root, apply=True)
    assert tree(root) == before


def test_a_refused_plan_leaves_no_lock_behind(root: Path) -> None:
    plan = make_plan(root)
    (root / "lock").unlink()
    (root / "abort").write_bytes(b"1")
    before = tree(root)
    with pytest.raises(PlanOutOfDateError):
        apply(plan, root)
    assert tree(root) == before


def test_progress_counts_up_to_the_announced_size(root: Path) -> None:
    plan, told = make_plan(root), list[int]()
    apply(plan, root, on_progress=told.append)
    assert told == sorted(told)
    assert told[-1] == work_size_bytes(plan)


def test_there_must_be_a_store(tmp_path: Path, root: Path) -> None:
    with pytest.raises(NotAStoreError):
        apply(make_plan(root), tmp_path / "nowhere")
    assert finish_or_roll_back(root) == ()
