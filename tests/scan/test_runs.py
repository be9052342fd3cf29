"""A walk in rows gives what a walk in columns gives: on every golden store and damaged copy, whatever the windows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import pytest

from store_core.check.verify import whole_log
from store_core.errors import FailedError
from store_core.kernel.codes import FrameCode, FrameKind
from store_core.kernel.file import FrameRow
from store_core.scan.log import ScanOptions, scan_segment
from store_core.scan.pieces import Piece, nominal_end
from store_core.scan.runs import RunOptions, Runs, map_runs, scan_runs
from store_core.scan.thread_pool import Lanes
from store_core.storage.overlay import Patch, overlaid
from store_core.storage.sequence import Segment
from store_core.storage.settings import load_settings
from store_core.storage.store import Store
from tests import stores
from tests.conftest import DamagedStore, GoldenStore
from tests.damage import Damageable
from tests.threads import running

DamageableOf = Callable[..., Damageable]
SettingsOf = Callable[[str], Path]
SEGMENT: Final = 131072
WAYS: Final = tuple(RunOptions(window_size_bytes=size) for size in (8 << 20, 997, 50_001, 65_536))
COLUMNS: Final = ScanOptions(check_property_crc=True, properties=False, runs=True)


def rows_of_tables(store: Store, piece: Piece) -> Iterator[Runs]:
    """Yield the rows of the tables of a piece."""
    segment = piece.segment
    stop = None if piece.to_phy_offset >= nominal_end(store.log, segment) else piece.to_phy_offset
    for table in scan_segment(store, segment, COLUMNS, piece.from_phy_offset, stop, chained=piece.chained):
        columns = table.kind, table.code, table.phy_offset, table.size_bytes
        queues = table.own_phy_offset, table.queue_id, table.queue_offset
        topics = [table.topics[topic] if topic >= 0 else b"" for topic in table.topic_id.tolist()]
        rows = zip(*(column.tolist() for column in (*columns, *queues)), topics, strict=True)
        yield Runs([FrameRow(*row) for row in rows], table.message_count)


def whole(parts: Iterable[Runs], stop: int) -> tuple[list[FrameRow], int]:
    """The rows up to an offset, those joined that parts or windows had cut, and how many messages they tell of."""
    rows: list[FrameRow] = []
    count = 0
    for part in parts:
        count += part.message_count
        for row in part.rows:
            if row[:2] == (FrameKind.MESSAGE, FrameCode.OK):  # windows tell of them one by one where a piece ends
                row = FrameRow(*row[:4])
            last = rows[-1] if rows else None
            assert last is None or last.end_phy_offset == row.phy_offset
            if last is not None and last[:2] == row[:2] and not row.topic and row.kind != FrameKind.DAMAGE:
                rows[-1] = last._replace(size_bytes=last.size_bytes + row.size_bytes)
            else:
                rows.append(row)
    if rows and rows[-1].kind != FrameKind.MESSAGE:
        rows[-1] = rows[-1]._replace(size_bytes=min(rows[-1].end_phy_offset, stop) - rows[-1].phy_offset)
    return rows, count


def assert_all_ways_agree(store: Store, pieces: Iterable[Piece], monkeypatch: pytest.MonkeyPatch) -> None:
    for piece in pieces:
        expected = whole(rows_of_tables(store, piece), piece.to_phy_offset)
        for kernel, ways in (("", WAYS), ("python", WAYS[1:3])):
            monkeypatch.setenv("RMQCTL_KERNEL", kernel)
            for options in ways:
                assert store.log.is_plain(piece.segment)
                found = whole(scan_runs(store, piece, options), piece.to_phy_offset)
                assert found == expected, (kernel, options, piece)


def odd_pieces(store: Store) -> Iterator[Piece]:
    """Parts of segments that begin and end anywhere."""
    for number, segment in enumerate(store.log.segments):
        start = segment.phy_offset + 1 + 977 * number
        for size in (1, 5000, 77_777):
            if start + size < segment.phy_offset + SEGMENT:
                yield Piece(segment, start, start + size)


@pytest.mark.product
@pytest.mark.parametrize("name", stores.GOLDEN)
def test_every_golden_store(golden: GoldenStore, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(golden(name)) as store:
        assert_all_ways_agree(store, whole_log(store), monkeypatch)
        assert_all_ways_agree(store, odd_pieces(store), monkeypatch)


@pytest.mark.product(28)
@pytest.mark.parametrize("case", sorted(case for case in stores.cases("load-533") if not case.startswith("clean")))
def test_every_damaged_copy(
    case: str, damaged: DamagedStore, settings_of: SettingsOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = damaged("load-533", case)
    with Store.open(root, load_settings(settings_of("load-533"), root)) as store:
        assert_all_ways_agree(store, whole_log(store), monkeypatch)


def test_what_windows_and_blocks_cut(damageable: DamageableOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage over several blocks, sparse holes, stale records behind the tail, and pieces that begin and end in all that."""
    store = damageable("load-533")
    for number in range(20, 2000, 300):
        store.write(store.message(number)["phyOffset"] + 3, b"\x55" * 5000)
        store.zero(store.message(number + 60)["phyOffset"] + 3, 9000)
        store.flip(record=number + 100, field="size_bytes", byte=2)
        store.flip(record=number + 110, field="body")
    first = store.copy_record(10)
    store.copy_record(11, to=first + store.message(10)["storeSize"])
    sparse = store.segments[3]
    data = sparse.read_bytes()
    with sparse.open("wb") as file:
        for at in (*range(0, 40_000, 4096), *range(90_112, len(data), 4096)):
            file.seek(at)
            file.write(data[at : at + 4096])
    store.cut(5, 100_000)
    with Store.open(store.root) as opened:
        kinds = {row.kind for piece in whole_log(opened) for runs in scan_runs(opened, piece) for row in runs.rows}
        assert kinds == set(FrameKind)
        assert_all_ways_agree(opened, whole_log(opened), monkeypatch)
        assert_all_ways_agree(opened, odd_pieces(opened), monkeypatch)


def test_a_view_of_a_log_is_read_through_windows(golden: GoldenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(golden("load-533")) as store:
        segment = store.log.segments[2]
        patches = {segment.path: [Patch(1000, 3000)]}
        with store.with_log(overlaid(store.log, patches, store.log.segments)) as view:
            assert [view.log.is_plain(one) for one in view.log.segments].count(False) == 1
            (piece,) = [piece for piece in whole_log(view) if piece.segment.path == segment.path]
            rows, _ = whole(scan_runs(view, piece), piece.to_phy_offset)
    start, end = segment.phy_offset + 1000, segment.phy_offset + 3000
    assert any(
        row.kind == FrameKind.ZEROS and row.phy_offset <= start + 9 and row.end_phy_offset >= end for row in rows
    )


@pytest.mark.parametrize("kernel", ["", "python"])
def test_a_file_that_shrinks_or_goes_under_the_walk(
    kernel: str, damageable: DamageableOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RMQCTL_KERNEL", kernel)
    store = damageable("load-533")
    with Store.open(store.root) as opened:
        piece, gone, *_ = whole_log(opened)
        parts = scan_runs(opened, piece, RunOptions(window_size_bytes=4096))
        first = next(parts)
        store.cut(segment=0, size_bytes=first.end_phy_offset + 5000)
        rows, _ = whole([first, *parts], SEGMENT)
        store.lose(segment=1)
        (missing,) = list(scan_runs(opened, gone))
    assert rows[-1].end_phy_offset == SEGMENT
    assert [row.kind for row in rows] == [FrameKind.MESSAGE, FrameKind.DAMAGE, FrameKind.HOLE]
    assert rows[1].end_phy_offset == first.end_phy_offset + 5000
    assert [row.kind for row in missing.rows] == [FrameKind.HOLE]


@pytest.mark.parametrize("kernel", ["", "python"])
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_disk_that_fails_is_an_error_with_its_place(
    kernel: str, jobs: int, golden: GoldenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/proc/self/mem is a regular file whose first page nobody can read."""
    monkeypatch.setenv("RMQCTL_KERNEL", kernel)
    with Store.open(golden("load-533")) as store:
        whole_one, *_ = whole_log(store)
        bad = Piece(Segment(Path("/proc/self/mem"), 0, 10_000), 0, 10_000, True)
        with pytest.raises(FailedError, match=r"cannot read 10000 bytes at 0 of the file: Input/output error"):
            list(map_runs(store, [whole_one, bad, whole_one], lambda _, runs: list(runs), jobs=jobs))
    assert not running("rmqctl-walk")


def test_who_asks_no_more_waits_for_nobody() -> None:
    """Lanes stop between two parts of what they work on."""
    lanes = Lanes(2)
    begun = threading.Barrier(3)
    endless = threading.Event()

    def work(item: int, lanes: Lanes) -> int:
        if item:
            begun.wait(20)
            for _ in lanes.until_stopped(iter(lambda: endless.wait(0.01), None)):
                pass
        return item

    results = lanes.map(work, [0, 1, 2, 3])
    assert next(results) == (0, 0)
    begun.wait(20)
    results.close()  # type: ignore[attr-defined]  # a generator
    assert not running("rmqctl-walk")


def test_the_first_failure_is_told_and_what_was_done_before_it() -> None:
    def work(item: int, _: Lanes) -> int:
        if item >= 3:
            raise ValueError(item)
        return item * item

    results = Lanes(2).map(work, range(6))
    assert [next(results) for _ in range(3)] == [(0, 0), (1, 1), (2, 4)]
    with pytest.raises(ValueError, match=r"^3$"):
        next(results)
    assert not running("rmqctl-walk")


def test_behind_a_failure_nothing_is_begun() -> None:
    """Although the results in front of it have not been asked for, and one of them is not there yet."""
    begun = set()

    def work(item: int, _: Lanes) -> int:
        begun.add(item)
        if item == 1:
            raise ValueError(item)
        for _ in range(500):
            if 1 in begun and running("rmqctl-walk") == 1:  # the other lane is over
                break
            time.sleep(0.01)
        return item

    results = Lanes(2).map(work, range(50))
    assert next(results) == (0, 0)
    with pytest.raises(ValueError, match=r"^1$"):
        next(results)
    assert begun == {0, 1}
