"""Spark reads the tables of Delta and Iceberg, of a release for which both projects have a package: Java alone, none of our Python."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
import pytest

from store_core.export.dest.address import Format
from store_core.export.dest.layout import PartitionBy
from store_core.export.rows import schema
from tests.conftest import DamagedStore, StoreCopy
from tests.export.lake_jars import lake_jars
from tests.export.spark_java import SHORT_LIVED
from tests.export.test_incremental import ENDS, STORE, Growing
from tests.export.test_lakes import export_to, rows_in

_READER: Final = Path(__file__).parent / "ReadTables.java"
_OPENED: Final = ("java.lang", "java.lang.invoke", "java.nio", "java.util", "sun.nio.ch", "sun.util.calendar")


@pytest.mark.spark
def test_spark_reads_what_was_exported(store_copy: StoreCopy, damaged: DamagedStore, tmp_path: Path) -> None:
    """Of several commits, with damage, and in partitions."""
    growing, holed = Growing(store_copy(STORE)), damaged("load-533", "zero-page-mid")
    formats: list[Format] = ["delta", "iceberg"]
    partitions: list[PartitionBy | None] = [None, "topic", "day"]
    outs = [
        (kind, partition_by, tmp_path / f"{kind}-{partition_by}") for kind in formats for partition_by in partitions
    ]
    for end in (ENDS[3], ENDS[-1]):
        growing.end_at(end)
        for kind, partition_by, out in outs:
            export_to(growing.root, out, kind, partition_by=partition_by, incremental=True)
    for kind in formats:
        export_to(holed, tmp_path / f"{kind}-holed", kind)
    tables = [(kind, out, "messages") for kind, _, out in outs]
    tables += [(kind, tmp_path / f"{kind}-holed", name) for kind in formats for name in ("messages", "quarantine")]
    found = [tmp_path / "found" / str(number) for number in range(len(tables))]
    read_by_spark(
        tmp_path, *((kind, _address(out, kind, name), to) for (kind, out, name), to in zip(tables, found, strict=True))
    )
    for (kind, out, name), folder in zip(tables, found, strict=True):
        told = rows_in(out, kind, name)
        columns = (schema.MESSAGES if name == "messages" else schema.QUARANTINE).names
        rows = pq.read_table(folder).select(columns).sort_by([("store", "ascending"), ("phy_offset", "ascending")])
        assert told.num_rows
        assert rows.to_pylist() == told.to_pylist()


def read_by_spark(work: Path, *tables: tuple[str, Path, Path]) -> None:
    """Have Spark read tables: a format, the table, and a new folder for what it finds, as Parquet."""
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
    command = ["java", *SHORT_LIVED.split(), *opened, "-cp", f"{lake_jars()}/*", _READER]
    words = [str(word) for table in tables for word in table]
    done = subprocess.run([*command, work, *words], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _address(out: Path, kind: Format, name: str) -> Path:
    """What Spark is given of a table: of Iceberg its newest metadata."""
    folder = out / ("data" if name == "messages" else name)
    return max((folder / "metadata").glob("*.metadata.json")) if kind == "iceberg" else folder
