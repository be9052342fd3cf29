"""`rmqctl sql -o parquet|arrow`: to files and pipes, with the types, as rows come."""

from __future__ import annotations

import io
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rmqctl import exit_codes
from store_core.export.rows.schema import TIME
from tests import stores
from tests.conftest import GoldenStore
from tests.rmqctl.calls import ROOT, call, command, environment, on_terminal

NAME = "load-533"
EVERY_TYPE = """select phy_offset, topic, store_time, keys, properties, body, 1.50::decimal(5, 2) d, 7::hugeint h, 1.5::float f,
    date '2026-01-02' as a_day, true as yes, null as nothing, 'b'::enum('a', 'b') word, {'a': 1} parted, 1 as d
    from messages order by phy_offset"""


def run(*words: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command(*words), cwd=ROOT, env=environment(), capture_output=True, check=False, timeout=60)


def table_of(data: bytes, form: str) -> Any:
    return pq.read_table(io.BytesIO(data)) if form == "parquet" else pa.ipc.open_stream(data).read_all()


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_values_keep_their_types(golden: GoldenStore, form: str) -> None:
    done = run("sql", EVERY_TYPE, "-s", golden(NAME), "-o", form)
    assert (done.returncode, done.stderr) == (exit_codes.OK, b"")
    table, truth = table_of(done.stdout, form), stores.truth(NAME)["messages"]
    kinds = {field.name: field.type for field in table.schema}
    assert (kinds["phy_offset"], kinds["store_time"], kinds["body"]) == (pa.int64(), TIME, pa.binary())
    assert (kinds["d"], kinds["f"], kinds["a_day"], kinds["yes"]) == (
        pa.decimal128(5, 2),
        pa.float32(),
        pa.date32(),
        pa.bool_(),
    )
    assert kinds["properties"] == pa.map_(pa.string(), pa.string())
    assert pa.types.is_dictionary(kinds["word"])
    assert table.column("phy_offset").to_pylist() == [message["phyOffset"] for message in truth]
    assert table.column("store_time").cast(pa.int64()).to_pylist() == [m["storeTimestamp"] * 1000 for m in truth]
    assert [dict(pairs) for pairs in table.column("properties").to_pylist()] == [m["properties"] for m in truth]
    assert table.columns[-1].to_pylist() == [1] * len(truth)


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_a_reader_that_has_seen_enough_ends_an_endless_query(golden: GoldenStore, form: str) -> None:
    """Rows leave as they come: all of them would fit on no machine."""
    words = command("sql", "select i from range(100000000000) t(i)", "-s", golden(NAME), "-o", form)
    with subprocess.Popen(
        words, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(1 << 16)
        process.stdout.close()
        assert (process.wait(60), process.stderr.read()) == (exit_codes.OK, b"")


def test_findings_are_told_beside_the_bytes(damaged: Any) -> None:
    done = run("sql", "select * from messages", "-s", damaged(NAME, "flip-body-mid"), "-o", "arrow")
    assert done.returncode == exit_codes.FINDINGS
    assert b"L001" in done.stderr
    assert len(table_of(done.stdout, "arrow")) == len(stores.truth(NAME)["messages"])


def test_what_fails_amid_its_rows_leaves_no_whole_file(golden: GoldenStore) -> None:
    query = "select case when i < 3000000 then i else error('enough') end from range(4000000) t(i)"
    done = run("sql", query, "-s", golden(NAME), "-o", "parquet")
    assert done.returncode != exit_codes.OK
    assert done.stderr.count(b"\n") == 1
    assert done.stdout.startswith(b"PAR1")
    with pytest.raises(pa.ArrowInvalid):
        table_of(done.stdout, "parquet")


def test_what_cannot_be_written(golden: GoldenStore, tmp_path: Path) -> None:
    root = golden(NAME)
    for words, said in (
        (("sql", "select 1; select 2", "-o", "arrow"), "2 statements give rows, and arrow holds those of one"),
        (("sql", "select interval '1 month' span", "-o", "parquet"), "Parquet has no type for column span, INTERVAL"),
        (("sql", "--tables", "-o", "parquet"), "the list of tables is text"),
        (("info", "-o", "arrow"), "info does not write arrow: expected one of table, plain, json, ndjson"),
    ):
        result = call(*words, "-s", root)
        assert (result.code, result.out) == (exit_codes.USAGE, "")
        assert said in result.err
    seen = on_terminal("sql", "select 1", "-s", root, "-o", "parquet")
    assert seen.code == exit_codes.USAGE
    assert "parquet is nothing for a terminal: send it to a file or a program: > rows.parquet" in seen.text
