"""Files with holes, as a stretched segment has one: keeping, cutting and bringing back costs what was written, not what it is long."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rmqctl.app import main
from store_core.derive.queues import QueueFile, same_content
from store_core.errors import FailedError
from store_core.layout import paths, queue
from store_core.recovery.apply.apply import apply
from store_core.recovery.apply.originals import allocated_bytes
from store_core.recovery.apply.undo import undo
from store_core.recovery.plans.draft import Draft
from store_core.recovery.plans.plan import Built
from store_core.recovery.plans.plan_json import plan_from_bytes, plan_to_bytes
from store_core.recovery.rebuild import rebuild
from store_core.storage.digest import Hole, digest_file, runs
from store_core.storage.files import FileCache
from store_core.storage.settings import load_settings
from store_core.storage.store import Store
from store_core.storage.syscalls import FileOps
from tests import stores
from tests.conftest import StoreCopy
from tests.recovery.recovering import Opener
from tests.rmqctl.test_bad_input import deadline

_TIB = 1 << 40
_MIB = 1 << 20
_DEADLINE_SECONDS = 20


class SmallDisk(FileOps):
    """Of which so much is free."""

    def __init__(self, free_bytes: int) -> None:
        super().__init__()
        self._free_bytes = free_bytes

    def free_bytes(self, path: Path) -> int:
        return self._free_bytes


def _used(path: Path) -> list[tuple[int, bytes]]:
    """What of a file was written, by its place."""
    at, found = 0, []
    for run in runs(path, 0, path.stat().st_size):
        if not isinstance(run, Hole) and run.strip(b"\0"):
            found.append((at, bytes(run)))
        at += run.size_bytes if isinstance(run, Hole) else len(run)
    return found


def test_a_segment_stretched_to_a_tebibyte_is_cut_and_brought_back(
    store_copy: StoreCopy, settings_of: Callable[[str], Path]
) -> None:
    root = store_copy("clean-533")
    path = max((root / paths.COMMITLOG).iterdir())
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(_TIB)
    before, mtime_ns = _used(path), path.stat().st_mtime_ns
    plan = Opener(settings_of("clean-533"), "5.3.3").recover(root).plan
    apply(plan, root, ops=SmallDisk(64 * _MIB))
    assert path.stat().st_size == size
    undo(root, apply=True)
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (_TIB, mtime_ns)
    assert _used(path) == before


def test_what_was_written_still_needs_its_room(store_copy: StoreCopy) -> None:
    root = store_copy("clean-533")
    path = root / "config" / "big"
    path.write_bytes(b"x" * 32 * _MIB)
    draft = Draft(root)
    draft.set_length("config/big", 1)
    before = stores.snapshot(root)
    with pytest.raises(FailedError, match="the disk would be full"):
        apply(draft.plan("test"), root, ops=SmallDisk(30 * _MIB))
    after = {name: entry for name, entry in stores.snapshot(root).items() if not name.startswith((".rmqctl", "lock"))}
    assert after == {name: entry for name, entry in before.items() if name != "lock"}


def test_going_back_begins_only_where_there_is_room_for_it(store_copy: StoreCopy) -> None:
    root = store_copy("clean-533")
    path = root / "config" / "big"
    path.write_bytes(b"x" * 32 * _MIB)
    before = digest_file(path)
    draft = Draft(root)
    draft.set_length("config/big", 1)
    draft.create_file("config/new", b"y" * 4 * _MIB)
    apply(draft.plan("test"), root, ops=SmallDisk(64 * _MIB))
    changed = stores.snapshot(root)
    with pytest.raises(FailedError, match="the disk would be full") as refused:
        undo(root, apply=True, ops=SmallDisk(27 * _MIB))
    assert "nothing was changed" in str(refused.value)
    assert stores.snapshot(root) == changed
    undo(root, apply=True, ops=SmallDisk(28 * _MIB))  # what the change made is given up
    assert digest_file(path) == before
    assert not (root / "config/new").exists()


def test_queue_files_need_room_for_their_entries_alone(golden: Callable[[str], Path], tmp_path: Path) -> None:
    """A queue file is 6 MB long and holds a few KiB: a broker's are sparse, and so are those that are built."""
    root = shutil.copytree(golden("clean-533"), tmp_path / "store")
    shutil.rmtree(root / paths.CONSUMEQUEUE)
    with ExitStack() as keep, Store.open(root) as store:
        plan = rebuild(store, "queues", keep=keep).plan
    lengths = sum(step.size_bytes or 0 for step in plan.steps)
    assert lengths > 64 * _MIB
    assert plan_from_bytes(plan_to_bytes(plan), "plan") == plan
    apply(plan, root, ops=SmallDisk(4 * _MIB))
    built = [path for path in (root / paths.CONSUMEQUEUE).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in built) == lengths
    assert sum(allocated_bytes(path) for path in built) < 2 * _MIB


@pytest.mark.parametrize(
    ("name", "part", "removed", "values"),
    [
        ("clean-533", "index", paths.INDEX, {"maxHashSlotNum": "5000000", "maxIndexNum": "20000000"}),
        ("bcq-533", "queues", paths.BATCHCONSUMEQUEUE, {}),
        ("cqext-533", "queues", paths.CONSUMEQUEUE, {"mappedFileSizeConsumeQueueExt": str(48 * _MIB)}),
    ],
)
def test_other_derived_files_need_room_for_what_is_written(
    name: str, part: str, removed: str, values: dict[str, str], golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """An index file of the default sizes is 420 MB long, and two thousand keys take up a twentieth of it."""
    root = shutil.copytree(golden(name), tmp_path / "store")
    shutil.rmtree(root / removed)
    with ExitStack() as keep, Store.open(root, load_settings(root=root, values=values)) as store:
        plan = rebuild(store, part, keep=keep).plan
    built = {step.path: step.content for step in plan.steps if isinstance(step.content, Built)}
    lengths = sum(step.size_bytes or 0 for step in plan.steps)
    counted = sum(content.data_bytes or 0 for content in built.values())
    assert 0 < counted < lengths / 8
    apply(plan, root, ops=SmallDisk(counted + 4 * _MIB))
    for path, content in built.items():
        assert allocated_bytes(root / path) <= (content.data_bytes or 0) + (64 << 10)


def test_going_back_needs_no_room_where_all_of_it_is_there(store_copy: StoreCopy) -> None:
    root = store_copy("clean-533")
    path = root / "config" / "big"
    path.write_bytes(b"x" * 8 * _MIB)
    (root / "config" / "replaced").write_bytes(b"z" * _MIB)
    before = digest_file(path)
    draft = Draft(root)
    draft.write_range("config/big", _MIB, b"y" * 3 * _MIB)
    draft.remove_file("config/replaced")
    apply(draft.plan("test"), root, ops=SmallDisk(64 * _MIB))
    undo(root, apply=True, ops=SmallDisk(0))
    assert digest_file(path) == before


def test_a_hole_that_was_written_into_holds_zeros_again(store_copy: StoreCopy) -> None:
    root = store_copy("clean-533")
    path = root / "config" / "holed"
    with path.open("wb") as file:
        file.write(b"begin")
        file.truncate(8 * _MIB)
        file.seek(8 * _MIB - 3)
        file.write(b"end")
    before = digest_file(path)
    draft = Draft(root)
    draft.write_range("config/holed", 2 * _MIB, b"y" * 3 * _MIB)
    apply(draft.plan("test"), root)
    assert digest_file(path) != before
    undo(root, apply=True)
    assert digest_file(path) == before


@pytest.mark.parametrize("words", ["check", "recover", "recover --policy broker", "rebuild all", "truncate 393216"])
def test_a_queue_file_stretched_to_a_tebibyte_is_not_read_through(words: str, store_copy: StoreCopy) -> None:
    root = store_copy("load-533", "crash")
    with min((root / paths.COMMITLOG).iterdir()).open("r+b") as file:
        file.seek(700)
        file.write(bytes(3000))  # whom it held is asked of the queues
    os.truncate(root / "consumequeue/Calm_orders/0/00000000000000000000", _TIB)
    with deadline(_DEADLINE_SECONDS):
        assert main([*words.split(), "-s", str(root), "-o", "json"]) in (0, 1, 3)


@pytest.mark.parametrize("words", ["recover", "rebuild all"])
def test_zeros_behind_a_segments_length_are_one_stretch(words: str, store_copy: StoreCopy) -> None:
    root = store_copy("pool-533")
    segments = sorted((root / paths.COMMITLOG).iterdir())
    os.truncate(segments[0], 0)
    os.truncate(segments[-1], 2 << 30)
    with deadline(_DEADLINE_SECONDS):
        assert main([*words.split(), "-s", str(root), "-o", "json"]) in (0, 3)


@pytest.mark.parametrize("beyond", [None, 4095, 5 * _MIB])
def test_of_a_queue_file_only_what_is_no_hole_is_compared(
    beyond: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """50,000 queue files are 300 GB long and hold a few KiB each."""
    (tmp_path / paths.COMMITLOG).mkdir()
    path, entry, size = tmp_path / "queue", b"\1" * queue.ENTRY.size_bytes, queue.DEFAULT_FILE_SIZE_BYTES
    with path.open("wb") as file:
        file.write(entry)
        if beyond is not None:
            file.seek(beyond)
            file.write(b"\1")
        file.truncate(size)
    asked: list[int] = []

    def content() -> Iterator[bytes | Hole]:
        yield entry
        yield Hole(size - len(entry))

    read = FileCache.read

    def counted(cache: FileCache, path: Path, at: int, size_bytes: int) -> bytes:
        asked.append(size_bytes)
        return read(cache, path, at, size_bytes)

    monkeypatch.setattr(FileCache, "read", counted)
    with Store.open(tmp_path) as store:
        made = QueueFile("queue", size, 0, content, len(entry))
        assert same_content(store, path, made) == (beyond is None)
    assert sum(asked) < 2 * _MIB
