"""Statistics against what the real decoder tells of every message, however the log was cut into parts."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from store_core.export.tables.stats import (
    LARGEST,
    StatsBuilder,
    buckets_of,
    hourly_rows,
    quantiles,
    topic_rows,
    upper_ends,
)
from store_core.scan.log import ScanOptions, scan_log
from store_core.storage.store import Store
from tests import stores
from tests.conftest import GoldenStore, StoreCopy
from tests.export.exports import _kind as kind_of

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HOUR_MS = 3600_000


def built(root: Path, cut_at: list[int] | None = None) -> list[StatsBuilder]:
    """Builders of the parts of a log between some offsets."""
    options = ScanOptions(properties=False)
    bounds = [None, *(cut_at or []), None]
    builders = []
    with Store.open(root) as store:
        for low, high in pairwise(bounds):
            builder = StatsBuilder()
            for table in scan_log(store, from_phy_offset=low, to_phy_offset=high, options=options):
                builder.add(table, np.flatnonzero(table.messages))
            builders.append(builder)
    return builders


def rows_of(builders: list[StatsBuilder], by: str = "hour") -> list[dict[str, Any]]:
    whole = StatsBuilder()
    for builder in builders:
        if (partial := builder.partial()) is not None:
            whole.merge(partial)
    partial = whole.partial()
    assert partial is not None
    rows: list[dict[str, Any]] = (hourly_rows if by == "hour" else topic_rows)("a", partial).to_pylist()
    return rows


def rank_of(values: list[int], share: float) -> int:
    return sorted(values)[max(math.ceil(len(values) * share), 1) - 1]


def assert_measures(row: dict[str, Any], messages: list[dict[str, Any]]) -> None:
    sizes = [m["storeSize"] for m in messages]
    latencies = [m["storeTimestamp"] - m["bornTimestamp"] for m in messages]
    assert row["messages"] == len(messages)
    assert row["bytes"] == sum(sizes)
    assert row["body_bytes"] == sum(m["bodyLength"] for m in messages)
    assert row["bad_messages"] == 0
    for name, values in (("size_bytes", sizes), ("latency_ms", latencies)):
        assert (row[f"min_{name}"], row[f"max_{name}"]) == (min(values), max(values))
        assert row[f"mean_{name}"] == pytest.approx(sum(values) / len(values))
        for share, word in ((0.5, "median"), (0.9, "p90"), (0.99, "p99")):
            exact = rank_of(values, share)
            assert exact <= row[f"{word}_{name}"] <= exact + abs(exact) / 64, (row["topic"], word, name)


@pytest.mark.parametrize("name", stores.GOLDEN)
def test_statistics_are_those_of_the_messages(golden: GoldenStore, name: str) -> None:
    told: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for message in stores.truth(name)["messages"]:
        hour = _EPOCH + timedelta(milliseconds=message["storeTimestamp"] // _HOUR_MS * _HOUR_MS)
        told[message["topic"], message["queueId"], hour].append(message)
    rows = rows_of(built(golden(name)))
    assert [(r["topic"], r["queue_id"], r["hour"]) for r in rows] == sorted(told)
    for row in rows:
        assert (row["store"], row["kind"]) == ("a", kind_of(row["topic"]))
        assert_measures(row, told[row["topic"], row["queue_id"], row["hour"]])


@pytest.mark.parametrize("name", stores.CLEAN)
def test_topics_as_a_whole(golden: GoldenStore, name: str) -> None:
    told = defaultdict(list)
    for message in stores.truth(name)["messages"]:
        told[message["topic"]].append(message)
    rows = rows_of(built(golden(name)), "topic")
    assert [row["topic"] for row in rows] == sorted(told)
    for row in rows:
        assert_measures(row, told[row["topic"]])


@pytest.mark.parametrize("seed", range(4))
def test_parts_add_up_in_any_order(golden: GoldenStore, seed: int) -> None:
    chance = random.Random(seed)
    offsets = [m["phyOffset"] for m in stores.truth("clean-533")["messages"]]
    parts = built(golden("clean-533"), sorted(chance.sample(offsets, 9)))
    expected = rows_of(built(golden("clean-533")))
    chance.shuffle(parts)
    assert rows_of(parts) == expected


def test_times_that_are_none(store_copy: StoreCopy) -> None:
    from tests.damage import Damageable

    store = Damageable(store_copy("load-533"), stores.truth("load-533"))
    messages = stores.truth("load-533")["messages"]
    number = next(n for n, m in enumerate(messages) if m["topic"] == "Calm_bills" and m["queueId"] == 0)
    store.set_field(number, "store_timestamp_ms", (1 << 63) - 5)
    store.set_field(number + 1, "born_timestamp_ms", 0)
    other = messages[number + 1]
    rows = rows_of(built(store.root))
    timeless = [row for row in rows if row["hour"] is None]
    assert [(row["topic"], row["queue_id"], row["messages"]) for row in timeless] == [("Calm_bills", 0, 1)]
    assert {row[f"{word}_latency_ms"] for row in timeless for word in ("min", "mean", "median", "p99", "max")} == {None}
    assert sum(row["messages"] for row in rows) == len(messages)
    same = [m for m in messages if (m["topic"], m["queueId"]) == (other["topic"], other["queueId"]) and m is not other]
    if (other["topic"], other["queueId"]) != ("Calm_bills", 0):
        [row] = [r for r in rows if (r["topic"], r["queue_id"]) == (other["topic"], other["queueId"]) and r["hour"]]
        assert row["max_latency_ms"] == max(m["storeTimestamp"] - m["bornTimestamp"] for m in same)


def test_buckets_are_in_order_and_narrow() -> None:
    numbers = np.unique(
        np.r_[np.arange(-5000, 5000), [s * (1 << k) + d for k in range(12, 37) for s in (1, -1) for d in (-1, 0, 1)]]
    ).astype(np.int64)
    numbers = numbers[np.abs(numbers) < LARGEST]
    buckets = buckets_of(numbers)
    ends = upper_ends(buckets)
    assert (np.diff(buckets) >= 0).all()
    assert (ends >= numbers).all()
    assert (ends - numbers <= np.abs(numbers) / 64).all()
    assert np.array_equal(buckets_of(ends), buckets)
    assert np.array_equal(ends[np.abs(numbers) < 128], numbers[np.abs(numbers) < 128])


def test_quantiles_of_groups_without_rows() -> None:
    group, bucket, count = (np.array(values) for values in ([1, 1, 3], [5, 9, 7], [2, 1, 4]))
    assert quantiles(group, bucket, count, 5, 0.5).tolist() == [0, 5, 0, 7, 0]
    assert quantiles(group, bucket, count, 5, 0.99).tolist() == [0, 9, 0, 7, 0]
    nothing = np.zeros(0, np.int64)
    assert quantiles(nothing, nothing, nothing, 2, 0.5).tolist() == [0, 0]
