"""Random small plans; real kills at random moments; other file systems; builders; what else can go wrong."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store_core.errors import FailedError, PlanOutOfDateError, UsageError
from store_core.recovery.apply.apply import apply
from store_core.recovery.apply.undo import list_undo, undo
from store_core.recovery.plans.draft import Draft
from store_core.recovery.plans.plan import Built, Plan, Zeros, register_builder
from store_core.recovery.plans.plan_json import plan_from_bytes, plan_to_bytes, save_plan
from store_core.storage.journal import unfinished
from tests.conftest import StoreCopy
from tests.recording import Killed, Primitive, RecordingOps, tree
from tests.recovery.sample import make_plan, make_tree, toy
from tests.recovery.settling import finish_or_roll_back

FILES = [f"commitlog/{number * 4096:020d}" for number in range(4)] + ["checkpoint", "config/topics.json", "abort"]
QUIET = settings(max_examples=60, suppress_health_check=list(HealthCheck))


@st.composite
def plans(draw: st.DrawFn, root: Path) -> Plan:
    """In place: up to four ranges and perhaps another length. As a whole: another content, or none."""
    draft = Draft(root)
    for path in draw(st.lists(st.sampled_from(FILES), unique=True, min_size=1, max_size=4)):
        size = (root / path).stat().st_size
        how = draw(st.sampled_from(["in place", "replace", "remove"]))
        if how == "remove":
            draft.remove_file(path)
        elif how == "replace":
            draft.replace_file(path, draw(st.binary(max_size=50)), Zeros(draw(st.integers(0, 9000))))
        else:
            edges = sorted(draw(st.sets(st.integers(0, size + 500), min_size=2, max_size=8)))
            for start, end in zip(edges[::2], edges[1::2], strict=False):
                if draw(st.booleans()):
                    draft.zero_range(path, start, end - start)
                else:
                    draft.write_range(path, start, draw(st.binary(min_size=end - start, max_size=end - start)))
            if draw(st.booleans()):
                draft.set_length(path, edges[-1] + draw(st.integers(0, 100)))
    for number in draw(st.sets(st.integers(0, 2))):
        draft.create_file(
            f"new/{number}/{number}", draw(st.binary(max_size=20)), mtime_ns=draw(st.integers(0, 1 << 60))
        )
    return draft.plan("recover")


@QUIET
@given(data=st.data())
def test_random_plans_killed_anywhere(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    base = tmp_path_factory.mktemp("random")
    root = make_tree(base / "store")
    before = tree(root)
    plan = data.draw(plans(root))
    assert plan_from_bytes(plan_to_bytes(plan), "x") == plan
    kill_after = data.draw(st.none() | st.integers(12, 120))
    ops = RecordingOps(base, kill_after=kill_after, torn=True)
    try:
        apply(plan, root, ops=ops)
    except Killed:
        finish_or_roll_back(root)
    finally:
        ops.close()
    assert unfinished(root) is None
    if list_undo(root):
        undo(root, apply=True)
    assert tree(root) == before


KILLED_APPLY = """
import sys, pathlib
from store_core.recovery.apply.apply import apply
from store_core.recovery.plans.plan_json import load_plan
import tests.recovery.sample
from tests.recording import RecordingOps
class Slow(RecordingOps):
    def _do(self, *words):
        print("next", flush=True)
        super()._do(*words)
plan = load_plan(sys.argv[1])
print("ready", flush=True)
apply(plan, sys.argv[2], ops=Slow(pathlib.Path(sys.argv[2])))
print("done", flush=True)
"""


def test_a_process_killed_at_random_moments(tmp_path: Path) -> None:
    chance = random.Random(3)
    root = make_tree(tmp_path / "store")
    before = tree(root)
    save_plan(make_plan(root), tmp_path / "plan.json")
    words = [sys.executable, "-c", KILLED_APPLY, str(tmp_path / "plan.json"), str(root)]
    seen = set()
    for _ in range(12):
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            for _ in range(
                chance.randrange(120)
            ):  # it goes on while it is being killed, so the moment is never the same
                process.stdout.readline()
            process.send_signal(signal.SIGKILL)
        journal = unfinished(root)
        seen.add(journal.state if journal else bool(list_undo(root)))
        finish_or_roll_back(root)
        if list_undo(root):
            undo(root, apply=True)
        now = tree(root)
        now["."] = before["."]  # killed between making .rmqctl and setting the root's time back
        os.utime(root, ns=(0, int(str(before["."][1]))))
        assert now == before
    assert len(seen) > 1


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on another file system, or one that is taken for it where this machine has no other."""
    shared_memory = Path("/dev/shm")
    if shared_memory.is_dir() and shared_memory.stat().st_dev != tmp_path.stat().st_dev:
        folder = Path(tempfile.mkdtemp(dir=shared_memory))
        yield folder
        shutil.rmtree(folder)
    else:
        folder = tmp_path / "elsewhere"
        folder.mkdir()
        monkeypatch.setattr("store_core.storage.write_scope._device", lambda path: int(path.is_relative_to(folder)))
        yield folder


def outside_plan(root: Path, log: Path) -> Plan:
    draft = Draft(root, writable_roots=[log])
    draft.replace_file(log / "0", b"new segment", Zeros(5000), mtime_ns=12345)
    draft.remove_file(log / "1")
    draft.create_file(log / "2", b"two")
    draft.write_range(log / "3", 10, b"range")
    draft.remove_file("abort")
    return draft.plan("recover")


def make_outside(log: Path) -> Path:
    log.mkdir(parents=True)
    for number in (0, 1, 3):
        (log / str(number)).write_bytes(bytes([number + 1]) * 4096)
        os.utime(log / str(number), ns=(number, 1000 + number))
    os.utime(log, ns=(1, 2))
    os.utime(log.parent, ns=(3, 4))
    return log


def test_a_log_folder_on_another_file_system_has_a_staging_folder_beside_it(tmp_path: Path, elsewhere: Path) -> None:
    root, log = make_tree(tmp_path / "store"), make_outside(elsewhere / "x/commitlog")
    before = tree(root), tree(elsewhere)
    plan = outside_plan(root, log)
    with pytest.raises(UsageError, match="--commitlog"):
        apply(plan, root)
    undo_id = apply(plan, root, writable_roots=[log]).undo_id
    assert (log.parent / ".rmqctl/undo" / undo_id / "kept").is_dir()
    assert sorted(path.name for path in log.iterdir()) == ["0", "2", "3"]
    assert (log / "0").read_bytes() == b"new segment" + bytes(5000)
    undo(root, apply=True, writable_roots=[log])
    assert (tree(root), tree(elsewhere)) == before
    assert not (log.parent / ".rmqctl").exists()


@pytest.mark.parametrize("kill_after", range(12, 100, 5))
def test_killed_between_file_systems(tmp_path: Path, elsewhere: Path, kill_after: int) -> None:
    root, log = make_tree(tmp_path / "store"), make_outside(elsewhere / "x/commitlog")
    before = tree(root), tree(elsewhere)
    ops = RecordingOps(tmp_path, kill_after=kill_after)
    try:
        apply(outside_plan(root, log), root, writable_roots=[log], ops=ops)
    except Killed:
        finish_or_roll_back(root, writable_roots=[log])
    finally:
        ops.close()
    if list_undo(root):
        undo(root, apply=True, writable_roots=[log])
    now = tree(root), tree(elsewhere)
    if ops.primitives[-1].name == "mkdir":
        now[1]["x"] = before[1]["x"]  # the folder that .rmqctl was made in
    assert now == before


def no_renames(primitive: Primitive) -> OSError | None:
    """A file system where links and renames end at the folder, as on a bind mount."""
    across = primitive.name in ("link", "rename") and (".rmqctl" in primitive.paths[0]) != (
        ".rmqctl" in primitive.paths[1]
    )
    return OSError(errno.EXDEV, "Invalid cross-device link") if across else None


@pytest.mark.product(1)
@pytest.mark.parametrize("first", [60, 64, 68])
def test_where_nothing_can_be_linked_or_renamed_copies_do(first: int, tmp_path: Path) -> None:
    root = make_tree(tmp_path / "store")
    before = tree(root)
    ops = RecordingOps(tmp_path, fault=no_renames)
    apply(make_plan(root), root, ops=ops)
    undo(root, apply=True, ops=RecordingOps(tmp_path, fault=no_renames))
    assert tree(root) == before
    for n in range(first, len(ops.primitives), 12):
        dying = RecordingOps(tmp_path, fault=no_renames, kill_after=n, torn=True)
        with pytest.raises(Killed):
            apply(make_plan(root), root, ops=dying)
        dying.close()
        finish_or_roll_back(root, ops=RecordingOps(tmp_path, fault=no_renames))
        if list_undo(root):
            undo(root, apply=True, ops=RecordingOps(tmp_path, fault=no_renames))
        assert tree(root) == before


def test_a_real_store_comes_back_from_a_rebuild_of_everything(store_copy: StoreCopy) -> None:
    root = store_copy("load-533", exit="crash")
    before = tree(root)
    draft = Draft(root)
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.name != "lock":
            if "commitlog" in path.parts:
                draft.zero_range(path, 1000, 5000)
            elif "consumequeue" in path.parts:
                draft.replace_file(path, Zeros(4000), mtime_ns=path.stat().st_mtime_ns)
            else:
                draft.remove_file(path)
    apply(draft.plan("rebuild", "keep"), root)
    assert tree(root) != before
    undo(root, apply=True)
    assert tree(root) == before


def test_the_folder_of_the_store_may_be_a_link(tmp_path: Path) -> None:
    root = make_tree(tmp_path / "store")
    (tmp_path / "link").symlink_to(root)
    before = tree(root)
    apply(make_plan(tmp_path / "link"), tmp_path / "link")
    undo(tmp_path / "link", apply=True)
    assert tree(root) == before


def test_a_store_that_may_not_be_written_to(tmp_path: Path) -> None:
    root = make_tree(tmp_path / "store")
    before = tree(root)

    def read_only(primitive: Primitive) -> OSError:
        return OSError(errno.EROFS, "Read-only file system")

    with pytest.raises(FailedError, match="work on a copy"):
        apply(make_plan(root), root, ops=RecordingOps(tmp_path, fault=read_only))
    assert tree(root) == before


def test_a_file_that_is_a_link_is_not_changed(tmp_path: Path) -> None:
    root = make_tree(tmp_path / "store")
    plan = make_plan(root)
    segment = root / "commitlog/00000000000000000000"
    segment.rename(tmp_path / "segment")
    segment.symlink_to(tmp_path / "segment")
    with pytest.raises(FailedError, match="not a plain file"):
        apply(plan, root)


def test_a_huge_run_of_zeros_needs_little_room_in_a_plan(tmp_path: Path) -> None:
    root = make_tree(tmp_path / "store")
    draft = Draft(root)
    draft.create_file("commitlog/00000000000000016384", b"blank", Zeros(1 << 30))
    plan = draft.plan("recover")
    assert len(plan_to_bytes(plan)) < 2000
    apply(plan, root)
    made = root / "commitlog/00000000000000016384"
    assert made.stat().st_size == (1 << 30) + 5
    assert made.stat().st_blocks * 512 < 1 << 20


def test_builders_have_one_name_each() -> None:
    assert register_builder("toy", toy) is toy
    with pytest.raises(ValueError, match="already"):
        register_builder("toy", lambda building: [])


def test_one_call_of_a_builder_makes_all_its_files(tmp_path: Path) -> None:
    root = make_tree(tmp_path / "store")
    calls = []

    def counting(building: Any) -> Any:
        calls.append(building.paths)
        return toy(building)

    register_builder(f"counting {tmp_path}", counting)
    draft = Draft(root)
    for number in range(3):
        draft.create_file(f"index/{number}", built=Built(f"counting {tmp_path}", {"letter": "c", "size_bytes": 9}, 9))
    apply(draft.plan("rebuild"), root)
    assert calls == [("index/0", "index/1", "index/2")]


def test_a_store_moved_elsewhere_can_still_be_undone(tmp_path: Path) -> None:
    root = make_tree(tmp_path / "store")
    before = tree(root)
    apply(make_plan(root), root)
    root.rename(tmp_path / "moved")
    undo(tmp_path / "moved", apply=True)
    assert tree(tmp_path / "moved") == before


def test_what_it_was_made_from_must_not_have_changed(tmp_path: Path) -> None:
    root = make_tree(tmp_path / "store")
    plan = make_plan(root)
    os.utime(root / "index/20260101000000000", ns=(1, 1))
    with pytest.raises(PlanOutOfDateError, match="changed since"):
        apply(plan, root)


def test_a_file_that_vanishes_while_it_is_changed_loses_nothing(tmp_path: Path) -> None:
    root = make_tree(tmp_path / "store")
    before = tree(root)
    segment, aside = root / FILES[1], tmp_path / "aside"

    def vanish(primitive: Primitive) -> None:
        if primitive.paths[0].endswith(FILES[0]) and segment.exists():
            segment.rename(aside)

    with pytest.raises(FailedError, match="unfinished"):
        apply(make_plan(root), root, ops=RecordingOps(tmp_path, fault=vanish))
    with pytest.raises(PlanOutOfDateError, match="something else has changed"):
        finish_or_roll_back(root)
    aside.rename(segment)
    finish_or_roll_back(root)
    undo(root, apply=True)
    assert {path: entry for path, entry in tree(root).items() if path != "commitlog"} == {
        path: entry for path, entry in before.items() if path != "commitlog"
    }


def test_killed_anywhere_in_a_store_that_had_no_lock(tmp_path: Path) -> None:
    """Until the journal is there nobody can know that the lock file is ours: then it stays, and is all that does."""
    root = make_tree(tmp_path / "store")
    (root / "lock").unlink()
    os.utime(root, ns=(5, 5))
    before = tree(root)
    is_killed, n = True, 0
    while is_killed:
        ops = RecordingOps(tmp_path, kill_after=n)
        try:
            apply(make_plan(root), root, ops=ops)
            is_killed = False
        except Killed:
            finish_or_roll_back(root)
        finally:
            ops.close()
        n += 1
        if list_undo(root):
            undo(root, apply=True)
        now = tree(root)
        if not any(p.name == "sync_file" for p in ops.primitives):
            now.pop("lock", None)
            (root / "lock").unlink(missing_ok=True)
            os.utime(root, ns=(5, 5))
            now["."] = before["."]
        assert now == before
    assert n > 20
