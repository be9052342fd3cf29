"""Delta and Iceberg tables: the rows of the log, each once, whoever is killed or comes at the same time."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

from rmqctl import exit_codes
from store_core.errors import FailedError, PlanOutOfDateError, StoreInUseError, UsageError
from store_core.export.dest import delta
from store_core.export.dest.address import Format, destination_of
from store_core.export.dest.delta import _columns
from store_core.export.dest.layout import Layout
from store_core.export.dest.object_dest import LooseDestination
from store_core.export.dest.state import Begun
from store_core.export.dest.task_destination import FinalPlace
from store_core.export.export import ExportReport
from store_core.export.rows import schema
from store_core.read.log import LogFilter
from store_core.storage.objects import LocalObjects
from store_core.storage.publish import UNFINISHED
from tests import stores
from tests.conftest import DamagedStore, GoldenStore, StoreCopy
from tests.damage import Damageable
from tests.export.exports import export_one, found_rows, told_rows
from tests.export.killing import run_killed
from tests.export.test_incremental import ENDS, OFFSETS, STORE, Growing
from tests.object_stores import ObjectStore
from tests.rmqctl.calls import ROOT, call, environment

FORMATS: list[Format] = ["delta", "iceberg"]


def export_to(root: Path, out: Path | str, kind: Format, **options: Any) -> ExportReport:
    keys = ("overwrite", "incremental", "catalog")
    chosen = {key: options.pop(key) for key in keys if key in options}
    layout = Layout(options.pop("partition_by", None), whole_files=kind == "iceberg")
    options.setdefault("split_size_bytes", 60_000)
    return export_one(root, destination_of(out, kind, **chosen), options.pop("wanted", None), layout=layout, **options)


def rows_in(out: Path, kind: Format, name: str = "messages") -> pa.Table:
    if kind == "delta":
        table = DeltaTable(out / ("data" if name == "messages" else name)).to_pyarrow_table()
    else:
        table = iceberg_table(out, name).scan().to_arrow()
    columns = schema.MESSAGES if name == "messages" else schema.QUARANTINE
    return table.select(columns.names).cast(columns).sort_by([("store", "ascending"), ("phy_offset", "ascending")])


def iceberg_table(out: Path, name: str) -> Any:
    return SqlCatalog("rmqctl", uri=f"sqlite:///{out}/catalog.db").load_table(("rmqctl", name))


def offsets_in(out: Path, kind: Format, name: str = "messages") -> list[int]:
    found: list[int] = rows_in(out, kind, name)["phy_offset"].to_pylist()
    return found


@pytest.fixture
def growing(store_copy: StoreCopy) -> Growing:
    return Growing(store_copy(STORE))


@pytest.mark.product
@pytest.mark.parametrize("partition_by", [None, "topic", "day"])
@pytest.mark.parametrize("kind", FORMATS)
def test_a_table_has_the_rows_of_the_log(golden: GoldenStore, tmp_path: Path, kind: Format, partition_by: Any) -> None:
    out = tmp_path / "out"
    export_to(golden("clean-533"), out, kind, partition_by=partition_by, split_size_bytes=200_000)
    assert found_rows(rows_in(out, kind)) == told_rows("clean-533")
    assert offsets_in(out, kind, "quarantine") == []
    assert not (out / UNFINISHED).exists()


@pytest.mark.parametrize("partition_by", ["topic", "day"])
def test_polars_reads_partitions_of_a_delta_table(golden: GoldenStore, tmp_path: Path, partition_by: Any) -> None:
    """It takes them from the folders' names, and gives null where there is none."""
    out = tmp_path / "out"
    export_to(golden("clean-533"), out, "delta", partition_by=partition_by)
    read = polars.read_delta(str(out / "data"))
    told = DeltaTable(out / "data").to_pyarrow_table()
    names = ["phy_offset", partition_by]
    assert read.select(names).sort("phy_offset").rows() == list(
        zip(*(told.sort_by("phy_offset")[name].to_pylist() for name in names), strict=True)
    )
    assert read[partition_by].null_count() == 0


def test_a_partition_too_long_for_a_folders_name_has_none(tmp_path: Path) -> None:
    place = FinalPlace(LocalObjects(tmp_path))
    file, _, path = place.create(f"data/topic={'%25' * 90}/a-00.parquet")
    file.close()
    assert path.startswith("data/a-00-")


def test_a_note_that_is_cut_short_is_not_taken_for_none(golden: GoldenStore, tmp_path: Path) -> None:
    note = tmp_path / "out" / UNFINISHED / "begun.json"
    note.parent.mkdir(parents=True)
    note.write_text('{"plan": "0f3a')
    with pytest.raises(FailedError, match="the note of what was begun here is cut short"):
        export_to(golden(STORE), tmp_path / "out", "delta")
    assert note.read_text() == '{"plan": "0f3a'
    note.unlink()
    assert export_to(golden(STORE), tmp_path / "out", "delta").rows > 0


def test_commits_of_others_since_the_last_one(
    growing: Growing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than are looked at first."""
    monkeypatch.setattr(delta, "_NEWEST", 2)
    out = tmp_path / "out"
    growing.end_at(ENDS[0])
    first = export_to(growing.root, out, "delta", incremental=True)
    for number in range(3):
        DeltaTable(out / "data").alter.set_table_description(f"{number}")
    growing.end_at(ENDS[1])
    second = export_to(growing.root, out, "delta", incremental=True)
    assert second.commit == 2
    assert len(offsets_in(out, "delta")) == first.rows + second.rows


@pytest.mark.parametrize("kind", FORMATS)
def test_damage_is_in_the_quarantine_table(damaged: DamagedStore, tmp_path: Path, kind: Format) -> None:
    root = damaged("load-533", "zero-page-mid")
    report = export_to(root, tmp_path / "out", kind)
    told = [found.phy_offset for found in report.findings]
    assert offsets_in(tmp_path / "out", kind, "quarantine") == told != []


@pytest.mark.parametrize("kind", FORMATS)
def test_commits_add_up(growing: Growing, tmp_path: Path, kind: Format) -> None:
    out = tmp_path / "out"
    for number, end in enumerate([ENDS[3], ENDS[3], ENDS[60], ENDS[-1]]):
        growing.end_at(end)
        report = export_to(growing.root, out, kind, incremental=True)
        assert offsets_in(out, kind) == [offset for offset in OFFSETS if offset < end]
        assert report.commit == (1, 1, 2, 3)[number]
    growing.end_at(ENDS[70])
    with pytest.raises(PlanOutOfDateError):
        export_to(growing.root, out, kind, incremental=True)
    with pytest.raises(UsageError, match="the filter"):
        export_to(growing.root, out, kind, incremental=True, wanted=LogFilter(0))
    with pytest.raises(UsageError, match="a finished export is there"):
        export_to(growing.root, out, kind)
    assert offsets_in(out, kind) == OFFSETS
    export_to(growing.root, out, kind, overwrite=True)
    assert offsets_in(out, kind) == OFFSETS[:71]
    growing.end_at(ENDS[-1])
    export_to(growing.root, out, kind, incremental=True)
    assert offsets_in(out, kind) == OFFSETS


class Killed(BaseException):
    """The process is dead."""


@pytest.fixture
def dying() -> Any:
    """``dying(kind, at)``: exports are dead in front of or behind a table's commit; nothing is tidied up."""

    def prepared(kind: Format, at: str) -> pytest.MonkeyPatch:
        owner: Any = type(destination_of("/nowhere", kind))
        real = owner._add
        when, name = at.split()

        def add(self: Any, table: str, *arguments: Any, **options: Any) -> None:
            if table == name and when == "before":
                raise Killed
            real(self, table, *arguments, **options)
            if table == name:
                raise Killed

        patch = pytest.MonkeyPatch()
        patch.setattr(owner, "_add", add)
        patch.setattr(LooseDestination, "_clear", lambda self: None)
        return patch

    return prepared


@pytest.mark.product
@pytest.mark.parametrize("at", ["before messages", "behind messages", "behind quarantine"])
@pytest.mark.parametrize("incremental", [False, True])
@pytest.mark.parametrize("kind", FORMATS)
def test_killed_in_the_middle_of_a_commit(
    damaged: DamagedStore, tmp_path: Path, kind: Format, at: str, incremental: bool, dying: Any
) -> None:
    """The same command again: all rows, once, in both tables, and told what was met, as whoever was killed could not."""
    root, out = damaged("load-533", "zero-page-mid"), tmp_path / "out"
    patch = dying(kind, at)
    with pytest.raises(Killed):
        export_to(root, out, kind, incremental=incremental)
    patch.undo()
    report = export_to(root, out, kind, incremental=incremental)
    whole = export_to(root, tmp_path / "whole", kind)
    assert offsets_in(out, kind) == offsets_in(tmp_path / "whole", kind)
    assert offsets_in(out, kind, "quarantine") == offsets_in(tmp_path / "whole", kind, "quarantine") != []
    assert Counter(found.code for found in report.findings) == Counter(found.code for found in whole.findings)
    if at == "before messages":
        assert report.rows == whole.rows
        assert report.taken > 20
    assert not (out / UNFINISHED).exists()


@pytest.mark.product(3)
@pytest.mark.parametrize(
    ("kind", "at"),
    [
        ("delta", "DeltaDestination.commit"),
        ("delta", "DeltaDestination._add"),
        ("iceberg", "IcebergDestination.commit"),
        ("iceberg", "IcebergDestination._add"),
        ("iceberg", "SqlCatalog.commit_table"),
    ],
)
def test_two_at_once_commit_once(
    growing: Growing, tmp_path: Path, kind: Format, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the lock that a local folder has: as in an object store."""
    out = tmp_path / "out"
    growing.end_at(ENDS[9])
    export_to(growing.root, out, kind, incremental=True)
    growing.end_at(ENDS[-1])
    monkeypatch.setattr(LooseDestination, "_take_lock", lambda self: None)
    name, method = at.split(".")
    owner: Any = SqlCatalog if name == "SqlCatalog" else type(destination_of(out, kind))
    real = getattr(owner, method)
    calls: list[int] = []

    def with_a_rival(self: Any, *arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            export_to(growing.root, out, kind, incremental=True, split_size_bytes=17_000)
        return real(self, *arguments, **options)

    monkeypatch.setattr(owner, method, with_a_rival)
    with pytest.raises(StoreInUseError, match="run the command again"):
        export_to(growing.root, out, kind, incremental=True)
    assert offsets_in(out, kind) == OFFSETS
    assert export_to(growing.root, out, kind, incremental=True).rows == 0
    assert offsets_in(out, kind) == OFFSETS


@pytest.mark.product(kind=("delta",))
@pytest.mark.parametrize(
    ("kind", "methods", "points"),
    [
        # It writes with code that is not Python's: no call to be killed at, so some time behind the one that there is.
        ("delta", {"deltalake:DeltaTable": "create_write_transaction"}, [0.0001 * 1.6**n for n in range(13)]),
        (
            "iceberg",
            {
                "pyiceberg.io.pyarrow:PyArrowFile": "create open",
                "pyiceberg.catalog.sql:SqlCatalog": "commit_table",
                "sqlalchemy.orm:Session": "execute commit",
            },
            range(0, 40, 3),
        ),
    ],
)
def test_killed_within_a_librarys_own_commit(
    store_copy: StoreCopy, tmp_path: Path, kind: Format, methods: dict[str, str], points: Sequence[int | float]
) -> None:
    """The same command again: all rows, once, in both tables; and each commit adds damage, which is for the second."""
    root, out = store_copy(STORE), tmp_path / "out"
    store = Damageable(root, stores.truth(STORE))
    lost = range(3, len(OFFSETS), 5)
    for record in lost:
        store.set_field(record, "magic", 7)
    growing = Growing(root)
    growing.end_at(ENDS[1])
    words = ["export", str(out), "--format", kind, "--incremental", "-s", f"a={root}", "--jobs", "1", "-q"]
    assert call(*words).code == exit_codes.OK
    killed = 0
    for number, point in enumerate(points, 1):
        growing.end_at(ENDS[5 * number + 1])
        killed += run_killed(point, methods, *words).code < 0
        assert call(*words).code in (exit_codes.OK, exit_codes.FINDINGS)  # OK where it was killed behind all of it
        there = range(5 * number + 2)
        assert offsets_in(out, kind) == [OFFSETS[record] for record in there if record not in lost]
        assert offsets_in(out, kind, "quarantine") == [OFFSETS[record] for record in there if record in lost]
    assert killed > len(points) // 2
    assert not (out / UNFINISHED).exists()


@pytest.mark.parametrize("kind", FORMATS)
def test_what_replaces_an_export_and_is_killed_between_its_tables(
    damaged: DamagedStore, tmp_path: Path, kind: Format, dying: Any
) -> None:
    """Whoever adds to it next ends it first: of the quarantine before nothing stays."""
    out = tmp_path / "out"
    export_to(damaged("load-533", "zero-page-mid"), out, kind)
    before = offsets_in(out, kind, "quarantine")
    root = damaged("load-533", "size-huge-mid")
    patch = dying(kind, "behind messages")
    with pytest.raises(Killed):
        export_to(root, out, kind, overwrite=True)
    patch.undo()
    export_to(root, out, kind, incremental=True)
    export_to(root, tmp_path / "whole", kind)
    assert offsets_in(out, kind) == offsets_in(tmp_path / "whole", kind)
    assert before != offsets_in(out, kind, "quarantine") == offsets_in(tmp_path / "whole", kind, "quarantine") != []


@pytest.mark.parametrize("kind", FORMATS)
def test_killed_between_its_tables_and_a_rival_began_behind_it(
    damaged: DamagedStore, tmp_path: Path, kind: Format, dying: Any
) -> None:
    """In an object store, where no lock is, the rival's begin stands in place of its own: it is ended all the same, and refused."""
    root, out = damaged("load-533", "zero-page-mid"), tmp_path / "out"
    patch = dying(kind, "behind messages")
    with pytest.raises(Killed):
        export_to(root, out, kind)
    patch.undo()
    [begun] = out.rglob("begun.json")
    begun.write_bytes(Begun("the rival's", 0).as_bytes())
    with pytest.raises(UsageError, match="a finished export is there"):
        export_to(root, out, kind)
    export_to(root, tmp_path / "whole", kind)
    assert offsets_in(out, kind, "quarantine") == offsets_in(tmp_path / "whole", kind, "quarantine") != []


@pytest.mark.parametrize("kind", FORMATS)
def test_what_a_first_export_is_told_that_another_one_overtook(
    growing: Growing, tmp_path: Path, kind: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command could only be refused."""
    out = tmp_path / "out"
    owner = type(destination_of(out, kind))
    real, calls = owner.commit, list[int]()

    def with_a_rival(self: Any, *arguments: Any) -> None:
        calls.append(1)
        if len(calls) == 1:
            export_to(growing.root, out, kind)
        real(self, *arguments)

    monkeypatch.setattr(LooseDestination, "_take_lock", lambda self: None)
    monkeypatch.setattr(owner, "commit", with_a_rival)
    with pytest.raises(StoreInUseError, match="add to it with --incremental"):
        export_to(growing.root, out, kind, split_size_bytes=90_000)


@pytest.mark.parametrize("partition_by", [None, "day"])
@pytest.mark.parametrize("kind", FORMATS)
def test_times_that_nobody_has_dates_for(
    store_copy: StoreCopy, tmp_path: Path, kind: Format, partition_by: str | None
) -> None:
    store = Damageable(store_copy("load-533"), stores.truth("load-533"))
    store.set_field(5, "born_timestamp_ms", schema.LARGEST_TIME_MS + 1)
    store.set_field(9, "store_timestamp_ms", schema.LEAST_TIME_MS - 1)
    store.set_field(11, "store_timestamp_ms", -(1 << 63))
    store.set_field(12, "store_timestamp_ms", schema.LEAST_TIME_MS)
    store.set_field(14, "born_timestamp_ms", schema.LARGEST_TIME_MS)
    export_to(store.root, tmp_path / "out", kind, partition_by=partition_by)
    assert offsets_in(tmp_path / "out", kind) == [message["phyOffset"] for message in store.truth["messages"]]


def test_an_empty_topic_may_be_a_partition_of_a_delta_table() -> None:
    """The format has null for it."""
    assert not schema.MESSAGES.field("topic").nullable
    assert _columns(schema.MESSAGES, ["topic"]).to_arrow().field("topic").nullable


@pytest.mark.parametrize("kind", ["parquet", *FORMATS])
def test_tasks_may_run_in_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Format) -> None:
    monkeypatch.chdir(tmp_path)
    place = destination_of("relative/out", kind).place
    monkeypatch.chdir("/")
    (tmp_path / "relative" / "out" / UNFINISHED).mkdir(parents=True)
    file, _, _ = place.create("data/x.parquet")
    file.close()
    assert len(list((tmp_path / "relative").rglob("*.parquet"))) == 1


@pytest.mark.parametrize("where", ["folder", "object store"])
def test_delta_lets_one_of_two_commits_in(
    growing: Growing, tmp_path: Path, object_store: ObjectStore, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have seen the same table; the second one comes to write its log's entry when it is there already."""
    out = str(tmp_path / "out") if where == "folder" else "s3://stores/two-at-once/out"
    growing.end_at(ENDS[9])
    export_to(growing.root, out, "delta", incremental=True)
    growing.end_at(ENDS[-1])
    monkeypatch.setattr(LooseDestination, "_take_lock", lambda self: None)
    real = DeltaTable.create_write_transaction
    calls: list[int] = []

    def late(self: DeltaTable, *arguments: Any, **options: Any) -> None:
        calls.append(1)
        if len(calls) == 1:
            export_to(growing.root, out, "delta", incremental=True, split_size_bytes=1 << 30)
        real(self, *arguments, **options)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", late)
    with pytest.raises(StoreInUseError, match="run the command again"):
        export_to(growing.root, out, "delta", incremental=True)
    assert export_to(growing.root, out, "delta", incremental=True).rows == 0
    options = {"AWS_ENDPOINT_URL": object_store.environment["AWS_ENDPOINT_URL"], "AWS_ALLOW_HTTP": "true"}
    table = DeltaTable(f"{out}/data", storage_options=options if where != "folder" else None).to_pyarrow_table()
    assert sorted(table["phy_offset"].to_pylist()) == OFFSETS


LOOKING = """
import os, signal, threading
from store_core.export.dest.delta import DeltaDestination
from store_core.storage.remote_path import path_of

def end(*_):
    os.write(1, b"interrupted")
    os._exit(0)

signal.signal(signal.SIGINT, end)
DeltaDestination(path_of("s3://stores/out"))._table("messages")
"""


def test_a_signal_does_not_wait_for_the_delta_library() -> None:
    """It waits three minutes for a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        silent = ObjectStore("s3", server.getsockname()[1])
        process = subprocess.Popen(
            [sys.executable, "-c", LOOKING], cwd=ROOT, env=environment(**silent.environment), stdout=subprocess.PIPE
        )
        try:
            server.settimeout(60)
            with server.accept()[0] as connection:
                assert connection.recv(1), "nothing is asked"
                process.send_signal(signal.SIGINT)
                out, _ = process.communicate(timeout=20)
        finally:
            process.kill()
            process.wait()
    assert (process.returncode, out) == (0, b"interrupted")
