"""`rmqctl export` and `sql` of several stores, copies of one broker's log among them."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import GoldenStore
from tests.damage import Damageable
from tests.export.exports import manifest_of, table_of
from tests.export.test_copies import lag
from tests.rmqctl.calls import Result, call

DamageableStore = Callable[..., Damageable]


@pytest.fixture
def slave(damageable: DamageableStore) -> Path:
    return lag(damageable("load-533"), 1500).root


def export(dest: Path, *words: object) -> Result:
    return call("export", dest, "--jobs", "1", "-o", "json", *words)


def rows(dest: Path) -> Counter[str]:
    return Counter(table_of(dest).column("store").to_pylist())


def test_each_record_is_taken_once(golden: GoldenStore, slave: Path, tmp_path: Path) -> None:
    master, other = golden("load-533"), golden("crash-533")
    done = export(tmp_path / "out", "-s", slave, "-s", f"b={other}", "-s", f"broker-a={master}")
    assert done.code == 0
    assert done.err == f"note: copies of one log, each record is taken once: {master} and {slave}\n"
    assert rows(tmp_path / "out") == {"broker-a": 2183, "b": 3061}
    told = {store["store"]: store for store in done.json["stores"]}
    assert told["broker-a"]["copies"] == [str(master), str(slave)]
    assert told["broker-a"]["healed"] == []
    assert "copies" not in told["b"]
    assert [store["store"] for store in manifest_of(tmp_path / "out")["stores"]] == ["broker-a", "b"]


def test_one_name_for_both_is_one_broker(golden: GoldenStore, slave: Path, tmp_path: Path) -> None:
    done = export(tmp_path / "out", "-s", f"a={golden('load-533')}", "-s", f"a={slave}")
    assert (done.code, rows(tmp_path / "out")) == (0, {"a": 2183})


@pytest.mark.parametrize("names", [("", ""), ("a=", ""), ("", "a="), ("a=", "b=")])
def test_one_store_named_twice_is_no_copy(golden: GoldenStore, tmp_path: Path, names: tuple[str, str]) -> None:
    root = golden("load-533")
    done = export(tmp_path / "out", "-s", f"{names[0]}{root}", "-s", f"{names[1]}{root}")
    assert (done.code, done.err) == (0, f"note: {root} is named twice, and is taken once\n")
    assert rows(tmp_path / "out") == {"a" if any(names) else root.name: 2183}
    assert "copies" not in done.json["stores"][0]


def test_copies_can_be_kept_apart(golden: GoldenStore, slave: Path, tmp_path: Path) -> None:
    master = golden("load-533")
    done = export(tmp_path / "out", "--keep-copies", "-s", f"m={master}", "-s", f"s={slave}")
    assert (done.code, done.err, rows(tmp_path / "out")) == (0, "", {"m": 2183, "s": 1500})
    refused = export(tmp_path / "other", "--keep-copies", "-s", f"a={master}", "-s", f"a={slave}")
    assert (refused.code, refused.err) == (
        2,
        "error: two stores are called 'a': give each a name of its own, NAME=PATH\n",
    )


def test_logs_that_have_parted_are_told(golden: GoldenStore, damageable: DamageableStore, tmp_path: Path) -> None:
    """Two masters in succession: the same up to where the second took over."""
    master, parted = golden("load-533"), damageable("load-533")
    for record in range(2000, 2183):
        parted.flip(record=record, field="store_timestamp_ms", byte=7)
    done = export(tmp_path / "out", "-s", f"m={master}", "-s", f"s={parted.root}")
    assert done.code == 0
    assert done.err.startswith(f"warning: {master} and {parted.root} were copies of one log, which part at ")
    assert rows(tmp_path / "out") == {"m": 2183, "s": 2183}
    refused = export(tmp_path / "other", "-s", f"a={master}", "-s", f"a={parted.root}")
    assert refused.code == 2
    assert refused.err.endswith("error: two stores are called 'a': give each a name of its own, NAME=PATH\n")


def test_a_record_that_differs_is_a_finding(golden: GoldenStore, damageable: DamageableStore, tmp_path: Path) -> None:
    """One false bit where no checksum is, in one of two copies: every record once, and nobody left to believe that all is well."""
    master, slave = golden("load-533"), damageable("load-533")
    slave.flip(record=1, field="store_timestamp_ms", byte=7)
    at = slave.message(1)
    done = export(tmp_path / "out", "-s", f"a={master}", "-s", slave.root)
    assert (done.code, rows(tmp_path / "out")) == (3, {"a": 2183})
    [told] = done.json["stores"][0]["findings"]
    assert (told["code"], told["phy_offset"], told["size_bytes"]) == ("L024", at["phyOffset"], at["storeSize"])
    again = export(tmp_path / "out", "--incremental", "-s", f"a={master}", "-s", slave.root)
    assert (again.code, again.json["rows"]) == (0, 0)
    query = ("sql", "-s", f"a={master}", "-s", slave.root, "-o", "json")
    asked = call(*query, "select count(*) as rows from messages")
    assert (asked.code, asked.json["rows"]) == (3, [{"rows": 2183}])
    assert call(*query, "select code from findings where code = 'L024'").json["rows"] == [{"code": "L024"}]


def test_what_was_made_good_is_told(golden: GoldenStore, damageable: DamageableStore, tmp_path: Path) -> None:
    store = damageable("load-533")
    at = store.message(500)
    store.flip(record=500, field="body")
    done = export(tmp_path / "out", "-s", f"a={store.root}", "-s", golden("load-533"))
    assert done.code == 0
    assert done.err.endswith(f"note: a: {at['storeSize']} bytes around damage were taken from another copy\n")
    [told] = done.json["stores"]
    assert told["healed"] == [{"phy_offset": at["phyOffset"], "size_bytes": at["storeSize"]}]
    assert set(table_of(tmp_path / "out").column("crc").to_pylist()) == {"ok"}


def test_an_incremental_export_goes_on_from_any_copy(golden: GoldenStore, slave: Path, tmp_path: Path) -> None:
    first = export(tmp_path / "out", "-s", f"a={slave}")
    assert (first.code, first.json["rows"]) == (0, 1500)
    both = export(tmp_path / "out", "--incremental", "-s", f"a={slave}", "-s", f"a={golden('load-533')}")
    assert (both.code, both.json["rows"]) == (0, 683)
    alone = export(tmp_path / "out", "--incremental", "-s", f"a={golden('load-533')}")
    assert (alone.code, alone.json["rows"]) == (0, 0)
    assert rows(tmp_path / "out") == {"a": 2183}


def test_stores_in_folders_of_one_name(golden: GoldenStore, damageable: DamageableStore, tmp_path: Path) -> None:
    for name, store in (("one", "clean-533"), ("two", "crash-533")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "store").symlink_to(golden(store))
    roots = [tmp_path / name / "store" for name in ("one", "two")]
    told = call("verify-crc", "-s", roots[0], "-s", roots[1], "-o", "json").json["stores"]
    assert [store["store"] for store in told] == ["one/store", "two/store"]
    done = export(tmp_path / "out", "-s", roots[0], "-s", roots[1])
    assert (done.code, rows(tmp_path / "out")) == (0, {"one/store": 2047, "two/store": 3061})


# Other tables, and SQL


def asked(query: str, *words: object) -> Result:
    return call("sql", query, "-o", "json", *words)


@pytest.mark.parametrize("what", ["queues", "index", "stats"])
def test_other_tables_have_each_record_once(golden: GoldenStore, slave: Path, tmp_path: Path, what: str) -> None:
    master = golden("load-533")
    both = export(tmp_path / "both", "--what", what, "-s", f"a={slave}", "-s", master)
    alone = export(tmp_path / "alone", "--what", what, "-s", f"a={master}")
    assert both.err == f"note: copies of one log, each record is taken once: {master} and {slave}\n"
    assert both.json["stores"][0]["copies"] == [str(master), str(slave)]
    assert (both.code, both.json["rows"]) == (0, alone.json["rows"])
    for file in (tmp_path / "alone").rglob("*.parquet"):
        assert (tmp_path / "both" / file.relative_to(tmp_path / "alone")).read_bytes() == file.read_bytes()
    apart = export(tmp_path / "apart", "--what", what, "--keep-copies", "-s", f"m={master}", "-s", f"s={slave}")
    assert [store["store"] for store in apart.json["stores"]] == ["m", "s"]
    assert apart.json["rows"] > alone.json["rows"]


def test_statistics_count_what_another_copy_made_good(
    golden: GoldenStore, damageable: DamageableStore, tmp_path: Path
) -> None:
    store = damageable("load-533")
    store.flip(record=500, field="body")
    done = export(tmp_path / "out", "--what", "stats", "-s", f"a={store.root}", "-s", golden("load-533"))
    assert (done.code, done.json["stores"][0]["findings"]) == (0, [])
    assert done.err.endswith(
        f"note: a: {store.message(500)['storeSize']} bytes around damage were taken from another copy\n"
    )
    topics = table(tmp_path / "out" / "topics")
    assert sum(topics.column("messages").to_pylist()) == 2183
    assert sum(topics.column("bad_messages").to_pylist()) == 0


def table(folder: Path) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in sorted(folder.iterdir())])


TABLES_COUNTED = 'select (select count(*) from messages), (select count(*) from queues), (select count(*) from "index"), (select count(*) from offsets)'


def test_sql_has_each_record_once(golden: GoldenStore, slave: Path) -> None:
    master, other = golden("load-533"), golden("crash-533")
    done = asked(
        "select store, count(*) n from messages group by 1 order by 1",
        "-s",
        slave,
        "-s",
        f"b={other}",
        "-s",
        f"a={master}",
    )
    assert done.code == 0
    assert done.err == f"note: copies of one log, each record is taken once: {master} and {slave}\n"
    assert done.json["rows"] == [{"store": "a", "n": 2183}, {"store": "b", "n": 3061}]
    both = asked(TABLES_COUNTED, "-s", f"a={slave}", "-s", f"a={master}")
    assert both.json["rows"] == asked(TABLES_COUNTED, "-s", master).json["rows"]
    apart = asked("select count(*) n from messages", "--keep-copies", "-s", f"s={slave}", "-s", f"m={master}")
    assert (apart.err, apart.json["rows"]) == ("", [{"n": 2183 + 1500}])


def test_sql_reads_what_any_copy_has(damageable: DamageableStore, slave: Path) -> None:
    """The master has expired what the slave still has; its queues begin where they do."""
    master = damageable("load-533")
    for path in master.segments[:3]:
        path.unlink()
    query = "select count(*) n, count(m.phy_offset) found from queues q left join messages m using (phy_offset)"
    done = asked(query, "-s", f"a={slave}", "-s", f"a={master.root}")
    assert (done.code, done.json["rows"]) == (0, [{"n": 2183, "found": 2183}])


def test_a_backup_of_the_log_alone_leaves_the_queues_to_others(
    golden: GoldenStore, slave: Path, tmp_path: Path
) -> None:
    backup = tmp_path / "backup"
    shutil.copytree(golden("load-533") / "commitlog", backup / "commitlog")
    done = asked(TABLES_COUNTED, "-s", f"a={backup}", "-s", f"a={slave}")
    [counts] = [list(row.values()) for row in done.json["rows"]]
    assert counts[0] == 2183
    assert counts[1:] == list(asked(TABLES_COUNTED, "-s", slave).json["rows"][0].values())[1:]


def test_findings_are_those_of_each_copy(golden: GoldenStore, damageable: DamageableStore) -> None:
    """Damage in the copy that is not read is told of that copy, and no copy is a fault of the other."""
    store = damageable("load-533")
    store.flip(record=0, field="body")
    paths = ("-s", f"a={golden('load-533')}", "-s", f"a={store.root}")
    done = asked("select store, code, file from findings", *paths)
    file = f"{store.root}/commitlog/{store.segments[0].name}"
    assert (done.code, done.json["rows"]) == (3, [{"store": "a", "code": "L001", "file": file}])
    assert [found["file"] for found in done.json["findings"]] == [file]
    assert asked("select count(*) from messages", *paths).code == 0


def test_findings_of_several_stores_tell_which(damageable: DamageableStore) -> None:
    one, two = damageable("load-533"), damageable("crash-533")
    for store in (one, two):
        store.flip(record=0, field="body")
    done = asked("select count(*) from messages", "-s", f"a={one.root}", "-s", f"b={two.root}")
    assert done.code == 3
    assert [found["file"] for found in done.json["findings"]] == [str(store.segments[0]) for store in (one, two)]
