"""Rows, findings and quarantined ranges do not depend on where a log is split."""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from store_core.check.verify import verify_log
from store_core.export import export as export_module
from store_core.export import store_export as store_module
from store_core.export.dest import folder as folder_module
from store_core.export.dest import writing as writing_module
from store_core.export.dest.layout import Layout
from store_core.export.dest.parts import Part
from store_core.export.dest.task_destination import Place
from store_core.export.export import ExportReport
from store_core.export.runners.local import LocalRunner
from store_core.export.splits import split_task as piece_module
from store_core.export.splits.plan import plan_splits
from store_core.export.statistics import stats_of_stores
from store_core.findings import Finding
from store_core.kernel.file import FileReader
from store_core.layout import record
from store_core.read.log import LogFilter
from store_core.scan import windows
from store_core.scan.log import scan_log
from store_core.storage.publish import ResultFolder
from store_core.storage.settings import load_settings
from store_core.storage.store import Store
from tests import stores
from tests.conftest import DamagedStore, GoldenStore
from tests.damage import Damageable
from tests.export.exports import export_one, ranges_of
from tests.export.sources import source_ranges

# Cases whose operations touch the log; of the fillers, which are good records to a walk, a few.
LOG_CASES = sorted(
    name
    for name, case in stores.cases("load-533").items()
    if any(op.get("path", "").startswith("commitlog") for op in case["ops"])
    and not name.startswith(("mid-", "last-", "first-", "end-one", "cq-"))
)
HARD_CASES = ("zero-page-mid", "ghost-tail", "mid-damaged")
SEGMENT_BYTES = 131072
IN_LOG_ORDER = Layout(cluster="offset")
_IN_LOG = {"L002", "L003", "L004", "L005", "L006", "L008", "L013"}


class Memory:
    """Stands in for the Parquet writer where thousands of tiny splits are made; keeps the batches of every part."""

    batches: dict[str, list[pa.RecordBatch]] = {}  # noqa: RUF012  # emptied by the fixture
    count = 0

    def __init__(
        self,
        place: Place,
        table: str,
        store: str,
        file_name: str,
        partition: object = None,
        whole: bool = False,
        **_: object,
    ) -> None:
        Memory.count += 1
        self.table, self.store, self.name = table, store, f"{table}-{Memory.count}"
        Memory.batches[self.name] = []
        self.file_name = file_name

    def write(self, batch: pa.RecordBatch) -> None:
        Memory.batches[self.name].append(batch)

    def write_group(self, batches: Sequence[pa.RecordBatch]) -> None:
        Memory.batches[self.name] += batches

    def close(self) -> Part:
        rows = sum(map(len, Memory.batches[self.name]))
        return Part(self.table, self.store, self.name, f"{self.table}/{self.file_name}", rows, 0, 0, None, None)  # type: ignore[arg-type]  # any of the two tables

    def abort(self) -> None:
        del Memory.batches[self.name]


@pytest.fixture
def in_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    Memory.batches.clear()
    for module in (piece_module, export_module, store_module, writing_module):
        monkeypatch.setattr(module, "PartWriter", Memory)
    monkeypatch.setattr(folder_module, "refuse_missing", lambda *args: None)
    monkeypatch.setattr(ResultFolder, "publish", lambda *args: None)
    yield
    Memory.batches.clear()


def rows_of(report: ExportReport, table: str) -> list[dict[str, Any]]:
    paths = [part.path for part in report.parts]
    assert len(set(paths)) == len(paths), "two parts with one name"
    batches = [b for part in report.parts if part.table == table for b in Memory.batches[part.staged]]
    return [row for batch in batches for row in batch.select(_COLUMNS[table]).to_pylist()]


_COLUMNS = {
    "messages": ["phy_offset", "crc", "body_crc"],
    "quarantine": ["phy_offset", "size_bytes", "kind", "finding"],
}


def whole_log(root: Path) -> tuple[list[dict[str, Any]], list[Finding]]:
    """Messages and findings of one walk over everything, without any splits."""
    rows: list[dict[str, Any]] = []
    with Store.open(root, load_settings(None, root)) as store:
        for table in scan_log(store):
            for row in np.flatnonzero(table.messages):
                crc = "bad" if table.code[row] == 1 else "ok"
                rows.append(
                    {"phy_offset": int(table.phy_offset[row]), "crc": crc, "body_crc": int(table.body_crc[row])}
                )
        return rows, verify_log(store).findings


def check_splits(root: Path, dest: Path, size_bytes: int) -> None:
    rows, findings = whole_log(root)
    report = export_one(root, dest, split_size_bytes=size_bytes, layout=IN_LOG_ORDER)
    assert rows_of(report, "messages") == rows
    assert report.findings == findings
    found = [(r["phy_offset"], r["size_bytes"], r["finding"]) for r in rows_of(report, "quarantine")]
    told = [(f.phy_offset, f.size_bytes, f.code) for f in findings if f.code in _IN_LOG]
    assert sorted(found) == sorted(told)


@pytest.mark.product(12)
@pytest.mark.usefixtures("in_memory")
@pytest.mark.parametrize("case", LOG_CASES)
def test_a_damaged_log_gives_the_same_by_splits(damaged: DamagedStore, tmp_path: Path, case: str) -> None:
    check_splits(damaged("load-533", case), tmp_path / "out", 9001)
    check_splits(damaged("load-533", case), tmp_path / "whole", 1 << 30)


@pytest.mark.usefixtures("in_memory")
@pytest.mark.parametrize("case", HARD_CASES)
def test_tiny_splits_of_damaged_logs(damaged: DamagedStore, tmp_path: Path, case: str) -> None:
    """The segment that holds the damage and the one in front, at 300 bytes a split."""
    root = damaged("load-533", case)
    harmed = first_harmed_segment(case)
    for segment in sorted((root / "commitlog").iterdir()):
        if not harmed - SEGMENT_BYTES <= int(segment.name) <= harmed:
            segment.unlink()
    check_splits(root, tmp_path / "out", 300)


@pytest.mark.usefixtures("in_memory")
@pytest.mark.parametrize("size_bytes", [300, 4096])
def test_tiny_splits_of_a_golden_log(golden: GoldenStore, tmp_path: Path, size_bytes: int) -> None:
    check_splits(golden("bcq-533"), tmp_path / "out", size_bytes)


def first_harmed_segment(case: str) -> int:
    """Start of the first segment that a case touches."""
    names = [op["path"].split("/")[1] for op in stores.cases("load-533")[case]["ops"] if "commitlog/" in op["path"]]
    return min(int(name) for name in names)


def record_of(store: Damageable, row: int, phy_offset: int) -> bytes:
    """The bytes of the row-th record, made to lie at another offset."""
    message = store.message(row)
    raw = bytearray(store.read(message["phyOffset"], message["storeSize"]))
    at = record.HEAD.offset_of("own_phy_offset")
    raw[at : at + 8] = phy_offset.to_bytes(8, "big")
    return bytes(raw)


def begins_between(size_bytes: int, first: int, last: int, end: int) -> bool:
    """Whether splits of a segment have a border in [first, last], and none from there to ``end``."""
    count = -(-SEGMENT_BYTES // size_bytes)
    borders = [SEGMENT_BYTES * i // count for i in range(1, count)]
    inside = [border for border in borders if first <= border <= end]
    return len(inside) == 1 and inside[0] <= last


@pytest.mark.usefixtures("in_memory")
@pytest.mark.parametrize("own", ["its own", "another"])
def test_a_body_that_holds_a_whole_record_is_one_record(one_segment: Damageable, tmp_path: Path, own: str) -> None:
    """Where a split begins inside such a body, the walk finds the inner record, whose checksum and offset are right."""
    rows = [i for i in range(300) if one_segment.message(i)["phyOffset"] < SEGMENT_BYTES - 2000]
    outer = max(rows, key=lambda i: int(one_segment.message(i)["bodyLength"]))
    inner = min(rows, key=lambda i: int(one_segment.message(i)["storeSize"]))
    body_at = one_segment.field_at(outer, "body")
    length = one_segment.message(outer)["bodyLength"]
    at = body_at + (length - one_segment.message(inner)["storeSize"]) // 2
    assert at > body_at
    one_segment.write(at, record_of(one_segment, inner, at if own == "its own" else 7))
    body = one_segment.read(body_at, length)
    one_segment.set_field(outer, "body_crc", zlib.crc32(body) & record.CRC_MASK)
    end = one_segment.message(outer)["phyOffset"] + one_segment.message(outer)["storeSize"]
    sizes = [size for size in range(300, 9000) if begins_between(size, body_at, at, end)]
    for size in (300, *sizes[:: len(sizes) // 3]):
        check_splits(one_segment.root, tmp_path / str(size), size)


@pytest.mark.usefixtures("in_memory")
def test_records_with_a_wrong_own_offset_stay_where_they_are(one_segment: Damageable, tmp_path: Path) -> None:
    for row in range(40, 120, 2):
        one_segment.set_field(row, "own_phy_offset", 3)
    check_splits(one_segment.root, tmp_path / "out", 300)
    assert len(whole_log(one_segment.root)[1]) == 40


@pytest.mark.usefixtures("in_memory")
def test_bad_checksums_at_every_border(one_segment: Damageable, tmp_path: Path) -> None:
    for row in range(0, 100, 3):
        one_segment.flip(row, "body")
    check_splits(one_segment.root, tmp_path / "out", 300)


@pytest.mark.usefixtures("in_memory")
def test_a_range_of_the_log_gives_the_records_that_begin_in_it(one_segment: Damageable, tmp_path: Path) -> None:
    one_segment.zero(one_segment.message(60)["phyOffset"] + 10, 1200)
    one_segment.flip(80, "body")
    rows, findings = whole_log(one_segment.root)
    starts = [row["phy_offset"] for row in rows]
    for number, (first, stop) in enumerate(
        [(starts[5], starts[9]), (starts[5] + 1, starts[30] + 1), (starts[50], starts[80] + 1), (starts[70] - 1, None)]
    ):
        report = export_one(
            one_segment.root,
            tmp_path / str(number),
            LogFilter(first, stop),
            split_size_bytes=(300, 5000, 1 << 30)[number % 3],
            layout=IN_LOG_ORDER,
        )
        expected = [row for row in rows if row["phy_offset"] >= first and (stop is None or row["phy_offset"] < stop)]
        assert rows_of(report, "messages") == expected
        offsets = [f.phy_offset or 0 for f in findings]
        assert [f.phy_offset for f in report.findings] == [o for o in offsets if first <= o < (stop or 1 << 40)]


def test_splits_cover_the_log_without_overlap(golden: GoldenStore) -> None:
    with Store.open(golden("load-533")) as store:
        for size in (300, 5000, 200_000, 1 << 30):
            splits = [split for plan in plan_splits(store.log, 0, None, size) for split in plan.splits]
            assert splits[0].start_phy_offset == store.log.min_phy_offset
            assert splits[-1].stop_phy_offset == store.log.max_phy_offset
            assert all(a.stop_phy_offset == b.start_phy_offset for a, b in pairwise(splits))
            assert all(split.size_bytes <= max(size, 300) for split in splits)
            assert all(split.exact == (split.start_phy_offset % SEGMENT_BYTES == 0) for split in splits)


@pytest.mark.parametrize("split_size_bytes", [3 << 20, 5_000_003, 16 << 20, 1 << 30])
def test_no_byte_is_read_twice(
    split_size_bytes: int, damageable: Callable[..., Damageable], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a segment that a broker made in advance, with zeros that the disk holds, in splits of any size."""
    store = damageable("load-533")
    first, *others = store.segments
    for path in others:
        path.unlink()
    records = [told for told in store.truth["messages"] if told["phyOffset"] < store.segment_size_bytes]
    end = records[-1]["phyOffset"] + records[-1]["storeSize"]
    size = 32 << 20
    first.write_bytes(first.read_bytes()[:end] + bytes(size - end))
    done = 0
    real = os.preadv

    def counting(*words: Any) -> int:
        nonlocal done
        count = real(*words)
        done += count
        return count

    def not_by_the_kernel(path: Path) -> FileReader:
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "preadv", counting)
    monkeypatch.setattr(windows, "open_reader", not_by_the_kernel)  # whose calls cannot be counted
    with Store.open(store.root, load_settings(None, store.root)) as opened:
        [found] = stats_of_stores([("a", opened)], LocalRunner(), split_size_bytes=split_size_bytes)
    splits = -(-size // split_size_bytes)
    assert size <= done <= size + splits * (64 << 10)  # what a record at a border may need
    assert (found.report.rows, found.report.next_phy_offset, found.report.findings) == (len(records), end, [])


@pytest.mark.usefixtures("in_memory")
def test_zeros_made_in_advance_are_read_once(one_segment: Damageable, tmp_path: Path) -> None:
    """Each split among them is told of all that follow."""
    segment = one_segment.segments[0]
    size = segment.stat().st_size
    os.truncate(segment, size // 2)
    os.truncate(segment, size)
    reports = [export_one(one_segment.root, tmp_path / str(split), split_size_bytes=split) for split in (3000, 1 << 30)]
    assert reports[1].bytes_read == size
    assert size <= reports[0].bytes_read < 2 * size  # records at borders are walked twice


def test_damage_in_front_of_the_end_of_a_range_is_told(damageable: Callable[..., Damageable], tmp_path: Path) -> None:
    """It is no tail of a log that goes on, in an export, in a survey or for Spark."""
    store = damageable("load-533")
    border = 4 * SEGMENT_BYTES
    at = next(m["phyOffset"] for m in store.truth["messages"] if m["phyOffset"] > border - 30_000)
    store.write(at, random.Random(1).randbytes(border - at))
    wanted = LogFilter(to_phy_offset=border)
    report = export_one(store.root, tmp_path / "out", wanted)
    assert [(found.code, found.phy_offset) for found in report.findings] == [("L002", at)]
    assert [row[:2] for row in ranges_of(tmp_path / "out")] == [(at, border - at)]
    assert source_ranges(store.root, toOffset=border) == ranges_of(tmp_path / "out")
    cut = export_one(store.root, tmp_path / "cut", LogFilter(to_phy_offset=at + 100))
    assert [(found.code, found.phy_offset, found.size_bytes) for found in cut.findings] == [("L002", at, 100)]
    store.zero(at, border - at)
    assert [found.code for found in export_one(store.root, tmp_path / "zeros", wanted).findings] == ["L003"]
    for segment in store.segments[4:]:
        segment.unlink()  # and a tail is one
    assert export_one(store.root, tmp_path / "tail", LogFilter(to_phy_offset=border - 100)).findings == []


def test_damage_behind_a_run_up_is_told_once(damageable: Callable[..., Damageable], tmp_path: Path) -> None:
    """A range begins inside a segment; what its first split meets is in front of it, and damage behind."""
    store = damageable("load-533")
    at = store.message(100)["phyOffset"]
    store.write(at, random.Random(2).randbytes(SEGMENT_BYTES - at))
    for size_bytes in (SEGMENT_BYTES, 8000, 1000):
        out = tmp_path / str(size_bytes)
        report = export_one(store.root, out, LogFilter(at - 50), split_size_bytes=size_bytes)
        assert [found.phy_offset for found in report.findings] == [at]
        assert [row[:2] for row in ranges_of(out)] == [(at, SEGMENT_BYTES - at)]
