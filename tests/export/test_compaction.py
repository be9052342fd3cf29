"""What a broker keeps of a compacted topic, as a table and as an export, against what the real decoder says of the same files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from rmqctl import exit_codes
from store_core.errors import FailedError
from store_core.export.dest.address import Format
from store_core.export.tables.compaction import COMPACTION_COLUMNS
from store_core.export.tables.table import schema_of
from store_core.layout import paths
from store_core.storage.store import Store
from tests import stores
from tests.damage import Damageable, offset_in_record
from tests.export.exports import found_rows, row_of
from tests.export.test_tables import rows_of, tables
from tests.export.test_tables_places import LAKES, exported, lake, sorted_rows
from tests.rmqctl.calls import call

NAME = "compact-533"
FOLDER = "compaction/compactionLog/Cmp_state/0"
LOG = stores.truth(NAME)["compactionLog"]["Cmp_state/0"]
FIRST, LAST = (Path(FOLDER, file["file"]) for file in LOG["files"])


@pytest.fixture
def expired(damageable: Callable[..., Damageable]) -> Path:
    """A store whose log has expired: the topic's messages are in the compacted log alone."""
    root = damageable(NAME).root
    for segment in (root / paths.COMMITLOG).iterdir():
        segment.unlink()
    return root


def test_every_row_is_what_the_real_decoder_told(expired: Path) -> None:
    told = [row_of(NAME, message) | {"folder": FOLDER} for message in LOG["records"]]
    for row in told:
        del row["offset_msg_id"]
    with tables(expired) as known:
        names = [column.name for column in COMPACTION_COLUMNS if column.name != "text"]
        found = pa.Table.from_batches(list(known["compaction"].batches(names)))
        texts = rows_of(known["compaction"], ["text", "body"])
        assert rows_of(known["messages"]) == []
        assert known["compaction"].found == []
    assert found_rows(found) == told
    assert [row["text"] for row in texts] == [text_of(row["body"]) for row in texts]
    result = call("sql", "select keys[1] k, count(*) n from compaction group by 1", "-s", expired, "-o", "ndjson")
    assert {row["k"]: row["n"] for row in result.lines} == {
        row["keys"][0]: sum(other["keys"] == row["keys"] for other in told) for row in told
    }


def text_of(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def test_conditions(expired: Path) -> None:
    with tables(expired, b=expired) as known:
        table = known["compaction"]
        assert len(rows_of(table, ["folder"], ds.field("store") == "b")) == len(LOG["records"])
        assert rows_of(table, ["folder"], ds.field("folder") == "elsewhere") == []
        after = rows_of(table, ["store", "phy_offset"], ds.field("phy_offset") >= 248_400)
        assert len(after) == 2 * LOG["files"][1]["messages"]


def test_an_export_has_the_rows_of_the_table(expired: Path, tmp_path: Path) -> None:
    done = call("export", tmp_path / "out", "--what", "compaction", "-s", f"a={expired}", "-o", "json")
    assert (done.code, done.json["rows"]) == (exit_codes.OK, len(LOG["records"]))
    table = pa.concat_tables(pq.read_table(file) for file in sorted((tmp_path / "out" / "compaction").iterdir()))
    assert table.schema.remove_metadata() == schema_of(COMPACTION_COLUMNS)
    with tables(expired) as known:
        assert table.to_pylist() == rows_of(known["compaction"])
    few = call("export", tmp_path / "few", "--what", "compaction", "--topic", "nope", "-s", expired, "-o", "json")
    assert (few.code, few.json["rows"]) == (exit_codes.OK, 0)


@pytest.mark.parametrize("format", LAKES)
def test_tables_of_a_lake(expired: Path, tmp_path: Path, format: Format) -> None:
    exported(expired, tmp_path / "out", "compaction", format)
    with tables(expired) as known:
        assert sorted_rows(lake(format, tmp_path / "out", "compaction")) == sorted(
            rows_of(known["compaction"]), key=repr
        )


def test_damage_is_told_and_gone_around(expired: Path) -> None:
    record = LOG["records"][1]
    with (expired / FIRST).open("r+b") as file:
        file.seek(record["phyOffset"] + offset_in_record(record, "body"))
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))
        file.seek(LOG["records"][3]["phyOffset"])
        file.write(bytes(8))
    result = call("sql", "select phy_offset, crc from compaction", "-s", expired, "-o", "json")
    assert result.code == exit_codes.FINDINGS
    rows = result.json["rows"]
    assert [row["phy_offset"] for row in rows] == [
        message["phyOffset"] for number, message in enumerate(LOG["records"]) if number != 3
    ]
    assert [row["phy_offset"] for row in rows if row["crc"] == "bad"] == [record["phyOffset"]]
    told = [(found["code"], found["file"], found["phy_offset"], found["topic"]) for found in result.json["findings"]]
    assert told == [
        ("Q030", str(FIRST), record["phyOffset"], "Cmp_state"),
        ("Q030", str(FIRST), LOG["records"][3]["phyOffset"], "Cmp_state"),
        ("Q030", str(FIRST), LOG["records"][3]["phyOffset"] + 8, "Cmp_state"),  # behind the zeros
    ]


def test_files_that_no_broker_writes(expired: Path) -> None:
    """An empty one, one of noise, a folder in a file's place, and what is no queue's folder."""
    folder = expired / FOLDER
    (folder / "00000000000000500000").touch()
    (folder / "00000000000000600000").write_bytes(bytes(range(256)) * 300)
    (folder / "00000000000000700000").mkdir()
    (folder / "compacting").mkdir()
    (folder.parent / "x").mkdir()
    (folder.parent.parent / "file").touch()
    result = call("sql", "select count(*) n from compaction", "-s", expired, "-o", "json")
    assert (result.json["rows"], result.err) == ([{"n": len(LOG["records"])}], "")
    assert {found["code"] for found in result.json["findings"]} == {"Q030"}


def test_a_file_that_goes_away_ends_the_reading(expired: Path) -> None:
    """A broker that compacts replaces them."""
    with tables(expired) as known, Store.open(expired) as store:
        reading = known["compaction"].batches(["phy_offset"])
        next(reading)
        assert len(store.compaction_files) == 1
        (expired / LAST).unlink()
        with pytest.raises(FailedError, match="went away while it was read"):
            list(reading)
