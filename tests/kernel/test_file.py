"""The walk over a file: its rows are those of the walk over windows, whatever the blocks, and a file that fails says so."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store_core.kernel import file as kernel_file
from store_core.kernel.codes import FrameCode, FrameKind, ScanFlag, ScanState
from store_core.kernel.file import FileWalk, FrameRow, Walked, walk
from store_core.kernel.reference.file import FileWalk as Twin
from store_core.layout import record
from tests.kernel.driver import FASTEST, Segment, scan, segments
from tests.kernel.test_windows import HARMS, harm, with_parts

try:
    from store_core.kernel._native import FileWalk as Native
except ImportError:
    Native = None  # type: ignore[assignment,misc]  # not built: the twin is held against the windows alone

CHECK = ScanFlag.CHECK_CRC | ScanFlag.CHECK_PROPERTY_CRC
WAYS = ["twin"] if Native is None else ["twin", "native", "native, ahead"]
FOREVER = 3600.0
quick = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


def opened(way: str, path: Path, segment: Segment, block_bytes: int, readable_bytes: int | None = None) -> FileWalk:
    start, end = segment.phy_offset, segment.end_phy_offset
    readable_end = end if readable_bytes is None else start + readable_bytes
    if way == "twin":
        return Twin(path, start, readable_end, end, block_bytes)
    return Native(path, os.O_NONBLOCK, 0, start, readable_end, end, block_bytes, way == "native, ahead")


def walked(file: FileWalk, segment: Segment, seconds: float = FOREVER, to: int = 1 << 62) -> list[Walked]:
    """All calls until the file is over; each gets on."""
    at, state, calls = segment.phy_offset, int(ScanState.CHAINED), []
    while at < min(segment.end_phy_offset, to):
        told = walk(file, at, to, state, int(CHECK), seconds)
        calls.append(told)
        if told.is_over:
            break
        assert told.next_phy_offset > at
        at, state = told.next_phy_offset, told.next_state
    return calls


def rows_of(calls: list[Walked]) -> list[FrameRow]:
    """The rows of all calls, joined where a call ended."""
    rows: list[FrameRow] = []
    for call in calls:
        for row in call.rows:
            last = rows[-1] if rows else None
            if last is not None and last.kind == row.kind != FrameKind.BLANK and not (last.topic or row.topic):
                rows[-1] = last._replace(size_bytes=last.size_bytes + row.size_bytes)
            else:
                rows.append(row)
    return rows


def expected(segment: Segment) -> tuple[list[FrameRow], int]:
    """What the walk over one window says: rows with good messages in runs, and how many messages there are."""
    frames = scan(segment, FASTEST, flags=int(CHECK)).frames
    rows: list[FrameRow] = []
    for frame in frames:
        row = frame.row
        queue = row.own_phy_offset, row.queue_id, row.queue_offset
        is_good = row.kind == FrameKind.MESSAGE and row.code == FrameCode.OK
        last = rows[-1] if rows else None
        if is_good and last is not None and (last.kind, last.code) == (row.kind, row.code):
            rows[-1] = last._replace(size_bytes=last.size_bytes + row.size_bytes)
        elif is_good:
            rows.append(FrameRow(row.kind, row.code, row.phy_offset, row.size_bytes))
        else:
            rows.append(FrameRow(row.kind, row.code, row.phy_offset, row.size_bytes, *queue, frame.topic or b""))
    return rows, sum(frame.kind == FrameKind.MESSAGE for frame in frames)


@pytest.fixture(scope="module")
def segment(golden: Callable[[str], Path]) -> Segment:
    """Some 64 KiB of a real log, zeros behind."""
    whole = segments(golden("load-533"))[2]
    return Segment(whole.phy_offset, whole.data[: 60 << 10] + bytes(5000))


@quick
@given(harms=HARMS, block=st.integers(1, 9000), cut=st.integers(0, 66000), in_steps=st.booleans())
def test_blocks_do_not_matter(
    segment: Segment, tmp_path: Path, harms: list[Any], block: int, cut: int, in_steps: bool
) -> None:
    for one in harms:
        segment = harm(segment, *one)
    segment = Segment(segment.phy_offset, segment.data[: len(segment.data) - cut])
    path = tmp_path / "segment"
    path.write_bytes(segment.data)
    rows, count = expected(segment)
    for way in WAYS:
        calls = walked(opened(way, path, segment, block), segment, 0.0 if in_steps else FOREVER)
        assert rows_of(calls) == rows, way
        assert sum(call.message_count for call in calls) == count
        assert not calls or calls[-1].next_phy_offset == segment.end_phy_offset


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("body_length", [70_000, 700_000, 3 << 20])
def test_records_longer_than_blocks_and_than_the_room_in_front(
    segment: Segment, tmp_path: Path, body_length: int, way: str
) -> None:
    made = b""
    at = record.HEAD.offset_of("own_phy_offset")
    for number in range(3):
        large = with_parts(segment, body=bytes([number]) * body_length)
        own = (segment.phy_offset + len(made)).to_bytes(8, "big")
        made += large[:at] + own + large[at + 8 :]
    size = len(made) // 3
    made = made[: 2 * size + 5000] + b"X" + made[2 * size + 5001 :]
    whole = Segment(segment.phy_offset, made + b"junk" * 40)
    path = tmp_path / "segment"
    path.write_bytes(whole.data)
    for block in (4096, 100_000, 1 << 20):
        calls = walked(opened(way, path, whole, block), whole)
        found = [(row.kind, row.code, row.size_bytes) for row in rows_of(calls)]
        assert found == [
            (FrameKind.MESSAGE, FrameCode.OK, 2 * size),
            (FrameKind.MESSAGE, FrameCode.BAD_CRC, size),
            (FrameKind.DAMAGE, FrameCode.MAGIC, 160),
        ]


@pytest.mark.parametrize("way", WAYS)
def test_no_rows_begin_at_the_end_that_is_asked_for(segment: Segment, tmp_path: Path, way: str) -> None:
    segment = harm(segment, "zeros", 20_000, 3000, 1)
    path = tmp_path / "segment"
    path.write_bytes(segment.data)
    frames = scan(segment, FASTEST, flags=int(CHECK)).frames
    starts = [frame.phy_offset for frame in frames]
    hole = next(frame for frame in frames if frame.kind != FrameKind.MESSAGE)
    tos = {*starts[20:60:7], *(start + 1 for start in starts[20:60:7]), hole.phy_offset + 1, hole.end, hole.end + 1}
    for to in sorted(tos):
        for block in (3000, 1 << 20):
            calls = walked(opened(way, path, segment, block), segment, to=to)
            inside = [frame for frame in frames if frame.phy_offset < to]
            count = sum(frame.kind == FrameKind.MESSAGE for frame in inside)
            assert sum(call.message_count for call in calls) == count, to
            last = rows_of(calls)[-1]
            assert last.phy_offset < to
            assert last.end_phy_offset == inside[-1].end or last.kind != FrameKind.MESSAGE


@pytest.mark.parametrize("way", WAYS)
def test_many_rows_are_handed_over_in_parts(segment: Segment, tmp_path: Path, way: str) -> None:
    """A log in which every body is wrong fills no memory."""
    first = scan(segment, FASTEST).frames[0].row
    one = with_parts(segment, body=b"x", properties=b"")
    one = one.replace(first.body_crc.to_bytes(4, "big"), b"\0\0\0\1", 1)
    at = record.HEAD.offset_of("own_phy_offset")
    made = b"".join(one[:at] + (len(one) * n).to_bytes(8, "big") + one[at + 8 :] for n in range(20_000))
    crc = record.HEAD.offset_of("body_crc")
    made = b"".join(
        made[n : n + crc] + b"\0\0\0\1" + made[n + crc + 4 : n + len(one)] for n in range(0, len(made), len(one))
    )
    whole = Segment(0, made)
    path = tmp_path / "segment"
    path.write_bytes(made)
    calls = walked(opened(way, path, whole, 64 << 10), whole)
    assert sum(call.message_count for call in calls) == sum(len(call.rows) for call in calls) == 20_000
    assert max(len(call.rows) for call in calls) < 6000


@pytest.mark.parametrize("way", WAYS)
def test_what_cannot_be_read_is_told_with_its_place(way: str) -> None:
    """/proc/self/mem is a regular file whose first page nobody can read."""
    nothing = Segment(0, bytes(10_000))
    told = walk(opened(way, Path("/proc/self/mem"), nothing, 4096), 0, 10_000, int(ScanState.CHAINED), int(CHECK), 0.0)
    assert told == Walked([], 0, 0, int(ScanState.CHAINED), True, (errno.EIO, 0, 4096))


@pytest.mark.parametrize("way", WAYS)
def test_a_file_that_ends_early_and_one_that_is_too_long(segment: Segment, tmp_path: Path, way: str) -> None:
    path = tmp_path / "segment"
    path.write_bytes(segment.data[:30_000])
    frames = scan(segment, FASTEST).frames
    whole = [frame for frame in frames if frame.end <= segment.phy_offset + 30_000]
    for readable in (None, 30_000):
        (told,) = walked(opened(way, path, segment, 7000, readable), segment)
        assert (told.is_over, told.message_count, told.next_phy_offset) == (True, len(whole), whole[-1].end)
    path.write_bytes(segment.data + b"behind")
    calls = walked(opened(way, path, segment, 7000, len(segment.data) + 6), segment)
    assert rows_of(calls) == expected(segment)[0]


@pytest.mark.parametrize("way", WAYS)
def test_only_regular_files_are_opened(segment: Segment, tmp_path: Path, way: str) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (tmp_path, pipe, Path("/dev/zero")):
        with pytest.raises(OSError, match=r".") as raised:
            opened(way, path, segment, 4096)
        assert not isinstance(raised.value, FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        opened(way, tmp_path / "missing", segment, 4096)


@pytest.mark.parametrize("way", WAYS)
def test_numbers_that_make_no_sense(segment: Segment, tmp_path: Path, way: str) -> None:
    path = tmp_path / "segment"
    path.write_bytes(segment.data)
    with pytest.raises(ValueError, match="makes no sense"):
        opened(way, path, segment, 0)
    with pytest.raises(ValueError, match="makes no sense"):
        opened(way, path, segment, 4096, -1)
    file = opened(way, path, segment, 4096)
    for at, state in ((segment.phy_offset - 1, 0), (segment.end_phy_offset + 1, 0), (segment.phy_offset, 9)):
        with pytest.raises(ValueError, match="makes no sense"):
            walk(file, at, segment.end_phy_offset, state, int(CHECK), 0.0)
    file.close()
    with pytest.raises(ValueError, match=r"makes no sense|closed"):
        walk(file, segment.phy_offset, segment.end_phy_offset, 0, int(CHECK), 0.0)


def test_threads_and_descriptors_end_with_the_call(segment: Segment, tmp_path: Path) -> None:
    if Native is None:
        return
    path = tmp_path / "segment"
    path.write_bytes(segment.data)
    threads, descriptors = (set(os.listdir(f"/proc/self/{what}")) for what in ("task", "fd"))
    file = opened("native, ahead", path, segment, 1000)
    walk(file, segment.phy_offset, segment.end_phy_offset, int(ScanState.CHAINED), int(CHECK), 0.0)
    file.close()
    late = time.monotonic() + 20
    while set(os.listdir("/proc/self/task")) - threads and time.monotonic() < late:
        time.sleep(0.001)  # the system takes a moment to clear a thread away
    assert set(os.listdir("/proc/self/task")) <= threads
    assert set(os.listdir("/proc/self/fd")) <= descriptors


def test_the_kernel_is_chosen_as_for_windows(segment: Segment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "segment"
    path.write_bytes(segment.data)
    numbers = segment.phy_offset, segment.end_phy_offset, segment.end_phy_offset
    if Native is not None:
        assert isinstance(kernel_file.open_walk(path, *numbers, block_bytes=4096, reads_ahead=False), Native)
    monkeypatch.setenv("RMQCTL_KERNEL", "python")
    assert isinstance(kernel_file.open_walk(path, *numbers, block_bytes=4096, reads_ahead=False), Twin)
