"""Exports of stores of which the system refuses to read a part: it is told and gone around, and got later."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
import pytest

from store_core.errors import FailedError, UnreadableError
from store_core.export.dest.address import Format
from store_core.export.runners.local import LocalRunner
from store_core.export.statistics import stats_of_stores
from store_core.kernel import KERNEL_VARIABLE
from store_core.read.log import LogFilter
from store_core.storage.store import Store
from tests.damage import Damageable
from tests.export.exports import export_one, found_rows, ranges_of, table_of, told_rows
from tests.export.sources import source_ranges, source_table
from tests.export.test_healing import export as export_copies
from tests.export.test_lakes import export_to
from tests.refusing import BAD, PAGE_BYTES, SEGMENT, call_without_privileges, failing_disk, forbidden
from tests.rmqctl.calls import Result, call

DamageableOf = Callable[..., Damageable]
SPLITS: Final = (3_000, 50_003, 1 << 30)


@pytest.fixture
def store(damageable: DamageableOf) -> Damageable:
    return damageable("load-533")


def around(rows: Sequence[dict[str, Any]], bad: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    """The rows of messages that lie in no such range of the log, not even in part."""
    return [
        row
        for row in rows
        if not any(row["phy_offset"] < end and start < row["phy_offset"] + row["size_bytes"] for start, end in bad)
    ]


def in_pages(ranges: Sequence[tuple[int, int]], base: int) -> list[tuple[int, int]]:
    """The ranges of the log that are given up: they begin with what is refused, and end where a page does."""
    return [(base + start, base - -end // PAGE_BYTES * PAGE_BYTES) for start, end in ranges]


def codes(result: Result) -> list[str]:
    return [found["code"] for store in json.loads(result.out)["stores"] for found in store["findings"]]


@pytest.mark.product(4)
@pytest.mark.parametrize("split_size_bytes", SPLITS)
@pytest.mark.parametrize("which", BAD)
def test_a_disk_that_fails_here_and_there(which: str, split_size_bytes: int, store: Damageable, tmp_path: Path) -> None:
    path, base = store.segments[SEGMENT], SEGMENT * store.segment_size_bytes
    with failing_disk(path, BAD[which]):
        report = export_one(store.root, tmp_path / "out", split_size_bytes=split_size_bytes)
    bad = in_pages(BAD[which], base)
    assert found_rows(table_of(tmp_path / "out")) == around(told_rows("load-533"), bad)
    told = [
        (at, at + size, finding) for at, size, kind, _, finding in ranges_of(tmp_path / "out") if kind == "unreadable"
    ]
    assert told == [(start, end, "L021") for start, end in bad]
    assert {reason for *_, kind, reason, _ in ranges_of(tmp_path / "out") if kind == "unreadable"} == {"io_error"}
    assert [(f.phy_offset, f.size_bytes) for f in report.findings if f.code == "L021"] == [(a, b - a) for a, b in bad]


def test_damage_in_front_of_a_range_that_ends_where_nothing_can_be_read(store: Damageable, tmp_path: Path) -> None:
    """To see whether the log goes on behind the range is no reason to fail."""
    border = SEGMENT * store.segment_size_bytes
    at = next(m["phyOffset"] for m in store.truth["messages"] if m["phyOffset"] > border - 5000)
    store.write(at, b"noise" * ((border - at) // 5))
    with failing_disk(store.segments[SEGMENT], [(0, store.segment_size_bytes)]):
        report = export_one(store.root, tmp_path / "out", LogFilter(to_phy_offset=border))
        found = source_ranges(store.root, toOffset=border)
    assert [f.phy_offset for f in report.findings] == [at]
    assert found == ranges_of(tmp_path / "out") != []


@pytest.mark.parametrize("which", BAD)
def test_statistics_go_around_it(which: str, store: Damageable) -> None:
    bad = in_pages(BAD[which], SEGMENT * store.segment_size_bytes)
    with Store.open(store.root) as opened, failing_disk(store.segments[SEGMENT], BAD[which]):
        [found] = stats_of_stores([("a", opened)], LocalRunner(), split_size_bytes=20_000)
    assert found.report.rows == len(around(told_rows("load-533"), bad))
    assert [f.code for f in found.report.findings if f.code == "L021"] == ["L021"] * len(bad)


def test_the_newest_segment_is_exported_once_it_can_be_read(store: Damageable, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with failing_disk(store.segments[-1], [(0, 131_072)]):
        report = export_one(store.root, out, incremental=True)
    assert [found.code for found in report.findings] == ["L021"]
    report = export_one(store.root, out, incremental=True)
    assert (report.findings, report.commit) == ([], 2)
    assert found_rows(table_of(out)) == told_rows("load-533")


def test_what_an_export_lacks_is_said_until_it_is_made_anew(store: Damageable, tmp_path: Path) -> None:
    out, base = tmp_path / "out", SEGMENT * store.segment_size_bytes
    with failing_disk(store.segments[SEGMENT], [(4096, 8192)]):
        export_one(store.root, out, incremental=True)
    for _ in range(2):
        report = export_one(store.root, out, incremental=True)
        assert [(f.code, f.phy_offset, f.size_bytes) for f in report.findings] == [("L021", base + 4096, 4096)]
        assert "could not be read when they were exported" in report.findings[0].message
    manifest = json.loads((out / "manifest.json").read_text())
    unreadable = {"phy_offset": base + 4096, "size_bytes": 4096, "kind": "unreadable"}
    assert (manifest["stores"][0]["unreadable"], manifest["commits"][-1]["commit"]) == ([unreadable], 1)
    report = export_one(store.root, out, overwrite=True)
    assert report.findings == []
    assert found_rows(table_of(out)) == told_rows("load-533")


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_a_file_that_is_back_is_said_until_the_export_is_made_anew(
    store: Damageable, tmp_path: Path, kind: Format
) -> None:
    """It was away when the log behind it was exported."""
    out, base = tmp_path / "out", SEGMENT * store.segment_size_bytes
    path = store.segments[SEGMENT]
    gone = path.rename(tmp_path / "gone")
    report = export_to(store.root, out, kind, incremental=True)
    assert [f.code for f in report.findings if f.phy_offset == base] == ["L006"]
    assert export_to(store.root, out, kind, incremental=True).findings == []
    for _ in range(2):
        shutil.copy(gone, path)
        [found] = export_to(store.root, out, kind, incremental=True).findings
        assert (found.code, found.phy_offset, found.size_bytes) == ("L006", base, store.segment_size_bytes)
        assert "messages are there now, which the export lacks" in found.message
    assert export_to(store.root, out, kind, overwrite=True).findings == []


def test_a_file_that_is_back_without_messages_is_not_said(store: Damageable, tmp_path: Path) -> None:
    """Zeros, or what recovery has put there, are nothing that an export lacks."""
    path = store.segments[SEGMENT]
    path.rename(tmp_path / "gone")
    export_one(store.root, tmp_path / "out", incremental=True)
    path.write_bytes(bytes(store.segment_size_bytes))
    assert export_one(store.root, tmp_path / "out", incremental=True).findings == []
    path.unlink()
    assert call("recover", "-s", store.root, "--apply", "--yes").code in (0, 3)
    assert path.stat().st_size == store.segment_size_bytes
    assert export_one(store.root, tmp_path / "out", incremental=True).findings == []


def test_another_copy_has_what_the_disk_refuses(damageable: DamageableOf, tmp_path: Path) -> None:
    master, slave = damageable("load-533"), damageable("load-533")
    with failing_disk(master.segments[SEGMENT], BAD["several"]):
        report = export_copies(tmp_path / "out", 20_000, master, slave)
    assert report.findings == []
    assert [row["phy_offset"] for row in found_rows(table_of(tmp_path / "out"))] == [
        row["phy_offset"] for row in told_rows("load-533")
    ]


@pytest.mark.parametrize("what", ["messages", "stats"])
def test_who_may_read_nothing_is_told_so(what: str, store: Damageable, tmp_path: Path) -> None:
    with forbidden(*store.segments):
        result = call_without_privileges("export", tmp_path / "out", "--what", what, "-s", store.root)
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("error: nothing of the log of ")
    assert "permission denied" in result.err
    assert not (tmp_path / "out").exists()


def test_a_file_that_this_user_may_not_read(store: Damageable, tmp_path: Path) -> None:
    """With real processes and real rights; and a part of the log that was never tried is not told as done."""
    out, base = tmp_path / "out", SEGMENT * store.segment_size_bytes
    words = ("export", out, "-s", store.root, "-o", "json", "--jobs", 2, "--split-size", 100_000)
    with forbidden(store.segments[SEGMENT]):
        result = call_without_privileges(*words)
    assert (result.code, codes(result)) == (3, ["L021"])
    bad = (base, base + store.segment_size_bytes)
    assert found_rows_of(out) == [row["phy_offset"] for row in around(told_rows("load-533"), [bad])]
    assert ranges_of(out) == [(base, store.segment_size_bytes, "unreadable", "no_permission", "L021")]
    # The way that the advice shows.
    rest = call_without_privileges(
        "export", tmp_path / "rest", "-s", store.root, "-o", "json", "--from", bad[0], "--to", bad[1]
    )
    assert (rest.code, codes(rest)) == (0, [])
    assert sorted(found_rows_of(out) + found_rows_of(tmp_path / "rest")) == [
        row["phy_offset"] for row in told_rows("load-533")
    ]


def found_rows_of(out: Path) -> list[int]:
    found: list[int] = table_of(out).column("phy_offset").to_pylist()
    return found


def test_what_is_no_matter_of_the_file_is_an_error(
    store: Damageable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno
    import os

    def refusing(*_: Any) -> int:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setenv(KERNEL_VARIABLE, "python")  # whose reads can be made to fail
    monkeypatch.setattr(os, "preadv", refusing)
    with pytest.raises(FailedError, match="Cannot allocate memory"):
        export_one(store.root, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("mode", ["PERMISSIVE", "DROPMALFORMED", "FAILFAST"])
def test_a_reader_without_a_quarantine_ends_with_an_error(mode: str, store: Damageable) -> None:
    with failing_disk(store.segments[SEGMENT], [(40_960, 45_056)]):
        with pytest.raises(UnreadableError, match="Input/output error"):
            source_table(store.root, mode=mode)
        with pytest.raises(UnreadableError, match="Input/output error"):
            source_table(store.root, table="quarantine")


@pytest.mark.parametrize("query", ["select count(*) from messages", "select max(queue_offset) from messages"])
def test_a_query_ends_with_an_error(query: str, store: Damageable) -> None:
    with forbidden(store.segments[SEGMENT]):
        result = call_without_privileges("sql", query, "-s", store.root)
    assert (result.code, result.out) == (1, "")
    assert store.segments[SEGMENT].name in result.err
    assert "permission denied" in result.err.lower()


def rows_of(out: Path, table: str) -> list[dict[str, Any]]:
    return [row for file in sorted((out / table).iterdir()) for row in pq.read_table(file).to_pylist()]


@pytest.mark.product(1)
@pytest.mark.parametrize("file", [0, -1])
def test_index_files_go_around_one_that_cannot_be_read(file: int, store: Damageable, tmp_path: Path) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert call_without_privileges("export", whole, "--what", "index", "-s", store.root).code == 0
    path = sorted((store.root / "index").iterdir())[file]
    with forbidden(path):
        result = call_without_privileges("export", out, "--what", "index", "-s", store.root, "-o", "json")
    assert (result.code, codes(result)) == (3, ["I009"])
    left = [row for row in rows_of(whole, "index") if row["file"] != path.name]
    assert rows_of(out, "index") == left
    assert len(left) not in (0, len(rows_of(whole, "index")))


@pytest.mark.product(1)
@pytest.mark.parametrize("file", [0, 1, 2])
def test_queues_go_around_a_file_that_cannot_be_read(file: int, store: Damageable, tmp_path: Path) -> None:
    topic, queue_id = "Calm_audit", 0
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert call_without_privileges("export", whole, "--what", "queues", "-s", store.root).code == 0
    path = sorted((store.root / "consumequeue" / topic / str(queue_id)).iterdir())[file]
    with forbidden(path):
        words = ("export", out, "--what", "queues", "-s", store.root, "-o", "json", "--split-size", 1000, "--jobs", 2)
        result = call_without_privileges(*words)
    assert (result.code, set(codes(result))) == (3, {"Q018"})
    found = json.loads(result.out)["stores"][0]["findings"][0]
    assert (found["file"], found["topic"], found["queue_id"]) == (
        f"consumequeue/{topic}/{queue_id}/{path.name}",
        topic,
        queue_id,
    )
    size = store.queue_file_size_bytes // 20
    start = int(path.name) // 20

    def is_refused(row: dict[str, Any]) -> bool:
        return (row["topic"], row["queue_id"]) == (topic, queue_id) and start <= row["queue_offset"] < start + size

    rows = rows_of(whole, "queues")
    left = [row for row in rows if not is_refused(row)]
    assert sorted(rows_of(out, "queues"), key=str) == sorted(left, key=str)
    assert 0 < len(left) < len(rows)
