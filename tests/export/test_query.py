"""SQL over stores: numbers by the real decoder's truth, what is read for them, and what a query cannot do."""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from store_core.errors import FailedError, StoreError, UsageError
from store_core.export.query.catalog import NAMES, Tables, columns_of, described
from store_core.export.query.duck import answered, complaint
from store_core.export.tables.table import Batches, Where
from store_core.storage.store import Store
from tests import stores
from tests.conftest import DamagedStore, GoldenStore, StoreCopy
from tests.damage import Damageable
from tests.export.exports import export_one, ranges_of
from tests.export.test_splits import LOG_CASES
from tests.object_stores import ObjectStore

NAME = "clean-533"


@contextmanager
def tables(root: Path) -> Iterator[Tables]:
    with Store.open(root) as store:
        yield Tables([("a", store)])


def ask(known: Tables, query: str, **options: Any) -> list[tuple[Any, ...]]:
    [rows] = ask_all(known, query, **options)
    return rows


def test_only_tables_that_a_query_names_are_made(golden: GoldenStore) -> None:
    with tables(golden(NAME)) as known:
        ask(known, "select count(*) from Messages join queues using (phy_offset)")
        assert sorted(known.by_name) == ["messages", "queues"]
    for query in (
        "show tables",
        "select view_name from duckdb_views() where not internal",
        "show tables -- messages",
        "select name from sqlite_master where 'messages' <> ''",
    ):
        with tables(golden(NAME)) as known:
            assert sorted(name for name, *_ in ask(known, query)) == sorted(NAMES)
    with tables(golden(NAME)) as known:
        assert ask(known, "select 'messages' from query('select * from que' || 'ues limit 1')") == [("messages",)]


def ask_all(known: Tables, query: str, **options: Any) -> list[list[tuple[Any, ...]]]:
    with answered(query, known, **options) as answers:
        found = [[tuple(row.values()) for batch in answer.batches for row in batch.to_pylist()] for answer in answers]
    assert len(found) == answers.count
    return found


def refused(root: Path, query: str, **options: Any) -> StoreError:
    with tables(root) as known, pytest.raises(StoreError) as caught:
        ask(known, query, **options)
    return caught.value


class Watched:
    """A table that remembers what it was asked for."""

    def __init__(self, table: Any) -> None:
        self._table, self.columns = table, table.columns
        self.asked: list[tuple[list[str], list[str]]] = []
        self.found: list[Any] = []
        self.batches_given = 0

    def batches(self, columns: Any, where: Where | None = None) -> Batches:
        self.asked.append((list(columns), [] if where is None else list(where.columns)))
        for batch in self._table.batches(columns, where):
            self.batches_given += 1
            yield batch


@pytest.mark.parametrize("name", [*stores.CLEAN, "rocks-533"])
def test_counts_a_topic_and_queue(golden: GoldenStore, name: str) -> None:
    told = Counter((m["topic"], m["queueId"]) for m in stores.truth(name)["messages"])
    sizes = Counter[str]()
    for message in stores.truth(name)["messages"]:
        sizes[message["topic"]] += message["storeSize"]
    with tables(golden(name)) as known:
        assert {
            (t, q): n for t, q, n in ask(known, "select topic, queue_id, count(*) from messages group by all")
        } == told
        assert dict(ask(known, "select topic, sum(size_bytes)::bigint from messages group by 1")) == sizes
        assert ask(known, "select count(*) from messages") == [(sum(told.values()),)]


def test_a_missing_segment_is_told(damageable: Callable[..., Damageable]) -> None:
    """Of what a query walks over; records on both of its sides are there."""
    store = damageable(NAME)
    gone, size = store.segments[3], store.segment_size_bytes
    gone.unlink()
    start = int(gone.name)
    offsets = [m["phyOffset"] for m in stores.truth(NAME)["messages"]]
    with tables(store.root) as known:
        assert ask(known, "select count(*) from messages") == [(sum(at // size != start // size for at in offsets),)]
        [found] = [found for found in known.findings if found.code == "L006"]
        assert (found.phy_offset, found.size_bytes, found.file) == (start, size, None)
    with tables(store.root) as known:
        ask(known, f"select count(*) from messages where phy_offset >= {start + size}")
        assert "L006" not in {found.code for found in known.findings}


def test_a_table_may_be_read_several_times_in_a_query(golden: GoldenStore) -> None:
    told = Counter(m["properties"].get("UNIQ_KEY") for m in stores.truth(NAME)["messages"])
    twins = {key: times for key, times in told.items() if key is not None and times > 1}
    assert twins
    query = """select a.unique_key, count(*) from messages a join messages b on a.unique_key = b.unique_key
               where a.phy_offset <> b.phy_offset group by 1"""
    with tables(golden(NAME)) as known:
        assert dict(ask(known, query)) == {key: times * (times - 1) for key, times in twins.items()}
        assert ask(known, "select (select count(*) from messages) - count(*) from messages") == [(0,)]


def test_queue_entries_join_their_records(golden: GoldenStore) -> None:
    query = """select count(*), count(m.phy_offset), bool_and(q.size_bytes = m.size_bytes)
               from queues q left join messages m using (phy_offset, topic, queue_id, queue_offset)"""
    with tables(golden("load-533")) as known:
        assert ask(known, query) == [(len(stores.truth("load-533")["messages"]),) * 2 + (True,)]


def test_properties_keys_and_bodies(golden: GoldenStore) -> None:
    messages = stores.truth(NAME)["messages"]
    regions = Counter(m["properties"].get("KEYS") for m in messages)
    lengths = Counter(m["topic"] for m in messages if m.get("plainLength", m["bodyLength"]) > 1000)
    with tables(golden(NAME)) as known:
        assert dict(ask(known, "select properties['KEYS'], count(*) from messages group by 1")) == regions
        assert (
            dict(ask(known, "select topic, count(*) from messages where octet_length(body) > 1000 group by 1"))
            == lengths
        )
        found = ask(known, "select phy_offset from messages where list_contains(keys, 'shared2') order by 1")
    assert [at for (at,) in found] == [
        m["phyOffset"] for m in messages if "shared2" in m["properties"].get("KEYS", "").split(" ")
    ]


@pytest.mark.parametrize(
    ("query", "asked"),
    [
        ("select topic, count(*) from messages group by 1", [(["topic"], [])]),
        (
            "select sum(size_bytes) from messages where topic = 'x' and queue_id > 1",
            [(["size_bytes"], ["topic", "queue_id"])],
        ),
        (
            "select body from messages where store_time >= '2026-11-21 00:00:00Z' and phy_offset < 9",
            [(["body"], ["phy_offset", "store_time"])],
        ),
        ("select 1", []),
    ],
)
def test_only_what_is_asked_for_is_read(golden: GoldenStore, query: str, asked: Any) -> None:
    with tables(golden(NAME)) as known:
        watched = known.by_name["messages"] = Watched(known.by_name["messages"])
        ask(known, query)
    assert watched.asked == asked


def test_rows_come_while_the_log_is_read(golden: GoldenStore) -> None:
    with tables(golden("crash-533")) as known:
        watched = known.by_name["messages"] = Watched(known.by_name["messages"])
        ask(known, "select topic from messages limit 3")
        assert watched.batches_given < 3
        ask(known, "select topic from messages")
        assert watched.batches_given > 10


@pytest.mark.parametrize("query", ["select * from messages", "select topic, body from messages where queue_id = 0"])
def test_rows_of_a_plain_scan_come_at_once(golden: GoldenStore, query: str) -> None:
    """Not before so many have been read, as DuckDB gives them."""
    with tables(golden("crash-533")) as known:
        watched = known.by_name["messages"] = Watched(known.by_name["messages"])
        with answered(query, known) as answers:
            batches = next(iter(answers)).batches
            rows = len(next(batches)) + sum(len(next(batches)) for _ in range(2))
            assert watched.batches_given == 3
            rows += sum(map(len, batches))
        assert len(watched.asked) == 1
        assert [(rows,)] == ask(known, f"select count(*) from ({query})")


def test_times_are_cut_into_days_of_the_zone(golden: GoldenStore) -> None:
    query = "select distinct date_trunc('day', store_time)::varchar from messages"
    with tables(golden(NAME)) as known:
        assert ask(known, query) == [("2026-11-21 00:00:00+00",)]
        assert ask(known, query, zone="Asia/Tokyo") == [("2026-11-21 00:00:00+09",)]
        assert ask(known, query, zone="America/Los_Angeles") == [("2026-11-20 00:00:00-08",)]


def test_every_statement_with_rows_is_answered(golden: GoldenStore) -> None:
    query = """begin; select 1; create temp table t as select 2 x; insert into t values (3); select count(*) from messages;
               insert into t values (4) returning x; select x from t where false; explain select 1; commit; from t"""
    count = len(stores.truth(NAME)["messages"])
    with tables(golden(NAME)) as known:
        one, counted, inserted, none, explained, last = ask_all(known, query)
    assert (one, counted, inserted, none, last) == ([(1,)], [(count,)], [(4,)], [], [(2,), (3,), (4,)])
    assert len(explained) == 1


def test_rows_that_are_left_do_not_stop_the_next_statement(golden: GoldenStore) -> None:
    with tables(golden(NAME)) as known, answered("from messages; select 1; select nope", known) as answers:
        coming = iter(answers)
        assert len(next(next(coming).batches))
        assert [batch.to_pylist() for batch in next(coming).batches] == [[{"1": 1}]]
        with pytest.raises(UsageError, match="nope"):
            next(coming)


def test_names_twice_and_types(golden: GoldenStore) -> None:
    with tables(golden(NAME)) as known:
        with answered("create temp table t as select 1 x; select x, x, x x_2 from t", known) as answers:
            answer = next(iter(answers))
            assert len(set(answer.schema.names)) == 3
            assert [batch.to_pylist() for batch in answer.batches] == [[dict.fromkeys(answer.schema.names, 1)]]
        with answered("select 1::hugeint, now(), body from messages limit 0", known) as answers:
            answer = next(iter(answers))
            assert list(answer.types) == ["HUGEINT", "TIMESTAMP WITH TIME ZONE", "BLOB"]


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("selec 1", 'syntax error at or near "selec"'),
        ("", "there is no query"),
        ("create temp table t as select 1", "no statement of the query gives rows"),
        ("select nope from messages", 'referenced column "nope" not found'),
        ("select * from nope", "there is no table nope: the tables are messages, "),
        ("select cast(topic as int) from messages", "could not convert string"),
        ("select error('so\n\nand so') from messages", "so"),
        ("select", "SELECT clause without selection list"),
        ("select extension from messages", 'referenced column "extension" not found'),
        ("create view v as select 1; drop table v", 'existing object "v" is of type View'),
    ],
)
def test_a_wrong_query_is_told_in_one_line(golden: GoldenStore, query: str, told: str) -> None:
    error = refused(golden(NAME), query)
    assert isinstance(error, UsageError)
    assert str(error).startswith(told)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    "query",
    [
        "copy messages to '{folder}/out.csv'",
        "copy (select 1) to '{folder}/out.parquet' (format parquet)",
        "export database '{folder}/out'",
        "attach '{folder}/out.db'",
        "select * from read_text('{folder}/secret')",
        "select * from read_csv('{folder}/secret')",
        "select * from glob('{folder}/*')",
        "select * from '{folder}/secret.parquet'",
        "set enable_external_access = true",
        "set memory_limit = '9GB'",
        "select * from known",
    ],
)
def test_a_query_reaches_nothing_but_the_tables(golden: GoldenStore, tmp_path: Path, query: str) -> None:
    (tmp_path / "secret").write_text("secret")
    error = refused(golden(NAME), query.format(folder=tmp_path))
    assert isinstance(error, UsageError)
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


@pytest.mark.parametrize(
    "query",
    [
        "insert into Messages values (1)",
        "insert into queues select * from queues",
        "update messages set topic = 'a'",
        "delete from messages",
        "truncate messages",
        "merge into messages using queues on true when matched then delete",
        "alter table messages add column x int",
        "create index i on messages(topic)",
        'drop table "index"',
        "drop table findings",
    ],
)
def test_tables_can_only_be_read(golden: GoldenStore, query: str) -> None:
    error = refused(golden(NAME), query)
    assert isinstance(error, UsageError)
    assert error.what == "the tables of the store, and views, can only be read"


@pytest.mark.parametrize(
    "query", ["install httpfs", "force install json from community", "load httpfs", "load '/x.so'", "update extensions"]
)
def test_there_are_no_extensions(golden: GoldenStore, query: str) -> None:
    error = refused(golden(NAME), query)
    assert isinstance(error, UsageError)
    assert str(error) == "there are no extensions here: nothing but the store can be reached"


def test_what_a_table_raises_is_what_the_query_raises(golden: GoldenStore) -> None:
    assert "RocksDB" in refused(golden("rocks-533"), "select count(*) from offsets").what
    error = refused(golden("rocks-533"), "select count(*) from queues")
    assert isinstance(error, FailedError)
    assert "RocksDB" in error.what


def test_too_little_memory_is_told(golden: GoldenStore) -> None:
    error = refused(golden(NAME), "select list(x) from range(20000000) t(x)", memory_bytes=32 << 20)
    assert isinstance(error, FailedError)
    assert error.to_do == "give more --memory"


def test_sorting_goes_to_files_that_are_gone_afterwards(
    golden: GoldenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    query = "select x from range(20000000) t(x) order by hash(x) desc"
    with tables(golden(NAME)) as known, answered(query, known, memory_bytes=64 << 20) as answers:
        next(next(iter(answers)).batches)
        assert [path for path in tmp_path.rglob("*") if path.is_file()]
    assert list(tmp_path.iterdir()) == []


def test_too_little_room_for_files_is_told() -> None:
    raised = RuntimeError(
        "Out of Memory Error: failed to offload data block of size 256.0 KiB (17.8 MiB/18.0 MiB used).\n"
        "This limit was set by the 'max_temp_directory_size' setting.\nBy default, this setting utilizes all."
    )
    error = complaint(raised)
    assert isinstance(error, FailedError)
    assert error.what == "failed to offload data block of size 256.0 KiB (17.8 MiB/18.0 MiB used)."
    assert error.to_do == "give more --memory, or more room with TMPDIR"


def test_duckdb_may_be_missing(golden: GoldenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    error = refused(golden(NAME), "select 1")
    assert error.what == "sql needs the package duckdb"
    assert re.fullmatch(r"run `.* -m pip install .*\[sql\]'`", error.to_do)


def test_stopped_while_tables_are_read(store_copy: StoreCopy) -> None:
    with tables(store_copy("crash-533")) as known:
        known.stop()
        with pytest.raises(FailedError):
            ask(known, "select count(*) from messages")


def test_the_catalogue_has_sql_types(golden: GoldenStore) -> None:
    rows = list(described())
    assert [(row["table"], row["column"]) for row in rows] == [
        (table, column.name) for table in NAMES for column in columns_of(table)
    ]
    with tables(golden(NAME)) as known:
        for table in NAMES:
            types = {name: kind for name, kind, *_ in ask(known, f"describe {table}")}
            assert types == {row["column"]: row["type"] for row in rows if row["table"] == table}


@pytest.mark.parametrize(
    ("query", "folder"),
    [("select topic from messages", "commitlog"), ("select topic from queues", "consumequeue")],
)
def test_files_that_go_away_are_told(store_copy: StoreCopy, object_store: ObjectStore, query: str, folder: str) -> None:
    """In an object store, and on a disk: what is not there any more is not left out of an answer."""
    root = store_copy("clean-533")
    address = object_store.put(root)

    def gone_here() -> None:
        shutil.rmtree(root / folder)

    def gone_there() -> None:
        object_store.files.delete_dir(f"{address.removeprefix('s3://')}/{folder}")

    for place, go in ((address, gone_there), (root, gone_here)):
        with Store.open(place) as store:
            known = Tables([("a", store)])
            assert len(store.log.segments) + len(store.queues) > 10  # listed, and not open
            go()
            with pytest.raises(FailedError, match="a file of the store went away while it was read"):
                ask(known, query)


def test_one_binary_body_fails_no_query(damageable: Callable[..., Damageable]) -> None:
    """Not at the first row that holds one, nor as the only row; and its neighbours keep their text."""
    store = damageable(NAME)
    store.write(store.field_at(7, "body"), b"\xff")
    with tables(store.root) as known:
        query = "select phy_offset, text, decode(body), decode(body, 'replace'), body from messages order by 1 limit 40"
        rows = ask(known, query)
    assert rows[7][1:3] == (None, None)
    assert rows[7][3] is not None
    for _, text, decoded, _, body in rows:
        try:
            assert text == decoded == body.decode()
        except UnicodeDecodeError:
            assert text is decoded is None


@pytest.mark.product(12)
@pytest.mark.parametrize("case", LOG_CASES)
def test_the_quarantine_is_an_exports(damaged: DamagedStore, tmp_path: Path, case: str) -> None:
    root = damaged("load-533", case)
    export_one(root, tmp_path / "out")
    with tables(root) as known:
        found = ask(known, "select phy_offset, size_bytes, kind, reason, finding from quarantine order by 1, 2")
    assert found == sorted(ranges_of(tmp_path / "out"))


def test_topics_and_groups_are_those_of_the_files(golden: GoldenStore) -> None:
    root = golden("load-533")
    topics = json.loads((root / "config" / "topics.json").read_text())["topicConfigTable"]
    groups = json.loads((root / "config" / "subscriptionGroup.json").read_text())["subscriptionGroupTable"]
    with tables(root) as known:
        found = ask(known, "select topic, read_queues, write_queues, perm, is_ordered from topics order by 1")
        told = [
            (t["topicName"], t["readQueueNums"], t["writeQueueNums"], t["perm"], t["order"]) for t in topics.values()
        ]
        assert found == sorted(told)
        found = ask(known, "select consumer_group, consume_enable, retry_max_times from groups order by 1")
        assert found == sorted((g["groupName"], g["consumeEnable"], g["retryMaxTimes"]) for g in groups.values())
