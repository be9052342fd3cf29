"""Sorted and partitioned exports: the same rows, and a query for one topic, time or key reads little."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import pandas
import polars
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import FSSpecHandler, PyFileSystem

from store_core.errors import UsageError
from store_core.export.dest import parts, writing
from store_core.export.dest.layout import Layout
from store_core.export.dest.parts import escaped
from store_core.export.rows import group_by_topic as collected
from store_core.export.rows import schema
from tests import stores
from tests.conftest import GoldenStore
from tests.export.counting import CountingFiles, duckdb_reads
from tests.export.exports import export_one, found_rows, told_rows
from tests.export.test_rows import written

STORE = "load-533"
TRUTH = stores.truth(STORE)["messages"]
LAYOUTS = [Layout(partition, cluster) for partition in (None, "topic", "day") for cluster in ("topic", "offset")]


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups for a store of a few hundred KB."""
    monkeypatch.setattr(writing, "_LEAST_GROUP_SIZE_BYTES", 20_000)
    monkeypatch.setattr(writing, "ROW_GROUP_SIZE_BYTES", 40_000)
    options = parts._MESSAGE_OPTIONS | {
        "bloom_filter_options": {key: {"ndv": 50} for key in parts._MESSAGE_OPTIONS["bloom_filter_options"]}
    }
    monkeypatch.setattr(parts, "_MESSAGE_OPTIONS", options)


def sorted_rows(out: Path) -> pa.Table:
    table = ds.dataset(out / "data", partitioning="hive").to_table().select(schema.MESSAGES.names)
    return table.sort_by([("store", "ascending"), ("phy_offset", "ascending")])


@pytest.mark.product
@pytest.mark.parametrize("most_apart", [0, 1, 3, 64])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_layout_holds_the_same_rows(
    golden: GoldenStore, tmp_path: Path, layout: Layout, most_apart: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collected, "_MOST_APART", most_apart)
    report = export_one(golden("clean-533"), tmp_path / "out", layout=layout, split_size_bytes=200_000)
    assert found_rows(sorted_rows(tmp_path / "out")) == told_rows("clean-533")
    for part in report.parts:
        if part.table == "quarantine":
            continue
        table = pq.ParquetFile(tmp_path / "out" / part.path).read()
        by = layout.partition_by
        assert table.column_names == [name for name in schema.MESSAGES.names if name != by]
        if by == "topic":
            assert part.partition is not None
            table = table.append_column("topic", pa.repeat(part.partition[1], len(table)))
        rows = table.select(["topic", "phy_offset", "store_time"]).to_pylist()
        offsets = [row["phy_offset"] for row in rows]
        order = [(row["topic"] if layout.cluster == "topic" else "", row["phy_offset"]) for row in rows]
        assert order == sorted(order)
        assert (part.first_phy_offset, part.last_phy_offset) == (min(offsets), max(offsets))
        topics = [row["topic"] for row in rows]
        assert part.topics == (min(topics), max(topics))
        assert f"-{min(offsets):020d}" in part.path
        if layout.partition_by == "topic":
            assert {f"data/topic={escaped(row['topic'])}" for row in rows} == {part.path.rpartition("/")[0]}
        elif layout.partition_by == "day":
            assert {f"data/day={row['store_time']:%Y-%m-%d}" for row in rows} == {part.path.rpartition("/")[0]}


def test_names_of_folders() -> None:
    assert escaped("%RETRY%group") == "%25RETRY%25group"
    assert escaped("a/b=c:d") == "a%2Fb%3Dc%3Ad"
    assert escaped("../x") == "..%2Fx"
    assert escaped("") == "__HIVE_DEFAULT_PARTITION__"
    assert escaped("grüße") == "grüße"


@pytest.mark.parametrize("partition_by", ["topic", None])
def test_pandas_polars_and_duckdb_read_it(golden: GoldenStore, tmp_path: Path, partition_by: Any) -> None:
    export_one(golden("clean-533"), tmp_path / "out", layout=Layout(partition_by), split_size_bytes=200_000)
    told = Counter(message["topic"] for message in stores.truth("clean-533")["messages"])
    data = tmp_path / "out" / "data"
    pattern = str(data / "**" / "*.parquet")
    assert dict(pandas.read_parquet(data).astype({"topic": str}).groupby("topic").size()) == told
    counted = polars.scan_parquet(pattern, hive_partitioning=partition_by is not None).group_by("topic").len().collect()
    assert dict(counted.iter_rows()) == told
    with duckdb.connect() as connection:
        assert dict(connection.execute(f"select topic, count(*) from '{pattern}' group by 1").fetchall()) == told


def arrow_reads(out: Path, keep: ds.Expression) -> tuple[pa.Table, list[tuple[int, int]]]:
    files = PyFileSystem(FSSpecHandler(CountingFiles()))
    data = ds.dataset(str(out / "data"), filesystem=files, partitioning=None)
    CountingFiles.reads.clear()
    return data.to_table(filter=keep), list(CountingFiles.reads)


def share_of_columns(path: Path, reads: list[tuple[int, int]]) -> float:
    """What of a file's columns was read; filters, indices and the footer lie behind them."""
    metadata = pq.read_metadata(path)
    last = metadata.row_group(metadata.num_row_groups - 1)
    columns = [last.column(index) for index in range(last.num_columns)]
    end = max((c.dictionary_page_offset or c.data_page_offset) + c.total_compressed_size for c in columns)
    return sum(max(min(offset + size_bytes, end) - offset, 0) for offset, size_bytes in reads) / end


@pytest.mark.usefixtures("small_groups")
def test_a_query_reads_little(golden: GoldenStore, tmp_path: Path) -> None:
    """A topic of a twentieth of the bytes costs a thirtieth of the columns, a key or a moment too."""
    out = tmp_path / "out"
    report = export_one(golden(STORE), out, split_size_bytes=1 << 30)
    [part] = [part for part in report.parts if part.table == "messages"]
    sizes = Counter[str]()
    for message in TRUTH:
        sizes[message["topic"]] += message["storeSize"]
    topic = min(sizes, key=lambda name: abs(sizes[name] / sizes.total() - 0.05))
    offsets = sorted(message["phyOffset"] for message in TRUTH if message["topic"] == topic)

    found, reads = duckdb_reads(out / "data", f"select * from {{}} where topic = '{topic}'")
    assert sorted(found["phy_offset"].to_pylist()) == offsets
    assert 0 < share_of_columns(out / part.path, reads) < 0.03
    table, reads = arrow_reads(out, ds.field("topic") == topic)
    assert sorted(table["phy_offset"].to_pylist()) == offsets
    assert 0 < share_of_columns(out / part.path, reads) < 0.03

    message = next(m for m in TRUTH if m["topic"] == topic and "UNIQ_KEY" in m["properties"])
    key = message["properties"]["UNIQ_KEY"]
    with_key = [m["phyOffset"] for m in TRUTH if m["properties"].get("UNIQ_KEY") == key]
    for column, value, wanted in (("unique_key", key, with_key), ("offset_msg_id", message["msgId"], offsets[:1])):
        found, reads = duckdb_reads(out / "data", f"select * from {{}} where {column} = '{value}'")
        assert sorted(found["phy_offset"].to_pylist()) == wanted
        assert 0 < share_of_columns(out / part.path, reads) < 0.03

    absent = key[:-1] + "F"
    assert absent not in {m["properties"].get("UNIQ_KEY") for m in TRUTH}
    found, reads = duckdb_reads(out / "data", f"select * from {{}} where unique_key = '{absent}'")
    assert (len(found), share_of_columns(out / part.path, reads)) == (0, 0)  # the filters say so

    moment = f"epoch_ms(store_time) = {message['storeTimestamp']} and topic = '{topic}'"
    found, reads = duckdb_reads(out / "data", f"select * from {{}} where {moment}")
    assert message["phyOffset"] in found["phy_offset"].to_pylist()
    assert 0 < share_of_columns(out / part.path, reads) < 0.03


def test_pages_have_an_index_and_keys_a_filter(golden: GoldenStore, tmp_path: Path) -> None:
    report = export_one(golden("clean-533"), tmp_path / "out")
    path = next(part.path for part in report.parts if part.table == "messages")
    with duckdb.connect() as connection:
        rows: Any = connection.execute(
            f"select path_in_schema, bloom_filter_length, stats_min_value from parquet_metadata('{tmp_path}/out/{path}')"
        ).fetchall()
    filtered = {name.replace(", ", ".") for name, length, _ in rows if length}
    assert filtered == {"unique_key", "offset_msg_id", "keys.list.element"}
    with_statistics = {name for name, _, least in rows if least is not None}
    assert {"topic", "phy_offset", "store_time", "unique_key"} <= with_statistics
    assert with_statistics.isdisjoint({"body", "stored_body"})
    group = pq.ParquetFile(tmp_path / "out" / path).metadata.row_group(0)
    assert group.column(3).has_offset_index
    assert group.column(3).has_column_index


def test_names_of_topics_as_folders(tmp_path: Path) -> None:
    """Whatever a topic is called, its folder's name is one name, and readers have the topic back."""
    names = [
        "%RETRY%g",
        "a/b",
        "..",
        ".",
        "ünï/cödé☃",
        "x" * 127,
        "%" * 80,
        "ж" * 63,
        "A=B",
        "a b",
        "nul\0",
        'q"uote\n',
    ]
    root = store_with(tmp_path / "store", names)
    export_one(root, tmp_path / "out", layout=Layout("topic"))
    folders = [path.name for path in (tmp_path / "out" / "data").iterdir()]
    assert len(folders) == len(names)
    assert {unquote(name.removeprefix("topic=")) for name in folders} == set(names)
    found = duckdb.sql(f"select topic from read_parquet('{tmp_path}/out/data/*/*.parquet', hive_partitioning=true)")
    assert sorted(name for (name,) in found.fetchall()) == sorted(names)


def test_a_topic_whose_folder_no_file_system_takes(tmp_path: Path) -> None:
    root = store_with(tmp_path / "store", ["orders", "%" * 100])
    with pytest.raises(UsageError, match=r"too long for a folder's.*: leave --partition-by topic out"):
        export_one(root, tmp_path / "out", layout=Layout("topic"))
    assert export_one(root, tmp_path / "out").rows == 2


def store_with(root: Path, topics: Sequence[str]) -> Path:
    """A store with a message of each topic."""
    (root / "commitlog").mkdir(parents=True)
    records = written(len(topics), topic=lambda i: topics[i])
    (root / "commitlog" / f"{0:020d}").write_bytes(b"".join(records).ljust(64 << 10, b"\0"))
    return root
