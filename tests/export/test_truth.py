"""Every message of every golden store, field by field, as the real decoder told it."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pytest
from crc32c import crc32c

from store_core.export.rows import schema
from tests import stores
from tests.conftest import GoldenStore
from tests.export.exports import export_one, found_rows, parts_on_disk, ranges_of, table_of, told_rows


@pytest.mark.parametrize("name", stores.GOLDEN)
def test_every_row_is_what_the_real_decoder_told(golden: GoldenStore, tmp_path: Path, name: str) -> None:
    report = export_one(golden(name), tmp_path / "out")
    table = table_of(tmp_path / "out")
    assert table.schema.remove_metadata() == schema.MESSAGES
    table.validate(full=True)
    assert found_rows(table) == told_rows(name)
    assert (report.rows, report.findings) == (len(table), [])
    assert ranges_of(tmp_path / "out") == []
    last = stores.truth(name)["messages"][-1]
    assert report.stores[0].next_phy_offset == last["phyOffset"] + last["storeSize"]


def test_the_manifest_tells_every_file(golden: GoldenStore, tmp_path: Path) -> None:
    report = export_one(golden("clean-533"), tmp_path / "out", split_size_bytes=100_000)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (manifest["schema_version"], manifest["rows"]) == (schema.VERSION, report.rows)
    assert manifest["stores"][0]["next_phy_offset"] == report.stores[0].next_phy_offset
    assert {file["path"] for file in manifest["files"]} | {"manifest.json"} == parts_on_disk(tmp_path / "out")
    assert len(manifest["files"]) > 4
    for file in manifest["files"]:
        data = (tmp_path / "out" / file["path"]).read_bytes()
        assert (file["size_bytes"], file["crc32c"]) == (len(data), f"{crc32c(data):08x}")
    assert report.bytes_written == sum(file["size_bytes"] for file in manifest["files"])


def test_duckdb_reads_an_export(golden: GoldenStore, tmp_path: Path) -> None:
    export_one(golden("clean-533"), tmp_path / "out", split_size_bytes=100_000)
    told = told_rows("clean-533")
    data = str(tmp_path / "out" / "data" / "*.parquet")
    with duckdb.connect() as connection:
        counted = connection.execute(f"select topic, count(*) from '{data}' group by 1").fetchall()
        tagged = connection.execute(
            f"select phy_offset, properties['TAGS'], epoch_ms(store_time) from '{data}' where tags is not null order by 1"
        ).fetchall()
    assert sorted(counted) == sorted(
        (topic, sum(row["topic"] == topic for row in told)) for topic in {row["topic"] for row in told}
    )
    assert [row[:2] for row in tagged] == [(row["phy_offset"], row["tags"]) for row in told if row["tags"] is not None]
    times = {m["phyOffset"]: m["storeTimestamp"] for m in stores.truth("clean-533")["messages"]}
    assert all(times[offset] == ms for offset, _, ms in tagged)


def test_types_are_those_that_spark_takes() -> None:
    allowed = {
        "int32",
        "int64",
        "string",
        "binary",
        "bool",
        str(schema.TIME),
        "list<item: string>",
        "map<string, string>",
    }
    assert {str(field.type) for field in (*schema.MESSAGES, *schema.QUARANTINE)} <= allowed | {"list<element: string>"}
