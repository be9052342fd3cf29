"""Checksums and statistics on Spark are those of this machine alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rmqctl import exit_codes
from store_core.check.verify import verify_log
from store_core.export.runners.local import LocalRunner
from store_core.export.runners.spark import SparkRunner
from store_core.export.statistics import stats_of_stores, verify_stores
from store_core.export.tables.stats import hourly_rows
from store_core.storage.store import Store
from tests.conftest import DamagedStore, GoldenStore
from tests.rmqctl.calls import call

pytest.importorskip("pyspark")
SPLIT_SIZE_BYTES = 30_000


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkRunner]:
    with SparkRunner("local[2]", [("spark.driver.memory", "512m")]) as runner:
        yield runner


@pytest.mark.spark
@pytest.mark.parametrize("case", ["untouched", "zero-page-mid", "log-missing-mid", "torn-tail"])
def test_checksums_and_statistics(damaged: DamagedStore, spark: SparkRunner, case: str) -> None:
    with Store.open(damaged("load-533", case)) as store:
        [report] = verify_stores([("a", store)], spark, split_size_bytes=SPLIT_SIZE_BYTES)
        expected = verify_log(store)
        assert (report.size_bytes, report.records) == (expected.size_bytes, expected.records)
        assert [s.as_json() for s in report.segments] == [s.as_json() for s in expected.segments]
        assert report.findings == expected.findings
        [found] = stats_of_stores([("a", store)], spark, split_size_bytes=SPLIT_SIZE_BYTES)
        [local] = stats_of_stores([("a", store)], LocalRunner())
        assert found.stats is not None
        assert local.stats is not None
        assert hourly_rows("a", found.stats).equals(hourly_rows("a", local.stats))


@pytest.mark.spark
def test_the_command_gives_the_same_report(golden: GoldenStore, damaged: DamagedStore) -> None:
    words = ["-s", f"a={damaged('load-533', 'flip-body-mid')}", "-s", f"b={golden('lmq-533')}", "-o", "json"]
    spark = call("verify-crc", "--spark", "--master", "local[2]", "--split-size", "100k", *words)
    local = call("verify-crc", *words)
    assert (spark.code, local.code) == (exit_codes.FINDINGS, exit_codes.FINDINGS)
    assert spark.json["stores"] == local.json["stores"]
    assert list(spark.json) == list(local.json)


@pytest.mark.parametrize("words", [["--split-size", "1m"], ["--master", "local"], ["--spark", "--sample", "5%"]])
def test_options_that_contradict_each_other(golden: GoldenStore, words: list[str]) -> None:
    result = call("verify-crc", *words, "-s", golden("lmq-533"))
    assert (result.code, result.out) == (exit_codes.USAGE, "")
