"""`rmqctl export` of several stores, copies of one broker's log among them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

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


def test_copies_can_be_kept_apart(golden: GoldenStore, slave: Path, tmp_path: Path) -> None:
    master = golden("load-533")
    done = export(tmp_path / "out", "--keep-copies", "-s", f"m={master}", "-s", f"s={slave}")
    assert (done.code, done.err, rows(tmp_path / "out")) == (0, "", {"m": 2183, "s": 1500})
    refused = export(tmp_path / "other", "--keep-copies", "-s", f"a={master}", "-s", f"a={slave}")
    assert (refused.code, refused.err) == (2, "error: two stores are called 'a': name them with -s NAME=PATH\n")


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
    assert refused.err.endswith("error: two stores are called 'a': name them with -s NAME=PATH\n")


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
