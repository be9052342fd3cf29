"""The source's rows are the export's rows, however the log is split and whatever its bodies hold."""

from __future__ import annotations

import json
import random
import zlib
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from unittest.mock import ANY, Mock

import pyarrow.compute as pc
import pytest

from pyspark_rmqctl import register
from store_core.errors import FailedError, NotAStoreError, UsageError
from store_core.export.source import reading as reading_module
from store_core.export.source.data_source import StoreSource, StreamReader
from store_core.export.source.options import parse_options
from store_core.export.source.planning import batch_readings, refuse_copies
from store_core.export.source.walk import SourceSplit, plan
from store_core.layout import record
from store_core.layout.record import MAGIC_BLANK, PREFIX
from store_core.read.log import LogFilter
from store_core.storage.store import Store
from tests import stores
from tests.conftest import DamagedStore, GoldenStore
from tests.damage import Damageable
from tests.export.exports import export_one, ranges_of, table_of
from tests.export.sources import source_ranges, source_table
from tests.export.test_copies import lag
from tests.export.test_splits import HARD_CASES, LOG_CASES, SEGMENT_BYTES, first_harmed_segment, whole_log
from tests.rmqctl.stopping import stopped


def assert_same(
    root: Path, out: Path, *split_sizes: int | str, wanted: LogFilter | None = None, **options: str | int
) -> None:
    """The source gives what an export in one piece gives."""
    export_one(root, out, wanted, split_size_bytes=1 << 30)
    for size in split_sizes:
        rows = source_table(root, splitSize=size, **options)
        assert rows.equals(table_of(out)), size
        assert source_ranges(root, splitSize=size, **options) == ranges_of(out), size


@pytest.mark.parametrize("name", ["clean-533", "clean-430", "ipv6-533", "rocks-533", "bcq-533"])
def test_a_golden_store_gives_what_an_export_gives(golden: GoldenStore, tmp_path: Path, name: str) -> None:
    assert_same(golden(name), tmp_path / "out", "7k", "256m")


@pytest.mark.product(9)
@pytest.mark.parametrize("case", LOG_CASES)
def test_a_damaged_log_gives_what_an_export_gives(damaged: DamagedStore, tmp_path: Path, case: str) -> None:
    assert_same(damaged("load-533", case), tmp_path / "out", 9001)


@pytest.mark.parametrize("case", HARD_CASES)
def test_tiny_splits_of_damaged_logs(damaged: DamagedStore, tmp_path: Path, case: str) -> None:
    root = damaged("load-533", case)
    harmed = first_harmed_segment(case)
    for segment in sorted((root / "commitlog").iterdir()):
        if not harmed - SEGMENT_BYTES <= int(segment.name) <= harmed:
            segment.unlink()
    assert_same(root, tmp_path / "out", 611)


def assert_walk(store: Damageable, *split_sizes: int) -> None:
    rows, _ = whole_log(store.root)
    for size in split_sizes:
        found = source_table(store.root, splitSize=size, columns="phy_offset,crc,body_crc").to_pylist()
        assert found == rows, size


def hidden_record(at: int, size_bytes: int, own_phy_offset: int) -> tuple[bytes, bytes]:
    """The first and the last bytes of a well-formed record; what lies between them is its body."""
    hosts = bytes(2 * record.HOST_V4_SIZE_BYTES)
    head = dict.fromkeys((field.name for field in record.HEAD.fields), 0)
    head |= {"size_bytes": size_bytes, "magic": record.MAGIC_V1, "own_phy_offset": own_phy_offset}
    last = record.TOPIC_LENGTH_V1.struct.pack(1) + b"t" + record.PROPERTIES_LENGTH.struct.pack(0)
    middle = record.MIDDLE.struct.pack(0, 0, size_bytes - record.MIN_RECORD_SIZE_BYTES - 1)
    first = record.HEAD.struct.pack(*head.values()) + hosts[:8] + record.STORE_TIME.struct.pack(1) + hosts[8:] + middle
    assert len(first) + len(last) == record.MIN_RECORD_SIZE_BYTES + 1
    return first, last


def hide(store: Damageable, at: int, size_bytes: int, own_phy_offset: int) -> None:
    first, last = hidden_record(at, size_bytes, own_phy_offset)
    store.write(at, first)
    store.write(at + size_bytes - len(last), last)


def mend_crc(store: Damageable, row: int) -> None:
    body = store.read(store.field_at(row, "body"), store.message(row)["bodyLength"])
    store.set_field(row, "body_crc", zlib.crc32(body) & record.CRC_MASK)


@pytest.mark.parametrize("own", ["its own", "another"])
def test_a_body_full_of_records_is_one_record(one_segment: Damageable, own: str) -> None:
    """Every split that begins in such a body would find a record whose offset and checksum are right."""
    rows = [i for i in range(300) if one_segment.message(i)["phyOffset"] < SEGMENT_BYTES - 2000]
    outer = max(rows, key=lambda i: int(one_segment.message(i)["bodyLength"]))
    size = record.MIN_RECORD_SIZE_BYTES + 1
    at = one_segment.field_at(outer, "body")
    end = at + one_segment.message(outer)["bodyLength"]
    assert end - at > 3 * size
    for place in range(at, end - size + 1, size):
        hide(one_segment, place, size, place if own == "its own" else 7)
    mend_crc(one_segment, outer)
    borders = [split.start_phy_offset for size in range(300, 1000, 50) for split in splits_of(one_segment, size)]
    assert sum(at - size < border < end - size for border in borders) > 3, "no split begins in the body"
    assert_walk(one_segment, *range(300, 1000, 50))


def splits_of(store: Damageable, size_bytes: int) -> list[SourceSplit]:
    with Store.open(store.root) as opened:
        return plan(opened.log, 0, None, size_bytes)


def test_records_in_bodies_that_reach_into_the_next_body(one_segment: Damageable) -> None:
    """A chain of records hidden in bodies never meets the true one: only the segment's start tells them apart."""
    rows = [i for i in range(300) if one_segment.message(i)["phyOffset"] < SEGMENT_BYTES - 2000]
    rows = [i for i in rows if one_segment.message(i)["bodyLength"] > record.MIN_RECORD_SIZE_BYTES + 10]
    assert len(rows) > 50
    places = [one_segment.field_at(row, "body") + 8 for row in rows]
    for at, following in pairwise(places):
        hide(one_segment, at, following - at, at)
    for row in rows:
        mend_crc(one_segment, row)
    assert_walk(one_segment, *range(300, 3000, 270))


def test_a_blank_in_the_middle_hides_what_follows_it(one_segment: Damageable) -> None:
    at = one_segment.message(100)["phyOffset"]
    one_segment.write(at, PREFIX.struct.pack(SEGMENT_BYTES - at, MAGIC_BLANK))
    assert len(whole_log(one_segment.root)[0]) == 100
    assert_walk(one_segment, 300, 20_000)


def test_ranges_times_and_topics(golden: GoldenStore, damaged: DamagedStore, tmp_path: Path) -> None:
    root = damaged("load-533", "zero-page-mid")
    rows = whole_log(root)[0]
    first, last = rows[len(rows) // 3]["phy_offset"], rows[-50]["phy_offset"] + 1
    assert_same(root, tmp_path / "offsets", "20k", wanted=LogFilter(first, last), fromOffset=first, toOffset=last)
    times = [row.as_py() for row in source_table(root, columns="store_time").column("store_time")]
    begin, end = times[len(times) // 2], times[-100]
    assert_same(
        root,
        tmp_path / "times",
        "20k",
        wanted=LogFilter(begin_ms=round(begin.timestamp() * 1000), end_ms=round(end.timestamp() * 1000)),
        beginTime=begin.isoformat(),
        endTime=round(end.timestamp() * 1000),
    )
    topics = frozenset({"Calm_orders", "Calm_audit"})
    assert_same(root, tmp_path / "topics", "1m", wanted=LogFilter(topics=topics), topic="Calm_orders, Calm_audit")


def test_a_missing_segment_is_quarantined_once(damageable: Callable[..., Damageable], tmp_path: Path) -> None:
    store = damageable("load-533")
    for segment in (store.segments[1], store.segments[2], store.segments[4]):
        segment.unlink()
    assert_same(store.root, tmp_path / "all", "5k", "256m")
    middle = 2 * SEGMENT_BYTES + 77
    assert_same(store.root, tmp_path / "from", "5k", wanted=LogFilter(middle), fromOffset=middle)
    assert_same(store.root, tmp_path / "to", "5k", wanted=LogFilter(None, middle), toOffset=middle)


def test_modes_mark_leave_out_or_refuse(one_segment: Damageable) -> None:
    one_segment.flip(7, "body")
    bad = one_segment.message(7)["phyOffset"]
    marked = source_table(one_segment.root, columns="phy_offset,crc").to_pylist()
    assert [row["phy_offset"] for row in marked if row["crc"] == "bad"] == [bad]
    kept = source_table(one_segment.root, mode="dropMalformed", columns="phy_offset").to_pylist()
    assert kept == [{"phy_offset": row["phy_offset"]} for row in marked if row["crc"] == "ok"]
    with pytest.raises(FailedError, match="does not match") as refused:
        source_table(one_segment.root, mode="failfast", columns="topic")
    assert (refused.value.path, refused.value.phy_offset) == (str(one_segment.root), bad)
    assert f"({one_segment.root}, phy_offset {bad}): read with mode" in str(refused.value)


def test_fail_fast_refuses_damage_but_no_torn_tail(one_segment: Damageable) -> None:
    everything = source_table(one_segment.root)
    last = one_segment.message(everything.num_rows - 1)["phyOffset"]
    one_segment.zero(last + 40, SEGMENT_BYTES - last - 40)
    assert source_table(one_segment.root, mode="FAILFAST").num_rows == everything.num_rows - 1
    at = one_segment.message(50)["phyOffset"]
    one_segment.zero(at + 3, 200)
    with pytest.raises(FailedError, match=f"{one_segment.root}, phy_offset {at}"):
        source_table(one_segment.root, mode="FAILFAST")


def test_splits_cover_the_log_and_know_where_frames_start(golden: GoldenStore) -> None:
    with Store.open(golden("load-533")) as store:
        log = store.log
        for size in (1100, 5000, 200_000, 1 << 30):
            splits = plan(log, log.min_phy_offset, None, size)
            assert splits[0].start_phy_offset == log.min_phy_offset
            assert splits[-1].stop_phy_offset == log.max_phy_offset
            assert all(a.stop_phy_offset == b.start_phy_offset for a, b in pairwise(splits))
            assert all(s.certain_phy_offset == s.start_phy_offset // SEGMENT_BYTES * SEGMENT_BYTES for s in splits)
            assert all(s.stop_phy_offset - s.start_phy_offset <= size for s in splits)


def test_copies_of_one_log_are_taken_once(
    golden: GoldenStore, damageable: Callable[..., Damageable], tmp_path: Path
) -> None:
    """The slave lags, the master has lost its oldest files; the rows are those of a whole log, under the first name."""
    master, slave = damageable("load-533"), lag(damageable("load-533"), 1500)
    for segment in master.segments[:2]:
        segment.unlink()
    export_one(golden("load-533"), tmp_path / "out")
    paths = f"{slave.root},{golden('crash-533')},a={master.root}"
    whole = source_table(master.root, path=paths, splitSize="70k")
    assert whole.filter(pc.field("store") == "a").sort_by("phy_offset").equals(table_of(tmp_path / "out"))
    assert whole.num_rows == 2183 + 3061
    assert source_table(master.root, path=paths, table="quarantine").num_rows == 0
    apart = source_table(master.root, path=f"a={master.root},b={slave.root}", keepCopies="true")
    assert Counter(apart.column("store").to_pylist()) == {
        "a": sum(message["phyOffset"] >= 2 * SEGMENT_BYTES for message in stores.truth("load-533")["messages"]),
        "b": 1500,
    }
    with pytest.raises(UsageError, match="two stores are called 'a'"):
        source_table(master.root, path=f"a={master.root},a={golden('crash-533')}")


def test_logs_that_have_parted_are_told(golden: GoldenStore, damageable: Callable[..., Damageable]) -> None:
    other = damageable("load-533")
    for record_number in range(2000, 2183):
        other.flip(record=record_number, field="store_timestamp_ms", byte=7)
    with pytest.warns(UserWarning, match="were copies of one log, which part at"):
        rows = source_table(other.root, path=f"a={golden('load-533')},b={other.root}", columns="store")
    assert rows.num_rows == 2 * 2183


def test_a_record_that_differs_in_a_copy_is_told(golden: GoldenStore, damageable: Callable[..., Damageable]) -> None:
    other = damageable("load-533")
    other.flip(record=1, field="store_timestamp_ms", byte=7)
    with pytest.warns(UserWarning, match="a: the copies of the log hold different records"):
        rows = source_table(other.root, path=f"a={golden('load-533')},b={other.root}", columns="store")
    assert rows.num_rows == 2183


def test_a_store_that_is_half_changed_is_told_of(damaged: DamagedStore) -> None:
    root = damaged("load-533", "flip-body-mid", "crash")
    with stopped("store_core.recovery.apply.execute:Change._sync_folders", "recover", "--apply", "--yes", "-s", root):
        pass
    with pytest.warns(UserWarning, match=f"{root}: the change 0001-.* was interrupted: what is read may be half chang"):
        source_table(root, columns="store")
    stream = StreamReader(parse_options({"path": f"a={root}"}))
    first, limit = stream.initialOffset(), stream.getDefaultReadLimit()
    with pytest.warns(UserWarning, match="was interrupted") as told:
        assert [stream.latestOffset(first, limit) for _ in range(2)] == [{"a": ANY}] * 2
    assert len(told) == 1  # and not with each batch


def test_stores_are_called_as_in_an_export(golden: GoldenStore, tmp_path: Path) -> None:
    for name in ("clean-533", "ipv6-533"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "store").symlink_to(golden(name))
    paths = f"{tmp_path}/clean-533/store,{tmp_path}/ipv6-533/store"
    rows = source_table(tmp_path, path=paths, columns="store")
    assert set(rows.column("store").to_pylist()) == {"clean-533/store", "ipv6-533/store"}


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({}, "no store is named"),
        ({"path": "/a", "Tpoic": "x"}, r"no option 'Tpoic': did you mean topic\? known are path, "),
        ({"path": "/a", "maxbytespertriger": "x"}, r"did you mean maxBytesPerTrigger\?"),
        ({"path": "/a", "inferSchema": "x"}, "no option 'inferSchema': known are path, "),
        ({"path": "/a", "keepCopies": "perhaps"}, "keepCopies is 'perhaps'"),
        ({"path": "/a", "splitSize": "big"}, "splitSize is no size"),
        ({"path": "/a", "fromOffset": "-1"}, "fromOffset is no number"),
        ({"path": "/a", "fromOffset": "9" * 5000}, "fromOffset is a number of 5000 digits"),
        ({"path": "/a", "quietMs": "9" * 18}, "quietMs is more than a day"),
        ({"path": "/a", "startingOffset": "1" + "0" * 18}, "startingOffset is a number of 19 digits"),
        ({"path": "~nobody-of-that-name/store"}, "the home folder of"),
        ({"path": "/a\0b"}, "no path has a NUL byte"),
        ({"path": "/a", "beginTime": "yesterday"}, "beginTime is no time"),
        ({"path": "/a", "mode": "lenient"}, "mode is 'LENIENT'"),
        ({"path": "/a", "table": "queues"}, "table is 'queues'"),
        ({"path": " , "}, "no store is named"),
        ({"path": "a="}, "there is no PATH after the ="),
        ({"path": "/a,=/b"}, "there is no NAME before the ="),
        ({"paths": "/a"}, "paths is no JSON"),
        ({"paths": '{"/a": 1}'}, "paths is no JSON"),
        ({"paths": "[1]"}, "paths holds what is no path"),
        ({"paths": '["/a", ""]'}, "paths holds what is no path"),
        ({"path": "/a", "TOPIC": " "}, "topic is empty"),
        ({"path": "/a", "columns": ""}, "columns is empty"),
        ({"path": "/a", "columns": "topic,Topic"}, "the column 'topic' is named twice"),
        ({"path": "/a", "fromOffset": "2", "toOffset": "1"}, "fromOffset is after toOffset"),
        ({"path": "/a", "beginTime": "2026-11-22", "endTime": "2026-11-21"}, "beginTime is after endTime"),
    ],
)
def test_options_that_make_no_sense_are_told(options: dict[str, str], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        parse_options(options)


def test_a_store_may_be_named_by_a_files_address() -> None:
    (store,) = parse_options({"path": "a=file:///data/store"}).stores
    assert (store.given, store.settings.root) == ("a", Path("/data/store"))


def test_times_are_dates_or_milliseconds() -> None:
    told = {"beginTime": "20261121", "endTime": "1795219200001"}
    wanted = parse_options({"path": "/a"} | told).wanted
    assert (wanted.begin_ms, wanted.end_ms) == (1_795_219_200_000, 1_795_219_200_001)


def test_what_only_a_plan_can_refuse_is_told(golden: GoldenStore) -> None:
    with pytest.raises(UsageError, match="startingOffset is for streams"):
        source_table(golden("load-533"), startingOffset="latest")
    for size in (1, 64):
        with pytest.raises(
            UsageError, match=f"splits of {size} bytes are too many: give a larger splitSize, such as 64m"
        ):
            source_table(golden("load-533"), splitSize=size)


def test_a_session_is_told_of_the_source_once() -> None:
    """Spark writes a warning each time that it is told."""
    sessions = [Mock(), Mock()]
    for session in (sessions[0], sessions[0], sessions[1]):
        register(session)
    for session in sessions:
        session.dataSource.register.assert_called_once_with(StoreSource)


def test_a_stream_of_one_store_named_twice_is_told(golden: GoldenStore) -> None:
    root = golden("load-533")
    with pytest.raises(UsageError, match=f"a store is named twice .{root}.: name it once"):
        refuse_copies(parse_options({"path": f"a={root},b={root}"}))


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    options = parse_options({"path": str(tmp_path / "nowhere")})
    for plans in (lambda: batch_readings(options), lambda: StreamReader(options).initialOffset()):
        with pytest.raises(NotAStoreError, match=r"^no such folder"):
            plans()


def test_names_of_columns_and_stores_as_spark_may_give_them(golden: GoldenStore) -> None:
    paths = json.dumps([f"a={golden('clean-533')}", f"b={golden('ipv6-533')}"])
    rows = source_table(golden("clean-533"), path="", paths=paths, columns="Store, PHY_OFFSET")
    assert rows.column_names == ["store", "phy_offset"]
    assert set(rows.column("store").to_pylist()) == {"a", "b"}


def test_nobody_decodes_what_is_not_asked_for(one_segment: Damageable, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    real = reading_module.message_batches

    def noted(table: object, rows: object, store: str, columns: object) -> object:
        asked.append(columns)
        return real(table, rows, store, columns)  # type: ignore[arg-type]  # handed through

    monkeypatch.setattr(reading_module, "message_batches", noted)
    assert source_table(one_segment.root, columns="topic,size_bytes").column_names == ["topic", "size_bytes"]
    assert set(asked) == {("topic", "size_bytes")}


@pytest.mark.parametrize("how", ["noise up to a segment's end", "lost", "cut", "zeros", "empty"])
@pytest.mark.parametrize("split_size", ["256m", 131072, 20000, 7711])
def test_fail_fast_refuses_damage_wherever_splits_lie(
    damageable: Callable[..., Damageable], how: str, split_size: str | int
) -> None:
    store = damageable("load-533")
    segment = store.segments[3]
    if how.startswith("noise"):
        store.write(4 * SEGMENT_BYTES - 30_000, random.Random(1).randbytes(30_000))
    elif how == "lost":
        segment.unlink()
    elif how == "cut":
        store.cut(3, 100_000)
    else:
        segment.write_bytes(bytes(SEGMENT_BYTES) if how == "zeros" else b"")
    with pytest.raises(FailedError, match="the log is damaged"):
        source_table(store.root, mode="FAILFAST", splitSize=split_size)
    in_front = source_table(store.root, mode="FAILFAST", splitSize=split_size, toOffset=3 * SEGMENT_BYTES)
    assert in_front.num_rows == sum(m["phyOffset"] < 3 * SEGMENT_BYTES for m in store.truth["messages"])


def test_many_ranges_have_the_columns_that_are_asked_for(
    damageable: Callable[..., Damageable], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading_module, "_ROWS_AT_ONCE", 1)
    store = damageable("load-533")
    for number in (100, 200, 300, 400, 500):
        message = store.message(number)
        store.write(message["phyOffset"], b"\x7f" * message["storeSize"])
    rows = source_table(store.root, table="quarantine", columns="phy_offset,kind")
    assert rows.column_names == ["phy_offset", "kind"]
    assert rows.column("phy_offset").to_pylist() == [store.message(n)["phyOffset"] for n in (100, 200, 300, 400, 500)]


def test_a_batch_takes_no_option_of_streams(golden: GoldenStore) -> None:
    for name, value in (("maxBytesPerTrigger", "5m"), ("quietMs", 7), ("failOnDataLoss", "false")):
        with pytest.raises(UsageError, match=f"{name} is for streams.*: leave it out"):
            source_table(golden("load-533"), **{name: value})


@pytest.mark.parametrize("name", ["topic", "columns"])
def test_a_list_of_nothing_is_an_error(golden: GoldenStore, name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} is empty"):
        source_table(golden("load-533"), **{name: " , "})
