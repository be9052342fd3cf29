"""Compute statistics of messages: partial ones of any part of a log, which add up, and their rows.

The rows depend neither on where a log is cut nor on the order in which the parts are added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_core.codec.text import decode_text
from store_core.export.rows.kinds import topic_kind
from store_core.export.rows.schema import LARGEST_TIME_MS, LEAST_TIME_MS, TIME, Column
from store_core.export.tables.table import schema_of, times
from store_core.kernel.codes import FrameCode
from store_core.scan.frames import FrameTable, Ints

LARGEST: Final = 1 << 37  # of either sign; in milliseconds more than four years
_HALF_BITS: Final = 6


def buckets_of(values: Ints) -> Ints:
    """Return the bucket of each number; its absolute value is at most ``LARGEST``. Buckets are in the numbers' order."""
    magnitude = np.where(values < 0, -values - 1, values)
    exponent = np.maximum(np.frexp(magnitude.astype(np.float64))[1] - _HALF_BITS - 1, 0).astype(np.int64)
    bucket = (exponent << _HALF_BITS) + (magnitude >> exponent)
    found: Ints = np.where(values < 0, -bucket - 1, bucket)
    return found


def upper_ends(buckets: Ints) -> Ints:
    """Return the largest number of each bucket."""
    magnitude = np.where(buckets < 0, -buckets - 1, buckets)
    exponent = np.maximum((magnitude >> _HALF_BITS) - 1, 0)
    mantissa = magnitude - (exponent << _HALF_BITS)
    ends: Ints = np.where(buckets < 0, -(mantissa << exponent) - 1, ((mantissa + 1) << exponent) - 1)
    return ends


def quantiles(group: Ints, buckets: Ints, counts: Ints, groups: int, share: float) -> NDArray[Any]:
    """Return for each of ``groups`` the upper end of the bucket in which the ``share`` of its numbers is reached.

    The three arrays have a row for each bucket of each group, sorted by group and bucket; a group without rows has
    the quantile 0.
    """
    if not len(group):
        return np.zeros(groups, np.int64)
    running = np.r_[0, np.cumsum(counts)]
    ends = np.searchsorted(group, np.arange(groups), side="right")
    starts = np.r_[0, ends[:-1]]
    total = running[ends] - running[starts]
    rank = np.maximum(np.ceil(total * share), 1).astype(np.int64)
    found = np.searchsorted(running[1:], running[starts] + rank, side="left")
    return np.where(total > 0, upper_ends(buckets[np.minimum(found, len(buckets) - 1)]), 0)


_WHOSE: Final = (
    Column("store", pa.string(), "name of the store", repeats=True),
    Column("topic", pa.string(), "topic, as stored", repeats=True),
    Column(
        "kind", pa.string(), "user, half, op, delayed, retry, dlq or system: what the topic makes of it", repeats=True
    ),
)
_MEASURES: Final = (
    Column("messages", pa.int64(), "records"),
    Column("bytes", pa.int64(), "length of the records, bytes"),
    Column("body_bytes", pa.int64(), "length of the stored bodies, bytes"),
    Column("bad_messages", pa.int64(), "records of which a checksum does not match"),
    Column("min_size_bytes", pa.int64(), "smallest record"),
    Column("mean_size_bytes", pa.float64(), "mean length of the records"),
    Column("median_size_bytes", pa.int64(), "half of the records are at most so long"),
    Column("p90_size_bytes", pa.int64(), "90 % of the records are at most so long"),
    Column("p99_size_bytes", pa.int64(), "99 % of the records are at most so long"),
    Column("max_size_bytes", pa.int64(), "largest record"),
    Column(
        "min_latency_ms", pa.int64(), "smallest time from born to store; below 0 where clocks differ", nullable=True
    ),
    Column("mean_latency_ms", pa.float64(), "mean time from born to store", nullable=True),
    Column("median_latency_ms", pa.int64(), "half of the records took at most so long", nullable=True),
    Column("p90_latency_ms", pa.int64(), "90 % of the records took at most so long", nullable=True),
    Column("p99_latency_ms", pa.int64(), "99 % of the records took at most so long", nullable=True),
    Column("max_latency_ms", pa.int64(), "largest time from born to store", nullable=True),
)
STATS_COLUMNS: Final = (
    *_WHOSE,
    Column("queue_id", pa.int32(), "queue number, from 0"),
    Column("hour", TIME, "the start of the hour of the store time; null for a number that is no time", nullable=True),
    *_MEASURES,
)
TOPIC_COLUMNS: Final = (*_WHOSE, *_MEASURES)

_HOUR_MS: Final = 3_600_000
_BAD: Final = (int(FrameCode.BAD_CRC), int(FrameCode.BAD_PROPERTY_CRC))
_SHARES: Final = (("median", 0.5), ("p90", 0.9), ("p99", 0.99))
_NO_HOUR: Final = np.iinfo(np.int64).min
_BUCKET_BITS: Final = 16  # enough for the buckets of both signs
_PENDING_ROWS: Final = 1 << 16
_SIZE, _LATENCY = 0, 1
_KEYS: Final = ("topic", "queue_id", "hour")
_HOW: Final = {
    "messages": "sum",
    "bytes": "sum",
    "body_bytes": "sum",
    "bad_messages": "sum",
    "min_size_bytes": "min",
    "max_size_bytes": "max",
    "timed": "sum",
    "latency_ms": "sum",
    "min_latency_ms": "min",
    "max_latency_ms": "max",
}
_BUCKET_KEYS: Final = (*_KEYS, "measure", "bucket")


@dataclass(frozen=True, slots=True)
class PartialStats:
    """Statistics of some records, as Arrow tables. Goes between processes.

    ``sums`` has a row for each topic, queue and hour (a number), ``buckets`` one for each bucket of their sizes or
    latencies, with the number of its records.
    """

    sums: pa.Table
    buckets: pa.Table

    def __reduce__(self) -> tuple[Callable[[bytes, bytes], PartialStats], tuple[bytes, bytes]]:
        return partial_of, (_as_bytes(self.sums), _as_bytes(self.buckets))


def partial_of(sums: bytes, buckets: bytes) -> PartialStats:
    """Decode tables that were sent between processes. Raises ValueError for other bytes."""
    return PartialStats(_from_bytes(sums), _from_bytes(buckets))


def _as_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _from_bytes(data: bytes) -> pa.Table:
    with pa.ipc.open_stream(data) as reader:
        table = reader.read_all()
    table.validate(full=True)
    return table


class StatsBuilder:
    """Adds up records, window by window; memory grows with topics, queues and hours."""

    def __init__(self) -> None:
        self._pending: list[PartialStats] = []
        self._pending_rows = 0

    def add(self, table: FrameTable, rows: Ints) -> None:
        """Add the messages of a window with these row numbers."""
        if not len(rows):
            return
        self.merge(_of_window(table, rows))

    def merge(self, partial: PartialStats) -> None:
        """Add the statistics of another builder."""
        self._pending.append(partial)
        self._pending_rows += len(partial.buckets)
        if self._pending_rows > _PENDING_ROWS:
            self._pending, self._pending_rows = [self._added_up()], 0

    def partial(self) -> PartialStats | None:
        """Return the statistics of all added records; None without any."""
        return self._added_up() if self._pending else None

    def _added_up(self) -> PartialStats:
        return PartialStats(
            _grouped([partial.sums for partial in self._pending], _KEYS, _HOW),
            _grouped([partial.buckets for partial in self._pending], _BUCKET_KEYS, {"count": "sum"}),
        )


def hourly_rows(store: str, partial: PartialStats) -> pa.RecordBatch:
    """Return a row for each topic, queue and hour, in this order."""
    return _rows(store, partial, STATS_COLUMNS, _KEYS)


def topic_rows(store: str, partial: PartialStats) -> pa.RecordBatch:
    """Return a row for each topic."""
    return _rows(store, partial, TOPIC_COLUMNS, ("topic",))


def _of_window(table: FrameTable, rows: Ints) -> PartialStats:
    size = table.size_bytes[rows].astype(np.int64)
    born, stored = table.born_timestamp_ms[rows], table.store_timestamp_ms[rows]
    timed = (born > 0) & (stored > 0) & (np.abs(stored - born) < LARGEST)
    latency = np.where(timed, stored - born, 0)
    has_hour = (stored >= LEAST_TIME_MS) & (stored <= LARGEST_TIME_MS)
    hour = np.where(has_hour, stored // _HOUR_MS, _NO_HOUR)
    groups = _Groups(table.topic_id[rows], table.queue_id[rows], hour)
    topics = pa.array([decode_text(bytes(topic)) for topic in table.topics])
    hours = groups.keys[2]
    keys = {
        "topic": topics.take(pa.array(groups.keys[0])),
        "queue_id": pa.array(groups.keys[1].astype(np.int32)),
        "hour": pa.array(hours, mask=hours == _NO_HOUR),
    }
    bad = np.isin(table.code[rows], _BAD)
    late, late_ends = groups.of(latency[timed], timed)
    untimed = np.ones(len(groups), np.bool_)
    untimed[late] = False
    sums = {
        "messages": pa.array(groups.sums(np.ones(len(rows)))),
        "bytes": pa.array(groups.sums(size)),
        "body_bytes": pa.array(groups.sums(table.body_length[rows])),
        "bad_messages": pa.array(groups.sums(bad)),
        "min_size_bytes": pa.array(groups.of(size)[1][0]),
        "max_size_bytes": pa.array(groups.of(size)[1][1]),
        "timed": pa.array(groups.sums(timed)),
        "latency_ms": pa.array(groups.sums(latency)),
        "min_latency_ms": pa.array(_spread(late, late_ends[0], len(groups)), mask=untimed),
        "max_latency_ms": pa.array(_spread(late, late_ends[1], len(groups)), mask=untimed),
    }
    counted = [
        _bucketed(keys, _SIZE, *groups.counts(buckets_of(size))),
        _bucketed(keys, _LATENCY, *groups.counts(buckets_of(latency[timed]), timed)),
    ]
    return PartialStats(pa.table({**keys, **sums}), pa.concat_tables(counted))


class _Groups:
    """Rows grouped by three columns of integers. ``keys`` are the columns' values, a row for each group."""

    def __init__(self, *columns: Ints) -> None:
        code = np.zeros(len(columns[0]), np.int64)
        known = []
        for column in columns:
            values, place = np.unique(column, return_inverse=True)
            code = code * len(values) + place
            known.append(values)
        codes, self._group = np.unique(code, return_inverse=True)
        self.keys: list[Ints] = []
        for values in reversed(known):
            codes, place = np.divmod(codes, len(values))
            self.keys.insert(0, values[place])

    def __len__(self) -> int:
        return len(self.keys[0])

    def sums(self, values: NDArray[Any]) -> Ints:
        """Return exact sums: a window has too few rows for a sum that a float cannot hold."""
        return np.bincount(self._group, values, len(self)).astype(np.int64)

    def of(self, values: Ints, mask: NDArray[np.bool_] | None = None) -> tuple[Ints, tuple[Ints, Ints]]:
        """Return the groups with rows in a mask, and their smallest and largest values; ``values`` are those in the
        mask.
        """
        group = self._group if mask is None else self._group[mask]
        order = np.argsort(group, kind="stable")
        found, starts = np.unique(group[order], return_index=True)
        if not len(found):
            return found, (found, found)
        ordered = values[order]
        return found, (np.minimum.reduceat(ordered, starts), np.maximum.reduceat(ordered, starts))

    def counts(self, buckets: Ints, mask: NDArray[np.bool_] | None = None) -> tuple[Ints, Ints, Ints]:
        """Return group, bucket and number of rows for each bucket of each group that has any."""
        group = self._group if mask is None else self._group[mask]
        pairs, count = np.unique((group << _BUCKET_BITS) + (buckets + (1 << _BUCKET_BITS - 1)), return_counts=True)
        return pairs >> _BUCKET_BITS, (pairs & (1 << _BUCKET_BITS) - 1) - (1 << _BUCKET_BITS - 1), count


def _spread(groups: Ints, values: Ints, count: int) -> Ints:
    """Return values at the places of their groups, 0 at others."""
    spread = np.zeros(count, np.int64)
    spread[groups] = values
    return spread


def _bucketed(keys: dict[str, pa.Array], measure: int, group: Ints, bucket: Ints, count: Ints) -> pa.Table:
    return pa.table(
        {
            **{name: values.take(pa.array(group)) for name, values in keys.items()},
            "measure": pa.array(np.full(len(group), measure, np.int8)),
            "bucket": pa.array(bucket),
            "count": pa.array(count),
        }
    )


def _grouped(tables: Iterable[pa.Table], keys: Sequence[str], how: dict[str, str]) -> pa.Table:
    """Join rows with equal keys; columns keep their names."""
    grouped = pa.concat_tables(tables).group_by(list(keys), use_threads=False).aggregate(list(how.items()))
    names = {f"{name}_{way}": name for name, way in how.items()}
    return grouped.rename_columns([names.get(name, name) for name in grouped.column_names]).select([*keys, *how])


def _rows(store: str, partial: PartialStats, columns: Sequence[Column], keys: Sequence[str]) -> pa.RecordBatch:
    order = [(key, "ascending") for key in keys]
    sums = _grouped([partial.sums], keys, _HOW).sort_by(order)
    sums = sums.append_column("group", pa.array(np.arange(len(sums))))
    topics = sums.column("topic").to_pylist()
    timed = sums.column("timed").to_numpy()
    made: dict[str, Any] = {
        **{name: sums.column(name) for name in sums.column_names},
        "store": pa.repeat(pa.scalar(store), len(sums)),
        "kind": pa.array(map(topic_kind, topics), pa.string()),
        "mean_size_bytes": pa.array(
            sums.column("bytes").to_numpy() / np.maximum(sums.column("messages").to_numpy(), 1)
        ),
        "mean_latency_ms": pa.array(sums.column("latency_ms").to_numpy() / np.maximum(timed, 1), mask=timed == 0),
    }
    if "hour" in keys:
        hours = sums.column("hour")
        missing = hours.is_null().to_numpy()
        made["hour"] = times(hours.fill_null(0).to_numpy() * _HOUR_MS, missing)
    for measure, name in ((_SIZE, "size_bytes"), (_LATENCY, "latency_ms")):
        largest = sums.column(f"max_{name}")
        for share_name, values in _quantiles(partial.buckets, sums, keys, measure).items():
            capped = np.minimum(values, largest.fill_null(0).to_numpy())
            made[f"{share_name}_{name}"] = pa.array(capped, mask=largest.is_null().to_numpy())
    schema = schema_of(columns)
    table = pa.table([made[name] for name in schema.names], schema=schema).combine_chunks()
    return pa.RecordBatch.from_arrays([c.combine_chunks() for c in table.columns], schema=schema)


def _quantiles(buckets: pa.Table, groups: pa.Table, keys: Sequence[str], measure: int) -> dict[str, NDArray[np.int64]]:
    """Return for each share a number for each row of ``groups``."""
    rolled = _grouped([buckets], [*keys, "measure", "bucket"], {"count": "sum"})
    measured = rolled.filter(pa.array(rolled.column("measure").to_numpy() == measure))
    numbered = _with_group(measured, groups, keys).sort_by([("group", "ascending"), ("bucket", "ascending")])
    group, bucket, count = (numbered.column(name).to_numpy() for name in ("group", "bucket", "count"))
    return {name: quantiles(group, bucket, count, len(groups), share) for name, share in _SHARES}


def _with_group(rows: pa.Table, groups: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the rows with the number of the group with the same keys; nulls are equal, unlike in a join."""
    filled = "hour" in keys

    def plain(table: pa.Table) -> pa.Table:
        if not filled:
            return table
        hour = table.column("hour")
        return table.set_column(table.column_names.index("hour"), "hour", hour.fill_null(np.iinfo(np.int64).max))

    numbers = plain(groups.select([*keys, "group"]))
    return plain(rows).join(numbers, list(keys), join_type="inner", use_threads=False)
