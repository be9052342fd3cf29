"""A query reaches nothing but the store: what it shows drives no terminal, and what it tries elsewhere is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.rmqctl.calls import ROOT, call, on_terminal

SAMPLE = ROOT / "sample_store"
EVIL = "chr(27) || ']0;owned' || chr(7) || 'x'"
PIVOT = f"pivot (select {EVIL} as topic, 1 as n) on topic using sum(n)"


@pytest.mark.parametrize("output", ["table", "plain", "github", "csv", "tsv", "json", "ndjson"])
def test_names_of_columns_are_escaped_on_a_terminal(output: str) -> None:
    shown = on_terminal("sql", PIVOT, "-s", SAMPLE, "-o", output)
    assert shown.code == 0
    assert "\x1b]" not in shown.out
    assert "\x07" not in shown.out


@pytest.mark.parametrize("output", ["table", "plain", "github"])
def test_names_of_columns_are_escaped_for_people_in_a_pipe(output: str) -> None:
    done = call("sql", PIVOT, "-s", SAMPLE, "-o", output)
    assert done.code == 0
    assert "\x1b" not in done.out
    assert "\x07" not in done.out


def test_errors_are_escaped() -> None:
    done = call("sql", "select error(chr(27) || ']0;owned' || chr(7))", "-s", SAMPLE)
    assert done.code == 2
    assert "\x1b" not in done.err


OUTSIDE = (
    "attach 'other.db' as other",
    "attach ':memory:.wal' as other",
    "copy (select 1) to ':memory:'",
    "copy (select 1) to ':memory:.wal' (format csv)",
    "copy (select 1) to ':memory:.wal.recovery' (format csv)",
    "copy (select 1) to ':memory:.wal.checkpoint' (format csv)",
    "copy (select 1) to 'out.parquet'",
    "copy (select 1) to '/dev/stdout' (format csv)",
    "create table t as select 1 a; export database 'out'",
    "import database 'out'; select 1",
    "select * from read_csv('secret.csv')",
    "select * from read_csv(':memory:')",
    "select * from read_text('secret.csv')",
    "select * from read_text(':memory:')",
    "select * from read_blob('secret.csv')",
    "select * from read_blob(':memory:.wal')",
    "select * from read_json('secret.csv')",
    "select * from read_parquet('secret.csv')",
    "select * from parquet_metadata('secret.csv')",
    "select * from sniff_csv('secret.csv')",
    "select * from 'secret.csv'",
    "from glob('*')",
    "from glob('/etc/*')",
    "create table t (a varchar); copy t from 'secret.csv'; select * from t",
    "install httpfs; select 1",
    "load httpfs; select 1",
    "load '/tmp/x.duckdb_extension'; select 1",
    "create persistent secret s (type http, bearer_token 'x'); select 1",
    "set enable_external_access = true; select 1",
    "set allowed_paths = ['secret.csv']; select 1",
    "set secret_directory = '.'; select 1",
    "pragma enable_profiling = 'json'; pragma profiling_output = 'out.json'; select 1",
    "call enable_logging(storage = 'file', storage_path = 'logs'); select 1",
    "call enable_logging(storage = 'file', storage_config = {'path': 'logs'}); select 1",
    "select * from sqlite_scan('secret.csv', 't')",
    "select * from read_csv('https://127.0.0.1:9/x')",
    "select getenv('HOME')",
)


@pytest.mark.parametrize("query", OUTSIDE)
def test_nothing_else_can_be_reached(query: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.csv").write_text("a\nclassified\n")
    (tmp_path / ":memory:").write_text("a\nclassified\n")
    (tmp_path / ":memory:.wal").write_text("a\nclassified\n")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    home = {path: os.stat(path).st_mtime_ns for path in Path.home().glob(".duckdb/**/*")}
    done = call("sql", query, "-s", SAMPLE, "-o", "csv", "-q")
    assert (done.code, "error: " in done.err) == (2, True)
    assert "classified" not in done.out + done.err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert {path: os.stat(path).st_mtime_ns for path in Path.home().glob(".duckdb/**/*")} == home
