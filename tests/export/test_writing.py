"""Files of parts: row groups of rows of every size. A disk that refuses in the middle of an export leaves neither a file
nor a word behind, but one error."""

from __future__ import annotations

import errno
import gc
import os
import sys
import weakref
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from store_core.codec.compression import compress
from store_core.codec.hosts import host_bytes
from store_core.errors import FailedError
from store_core.export.dest import parquet, writing
from store_core.export.dest.layout import Layout
from store_core.export.dest.parts import PartWriter, Range, quarantine_rows
from store_core.export.dest.task_destination import StagingFolder
from store_core.export.dest.writing import MessageWriter
from store_core.export.rows import bodies
from store_core.export.rows import group_by_topic as collected
from store_core.export.rows.schema import Column
from store_core.export.tables.index import INDEX_COLUMNS
from store_core.export.tables.table import schema_of, write_table
from store_core.kernel.codes import MOST_WORDS, FrameCode, FrameKind
from store_core.storage import part_file
from tests.conftest import GoldenStore
from tests.export.exports import export_one, table_of
from tests.export.test_rows import table_of as frames_of
from tests.export.test_rows import written
from tests.threads import running

ROWS = quarantine_rows("s", [(Range(FrameKind.DAMAGE, FrameCode.SIZE, 7, 8, "commitlog/0"), "L002")])


@pytest.mark.parametrize(("fails_at", "times_before"), [("pwrite", 0), ("pwrite", 1), ("pwrite", 2), ("fsync", 0)])
def test_a_disk_that_refuses(fails_at: str, times_before: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = getattr(os, fails_at), []

    def refusing(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) > times_before:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(*arguments)

    printed: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    monkeypatch.setattr(os, fails_at, refusing)
    monkeypatch.setattr(parquet, "_BUFFER_SIZE_BYTES", 1)
    monkeypatch.setattr(part_file, "_BLOCK_SIZE_BYTES", 64)  # nearly every write of the library goes to the disk
    with pytest.raises(FailedError, match=r"Input/output error \(.*parquet\).*ddrescue"):
        write_part(tmp_path)
    gc.collect()
    assert calls
    assert printed == []
    assert list(tmp_path.iterdir()) == []
    assert running(part_file.THREAD) == 0


def write_part(folder: Path) -> None:
    """A function of its own, so that nothing holds the writer when it is over."""
    writer = PartWriter(StagingFolder(folder), "quarantine", "s", "name.parquet")
    writer.write(ROWS)
    writer.close()


LAYOUTS = [Layout(partition, cluster) for partition in (None, "topic", "day") for cluster in ("topic", "offset")]
GROUP = 4000  # bytes
# Lengths of bodies, in row groups: smaller than one, larger than one, about one and a half, and many.
SIZES = [
    *([size] for size in (0, 0.2, 0.9, 1.0, 1.4, 1.45, 1.5, 1.6, 2.4, 2.6, 9.0)),
    *([size] * count for size in (0.3, 1.4, 1.6, 4.0) for count in (2, 3, 7)),
    *([9.0, *[0.001] * 8], [*[0.001] * 8, 9.0], [0.001, 9.0, 9.0, 0.001], [0.001, 0.3, 0.9, 1.6, 4.0, 30.0, 0]),
]


@pytest.mark.product
@pytest.mark.parametrize("most_apart", [0, 1, 64])
@pytest.mark.parametrize("is_compressed", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_rows_of_every_size(
    tmp_path: Path, layout: Layout, is_compressed: bool, most_apart: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are larger than what a row group is to hold get groups of their own, and none is lost or empty."""
    monkeypatch.setattr(writing, "ROW_GROUP_SIZE_BYTES", GROUP)
    monkeypatch.setattr(writing, "_LEAST_GROUP_SIZE_BYTES", GROUP // 4)
    monkeypatch.setattr(writing, "_RUN_SIZE_BYTES", 12 * GROUP)
    monkeypatch.setattr(collected, "_MOST_APART", most_apart)
    monkeypatch.setattr(bodies, "DECODED_LIMIT_BYTES", 4 * GROUP)
    for number, sizes in enumerate(SIZES):
        plain = [bytes([number]) * int(size * GROUP) for size in sizes]
        folder = tmp_path / str(number)
        folder.mkdir()
        assert written_bodies(folder, layout, plain, is_compressed) == plain, sizes


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_days_that_come_the_other_way_round(tmp_path: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bodies that inflate far come a few rows at a time, the last of the days that there are first."""
    monkeypatch.setattr(bodies, "DECODED_LIMIT_BYTES", 10)
    plain = [b"%d" % number * 1000 for number in range(40)]
    assert written_bodies(tmp_path, layout, plain, True, days=-1) == plain


def written_bodies(
    folder: Path, layout: Layout, plain: Sequence[bytes], is_compressed: bool, days: int = 0
) -> list[bytes]:
    """Bodies as they come back from the files, by the offsets of their records; ``days``: from one record to the next."""
    stored = [compress(body) if is_compressed else (body, 0) for body in plain]
    times = [1_700_000_000_000 + number * days * 86_400_000 for number in range(len(plain))]
    table = frames_of(
        written(
            len(plain),
            body=lambda i: stored[i][0],
            sys_flag=lambda i: stored[i][1],
            store_timestamp_ms=times.__getitem__,
        )
    )
    writer = MessageWriter(StagingFolder(folder), "s", "s", layout, 1)
    assert list(writer.write(table, np.arange(len(plain)))) == []
    found: dict[int, bytes] = {}
    for part in writer.close():
        file = pq.ParquetFile(folder / part.staged)
        groups = [file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups)]
        assert min(groups) > 0
        rows = file.read(["phy_offset", "body"]).to_pylist()
        offsets = [row["phy_offset"] for row in rows]
        assert (part.rows, part.first_phy_offset, part.last_phy_offset) == (len(rows), min(offsets), max(offsets))
        found |= {row["phy_offset"]: row["body"] for row in rows}
    assert sorted(found) == table.phy_offset.tolist()
    return [found[at] for at in table.phy_offset.tolist()]


@pytest.mark.parametrize("cluster", ["topic", "offset"])
def test_a_small_record_that_inflates_far(tmp_path: Path, cluster: Any) -> None:
    """A body of 25 MiB, alone in its row group: nothing of the sizes is made smaller here."""
    body, flags = compress(bytes(25 << 20))
    root = tmp_path / "store"
    (root / "commitlog").mkdir(parents=True)
    [record] = written(1, body=lambda _: body, sys_flag=lambda _: flags)
    (root / "commitlog" / f"{0:020d}").write_bytes(record.ljust(64 << 10, b"\0"))
    report = export_one(root, tmp_path / "out", layout=Layout(cluster=cluster))
    assert (report.rows, report.findings) == (1, [])
    assert table_of(tmp_path / "out")["body"][0].as_py() == bytes(25 << 20)


def test_a_table_of_no_rows(tmp_path: Path) -> None:
    nothing = pa.RecordBatch.from_pylist([], schema_of(INDEX_COLUMNS))
    written = write_table(StagingFolder(tmp_path), "index", "s", "name.parquet", INDEX_COLUMNS, [nothing, nothing])
    assert written.rows == 0
    assert pq.read_table(tmp_path / written.staged).schema.names == [column.name for column in INDEX_COLUMNS]


def test_batches_of_few_rows_do_not_pile_up(tmp_path: Path) -> None:
    """A queue with one message is a batch; each takes kilobytes, of which none are rows."""
    columns = [Column("number", pa.int64(), "counts")]
    schema = schema_of(columns)
    there: list[weakref.ref[pa.RecordBatch]] = []
    most = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal most
        for number in range(2_000):
            batch = pa.RecordBatch.from_arrays([pa.array([number])], schema=schema)
            there.append(weakref.ref(batch))
            yield batch
            most = max(most, sum(found() is not None for found in there))

    written = write_table(StagingFolder(tmp_path), "index", "s", "name.parquet", columns, batches())
    assert pq.read_table(tmp_path / written.staged).column("number").to_pylist() == list(range(2_000))
    assert most < 300


def test_many_words_come_with_the_row_group_that_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as the kernel has no dictionary for, or has one for; with rows of several row groups, and a slice of their properties."""
    count = MOST_WORDS // 2 + 2_000
    monkeypatch.setattr(writing, "ROW_GROUP_SIZE_BYTES", 1 << 20)
    for words in (1_500, count):
        table = frames_of(
            written(
                count,
                topic=lambda _: "t",
                properties=lambda i, words=words: {
                    f"a{i % words}": "1",
                    f"b{i % words}": f"{i}",
                    "TAGS": f"t{i % words}",
                },
                born_host=lambda i, words=words: host_bytes(f"10.0.{i % words >> 8}.{i % words & 255}:80"),
            )
        )
        (folder := tmp_path / str(words)).mkdir()
        writer = MessageWriter(StagingFolder(folder), "s", "s", Layout(), 1)
        assert list(writer.write(table, np.arange(count))) == []
        [part] = writer.close()
        file = pq.ParquetFile(folder / part.staged)
        assert file.metadata.num_row_groups > 2
        rows = file.read(["tags", "born_host", "properties"])
        assert rows.column("tags").to_pylist() == [f"t{i % words}" for i in range(count)]
        assert rows.column("born_host")[-1].as_py() == table.message(count - 1).born_host
        assert [dict(found) for found in rows.column("properties").to_pylist()] == [
            {f"a{i % words}": "1", f"b{i % words}": f"{i}", "TAGS": f"t{i % words}"} for i in range(count)
        ]


def test_a_long_split_is_sorted_in_runs(golden: GoldenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of about one length, one behind the other in its file; none is left for a record that reaches behind the split."""
    root = golden("load-533")
    export_one(root, tmp_path / "whole")
    log_bytes = sum(path.stat().st_size for path in (root / "commitlog").iterdir())
    monkeypatch.setattr(writing, "_RUN_LOG_BYTES", -(-log_bytes // 3))
    export_one(root, tmp_path / "runs")
    assert table_of(tmp_path / "runs").equals(table_of(tmp_path / "whole"))
    [file] = (tmp_path / "runs" / "data").iterdir()
    rows = pq.read_table(file, columns=["topic"]).column("topic").to_pylist()
    starts = [0, *(at for at in range(1, len(rows)) if rows[at] < rows[at - 1]), len(rows)]
    assert len(starts) == 3 + 1
    assert min(end - start for start, end in pairwise(starts)) > len(rows) // 6
