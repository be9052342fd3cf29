"""Checksums and statistics on splits: equal to those of one walk, on good and damaged logs, however they are cut."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from store_core.check.verify import VerifyReport, verify_log
from store_core.export.runners.local import LocalRunner
from store_core.export.statistics import stats_of_stores, verify_stores
from store_core.export.tables.stats import StatsBuilder, hourly_rows
from store_core.read.log import LogFilter
from store_core.scan.log import ScanOptions, scan_log
from store_core.storage.live import is_live
from store_core.storage.store import Store
from tests import stores
from tests.conftest import DamagedStore, GoldenStore
from tests.damage import Damageable

CASES = sorted(name for name in stores.cases("load-533") if not name.startswith(("cq-", "checkpoint-", "index-")))
SIZES = (1_000, 50_003, 1 << 30)


def told(report: VerifyReport) -> Any:
    return report.size_bytes, report.records, [s.as_json() for s in report.segments], report.findings


def assert_as_one_walk(root: Path, sizes: tuple[int, ...] = SIZES) -> VerifyReport:
    with Store.open(root) as store:
        expected = verify_log(store, live=is_live(root).live)
        for size in sizes:
            [report] = verify_stores([("a", store)], LocalRunner(), split_size_bytes=size)
            assert told(report) == told(expected), size
        return expected


@pytest.mark.product(
    name=("clean-430", "lmq-533", "bcq-533", "propcrc-533", "load-551-aged", "rocks-533", "compact-533")
)
@pytest.mark.parametrize("name", stores.GOLDEN)
def test_good_logs(golden: GoldenStore, name: str) -> None:
    report = assert_as_one_walk(golden(name))
    assert (report.records, report.findings) == (len(stores.truth(name)["messages"]), [])


@pytest.mark.product(22)
@pytest.mark.parametrize("case", CASES)
def test_damaged_logs(damaged: DamagedStore, case: str) -> None:
    assert_as_one_walk(damaged("load-533", case), (50_003, 1 << 30))


def test_bad_checksums_are_counted_in_their_segments(damageable: Callable[..., Damageable]) -> None:
    store = damageable("propcrc-533")
    records = stores.truth("propcrc-533")["messages"]
    for number in (3, 5, len(records) - 2):
        store.flip(record=number, field="body")
    report = assert_as_one_walk(store.root)
    assert sum(segment.bad for segment in report.segments) == 3
    assert report.segments[0].bad == 2


def test_several_stores_in_processes(golden: GoldenStore) -> None:
    walked: list[int] = []
    with Store.open(golden("load-533")) as a, Store.open(golden("lmq-533")) as b:
        reports = verify_stores(
            [("a", a), ("b", b)], LocalRunner(2), split_size_bytes=300_000, on_progress=walked.append
        )
        assert [told(report) for report in reports] == [told(verify_log(store)) for store in (a, b)]
    assert walked[-1] == sum(report.size_bytes for report in reports)


@pytest.mark.product(2)
@pytest.mark.parametrize("case", ["zero-page-mid", "log-missing-mid", "ghost-tail", "flip-body-mid"])
def test_statistics_are_those_of_one_walk(damaged: DamagedStore, case: str) -> None:
    root = damaged("load-533", case)
    with Store.open(root) as store:
        whole = StatsBuilder()
        for table in scan_log(store, options=ScanOptions(properties=False, check_property_crc=True)):
            whole.add(table, np.flatnonzero(table.messages))
        expected = whole.partial()
        assert expected is not None
        for size in SIZES:
            [found] = stats_of_stores([("a", store)], LocalRunner(), split_size_bytes=size)
            assert found.stats is not None
            assert hourly_rows("a", found.stats).equals(hourly_rows("a", expected)), size
            assert [f.code for f in found.report.findings] == [f.code for f in verify_log(store).findings]


def test_statistics_of_some_messages(golden: GoldenStore) -> None:
    wanted = LogFilter(200_000, 700_000, topics=frozenset({"Calm_bills"}))
    messages = [
        m
        for m in stores.truth("load-533")["messages"]
        if 200_000 <= m["phyOffset"] < 700_000 and m["topic"] == "Calm_bills"
    ]
    with Store.open(golden("load-533")) as store:
        for size in SIZES:
            [found] = stats_of_stores([("a", store)], LocalRunner(), wanted, split_size_bytes=size)
            assert found.stats is not None
            rows = hourly_rows("a", found.stats).to_pylist()
            assert sum(row["messages"] for row in rows) == len(messages)
            assert sum(row["bytes"] for row in rows) == sum(m["storeSize"] for m in messages)
        [nothing] = stats_of_stores([("a", store)], LocalRunner(), LogFilter(topics=frozenset({"nope"})))
        assert nothing.stats is None
