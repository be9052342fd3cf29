"""The rows of a file are those of one window over it, wherever windows are cut, and a file that fails says so."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store_core.kernel import file as kernel_file
from store_core.kernel.codes import FrameCode, FrameKind, ScanFlag, ScanState
from store_core.kernel.file import FrameRow, WindowRows, row_scan, window_rows
from store_core.kernel.reference import scan as twin
from store_core.layout import record
from store_core.scan.windows import Span, Walked, Windows, walk_windows
from store_core.storage import sequence
from store_core.storage.files import FileCache
from tests.kernel.driver import FASTEST, Segment, scan, segments
from tests.kernel.test_windows import HARMS, harm, with_parts

try:
    from store_core.kernel import _native
except ImportError:
    _native = None  # type: ignore[assignment]  # not built: the twin is held against the windows alone

CHECK = ScanFlag.CHECK_CRC | ScanFlag.CHECK_PROPERTY_CRC
WAYS = ["twin"] if _native is None else ["twin", "native"]
quick = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


def walked(
    way: str, path: Path, segment: Segment, window_bytes: int, to: int = 1 << 62, readable_bytes: int | None = None
) -> list[Walked[WindowRows]]:
    """Walk all windows of a file with one of the kernels."""
    begin, end = segment.phy_offset, segment.end_phy_offset
    size = min(path.stat().st_size, end - begin) if readable_bytes is None else readable_bytes
    one = sequence.Segment(path, begin, size)
    log = sequence.SegmentSequence([path.parent], FileCache(), listed=([one], []))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RMQCTL_KERNEL", "python" if way == "twin" else "")
        with closing(Windows(log, one, window_bytes, kept=False)) as windows:
            assert windows.reads_file

            def open_scan(at: int, state: int, size_bytes: int) -> Any:
                return row_scan(at, end, state, CHECK, size_bytes, to, reads_file=True)

            span = Span(begin, int(ScanState.CHAINED), min(to, end), end, window_bytes)
            return list(walk_windows(log, one, windows, span, open_scan, window_rows))


def rows_of(windows: list[Walked[WindowRows]]) -> list[FrameRow]:
    """The rows of all windows, joined where a window ended."""
    rows: list[FrameRow] = []
    for window in windows:
        assert window.found is not None
        for row in window.found.rows:
            last = rows[-1] if rows else None
            if last is not None and last.kind == row.kind != FrameKind.BLANK and not (last.topic or row.topic):
                rows[-1] = last._replace(size_bytes=last.size_bytes + row.size_bytes)
            else:
                rows.append(row)
    return rows


def messages(windows: list[Walked[WindowRows]]) -> int:
    return sum(window.found.message_count for window in windows if window.found is not None)


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
@given(harms=HARMS, window=st.integers(1, 9000), cut=st.integers(0, 66000))
def test_windows_do_not_matter(segment: Segment, tmp_path: Path, harms: list[Any], window: int, cut: int) -> None:
    for one in harms:
        segment = harm(segment, *one)
    segment = Segment(segment.phy_offset, segment.data[: len(segment.data) - cut])
    path = tmp_path / "segment"
    path.write_bytes(segment.data)
    rows, count = expected(segment)
    for way in WAYS:
        windows = walked(way, path, segment, window)
        assert rows_of(windows) == rows, way
        assert messages(windows) == count
        assert not windows or windows[-1].end_phy_offset == segment.end_phy_offset


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("body_length", [70_000, 700_000, 3 << 20])
def test_records_longer_than_windows_and_than_what_is_read_at_once(
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
        windows = walked(way, path, whole, block)
        found = [(row.kind, row.code, row.size_bytes) for row in rows_of(windows)]
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
            windows = walked(way, path, segment, block, to)
            inside = [frame for frame in frames if frame.phy_offset < to]
            count = sum(frame.kind == FrameKind.MESSAGE for frame in inside)
            assert messages(windows) == count, to
            last = rows_of(windows)[-1]
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
    windows = walked(way, path, whole, 64 << 10)
    counts = [len(window.found.rows) for window in windows if window.found is not None]
    assert messages(windows) == sum(counts) == 20_000
    assert max(counts) <= (64 << 10) // len(one)


@pytest.mark.parametrize("way", WAYS)
def test_what_cannot_be_read_is_told_with_its_place(way: str, tmp_path: Path) -> None:
    """/proc/self/mem is a regular file whose first page nobody can read."""
    reader = {"twin": twin, "native": _native}[way].FileReader(Path("/proc/self/mem"), os.O_NONBLOCK, 0)
    unread = {"twin": twin, "native": _native}[way].WindowScan(0, 0, 10_000, ScanState.CHAINED, 0, 10_000)
    assert unread.read_through(reader, 4096, 0) == (0, errno.EIO)
    assert unread.rows() == ([], 0, 0, ScanState.CHAINED, 0)
    reader.close()


@pytest.mark.parametrize("way", WAYS)
def test_a_file_that_ends_early_and_one_that_is_too_long(segment: Segment, tmp_path: Path, way: str) -> None:
    path = tmp_path / "segment"
    path.write_bytes(segment.data[:30_000])
    frames = scan(segment, FASTEST).frames
    whole = [frame for frame in frames if frame.end <= segment.phy_offset + 30_000]
    for readable in (len(segment.data), 30_000):
        windows = walked(way, path, segment, 7000, readable_bytes=readable)
        assert (messages(windows), windows[-1].end_phy_offset) == (len(whole), whole[-1].end)
    path.write_bytes(segment.data + b"behind")
    windows = walked(way, path, segment, 7000, readable_bytes=len(segment.data) + 6)
    assert rows_of(windows) == expected(segment)[0]


@pytest.mark.parametrize("way", WAYS)
def test_rows_are_taken_once(way: str) -> None:
    first = {"twin": twin, "native": _native}[way].WindowScan(0, 0, 10, ScanState.CHAINED, 0, 10)
    assert first.rows() == ([], 0, 0, ScanState.CHAINED, 0)
    if way == "native":
        with pytest.raises(ValueError, match="makes no sense"):
            first.rows()


def test_the_kernel_is_chosen_as_for_windows(segment: Segment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "segment"
    path.write_bytes(segment.data)
    if _native is not None:
        assert isinstance(kernel_file.open_reader(path), _native.FileReader)
    monkeypatch.setenv("RMQCTL_KERNEL", "python")
    assert isinstance(kernel_file.open_reader(path), twin.FileReader)
