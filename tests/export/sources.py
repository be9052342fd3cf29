"""What the Spark source gives, read without Spark: planned, sent (pickled) and read as executors do."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa

from store_core.export.source.data_source import arrow_schema
from store_core.export.source.options import parse_options
from store_core.export.source.planning import batch_readings
from store_core.export.source.reading import read_messages, read_ranges


def source_table(root: Path, **options: str | int) -> pa.Table:
    """The rows of one store, named ``a``, in the order of the partitions; ``path`` names others."""
    parsed = parse_options({"path": f"a={root}"} | {name: str(value) for name, value in options.items()})
    read = read_messages if parsed.table == "messages" else read_ranges
    readings = pickle.loads(pickle.dumps(batch_readings(parsed)))
    batches = [batch for reading in readings for batch in read(reading)]
    return pa.Table.from_batches(batches, arrow_schema(parsed))


def source_ranges(root: Path, **options: str | int) -> list[tuple[int, int, str, str | None, str]]:
    """The quarantine table as ``exports.ranges_of`` gives it."""
    rows = source_table(root, table="quarantine", **options).to_pylist()
    return [(r["phy_offset"], r["size_bytes"], r["kind"], r["reason"], r["finding"]) for r in rows]
