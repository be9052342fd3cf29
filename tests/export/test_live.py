"""Exports beside a writer that is at it: no record lost, none twice, none by half."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from store_core.check.verify import verify_log
from store_core.errors import FailedError
from store_core.export.dest.layout import Layout
from store_core.export.runners.local import LocalRunner
from store_core.export.source import reading
from store_core.export.source.walk import SourceSplit
from store_core.export.splits import split_task as piece
from store_core.export.splits.plan import Task
from store_core.export.splits.split_task import Piece
from store_core.export.statistics import stats_of_stores
from store_core.kernel.codes import FrameKind
from store_core.scan.frames import FrameTable
from store_core.scan.log import ScanOptions, scan_log
from store_core.storage.sequence import Segment, SegmentSequence
from store_core.storage.settings import load_settings
from store_core.storage.store import Store
from tests.beside import at_work_on
from tests.conftest import StoreCopy
from tests.export.exports import export_one, found_rows, ranges_of, table_of, told_rows
from tests.export.sources import source_table
from tests.export.test_incremental import ENDS, OFFSETS, SEGMENT_SIZE_BYTES, STORE, Growing, add_to, rows_of

pytestmark = pytest.mark.beside
STOPS = next(number for number, end in enumerate(ENDS) if end > 2 * SEGMENT_SIZE_BYTES)
# Writes a log anew as a broker does: into mapped files of full length, record by record; each in pieces, front to end.
_WRITER = """
import mmap, pathlib, random, sys, time
log, whole = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
bounds = [int(word) for word in sys.stdin.read().split()]
chance = random.Random(3)
size = int(sys.argv[3])
files = {}
def mapped(number):
    if number not in files:
        path = log / f"{number * size:020d}"
        path.write_bytes(bytes(size))
        file = open(path, "r+b")
        files[number] = mmap.mmap(file.fileno(), size), file
    return files[number][0]
print("ready", flush=True)
for start, end in zip(bounds, bounds[1:]):
    data = (whole / f"{start // size * size:020d}").read_bytes()[start % size : start % size + end - start]
    mapped((end - 1) // size + 1)  # a broker makes the next file early
    target = mapped(start // size)
    cuts = sorted({0, len(data), *(chance.randrange(len(data)) for _ in range(3))})
    for a, b in zip(cuts, cuts[1:]):
        target[start % size + a : start % size + b] = data[a:b]
        time.sleep(chance.choice((0, 0.002, 0.01)))
"""


@contextmanager
def writing(root: Path, whole: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that writes the log of ``whole`` into an empty one."""
    for segment in (root / "commitlog").iterdir():
        segment.unlink()
    args: list[str | Path] = [
        sys.executable,
        "-c",
        _WRITER,
        root / "commitlog",
        whole / "commitlog",
        str(SEGMENT_SIZE_BYTES),
    ]
    with subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(" ".join(map(str, [*starts_of_frames(whole), ENDS[-1]])).encode())
        process.stdin.close()
        assert process.stdout.readline() == b"ready\n"
        try:
            yield process
        finally:
            process.kill()


def starts_of_frames(root: Path) -> list[int]:
    """Records and blanks."""
    with Store.open(root, load_settings(None, root)) as store:
        tables = [
            table.phy_offset[np.isin(table.kind, (FrameKind.MESSAGE, FrameKind.BLANK))] for table in scan_log(store)
        ]
    return [int(at) for offsets in tables for at in offsets if at < ENDS[-1]]


def test_a_log_that_is_written_meanwhile(store_copy: StoreCopy, tmp_path: Path) -> None:
    root, whole, out = store_copy(STORE), store_copy(STORE), tmp_path / "out"
    rounds = 0
    with writing(root, whole) as writer:
        while writer.poll() is None:
            report = add_to(root, out, layout=Layout(cluster="offset"))
            rounds += bool(report.rows)
            assert report.findings == []
            offsets = rows_of(out)
            assert offsets == OFFSETS[: len(offsets)]
    assert writer.returncode == 0
    add_to(root, out, layout=Layout(cluster="offset"))
    assert rounds > 3
    assert found_rows(table_of(out)) == told_rows(STORE)
    assert table_of(out, "quarantine").num_rows == 0


def ending_at_record_30(growing: Growing) -> tuple[Path, int, int]:
    """Its file, and where in it the record begins and ends."""
    growing.end_at(ENDS[30])
    start = OFFSETS[30] // SEGMENT_SIZE_BYTES * SEGMENT_SIZE_BYTES
    return growing.root / "commitlog" / f"{start:020d}", OFFSETS[30] - start, ENDS[30] - start


@pytest.mark.parametrize("last", ["quiet", "bad body", "zeros in properties", "half", "changing"])
def test_the_newest_record_beside_a_writer(
    store_copy: StoreCopy, tmp_path: Path, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is taken if nothing of it can still be on its way."""
    growing, out = Growing(store_copy(STORE)), tmp_path / "out"
    path, at, end = ending_at_record_30(growing)
    good = path.read_bytes()
    torn = {"bad body": (at + 100, at + 102), "zeros in properties": (end - 9, end), "half": (at + 60, end)}
    if last in torn:
        first, behind = torn[last]
        path.write_bytes(good[:first] + bytes(behind - first) + good[behind:])
    if last == "changing":
        monkeypatch.setattr("time.sleep", lambda _: path.write_bytes(good[: end - 30] + b"x" + good[end - 29 :]))
    with at_work_on(growing.root):
        report = add_to(growing.root, out)
        taken = 31 if last == "quiet" else 30
        assert (rows_of(out), report.findings) == (OFFSETS[:taken], [])
        assert report.stores[0].next_phy_offset == ENDS[taken - 1]
        growing.end_at(ENDS[50])
        add_to(growing.root, out)
        assert rows_of(out) == OFFSETS[:51]
    assert add_to(growing.root, out).rows == 0


def test_a_record_is_not_withheld_because_of_damage_behind_it(store_copy: StoreCopy, tmp_path: Path) -> None:
    """It looks like the last one of its window, and is not."""
    growing = Growing(store_copy(STORE))
    path = growing.root / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[OFFSETS[9] + 90 : OFFSETS[9] + 92] = bytes(2)  # its body does not match any more
    data[OFFSETS[10] : ENDS[10]] = bytes(ENDS[10] - OFFSETS[10])
    path.write_bytes(data)
    for name in ("beside", "alone"):
        if name == "beside":
            with at_work_on(growing.root):
                add_to(growing.root, tmp_path / name)
        else:
            add_to(growing.root, tmp_path / name)
    assert rows_of(tmp_path / "beside") == rows_of(tmp_path / "alone") == [*OFFSETS[:10], *OFFSETS[11:]]


def test_what_was_half_read_is_read_again(
    store_copy: StoreCopy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer goes on between the read of a window and the look whether its last record is settled."""
    growing, out = Growing(store_copy(STORE)), tmp_path / "out"
    path, _, end = ending_at_record_30(growing)
    good = path.read_bytes()
    path.write_bytes(good[: end - 9] + bytes(9) + good[end:])  # its last properties are still on their way
    real, met = piece.is_settled, list[int]()

    def is_settled(log: SegmentSequence, table: FrameTable, row: int) -> bool:
        if table.phy_offset[row] == OFFSETS[30] and not met:
            met.append(row)
            growing.end_at(ENDS[32])
        return real(log, table, row)

    monkeypatch.setattr(piece, "is_settled", is_settled)
    with at_work_on(growing.root):
        assert add_to(growing.root, out, layout=Layout(cluster="offset")).findings == []
    assert met
    assert rows_of(out) == OFFSETS[:33]
    assert found_rows(table_of(out)) == [row for row in told_rows(STORE) if row["phy_offset"] < ENDS[32]]


def test_what_was_not_there_yet_is_read_again(
    store_copy: StoreCopy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A window ends in zeros behind its last record; by the time the next window is read, records stand there and behind."""
    growing, out = Growing(store_copy(STORE)), tmp_path / "out"
    ending_at_record_30(growing)
    real, met = piece.scan_segment, list[int]()

    def scan_segment(store: Store, segment: Segment, options: ScanOptions, at: int, stop: int, **more: Any) -> Any:
        yield from real(store, segment, options, at, stop, **more)
        if at <= OFFSETS[30] < stop and not met:
            met.append(at)
            growing.end_at(ENDS[38])
            yield from real(store, segment, options, ENDS[34], stop, **{**more, "chained": True})

    monkeypatch.setattr(piece, "scan_segment", scan_segment)
    with at_work_on(growing.root):
        assert add_to(growing.root, out, layout=Layout(cluster="offset")).findings == []
    assert met
    assert rows_of(out) == OFFSETS[:39]


def test_a_segment_that_was_filled_while_it_was_read(
    store_copy: StoreCopy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its task came too early, the next segment's task did not: what was written in between is read, too."""
    growing = Growing(store_copy(STORE))
    growing.end_at(ENDS[5])
    (growing.root / "commitlog" / f"{SEGMENT_SIZE_BYTES:020d}").write_bytes(bytes(SEGMENT_SIZE_BYTES))
    real = Task.run
    done: list[int] = []

    def run(self: Task) -> Piece:
        ran = real(self)
        done.append(1)
        if len(done) == 1:
            growing.end_at(2 * SEGMENT_SIZE_BYTES)
        return ran

    monkeypatch.setattr(Task, "run", run)
    with at_work_on(growing.root):
        report = export_one(growing.root, tmp_path / "out", split_size_bytes=SEGMENT_SIZE_BYTES)
    assert rows_of(tmp_path / "out") == [offset for offset in OFFSETS if offset < 2 * SEGMENT_SIZE_BYTES]
    assert report.findings == []


@pytest.fixture
def filled_meanwhile(store_copy: StoreCopy, monkeypatch: pytest.MonkeyPatch) -> Growing:
    """The log ends in its first segment. Once that was read, and before the next one is, a writer goes on into the third one."""
    growing = Growing(store_copy(STORE))
    growing.end_at(ENDS[5])
    for number in (1, 2):
        (growing.root / "commitlog" / f"{number * SEGMENT_SIZE_BYTES:020d}").write_bytes(bytes(SEGMENT_SIZE_BYTES))
    real, done = piece.scan_segment, list[int]()

    def scan_segment(store: Store, segment: Segment, *arguments: Any, **more: Any) -> Any:
        yield from real(store, segment, *arguments, **more)
        if not done:
            done.append(segment.phy_offset)
            growing.end_at(ENDS[STOPS])

    monkeypatch.setattr(piece, "scan_segment", scan_segment)
    return growing


def test_a_segment_that_was_filled_before_the_next_one_of_its_split_was_read(
    filled_meanwhile: Growing, tmp_path: Path
) -> None:
    with at_work_on(filled_meanwhile.root):
        report = export_one(filled_meanwhile.root, tmp_path / "out", incremental=True)
    assert report.findings == []
    assert rows_of(tmp_path / "out") == OFFSETS[: STOPS + 1]
    assert table_of(tmp_path / "out", "quarantine").num_rows == 0


def test_statistics_of_a_segment_that_was_filled_meanwhile(filled_meanwhile: Growing) -> None:
    with at_work_on(filled_meanwhile.root), Store.open(filled_meanwhile.root) as store:
        [found] = stats_of_stores([("a", store)], LocalRunner())
    assert found.report.findings == []
    assert found.report.rows == STOPS + 1


def test_statistics_count_a_record_that_may_still_change(store_copy: StoreCopy) -> None:
    """Nothing goes on from them, so nothing is left for the next time."""
    growing = Growing(store_copy(STORE))
    path, at, _ = ending_at_record_30(growing)
    good = path.read_bytes()
    path.write_bytes(good[: at + 100] + bytes(2) + good[at + 102 :])  # its body is not all there
    with at_work_on(growing.root), Store.open(growing.root) as store:
        [found] = stats_of_stores([("a", store)], LocalRunner())
    assert found.report.rows == 31


def test_a_file_made_ahead_that_is_missing(store_copy: StoreCopy, tmp_path: Path) -> None:
    """A broker that starts removes files made ahead, one by one, and makes others: one that is missing for a moment is no hole."""
    growing, out = Growing(store_copy(STORE)), tmp_path / "out"
    growing.end_at(ENDS[5])
    ahead = growing.root / "commitlog" / f"{2 * SEGMENT_SIZE_BYTES:020d}"
    ahead.write_bytes(bytes(SEGMENT_SIZE_BYTES))
    with at_work_on(growing.root), Store.open(growing.root) as store:
        assert verify_log(store, live=True).findings == []
        assert add_to(growing.root, out).findings == []
    assert table_of(out, "quarantine").num_rows == 0
    with Store.open(growing.root) as store:
        assert [found.code for found in verify_log(store).findings] == ["L006"]
    assert [found.code for found in add_to(growing.root, out).findings] == ["L006"]
    growing.end_at(ENDS[STOPS])
    add_to(growing.root, out)
    assert rows_of(out) == OFFSETS[: STOPS + 1]


@pytest.mark.parametrize("split_size", ["1m", "20k"])
def test_a_batch_of_the_source_ends_where_the_log_did(
    store_copy: StoreCopy, monkeypatch: pytest.MonkeyPatch, split_size: str
) -> None:
    """What comes while its splits are read is not there in some of them and missing in others."""
    growing = Growing(store_copy(STORE))
    ending_at_record_30(growing)
    real, met = reading.tables_of, list[int]()

    def tables_of(store: Store, split: SourceSplit, **more: Any) -> Iterator[FrameTable]:
        yield from real(store, split, **more)
        if not met:
            met.append(split.start_phy_offset)
            growing.end_at(ENDS[STOPS])

    monkeypatch.setattr(reading, "tables_of", tables_of)
    with at_work_on(growing.root):
        found = source_table(growing.root, splitSize=split_size, columns="phy_offset")
    assert met
    assert found["phy_offset"].to_pylist() == OFFSETS[:31]


@pytest.mark.parametrize("at", [0, 1])
def test_a_batch_beside_a_writer_does_not_stop_at_damage(store_copy: StoreCopy, at: int) -> None:
    """A stream would wait there and come back; a batch does not."""
    growing = Growing(store_copy(STORE))
    growing.end_at(ENDS[STOPS + 5])
    shutil.rmtree(growing.root / "consumequeue")  # nothing else tells that the log goes on
    harmed = next(number for number, offset in enumerate(OFFSETS) if offset >= 2 * SEGMENT_SIZE_BYTES) + at
    with (growing.root / "commitlog" / f"{2 * SEGMENT_SIZE_BYTES:020d}").open("r+b") as file:
        file.seek(OFFSETS[harmed] - 2 * SEGMENT_SIZE_BYTES)
        file.write(bytes(40))
    with at_work_on(growing.root):
        found = source_table(growing.root, columns="phy_offset")
        with pytest.raises(FailedError, match="the log is damaged"):
            source_table(growing.root, mode="FAILFAST")
    assert found["phy_offset"].to_pylist() == [*OFFSETS[:harmed], *OFFSETS[harmed + 1 : STOPS + 6]]


def test_a_batch_beside_a_writer_has_a_newest_record_that_stays_bad(store_copy: StoreCopy) -> None:
    growing = Growing(store_copy(STORE))
    path, at, _ = ending_at_record_30(growing)
    good = path.read_bytes()
    path.write_bytes(good[: at + 100] + bytes(2) + good[at + 102 :])
    with at_work_on(growing.root):
        found = source_table(growing.root, columns="phy_offset,crc")
    assert found["phy_offset"].to_pylist() == OFFSETS[:31]
    assert found["crc"].to_pylist() == [*["ok"] * 30, "bad"]


def test_the_end_of_a_file_that_is_missing_is_told_beside_a_writer(store_copy: StoreCopy, tmp_path: Path) -> None:
    """No broker has such a file."""
    growing = Growing(store_copy(STORE))
    growing.end_at(ENDS[STOPS])
    os.truncate(growing.root / "commitlog" / f"{2 * SEGMENT_SIZE_BYTES:020d}", ENDS[STOPS] - 2 * SEGMENT_SIZE_BYTES)
    with at_work_on(growing.root), Store.open(growing.root) as store:
        assert [found.code for found in verify_log(store, live=True).findings] == ["L006"]
        assert [found.code for found in add_to(growing.root, tmp_path / "out").findings] == ["L006"]


def test_a_file_that_was_missing_and_came_while_a_later_one_was_read(
    store_copy: StoreCopy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that starts removes a file made ahead, makes it anew, and fills it."""
    growing = Growing(store_copy(STORE))
    growing.end_at(ENDS[5])
    (growing.root / "commitlog" / f"{2 * SEGMENT_SIZE_BYTES:020d}").write_bytes(bytes(SEGMENT_SIZE_BYTES))
    real, done = Task.run, list[int]()

    def run(self: Task) -> Piece:
        ran = real(self)
        done.append(1)
        if len(done) == 1:
            growing.end_at(ENDS[STOPS])
        return ran

    monkeypatch.setattr(Task, "run", run)
    with at_work_on(growing.root):
        report = export_one(growing.root, tmp_path / "out", incremental=True)
    assert report.findings == []
    assert rows_of(tmp_path / "out") == OFFSETS[: STOPS + 1]
    assert table_of(tmp_path / "out", "quarantine").num_rows == 0


def test_a_file_that_stays_missing_beside_a_writer(store_copy: StoreCopy, tmp_path: Path) -> None:
    growing = Growing(store_copy(STORE))
    (growing.root / "commitlog" / f"{SEGMENT_SIZE_BYTES:020d}").unlink()
    with at_work_on(growing.root):
        report = export_one(growing.root, tmp_path / "out", incremental=True)
    assert [found.code for found in report.findings] == ["L006"]
    gone = range(SEGMENT_SIZE_BYTES, 2 * SEGMENT_SIZE_BYTES)
    assert rows_of(tmp_path / "out") == [offset for offset in OFFSETS if offset not in gone]
    assert [row[:3] for row in ranges_of(tmp_path / "out")] == [(SEGMENT_SIZE_BYTES, SEGMENT_SIZE_BYTES, "hole")]
