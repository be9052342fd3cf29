"""The same rows from windows of any length, read by the kernel, by Python, or ahead by a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from store_core.errors import UnreadableError
from store_core.kernel import window_scan
from store_core.kernel.codes import FrameKind, ScanState
from store_core.scan import parallel as side_by_side
from store_core.scan.log import ScanOptions, scan_log
from store_core.scan.windows import Windows
from store_core.storage.overlay import Patch, overlaid
from store_core.storage.sequence import Segment
from store_core.storage.store import Store
from tests.conftest import GoldenStore
from tests.damage import Damageable
from tests.kernel.driver import assert_same
from tests.object_stores import ObjectStore
from tests.threads import running

WINDOWS = (997, 4096, 50_000)


def rows(root: Path, options: ScanOptions, start: int | None = None) -> Iterator[tuple[int, int, int, int, bytes]]:
    with Store.open(root) as store:
        for table in scan_log(store, from_phy_offset=start, options=options):
            for row in table.rows():
                body = table.body(row) if table.kind[row] == FrameKind.MESSAGE else b""
                place = int(table.phy_offset[row]), int(table.size_bytes[row])
                yield int(table.kind[row]), int(table.code[row]), *place, body


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("name", ["load-533", "clean-540", "crash-497"])
def test_the_same_rows(golden: GoldenStore, name: str, window: int) -> None:
    root = golden(name)
    plain = list(rows(root, ScanOptions()))
    assert list(rows(root, ScanOptions(window_size_bytes=window))) == plain
    assert list(rows(root, ScanOptions(window_size_bytes=window), 20_001)) == list(rows(root, ScanOptions(), 20_001))


@pytest.mark.parametrize("window", WINDOWS)
def test_the_same_rows_of_a_damaged_log(damageable: Callable[..., Damageable], window: int) -> None:
    store = damageable("load-533")
    for number in range(20, 2000, 300):
        store.zero(store.message(number)["phyOffset"] + 3, 700)
        store.flip(record=number + 100, field="size_bytes", byte=2)
    plain = list(rows(store.root, ScanOptions()))
    assert list(rows(store.root, ScanOptions(window_size_bytes=window))) == plain


def test_runs_have_the_same_messages_and_ends(damageable: Callable[..., Damageable]) -> None:
    store = damageable("load-533")
    store.flip(record=500, field="body")
    cut = store.message(1200)["phyOffset"] + 1
    with Store.open(store.root) as opened:
        for stop in (None, cut):
            for window in WINDOWS:
                options = ScanOptions(window_size_bytes=window)
                single = list(scan_log(opened, to_phy_offset=stop, options=options))
                runs = list(scan_log(opened, to_phy_offset=stop, options=replace(options, runs=True)))
                count = sum(int(table.messages.sum()) for table in single)
                assert [sum(t.message_count for t in tables) for tables in (single, runs)] == [count, count]
                assert runs[-1].end_phy_offset == single[-1].end_phy_offset
                spans = [(int(t.phy_offset[r]), int(t.size_bytes[r])) for t in runs for r in t.rows()]
                assert all(start + size == following for (start, size), (following, _) in pairwise(spans))


def test_segments_leave_their_buffers_to_the_next(golden: GoldenStore) -> None:
    """As many buffers as one segment needs are made for all, and no window of a table still asked for is overwritten."""
    with Store.open(golden("load-533")) as store:
        windows: list[int] = []
        for table in scan_log(store, options=ScanOptions(window_size_bytes=50_000)):
            if table.messages.any():  # zeros behind them come last, with a copy
                windows.append(id(table.window.obj))
                assert bytes(table.window) == store.log.read(table.window_phy_offset, len(table.window))
    assert len(store.log.segments) == 8
    assert len(set(windows)) == 1


@pytest.mark.parametrize("size_bytes", [997, 4096])
def test_a_thread_reads_ahead_of_an_object_store(
    golden: GoldenStore, object_store: ObjectStore, size_bytes: int
) -> None:
    """From where the window before ended or a little before it, as far as it is told, and it ends with the windows."""
    root = golden("load-533")
    with Store.open(root) as local, Store.open(object_store.put(root)) as remote:
        segment = remote.log.segments[0]
        until = segment.phy_offset + 40_000
        with closing(Windows(remote.log, segment, size_bytes, ahead_to=until)) as windows:
            at = segment.phy_offset
            for step in (size_bytes, size_bytes - 100, 10, size_bytes, 60_000, 1):
                assert windows.window(at, size_bytes) == local.log.read(at, size_bytes)
                assert running("read-ahead") == 1
                at += step
            assert windows.window(until, 9000) == local.log.read(until, 9000)
        assert not running("read-ahead")


def test_a_file_that_shrinks_under_the_scan(damageable: Callable[..., Damageable]) -> None:
    store = damageable("load-533")
    with Store.open(store.root) as opened:
        tables = scan_log(opened, options=ScanOptions(window_size_bytes=4096))
        first = next(tables)
        store.cut(segment=0, size_bytes=first.end_phy_offset)
        kinds = {int(kind) for table in tables for kind in table.kind}
    assert kinds >= {FrameKind.MESSAGE, FrameKind.HOLE}


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_view_is_walked_as_it_shows_itself(golden: GoldenStore, jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads ahead must not read the file under a patch."""
    monkeypatch.setattr(side_by_side, "PIECE_SIZE_BYTES", 4096)
    monkeypatch.setattr(side_by_side, "WORTH_BYTES", 0)
    with Store.open(golden("load-533")) as store:
        segment = store.log.segments[1]
        patches = {segment.path: [Patch(20_000, 40_000)]}
        with store.with_log(overlaid(store.log, patches, store.log.segments)) as view:
            tables = scan_log(view, options=ScanOptions(window_size_bytes=4096, jobs=jobs))
            inside = [
                t.kind[r] for t in tables for r in t.rows() if 25_000 <= t.phy_offset[r] - segment.phy_offset < 39_000
            ]
        assert FrameKind.MESSAGE not in inside


@pytest.mark.parametrize("extra", [0, 700])
def test_the_kernel_reads_what_python_does(damageable: Callable[..., Damageable], extra: int) -> None:
    """From anywhere, in any length, the rest of a window kept or not, over the file's end, and where it is too short."""
    store = damageable("load-533")
    store.zero(store.message(100)["phyOffset"] + 3, 3000)
    with Store.open(store.root) as opened:
        log = opened.log
        segment = replace(log.segments[1], size_bytes=log.segments[1].size_bytes + extra)
        begin, end = segment.phy_offset, segment.end_phy_offset
        patches = {segment.path: [Patch(0, 0)]}
        with (
            opened.with_log(overlaid(log, patches, log.segments)) as view,
            closing(Windows(log, segment, 4096)) as by_kernel,
            closing(Windows(view.log, segment, 4096)) as by_python,
            closing(Windows(log, segment, 4096, kept=False)) as passing,
        ):
            assert [each.reads_file for each in (by_kernel, by_python, passing)] == [True, False, True]
            for at in [begin, begin + 4000, begin + 8096, begin + 100, end - 5000, end - 1000, end, end + 10]:
                for size_bytes in (1000, 4096, 60_000):
                    scans = [window_scan(at, 0, end + 100, ScanState.IN_DAMAGE, 1, size_bytes) for _ in range(3)]
                    both = (by_kernel, by_python, passing)
                    walked = [each.walk(scan, at, size_bytes) for each, scan in zip(both, scans, strict=True)]
                    there = log.read(at, size_bytes) if at < log.segments[1].end_phy_offset else b""
                    assert [(bytes(window), size, error) for window, size, error in (walked[0], walked[2])] == [
                        (there, len(there), None),
                        (b"", len(there), None),
                    ]
                    if there:
                        assert walked[1] == walked[0]
                        first, *others = (scan.columns() for scan in scans)
                        for other in others:
                            assert_same(first, other)


def test_a_segment_that_has_gone_or_cannot_be_read(golden: GoldenStore) -> None:
    with Store.open(golden("load-533")) as store:
        gone = replace(store.log.segments[0], path=Path("/nonexistent/00000000000000000000"))
        with closing(Windows(store.log.alone(gone), gone, 4096)) as windows:
            assert not windows.reads_file
            assert not windows.window(0, 4096)
        with pytest.raises(UnreadableError, match="cannot read"):
            Windows(store.log, replace(gone, path=store.root), 4096)
        refused = Segment(Path("/proc/self/mem"), 0, 9000)
        for kept in (True, False):
            with closing(Windows(store.log.alone(refused), refused, 4096, kept=kept)) as windows:
                for _ in range(2):
                    scan = window_scan(0, 0, 9000, ScanState.CHAINED, 0, 4096)
                    _, count, error = windows.walk(scan, 0, 4096)
                    assert "4096 bytes at 0 of the file: Input/output error" in str(error)
                    assert isinstance(error, UnreadableError)
                    assert (count, error.at) == (0, 0)
