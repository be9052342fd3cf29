"""`rmqctl sql` in a process of its own: formats, stores, exit codes, and how it ends."""

from __future__ import annotations

import csv
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqctl import exit_codes
from tests import stores
from tests.conftest import GoldenStore, StoreCopy
from tests.damage import Damageable
from tests.rmqctl.calls import call, on_terminal
from tests.rmqctl.stopping import stopped

NAME = "load-533"
TOPICS = sorted(Counter(m["topic"] for m in stores.truth(NAME)["messages"]).items())
BY_TOPIC = "select topic, count(*) messages from messages group by 1 order by 1"


def test_the_document(golden: GoldenStore, read_only: Callable[[Path], Path]) -> None:
    result = call("sql", BY_TOPIC, "-s", read_only(golden(NAME)), "-o", "json")
    assert (result.code, result.err) == (exit_codes.OK, "")
    assert result.json == {
        "columns": [{"name": "topic", "type": "VARCHAR"}, {"name": "messages", "type": "BIGINT"}],
        "rows": [{"topic": topic, "messages": count} for topic, count in TOPICS],
        "findings": [],
    }


def test_a_query_loads_no_table_that_it_does_not_name(golden: GoldenStore) -> None:
    words = ["rmqctl", "sql", "select count(*) from messages", "-s", str(golden(NAME)), "-o", "csv"]
    tables = [
        f"store_core.export.tables.{name}" for name in ("messages", "compaction", "delayed", "findings", "quarantine")
    ]
    code = f"import sys; sys.argv = {words!r}; from rmqctl.app import _main; _main(None); print([t in sys.modules for t in {tables!r}])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (said.stdout.splitlines()[-1], said.stderr) == ("[True, False, False, False, False]", "")


def test_rows_in_every_format(golden: GoldenStore) -> None:
    words = ("sql", BY_TOPIC, "-s", golden(NAME), "-o")
    assert call(*words, "ndjson").lines == [{"topic": topic, "messages": count} for topic, count in TOPICS]
    for name, delimiter in (("csv", ","), ("tsv", "\t")):
        rows = list(csv.reader(call(*words, name).out.splitlines(), delimiter=delimiter))
        assert rows == [["topic", "messages"], *([topic, str(count)] for topic, count in TOPICS)]
    for name in ("table", "plain", "github"):
        shown = call(*words, name)
        lines = [line.strip("|").replace("|", " ").split() for line in shown.out.splitlines()]
        assert [[topic, str(count)] for topic, count in TOPICS] == [line for line in lines if line[-1].isdecimal()]
        assert "Findings" not in shown.out


@pytest.mark.parametrize("output", ["ndjson", "csv"])
@pytest.mark.parametrize("where", ["", " where queue_id = 1"])
def test_rows_are_the_same_beside_the_engine(output: str, where: str, golden: GoldenStore) -> None:
    """Rows of a plain scan come as they are read; a limit has DuckDB hand them on."""
    name = "ipv6-533"
    scan = f"select * from messages{where}"
    plain, through = (call("sql", query, "-s", golden(name), "-o", output) for query in (scan, f"{scan} limit 1000000"))
    assert plain.code == exit_codes.OK
    assert plain.out == through.out
    assert plain.out.count("\n") > 1


def test_values_as_json(golden: GoldenStore) -> None:
    message = stores.truth(NAME)["messages"][0]
    query = """select store_time, [store_time] times, properties, keys, body, 1.50::decimal(5, 2) d, 7::hugeint h,
               'nan'::float nan, date '2026-01-02' date, interval '1 month 2 days 03:04:05.006' span, null nothing,
               timestamp '2026-01-02 03:04:05.000006' plain, make_timestamptz(200000, 1, 1, 0, 0, 0) far
               from messages order by phy_offset limit 1"""
    (row,) = call("sql", query, "-s", golden(NAME), "-o", "ndjson", "--tz", "+08:00").lines
    assert message["storeTimestamp"] == 1795227514991
    assert row.pop("body").startswith("70000:kelp42980 naïve")
    assert row == {
        "store_time": "2026-11-21T10:18:34.991+08:00",
        "times": ["2026-11-21T10:18:34.991+08:00"],
        "properties": message["properties"],
        "keys": message["properties"]["KEYS"].split(" "),
        "d": 1.5,
        "h": 7,
        "nan": None,
        "date": "2026-01-02",
        "span": "1 month 2 days 03:04:05.006",
        "nothing": None,
        "plain": "2026-01-02T03:04:05.000006",
        "far": "6249223152000000",
    }


def test_values_that_no_calendar_and_no_double_holds(golden: GoldenStore) -> None:
    query = """select date '5877642-01-01' far, date 'infinity' never, [make_timestamptz(200000, 1, 1, 0, 0, 0), null] times,
               {'at': date '2026-01-02', 'far': [date 'infinity']} parts, map {'k': [date '5877642-01-01']} by_key,
               123456789012345678.12::decimal(20, 2) exact, 0.10::decimal(4, 2) near, 12::decimal(4, 0) whole,
               [1, null]::int[2] pair, 'b'::enum('a', 'b') word, {'a': null, 'b': 1} parted,
               timestamp_ns '2026-01-02 03:04:05.123456789' fine"""
    (row,) = call("sql", query, "-s", golden(NAME), "-o", "ndjson").lines
    assert row == {
        "far": "2146045131",
        "never": "2147483647",
        "times": ["6249223180800000", None],
        "parts": {"at": "2026-01-02", "far": ["2147483647"]},
        "by_key": {"k": ["2146045131"]},
        "exact": "123456789012345678.12",
        "near": 0.1,
        "whole": 12,
        "pair": [1, None],
        "word": "b",
        "parted": {"a": None, "b": 1},
        "fine": "2026-01-02T03:04:05.123456789",
    }


def test_infinity_and_no_number(golden: GoldenStore) -> None:
    """JSON has no form for them; all else has."""
    query = "select 'inf'::double up, '-inf'::float down, 'nan'::double never, {'in': ['inf'::double]} deep"
    (row,) = call("sql", query, "-s", golden(NAME), "-o", "ndjson").lines
    assert row == {"up": None, "down": None, "never": None, "deep": {"in": [None]}}
    assert call("sql", query, "-s", golden(NAME), "-o", "csv").out.splitlines()[1].startswith("inf,-inf,nan,")
    assert "inf  -inf  nan" in call("sql", query, "-s", golden(NAME), "-o", "table").out


def test_types_that_arrow_has_no_form_for(golden: GoldenStore) -> None:
    query = """select '101'::bit, '10'::bit "a""b", 123456789012345678901234567890::bignum big, {'a': [7, null]}::variant loose,
               ['101'::bit] bits, null::bit nothing, 1 big,
               {'BIT': '1'::bit, 'b': map {'k': 5::bignum}} deep, {'bit': 1} plain,
               timetz '03:04:05.5+08' zoned, [timetz '03:04:05-01:30'] listed, time '03:04:05' bare"""
    document = call("sql", query, "-s", golden(NAME), "-o", "json").json
    assert [column["type"] for column in document["columns"]][:5] == ["BIT", "BIT", "BIGNUM", "VARIANT", "BIT[]"]
    (row,) = document["rows"]
    assert list(row.values()) == [
        "101",
        "10",
        "123456789012345678901234567890",
        "{'a': [7, NULL]}",
        ["101"],
        None,
        1,
        {"BIT": "1", "b": {"k": "5"}},
        {"bit": 1},
        "03:04:05.5+08",
        ["03:04:05-01:30"],
        "03:04:05",
    ]
    times = ["zoned", "listed", "bare"]
    assert list(row) == [
        "CAST('101' AS BIT)",
        'a"b',
        "big",
        "loose",
        "bits",
        "nothing",
        "big_1",
        "deep",
        "plain",
        *times,
    ]


@pytest.mark.parametrize("made", ["create table Messages as select 1 x", "create view messages as select 1 x"])
def test_a_table_of_ones_own_has_a_name_of_its_own(golden: GoldenStore, made: str) -> None:
    result = call("sql", f"{made}; select * from messages", "-s", golden(NAME))
    assert (result.code, result.out) == (exit_codes.USAGE, "")
    assert "is a table that is there already: give yours another name" in result.err
    fine = call("sql", "create table mine as select 1 x; select * from mine", "-s", golden(NAME), "-o", "ndjson")
    assert fine.lines == [{"x": 1}]


@pytest.mark.parametrize(
    ("machine", "day"),
    [
        ("America/New_York", "2026-11-01T00:00:00.000-04:00"),
        (":Asia/Kolkata", "2026-11-01T00:00:00.000+05:30"),
        ("/usr/share/zoneinfo/Asia/Kolkata", "2026-11-01T00:00:00.000+05:30"),
        ("CST-8", "2026-11-01T00:00:00.000+08:00"),
        ("UTC0", "2026-11-01T00:00:00.000+00:00"),
    ],
)
def test_days_begin_where_the_machine_is(golden: GoldenStore, machine: str, day: str) -> None:
    query = "select date_trunc('day', timestamptz '2026-11-01T12:00:00Z') as day"
    shown = call("sql", query, "-s", golden(NAME), "--tz", "local", "-o", "ndjson", TZ=machine)
    assert shown.lines == [{"day": day}]


@pytest.mark.parametrize("zone", ["+15:00", "-13:00", "+05:30"])
def test_zones_that_sql_does_not_know(golden: GoldenStore, zone: str) -> None:
    result = call("sql", "select 1", "-s", golden(NAME), "--tz", zone)
    assert result.code == exit_codes.USAGE
    assert "sql knows offsets of whole hours only, -12 to +14: name the zone" in result.err
    odd = call("sql", "select 1", "-s", golden(NAME), "--tz", "local", TZ="ABC-3:17")
    assert (odd.code, "the machine's zone has no name that sql knows" in odd.err) == (exit_codes.USAGE, True)


def test_bytes_are_text_in_every_format(golden: GoldenStore) -> None:
    query = "select '\\x00a'::blob a, '\\xAA'::blob b"
    for name, expected in (("csv", "\0a,\ufffd"), ("tsv", "\0a\t\ufffd")):
        assert call("sql", query, "-s", golden(NAME), "-o", name).out.splitlines()[1] == expected
    assert call("sql", query, "-s", golden(NAME), "-o", "ndjson").lines == [{"a": "\0a", "b": "\ufffd"}]


def test_several_stores(golden: GoldenStore) -> None:
    query = "select store, count(*) n from messages group by 1 order by 1"
    result = call("sql", query, "-s", f"b={golden('lmq-533')}", "-s", f"a={golden(NAME)}", "-o", "ndjson")
    counts = {"a": len(stores.truth(NAME)["messages"]), "b": len(stores.truth("lmq-533")["messages"])}
    assert result.lines == [{"store": store, "n": count} for store, count in counts.items()]


def test_every_statement_is_shown(golden: GoldenStore) -> None:
    words = ("sql", "create temp table t as select 1 a; from t; select 'x' b, 2 c", "-s", golden(NAME), "-o")
    results = [([("a", "INTEGER")], [{"a": 1}]), ([("b", "VARCHAR"), ("c", "INTEGER")], [{"b": "x", "c": 2}])]
    assert call(*words, "json").json == {
        "results": [
            {"columns": [{"name": name, "type": kind} for name, kind in columns], "rows": rows}
            for columns, rows in results
        ],
        "findings": [],
    }
    assert call(*words, "ndjson").lines == [row for _, rows in results for row in rows]
    assert call(*words, "csv").out == "a\n1\nb,c\nx,2\n"
    assert call(*words, "plain").out.split() == ["a", "1", "b", "c", "x", "2"]


@pytest.mark.parametrize("form", ["json", "ndjson", "csv"])
def test_a_statement_that_fails_behind_one_that_was_shown(golden: GoldenStore, form: str) -> None:
    result = call("sql", "select 1 a; select nope", "-s", golden(NAME), "-o", form)
    assert (result.code, result.err.count("\n")) == (exit_codes.USAGE, 1)
    if form == "json":
        assert result.json["results"][0]["rows"] == [{"a": 1}]
        assert result.json["error"]["code"] == "usage"


def test_findings_end_with_3(damageable: Callable[..., Damageable]) -> None:
    store = damageable(NAME)
    store.flip(record=3, field="body")
    at = stores.truth(NAME)["messages"][3]["phyOffset"]
    query = "select phy_offset from messages where crc = 'bad'"
    result = call("sql", query, "-s", store.root, "-o", "json")
    assert result.code == exit_codes.FINDINGS
    assert [row["phy_offset"] for row in result.json["rows"]] == [at]
    assert [found["code"] for found in result.json["findings"]] == ["L001"]
    result = call("sql", query, "-s", store.root, "-o", "csv")
    assert (result.code, result.out) == (exit_codes.FINDINGS, f"phy_offset\n{at}\n")
    assert result.err.startswith("error: L001 the body does not match its checksum")
    assert call("sql", "select count(*) from queues", "-s", store.root).code == exit_codes.OK
    result = call("sql", "select code from findings where severity = 'error'", "-s", store.root)
    assert (result.code, "Findings in what was read" in result.out) == (exit_codes.FINDINGS, True)


def test_a_store_without_a_log_is_told(store_copy: StoreCopy) -> None:
    root = store_copy("clean-533")
    shutil.rmtree(root / "commitlog")
    result = call("sql", "select count(*) as n from messages", "-s", root, "-o", "json")
    assert (result.code, result.json["rows"]) == (exit_codes.FINDINGS, [{"n": 0}])
    assert [found["code"] for found in result.json["findings"]] == ["S007"]


def test_wrong_queries(golden: GoldenStore) -> None:
    result = call("sql", "select nope from messages", "-s", golden(NAME), "-o", "json")
    assert result.code == exit_codes.USAGE
    assert result.err.startswith('error: referenced column "nope" not found')
    assert result.err.count("\n") == 1
    assert result.json["error"]["code"] == "usage"
    result = call("sql", "copy messages to 'out.csv'", "-s", golden(NAME))
    assert (result.code, result.err.split(": ")[-1]) == (
        exit_codes.USAGE,
        "a query reads the tables of the store, and nothing else\n",
    )
    assert call("sql", "-s", golden(NAME)).code == exit_codes.USAGE
    assert call("sql", "select 1", "--tables").code == exit_codes.USAGE
    assert call("sql", "select 1", "-s", golden(NAME), "--tz", "+05:30").code == exit_codes.USAGE


def test_a_plan_is_shown_as_it_is_drawn(golden: GoldenStore) -> None:
    words = ("sql", "explain select 1", "-s", golden(NAME), "-o")
    (row,) = call(*words, "ndjson").lines
    drawn = row["explain_value"].splitlines()
    assert len(drawn) > 3
    assert call(*words, "plain").out.splitlines() == ["physical_plan", *drawn]
    assert call(*words, "table").out.splitlines() == ["physical_plan", *drawn]
    assert call(*words, "github").out.splitlines() == ["### physical_plan", "", "```", *drawn, "```"]
    odd = call("sql", "select null explain_key, 'a\x1b[31m' explain_value", "-s", golden(NAME), "-o", "plain")
    assert odd.out.splitlines() == ["None", "a\\x1b[31m"]


def test_an_error_amid_the_rows_closes_the_document(golden: GoldenStore) -> None:
    last = stores.truth(NAME)["messages"][-1]["phyOffset"]
    query = f"select phy_offset, case when phy_offset = {last} then cast(topic as int) end x from messages"
    result = call("sql", query, "-s", golden(NAME), "-o", "json")
    assert result.code == exit_codes.USAGE
    assert result.json["error"]["message"].startswith("could not convert string")
    assert result.err.endswith(": change the query\n")


def test_the_tables(golden: GoldenStore) -> None:
    rows = call("sql", "--tables", "-o", "ndjson").lines
    assert {row["table"] for row in rows} == {
        "messages",
        "queues",
        "index",
        "offsets",
        "findings",
        "quarantine",
        "compaction",
        "topics",
        "groups",
        "transactions",
        "delayed",
    }
    assert rows[0] == {
        "table": "messages",
        "column": "store",
        "type": "VARCHAR",
        "null": False,
        "meaning": "name of the store, as -s NAME=PATH or the broker gave it",
    }


def test_on_a_terminal(golden: GoldenStore) -> None:
    shown = on_terminal("sql", BY_TOPIC, "-s", golden(NAME))
    assert shown.code == exit_codes.OK
    assert f"{TOPICS[0][0]}" in shown.text


@pytest.mark.parametrize("query", ["select count(*) from range(1000000000000) t(x) where x % 7 = 8", "select 1"])
def test_ctrl_c_ends_it(golden: GoldenStore, tmp_path: Path, query: str) -> None:
    moment = "store_core.export.query.duck:_Engine._run"
    with stopped(moment, "sql", query, "-s", golden(NAME)) as process:
        os.kill(process.pid, signal.SIGINT)
        os.kill(process.pid, signal.SIGCONT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (exit_codes.INTERRUPTED, "", "error: interrupted\n")
