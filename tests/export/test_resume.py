"""An export that is killed anywhere, with its process or its machine, is ended by the same command: every record once."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from store_core.errors import UsageError
from store_core.export.runners.local import LocalRunner
from store_core.export.runners.runner import OnPiece, Walked
from store_core.export.splits.plan import Task
from store_core.export.splits.split_task import Piece
from store_core.read.log import LogFilter
from store_core.storage import part_file, publish
from store_core.storage.publish import MANIFEST, UNFINISHED
from store_core.storage.syscalls import FileOps
from tests.conftest import StoreCopy
from tests.export.exports import export_one, files_of, manifest_of
from tests.export.killing import run_killed
from tests.recording import Killed, RecordingOps, replay, unsynced

SPLIT_SIZE_BYTES = 65_536
SPLITS = 4  # one a segment


@pytest.fixture(autouse=True)
def without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here waits for the disk."""
    monkeypatch.setattr(FileOps, "sync_file", lambda *_: None)
    monkeypatch.setattr(FileOps, "sync_folder", lambda *_: None)


class Counting(LocalRunner):
    """Remembers which splits it was asked for."""

    def __init__(self) -> None:
        super().__init__(1)
        self.asked: list[Task] = []

    def run(self, tasks: Sequence[Task], on_walked: Walked, on_piece: OnPiece | None = None) -> list[Piece]:
        self.asked += tasks
        return super().run(tasks, on_walked, on_piece)


@pytest.fixture
def root(store_copy: StoreCopy) -> Path:
    """The first segments of a store."""
    copied = store_copy("bcq-533")
    for segment in sorted((copied / "commitlog").iterdir())[SPLITS:]:
        segment.unlink()
    return copied


@pytest.fixture
def whole(root: Path, tmp_path: Path) -> dict[str, bytes]:
    """All files of an export that nobody stopped."""
    export_one(root, tmp_path / "whole", split_size_bytes=SPLIT_SIZE_BYTES)
    return files_of(tmp_path / "whole")


def run_until(root: Path, out: Path, kill_after: int | None, patch: pytest.MonkeyPatch) -> RecordingOps:
    """Export, dead after so many primitives; what has happened until then."""
    ops = RecordingOps(out.parent, kill_after=kill_after)
    with patch.context() as context:
        for module in (publish, part_file):
            context.setattr(module, "FileOps", lambda: ops)
        try:
            export_one(root, out, split_size_bytes=SPLIT_SIZE_BYTES)
        except Killed:
            assert kill_after is not None
        else:
            assert kill_after is None
    ops.close()
    return ops


@pytest.mark.product(1)
@pytest.mark.parametrize("first", range(4))
def test_killed_at_any_primitive(
    first: int, root: Path, whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "all").mkdir()
    primitives = run_until(root, tmp_path / "all" / "out", None, monkeypatch).primitives
    moments = [at for at, p in enumerate(primitives) if p.name != "write" or at % 40 == 0]
    for number in moments[first::4]:
        folder = tmp_path / str(number)
        folder.mkdir()
        out = folder / "out"
        done = run_until(root, out, number, monkeypatch).primitives
        notes = sum(p.name == "rename" and p.paths[1].endswith(".note") for p in done)
        if (out / MANIFEST).exists():
            assert files_of(out) == whole
        runner = Counting()
        try:
            report = export_one(root, out, split_size_bytes=SPLIT_SIZE_BYTES, runner=runner)
        except UsageError:  # it was done, and only the lock was left
            assert number >= len(primitives) - 2
            assert files_of(out) == whole
            continue
        assert files_of(out) == whole
        assert not (out / UNFINISHED).exists()
        if not cleared_up(done):
            assert report.taken == notes
            assert len(runner.asked) == SPLITS - notes
        shutil.rmtree(folder)
    assert len(moments) > 50


def cleared_up(done: Sequence[object]) -> bool:
    return any(p.name == "unlink" and p.paths[0].endswith(".note") for p in done)  # type: ignore[attr-defined]  # primitives


def test_power_cut_at_any_primitive(
    root: Path, whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not synced may be gone, all of it or any part."""
    (tmp_path / "start").mkdir()
    (tmp_path / "all").mkdir()
    primitives = run_until(root, tmp_path / "all" / "out", None, monkeypatch).primitives
    chance = random.Random(5)
    for number in range(0, len(primitives), 12):
        at_risk = sorted(set().union(*unsynced(primitives[:number])))
        for skip in (at_risk, [at for at in at_risk if chance.random() < 0.5]):
            replay(primitives[:number], tmp_path / "start", tmp_path / "cut", skip)
            out = tmp_path / "cut" / "out"
            if (out / MANIFEST).exists():
                assert files_of(out) == whole
                if not (out / UNFINISHED / "begun.json").exists():
                    continue  # all that is missing is tidying up
            export_one(root, out, split_size_bytes=SPLIT_SIZE_BYTES)
            assert files_of(out) == whole


def killed_after_notes(root: Path, out: Path, notes: int, patch: pytest.MonkeyPatch) -> None:
    """An export that is dead right after so many notes."""
    out.parent.mkdir(exist_ok=True)
    seen = 0

    def note(*arguments: object) -> None:
        nonlocal seen
        real(*arguments)  # type: ignore[arg-type]  # as it was called
        seen += 1
        if seen == notes:
            raise Killed

    real = publish.ResultFolder.note
    with patch.context() as context:
        context.setattr(publish.ResultFolder, "note", note)
        context.setattr(publish.ResultFolder, "__exit__", lambda self, *_: os.close(self._lock))
        with pytest.raises(Killed):
            export_one(root, out, split_size_bytes=SPLIT_SIZE_BYTES)


@pytest.mark.parametrize("harm", ["byte", "cut", "gone", "note", "foreign note"])
def test_a_part_that_is_not_as_it_was_is_done_again(
    root: Path, whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    out = tmp_path / "out"
    killed_after_notes(root, out, 3, monkeypatch)
    part = max((out / UNFINISHED).glob("*.parquet"), key=lambda path: path.stat().st_size)
    note = min((out / UNFINISHED).glob("*.note"))
    data = part.read_bytes()
    if harm == "byte":
        part.write_bytes(data[:500] + bytes([data[500] ^ 1]) + data[501:])
    elif harm == "cut":
        part.write_bytes(data[:-1])
    elif harm == "gone":
        part.unlink()
    elif harm == "note":
        note.write_bytes(note.read_bytes()[:-1])
    else:
        shutil.copy(note, note.with_name("0" * 32 + ".note"))
    report = export_one(root, out, split_size_bytes=SPLIT_SIZE_BYTES)
    assert files_of(out) == whole
    assert report.taken == (3 if harm == "foreign note" else 2)


def test_a_note_can_only_make_pieces(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pickle

    from crc32c import crc32c

    from store_core.export.splits.notes import piece_of

    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(tmp_path / "evil"),)

    killed_after_notes(root, tmp_path / "out", 1, monkeypatch)
    [note] = (tmp_path / "out" / UNFINISHED).glob("*.note")
    good = note.read_bytes()
    assert isinstance(piece_of(good, Piece), Piece)
    head = good[: good.index(b"\n") + 1]
    data = pickle.dumps(Evil())
    assert piece_of(head + crc32c(data).to_bytes(4, "big") + data, Piece) is None
    assert not (tmp_path / "evil").exists()


def test_another_command_begins_anew(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    killed_after_notes(root, out, 3, monkeypatch)
    topic = LogFilter(topics=frozenset({"nosuch"}))
    report = export_one(root, out, topic, split_size_bytes=SPLIT_SIZE_BYTES)
    assert (report.taken, report.rows) == (0, 0)
    assert sorted(files_of(out)) == ["data/empty.parquet", "manifest.json", "quarantine/empty.parquet"]


def test_a_changed_segment_is_read_again(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    killed_after_notes(root, out, 3, monkeypatch)
    segment = min((root / "commitlog").iterdir())
    info = segment.stat()
    with segment.open("r+b") as file:
        file.seek(info.st_size // 2)
        file.write(b"\xff")
    os.utime(segment, ns=(info.st_atime_ns, info.st_mtime_ns))  # as if nothing had been written
    report = export_one(root, out, split_size_bytes=SPLIT_SIZE_BYTES)
    export_one(root, tmp_path / "anew", split_size_bytes=SPLIT_SIZE_BYTES)
    assert report.taken == 2
    assert files_of(out) == files_of(tmp_path / "anew")


def test_files_of_others_stay(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever lies in the folders of a result and is none of its files: when it is replaced, killed anywhere, or added to."""
    out, size = tmp_path / "out", SPLIT_SIZE_BYTES
    export_one(root, out, split_size_bytes=size // 2)
    first = set(files_of(out))
    mine = {"data/mine.parquet", "data/topic=mine/a.parquet", "quarantine/mine.txt"}
    for name in mine:
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_text("precious")
    (out / "data" / "empty").mkdir()
    export_one(root, tmp_path / "other", split_size_bytes=size)
    other = files_of(tmp_path / "other")
    moments = 0
    for number in range(1000):
        folder = tmp_path / "killed" / "out"
        shutil.copytree(out, folder)
        done = replaced_until(root, folder, number, size, monkeypatch)
        assert all((folder / name).read_text() == "precious" for name in mine)
        with suppress(UsageError):  # it was done, and only the lock was left
            export_one(root, folder, split_size_bytes=size, overwrite=True)
        assert set(files_of(folder)) == set(other) | mine
        assert {name: data for name, data in files_of(folder).items() if name not in mine} == other
        assert (folder / "data" / "empty").is_dir()
        shutil.rmtree(folder)
        moments += 1
        if done:
            break
    assert moments > 20
    assert not first <= set(other)


def replaced_until(root: Path, out: Path, kill_after: int, size: int, patch: pytest.MonkeyPatch) -> bool:
    """Replace an export, dead after so many primitives that are no writes; whether it came to its end."""
    ops = RecordingOps(out.parent, kill_after=3 * kill_after)
    with patch.context() as context:
        for module in (publish, part_file):
            context.setattr(module, "FileOps", lambda: ops)
        try:
            export_one(root, out, split_size_bytes=size, overwrite=True)
        except Killed:
            return False
        finally:
            ops.close()
    return True


CHANGES: Final = {"store_core.storage.syscalls:FileOps": "create rename unlink mkdir sync_file sync_folder rmdir"}


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_real_process_killed_again_and_again(root: Path, whole: dict[str, bytes], tmp_path: Path, jobs: int) -> None:
    """Killed ever later, each run going on where the last one was: it comes to an end."""
    out = tmp_path / "out"
    words = ("export", out, "-s", f"a={root}", "--split-size", SPLIT_SIZE_BYTES, "--jobs", jobs, "-o", "json")
    for step in range(30):
        done = run_killed(12 + 3 * step, CHANGES, *words)
        if done.code != -signal.SIGKILL:
            break
        if (out / MANIFEST).exists():
            assert files_of(out) == whole
    if "a finished export is there" not in done.err:  # killed as it left, all done
        assert (done.code, done.err.count("Traceback")) == (0, 0)
    assert step > 3
    assert files_of(out) == whole
    assert manifest_of(out)["rows"] > 0
