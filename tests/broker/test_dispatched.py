"""Rows that one start made of the log are those that the next one would make of it."""

from __future__ import annotations

import random
import shutil
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from store_core.broker import dispatch_cache as dispatched
from store_core.broker import walk
from store_core.broker.checked_ranges import CheckedRanges
from store_core.broker.dispatch import Dispatcher
from store_core.broker.dispatch_cache import DispatchedRows, IndexKeys, RawKey
from store_core.broker.dispatch_walk import KnownParts
from store_core.broker.queue_recovery import QueueState
from store_core.broker.record_check import CheckRules
from store_core.broker.start import start_broker
from store_core.broker.versions import RELEASES, Behaviour, groups_of
from store_core.derive import spool
from store_core.kernel import window_scan
from store_core.kernel.codes import FrameKind
from store_core.layout import paths, record
from store_core.layout.queue import ENTRY
from store_core.recovery.prediction.outcome import Outcome
from store_core.recovery.prediction.predict import outcome_of
from store_core.scan.frames import FrameTable
from store_core.scan.log import ScanOptions, scan_log, select, stretch
from store_core.storage.settings import load_settings
from store_core.storage.store import Store
from tests.conftest import DamagedStore, GoldenStore, StoreCopy

STORES = (
    "load-533",
    "load-497",
    "clean-430",
    "clean-540",
    "crash-497",
    "bcq-533",
    "lmq-533",
    "propcrc-533",
)
GROUPS = groups_of(RELEASES)
READS_ALL = CheckRules(True, False, True, True, True, False, GROUPS[-1][0])
READS_OLD = CheckRules(True, False, False, False, False, True, GROUPS[0][0])


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows, stretches, runs and what is read of them at once are small: there are many of each."""
    monkeypatch.setattr(walk, "WINDOW_SIZE_BYTES", 16 << 10)
    monkeypatch.setattr(dispatched, "STRETCH_BYTES", 40 << 10)
    monkeypatch.setattr(dispatched, "RUN_ROWS", 100)
    monkeypatch.setattr(spool, "READ_ROWS", 30)


def _outcomes(
    store: Store, proven: CheckedRanges | None, *, is_reversed: bool = False
) -> list[tuple[Outcome, list[str]]]:
    behaviours = [behaviour for behaviour, _ in GROUPS]
    order = behaviours[::-1] if is_reversed else behaviours
    found = {behaviour: outcome_of(store, behaviour, proven=proven) for behaviour in order}
    return [found[behaviour] for behaviour in behaviours]


@pytest.mark.product(5)
@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("exit", ["clean", "crash"])
@pytest.mark.parametrize(
    ("name", "missing"),
    [
        *((name, missing) for name in STORES for missing in ("one queue", "queues and index")),
        *((name, missing) for name in ("load-533", "crash-497") for missing in ("", "queues")),
    ],
)
def test_every_start_comes_to_the_same(name: str, exit: str, missing: str, store_copy: StoreCopy) -> None:
    root = store_copy(name, exit)
    if "queues" in missing:
        for tree in (paths.CONSUMEQUEUE, paths.BATCHCONSUMEQUEUE, paths.CONSUMEQUEUE_EXT):
            shutil.rmtree(root / tree, ignore_errors=True)
    if "one" in missing:
        shutil.rmtree(max((root / paths.CONSUMEQUEUE).iterdir()))
    if "index" in missing:
        shutil.rmtree(root / paths.INDEX, ignore_errors=True)
    with Store.open(root, load_settings(None, root)) as store:
        alone = _outcomes(store, None)
        for is_reversed in (False, True):
            with DispatchedRows() as rows:
                assert _outcomes(store, CheckedRanges(rows=rows), is_reversed=is_reversed) == alone


@pytest.mark.product
@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("exit", ["clean", "crash"])
@pytest.mark.parametrize(
    "case", ["flip-body-mid", "zero-page-mid", "ghost-tail", "cq-tail-lost", "cq-hole", "log-missing-mid"]
)
def test_every_start_on_a_damaged_store_comes_to_the_same(case: str, exit: str, damaged: DamagedStore) -> None:
    with Store.open(damaged("load-533", case, exit)) as store, DispatchedRows() as rows:
        assert _outcomes(store, CheckedRanges(rows=rows)) == _outcomes(store, None)


@pytest.mark.product(4)
@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("seed", range(24))
def test_every_start_on_a_store_damaged_at_random_comes_to_the_same(seed: int, store_copy: StoreCopy) -> None:
    draw = random.Random(seed)
    root = store_copy(draw.choice(("load-533", "load-497", "clean-540", "crash-497")), draw.choice(("clean", "crash")))
    for _ in range(draw.randrange(4)):
        path = draw.choice(sorted((root / paths.COMMITLOG).iterdir()))
        path.write_bytes(_damaged(draw, path.read_bytes()))
    kept = draw.choice((0.0, 0.9, 1.0))
    for path in sorted((root / paths.CONSUMEQUEUE).glob("*/*/*")):
        data = path.read_bytes()
        used = len(data.rstrip(b"\0")) // ENTRY.size_bytes
        path.write_bytes(data[: int(used * kept) * ENTRY.size_bytes].ljust(len(data), b"\0"))
    with Store.open(root, load_settings(None, root)) as store, DispatchedRows() as rows:
        assert _outcomes(store, CheckedRanges(rows=rows), is_reversed=seed % 2 == 0) == _outcomes(store, None)


def _damaged(draw: random.Random, data: bytes) -> bytes:
    at, length = draw.randrange(len(data)), draw.randrange(1, 3000)
    end = min(at + length, len(data))
    match draw.randrange(4):
        case 0:
            return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]
        case 1:
            return data[:at] + bytes(end - at) + data[end:]
        case 2:
            return data[:at]
        case _:
            start = draw.randrange(len(data) - (end - at) + 1)
            return data[:at] + data[start : start + end - at] + data[end:]


@pytest.mark.product(1)
@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("entries", [50, 700, 3000])
def test_an_index_that_rolls(entries: int, store_copy: StoreCopy) -> None:
    """A stretch that does not fit into the newest index file is read again."""
    root = store_copy("load-533", "crash")
    shutil.rmtree(root / paths.INDEX)
    shutil.rmtree(root / paths.CONSUMEQUEUE)
    (root / "broker.conf").write_text(f"maxIndexNum={entries}\nmaxHashSlotNum=100\n")
    with Store.open(root, load_settings(root / "broker.conf", root)) as store:
        with DispatchedRows() as rows:
            shared = _outcomes(store, CheckedRanges(rows=rows))
        assert shared == _outcomes(store, None)
        assert any(outcome.index_rebuilt for outcome, _ in shared)


def test_the_log_is_read_once(store_copy: StoreCopy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "WINDOW_SIZE_BYTES", 16 << 10)
    root = store_copy("load-533", "crash")
    shutil.rmtree(root / paths.CONSUMEQUEUE)
    (root / paths.CHECKPOINT).unlink()
    walked: list[int] = []

    def counted(*numbers: int) -> Any:
        walked.append(numbers[-1])  # the window's length
        return window_scan(*numbers)

    monkeypatch.setattr(walk, "window_scan", counted)
    played: list[int] = []
    with Store.open(root) as store, DispatchedRows() as rows:
        proven = CheckedRanges(rows=rows)
        for behaviour, _ in GROUPS:
            before = sum(walked)
            outcome_of(store, behaviour, proven=proven)
            played.append(sum(walked) - before)
    assert played[0] > 500_000, played
    assert max(played[1:]) < played[0] / 2  # the ends of segments, and records that releases take differently


def test_checksums_that_nobody_has_looked_at_are_looked_at(golden: GoldenStore) -> None:
    """Rows of a walk without checksums serve a start that asks for them only where another walk has seen them right."""
    with Store.open(golden("load-533")) as store, DispatchedRows() as rows:
        segment, proven = store.log.segments[0], CheckedRanges()
        table = next(_tables(store, 50_000))
        assert rows.add(table, table.tags_code, knows_delays=True) is not None
        with start_broker(store, GROUPS[0][0], proven=CheckedRanges(rows=rows)) as start:
            assert start.dispatcher is not None
            rules = walk.WalkRules(READS_ALL)
            known = KnownParts(start.dispatcher, segment, rules, segment.end_phy_offset, -1, True, proven)
        assert not known.begins(0)
        proven.add(segment, table, check_crc=True)
        assert known.begins(0)


def _tables(store: Store, window_size_bytes: int) -> Any:
    options = ScanOptions(index_keys=True, window_size_bytes=window_size_bytes)
    for table in scan_log(store, options=options):
        good = select(table, table.kind == FrameKind.MESSAGE)
        if len(good):
            yield good


def _by_key(rows: DispatchedRows, start: int, end: int) -> dict[RawKey, list[tuple[int, ...]]]:
    found: dict[RawKey, list[tuple[int, ...]]] = defaultdict(list)
    for key, part in rows.rows(start, end):
        found[key] += part.tolist()
    return dict(found)


def _expected(tables: list[FrameTable], start: int, end: int) -> dict[RawKey, list[tuple[int, ...]]]:
    found: dict[RawKey, list[tuple[int, ...]]] = defaultdict(list)
    for table in tables:
        for row in table.rows():
            kind = int(table.sys_flag[row]) & record.TRANSACTION_MASK
            if start <= table.phy_offset[row] < end and kind in (record.TRANSACTION_NONE, record.TRANSACTION_COMMIT):
                names = ("queue_offset", "phy_offset", "tags_code", "store_timestamp_ms", "size_bytes")
                found[table.topic(row), int(table.queue_id[row])].append(
                    (*(int(getattr(table, name)[row]) for name in names), 1)
                )
    return dict(found)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("seed", range(6))
def test_rows_of_any_part_in_any_order(seed: int, golden: GoldenStore, tmp_path: Path) -> None:
    """Parts are added in any order, and come back in the log's."""
    draw = random.Random(seed)
    with Store.open(golden("load-533")) as store, DispatchedRows(tmp_path) as rows:
        tables = [part for part in _tables(store, draw.choice((5_000, 20_000))) if _is_whole(part)]
        cut = sorted(draw.sample(range(len(tables)), 4))
        shuffled = [tables[a:b] for a, b in zip([0, *cut], [*cut, len(tables)], strict=True)]
        draw.shuffle(shuffled)
        added: list[FrameTable] = []
        for table in (table for part in shuffled for table in part):
            if rows.add(table, table.tags_code, knows_delays=False) is not None:
                added.append(table)
                assert rows.add(table, table.tags_code, knows_delays=False) is None  # it is there
                assert rows.add(stretch(table, 0, 1), table.tags_code, knows_delays=False) is None
        added.sort(key=lambda table: int(table.phy_offset[0]))
        assert len(added) > 3  # what would lie between rows of one run is not kept
        bounds = [int(table.phy_offset[row]) for table in added for row in (0, len(table) // 2, -1)]
        for start, end in [(0, 1 << 40), *(sorted(draw.sample(bounds, 2)) for _ in range(8))]:
            assert _by_key(rows, start, end) == _expected(added, start, end)
        at, kept = int(added[0].phy_offset[0]), 0
        for table in added:  # every stretch ends where the next one begins, or with a table that is not kept
            found = rows.at(int(table.phy_offset[0]))
            if found is not None:
                assert found.start >= at
                at, kept = found.end, kept + found.keys.entries
        assert kept == sum(len(table.key_row) for table in added)


def _is_whole(table: FrameTable) -> bool:
    return bool((table.phy_offset[:-1] + table.size_bytes[:-1] == table.phy_offset[1:]).all())


def test_what_is_not_as_it_should_be_is_not_kept(golden: GoldenStore) -> None:
    with Store.open(golden("load-533")) as store, DispatchedRows() as rows:
        table = next(_tables(store, 50_000))
        for name, value in (("code", 1), ("own_phy_offset", 0), ("topic_id", -1), ("property_flags", 0xFFFF)):
            column = getattr(table, name).copy()
            column[len(column) // 2] = value
            odd = _with(table, **{name: column})
            assert rows.add(odd, odd.tags_code, knows_delays=True) is None, name
        gap = select(table, np.arange(len(table)) != 3)
        assert rows.add(gap, gap.tags_code, knows_delays=True) is None
        delayed = _with(table, topics=[paths.SCHEDULE_TOPIC.encode()] * len(table.topics))
        assert rows.add(delayed, delayed.tags_code, knows_delays=False) is None
        found = rows.add(delayed, delayed.tags_code, knows_delays=True)
        assert found is not None
        assert found.accepts(READS_OLD, knows_delays=True)
        assert not found.accepts(READS_OLD, knows_delays=False)


@pytest.mark.parametrize("change", ["magic", "sys_flag"])
def test_formats_that_old_releases_do_not_read(change: str, golden: GoldenStore) -> None:
    with Store.open(golden("load-533")) as store, DispatchedRows() as rows:
        table = next(_tables(store, 50_000))
        column = getattr(table, change).copy()
        column[5] = record.MAGIC_V2 if change == "magic" else column[5] | record.FLAG_STORE_HOST_V6
        new = _with(table, **{change: column})
        found = rows.add(new, new.tags_code, knows_delays=True)
        assert found is not None
        assert found.accepts(READS_ALL, knows_delays=True)
        assert not found.accepts(READS_OLD, knows_delays=True)
        assert not found.accepts(CheckRules(True, True, True, True, True, False, GROUPS[-1][0]), knows_delays=True)


def test_keys_of_stretches() -> None:
    none, early, late = IndexKeys(), IndexKeys(3, 100, 7), IndexKeys(2, 500, 9)
    assert none.concat(late) == late
    assert early.concat(none) == early
    assert early.concat(late) == IndexKeys(5, 500, 9)
    assert early.merge(late) == late.merge(early) == IndexKeys(5, 500, 9)
    assert none.merge(early) == early


def _with(table: FrameTable, **columns: Any) -> FrameTable:
    return replace(table, **columns, odd_count=None)


def test_behaviours_and_dispatchers_agree_on_tags(golden: GoldenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who indexes tags too takes rows of who does not, and none of its own are for others."""
    kept: list[Behaviour] = []
    real = Dispatcher._keep

    def seen(dispatcher: Dispatcher, *call: Any, **more: Any) -> bool:
        if real(dispatcher, *call, **more) and dispatcher._waiting is not None:
            if dispatcher._waiting[0] is dispatcher.known:
                kept.append(dispatcher.behaviour)
            return True
        return False

    monkeypatch.setattr(Dispatcher, "_keep", seen)
    with Store.open(golden("crash-497")) as store, DispatchedRows() as rows:
        for behaviour, _ in reversed(GROUPS):
            outcome_of(store, behaviour, proven=CheckedRanges(rows=rows))
    assert kept
    assert not any(behaviour.index_tags for behaviour in kept)


def test_asking_for_a_part_sorts_no_other_rows(golden: GoldenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start asks at each segment's end; with all rows sorted each time 300 segments took 17 s."""
    looked_at: list[int] = []

    def counted(key: RawKey, rows: Any, start: int, end: int) -> Any:
        looked_at.append(len(rows))
        yield key, rows

    monkeypatch.setattr(dispatched, "_within", counted)
    with Store.open(golden("clean-533")) as store, DispatchedRows() as rows:
        kept = [rows.add(table, table.tags_code, knows_delays=True) for table in _tables(store, 16 << 10)]
        parts = [part for part in kept if part is not None]
        assert len(parts) > 2
        for part in parts:
            list(rows.rows(part.start, part.end))
        every_row = sum(looked_at)
        looked_at.clear()
        list(rows.rows(parts[0].start, parts[-1].end))
        assert every_row == sum(looked_at)


def test_a_queue_takes_the_rows_of_all_segments_at_once(store_copy: StoreCopy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only blanks lie between the segments: 300 segments and 64 queues were 19,200 turns of each start."""
    root = store_copy("clean-533", "crash")
    shutil.rmtree(root / paths.CONSUMEQUEUE)
    (root / paths.CHECKPOINT).unlink()  # so that a start begins with the first segment
    turns: dict[str, int] = defaultdict(int)
    put = QueueState.put

    def counted(queue: QueueState, *columns: Any) -> None:
        turns[str(queue.key)] += 1
        put(queue, *columns)

    monkeypatch.setattr(QueueState, "put", counted)
    with Store.open(root) as store, DispatchedRows() as rows:
        assert len(store.log.segments) > 3
        for behaviour, _ in GROUPS[-2:]:
            outcome_of(store, behaviour, proven=CheckedRanges(rows=rows))
            assert set(turns.values()) == {1}
            turns.clear()


def test_rows_wait_together_only_if_no_others_lie_between(golden: GoldenStore) -> None:
    with Store.open(golden("clean-533")) as store, DispatchedRows() as rows:
        kept = [rows.add(table, table.tags_code, knows_delays=True) for table in _tables(store, 16 << 10)]
        parts = [part for part in kept if part is not None]
        first, last = parts[0], parts[-1]
        blank_end = next(b.start for a, b in pairwise(parts) if b.start > a.end)
        blank_start = next(a.end for a, b in pairwise(parts) if b.start > a.end)
        assert rows.has_none_between(blank_start, blank_end)
        assert rows.has_none_between(last.end, last.end + 100)
        assert not rows.has_none_between(first.start, blank_end)
        assert not rows.has_none_between(first.end, last.start)
