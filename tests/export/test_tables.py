"""The tables of queries and exports against what real brokers say of the same stores."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from store_core.codec.tags import index_key_hash
from store_core.export.query.catalog import Tables, columns_of
from store_core.export.rows import schema
from store_core.export.tables.messages import MessagesTable
from store_core.export.tables.table import Table, Where, schema_of
from store_core.layout.queue import FILLER_SIZE_BYTES
from store_core.read.dump import all_queues
from store_core.storage.store import Store
from tests import stores
from tests.conftest import DamagedStore, GoldenStore, StoreCopy
from tests.damage import Damageable
from tests.export.exports import _kind as kind_of
from tests.export.exports import found_rows, told_rows

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@contextmanager
def tables(root: Path, **more: Path) -> Iterator[dict[str, Table]]:
    """The tables of a store called ``a``, and of others by their names."""
    opened = [(name, Store.open(path)) for name, path in {"a": root, **more}.items()]
    try:
        yield Tables(opened).by_name
    finally:
        for _, store in opened:
            store.close()


def rows_of(table: Table, columns: list[str] | None = None, where: Any = None) -> list[dict[str, Any]]:
    """The rows of a table; with a condition, those of one reading under it."""
    declared = schema_of(table.columns)
    names = columns or declared.names
    condition = None if where is None else Where(where, declared)
    batches = list(table.batches(names, condition))
    for batch in batches:
        assert batch.schema == pa.schema([declared.field(name) for name in names])
        batch.validate(full=True)
    return [row for batch in batches for row in batch.to_pylist()]


def moment(timestamp_ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=timestamp_ms)


@pytest.mark.parametrize("name", stores.WITH_QUEUE_FILES)
def test_every_queue_entry_is_what_the_broker_gives(golden: GoldenStore, name: str) -> None:
    told = {(q["topic"], q["queueId"]): q for q in stores.truth(name)["afterLoad"]["queues"]}
    with tables(golden(name)) as known:
        rows = rows_of(known["queues"])
        assert known["queues"].findings == []
    found: dict[tuple[str, int], list[list[int]]] = {key: [] for key in told}
    for row in rows:
        queue = told[row["topic"], row["queue_id"]]
        assert (row["store"], row["kind"], row["state"]) == ("a", kind_of(row["topic"]), "message")
        if queue["min"] <= row["queue_offset"] < queue["max"]:
            found[row["topic"], row["queue_id"]].append(_as_told(row, name))
    assert found == {key: queue["entries"] for key, queue in told.items()}


def _as_told(row: dict[str, Any], name: str) -> list[int]:
    entry = [row["queue_offset"], row["phy_offset"], row["size_bytes"], row["tags_code"]]
    if name == "bcq-533" and row["topic"] == "Bcq_inner":
        return [*entry, row["batch_size"]]
    if name == "cqext-533":  # 5.x tells what the unit says
        store_ms = round((row["store_time"] - _EPOCH) / timedelta(milliseconds=1))
        return [*entry[:3], row["ext_tags_code"], -1, row["ext_tags_code"], store_ms]
    return entry


@pytest.mark.parametrize("name", ["cqext-497", "cqext-533"])
def test_ext_units_are_columns(golden: GoldenStore, name: str) -> None:
    told = {m["phyOffset"]: m for m in stores.truth(name)["messages"]}
    with tables(golden(name)) as known:
        rows = rows_of(known["queues"], ["phy_offset", "ext_tags_code", "store_time", "ext_bitmap"])
    assert len(rows) == len(told)
    for row in rows:
        message = told[row["phy_offset"]]
        assert (row["ext_tags_code"], row["store_time"]) == (message["tagsCode"], moment(message["storeTimestamp"]))
        assert row["ext_bitmap"] is not None


def test_batch_entries_and_delivery_times(golden: GoldenStore) -> None:
    messages = {m["phyOffset"]: m for m in stores.truth("bcq-533")["messages"]}
    with tables(golden("bcq-533")) as known:
        rows = rows_of(known["queues"], where=ds.field("topic") == "Bcq_inner")
    assert {row["batch_size"] for row in rows} > {1}
    assert [r["store_time"] for r in rows] == [moment(messages[r["phy_offset"]]["storeTimestamp"]) for r in rows]
    for name in ("clean-533", "cqext-497", "cqext-533"):
        delayed = [m for m in stores.truth(name)["messages"] if m["topic"] == "SCHEDULE_TOPIC_XXXX"]
        with tables(golden(name)) as known:
            rows = rows_of(known["queues"], ["phy_offset", "kind", "deliver_time"])
        due = {row["phy_offset"]: row["deliver_time"] for row in rows if row["deliver_time"] is not None}
        assert due == {m["phyOffset"]: moment(m["tagsCode"]) for m in delayed}
        assert len(due) > 5


def test_states_of_entries(damaged: DamagedStore, damageable: Callable[..., Damageable]) -> None:
    with tables(damaged("load-533", "log-missing-first")) as known:
        rows = rows_of(known["queues"], ["state", "phy_offset"])
    assert {row["state"] for row in rows if row["phy_offset"] < 131072} == {"expired"}
    assert {row["state"] for row in rows if row["phy_offset"] >= 131072} == {"message"}
    store = damageable("load-533")
    store.set_entry("Calm_bills", 0, 0, (0, FILLER_SIZE_BYTES, 0))
    store.set_entry("Calm_bills", 0, 2, (131071, 100, 0))
    with tables(store.root) as known:
        where = (ds.field("topic") == "Calm_bills") & (ds.field("queue_id") == 0) & (ds.field("queue_offset") < 4)
        rows = rows_of(known["queues"], ["state"], where)
    assert [row["state"] for row in rows] == ["filler", "message", "dead", "message"]


@pytest.mark.parametrize("name", ["load-533", "clean-430", "rocks-533"])
def test_index_entries_are_those_of_every_key_in_the_order_of_dispatch(golden: GoldenStore, name: str) -> None:
    queries = [
        asked
        for asked in stores.truth(name)["keyQueries"]
        if asked["begin"] == 0 and asked["end"] > 1 << 60 and len(asked["indexPhyOffsets"]) < asked["max"]
    ]
    assert len(queries) > 20
    with tables(golden(name)) as known:
        rows = rows_of(known["index"])
    assert [row["entry"] for row in rows if row["file"] == rows[0]["file"]][:2] == [1, 2]
    by_hash: dict[int, list[int]] = {}
    for row in rows:
        assert row["slot"] == row["key_hash"] % 500
        by_hash.setdefault(row["key_hash"], []).append(row["phy_offset"])
    for asked in queries:
        found = by_hash.get(index_key_hash(asked["topic"], asked["key"]), [])
        assert sorted(found) == sorted(asked["indexPhyOffsets"]), asked


def test_index_times_are_whole_seconds_from_the_files_begin(golden: GoldenStore) -> None:
    told = {f["file"]: f for f in stores.truth("clean-533")["afterLoad"]["indexFiles"]}
    stored = {m["phyOffset"]: m["storeTimestamp"] for m in stores.truth("clean-533")["messages"]}
    with tables(golden("clean-533")) as known:
        rows = rows_of(known["index"])
    assert {row["file"] for row in rows} == set(told)
    for row in rows:
        begin = told[row["file"]]["beginTimestamp"]
        assert row["store_time"] == moment(begin + (stored[row["phy_offset"]] - begin) // 1000 * 1000)


@pytest.mark.parametrize("name", stores.CLEAN)
def test_progress_is_what_the_broker_has(golden: GoldenStore, name: str) -> None:
    truth = stores.truth(name)
    ends = {(q["topic"], q["queueId"]): q for q in truth["afterLoad"]["queues"]}
    expected = []
    for key, offsets in truth["consumerOffsets"].items():
        topic, group = key.split("@")
        for queue_id, offset in offsets.items():
            queue = ends.get((topic, int(queue_id)))
            low, high = (queue["min"], queue["max"]) if queue else (None, None)
            expected.append((group, topic, int(queue_id), offset, low, high))
    with tables(golden(name)) as known:
        rows = rows_of(known["offsets"])
    keys = ("consumer_group", "topic", "queue_id", "queue_offset", "min_queue_offset", "max_queue_offset")
    assert sorted(tuple(row[key] for key in keys) for row in rows) == sorted(expected)
    for row in rows:
        assert row["kind"] == kind_of(row["topic"])
        assert row["lag"] == (
            None if row["max_queue_offset"] is None else row["max_queue_offset"] - row["queue_offset"]
        )


def test_findings_are_those_of_a_check(damageable: Callable[..., Damageable]) -> None:
    store = damageable("clean-533")
    at = store.flip(record=3, field="body")
    with tables(store.root) as known:
        (row,) = rows_of(known["findings"], where=ds.field("severity") == "error")
        assert [found.code for found in known["findings"].findings if found.severity == "error"] == ["L001"]
    assert (row["store"], row["code"], row["phy_offset"] <= at) == ("a", "L001", True)


# Messages: conditions


CONDITIONS = {
    "topic": (ds.field("topic") == "Shop_bills", lambda m: m["topic"] == "Shop_bills"),
    "offsets": (
        (ds.field("phy_offset") >= 300_000) & (ds.field("phy_offset") < 700_000),
        lambda m: 300_000 <= m["phy_offset"] < 700_000,
    ),
    "two places": (
        (ds.field("phy_offset") == 0) | (ds.field("phy_offset") > 1_300_000),
        lambda m: m["phy_offset"] == 0 or m["phy_offset"] > 1_300_000,
    ),
    "null": (ds.field("tags").is_null(), lambda m: m["tags"] is None),
    "store": (ds.field("store") == "b", lambda m: False),
    "properties": (pc.is_in(ds.field("kind"), pa.array(["half", "op"])), lambda m: m["kind"] in ("half", "op")),
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_condition_gives_the_rows_it_is_true_for(golden: GoldenStore, condition: str) -> None:
    where, is_wanted = CONDITIONS[condition]
    expected = [row for row in told_rows("clean-533") if is_wanted(row)]
    with tables(golden("clean-533")) as known:
        declared = schema_of(known["messages"].columns)
        batches = list(known["messages"].batches(declared.names, Where(where, declared)))
    rows = found_rows(pa.Table.from_batches(batches, declared))
    for row in rows:
        text = row.pop("text")
        assert text is None or row["body"] == (len(text.encode()), hashlib.sha256(text.encode()).hexdigest())
    assert rows == expected


def test_a_condition_on_offsets_walks_what_it_must(golden: GoldenStore) -> None:
    walked: list[int] = []
    at = stores.truth("clean-533")["messages"][1500]["phyOffset"]
    with Store.open(golden("clean-533")) as store:
        table = MessagesTable([("a", store)], walked.append)
        where = Where(ds.field("phy_offset") == at, schema_of(table.columns))
        (batch,) = [batch for batch in table.batches(["phy_offset"], where) if len(batch)]
        assert batch.column(0).to_pylist() == [at]
        assert walked[-1] < 2 * (64 << 10)
        where = Where(ds.field("store") == "b", schema_of(table.columns))
        assert (list(table.batches(["phy_offset"], where)), walked[-1] < 2 * (64 << 10)) == ([], True)


def test_a_condition_on_times_leaves_out_segments_that_are_an_hour_away(
    damageable: Callable[..., Damageable],
) -> None:
    """The clock of this store is moved on by two hours from the third segment on."""
    store = damageable("load-533")
    hours = 2 * 3600_000
    messages = stores.truth("load-533")["messages"]
    later = [n for n, m in enumerate(messages) if m["phyOffset"] >= 2 * 131072]
    for number in later:
        store.set_field(number, "store_timestamp_ms", messages[number]["storeTimestamp"] + hours)
    walked: list[int] = []
    limit = moment(
        messages[later[0]]["storeTimestamp"] + hours * 3 // 8
    )  # more than an hour in front of the later ones
    with Store.open(store.root) as opened:
        table = MessagesTable([("a", opened)], walked.append)
        time, since = ds.field("store_time"), pa.scalar(moment(messages[0]["storeTimestamp"]), schema.TIME)
        found = rows_of(table, ["phy_offset"], (time >= since) & (time < pa.scalar(limit, schema.TIME)))
        assert [row["phy_offset"] for row in found] == [m["phyOffset"] for m in messages[: later[0]]]
        assert walked[-1] == 2 * 131072
        # Without an earliest time it wants records that have none, too, which may lie anywhere.
        found = rows_of(table, ["phy_offset"], time < pa.scalar(limit, schema.TIME))
        assert [row["phy_offset"] for row in found] == [m["phyOffset"] for m in messages[: later[0]]]
        assert walked[-1] == 2 * 131072 + opened.log.size_bytes
        everywhere = rows_of(table, ["phy_offset"], ds.field("store_time") >= pa.scalar(limit, schema.TIME))
        assert [row["phy_offset"] for row in everywhere] == [m["phyOffset"] for m in messages[later[0] :]]


def test_a_reading_that_ends_early_tells_no_torn_tail(damageable: Callable[..., Damageable]) -> None:
    store = damageable("load-533")
    store.flip(record=0, field="body")
    store.tear(tail=250)
    with tables(store.root) as known:
        batches = known["messages"].batches(["phy_offset"])
        next(batches)
        batches.close()
        assert [found.code for found in known["messages"].findings] == ["L001"]
        rows_of(known["messages"], ["phy_offset"])
        assert [found.code for found in known["messages"].findings] == ["L001", "L004"]


def test_columns_of_a_condition_are_told_by_arrow(golden: GoldenStore) -> None:
    declared = schema_of(columns_of("messages"))
    where = Where((ds.field("topic") == "x") & ds.field("tags").is_null() | (ds.field("queue_id") > 3), declared)
    assert where.columns == ("topic", "queue_id", "tags")


def test_two_stores_have_their_names(golden: GoldenStore) -> None:
    with tables(golden("bcq-533"), b=golden("lmq-533")) as known:
        for name in ("messages", "queues", "index"):
            found = [row["store"] for row in rows_of(known[name], ["store"])]
            assert found == sorted(found)
            assert set(found) == {"a", "b"}
            only = rows_of(known[name], ["store"], ds.field("store") == "b")
            assert 0 < len(only) == found.count("b")
    with Store.open(golden("bcq-533")) as store:
        assert len(all_queues(store)) == 4


def test_a_lag_that_no_column_holds(store_copy: StoreCopy) -> None:
    """Farther behind than a long tells: the row is there without it."""
    root = store_copy("load-533")
    (root / "config" / "consumerOffset.json").write_text('{"offsetTable":{"Calm_orders@g":{0:-9223372036854775808}}}')
    with tables(root) as known:
        [row] = rows_of(known["offsets"], ["consumer_group", "queue_offset", "max_queue_offset", "lag"])
    assert row == {"consumer_group": "g", "queue_offset": -(1 << 63), "max_queue_offset": 128, "lag": None}
