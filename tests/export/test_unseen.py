"""Machines that do not see the same: a task that lacks the log's disk, finds another store there, or writes to a disk of its own.

No row may be missing or foreign in what is published, and the same command is right once the machines are.
"""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

import pyspark_rmqctl
from store_core.errors import FailedError
from store_core.export.dest.address import Format
from store_core.export.runners import spark_job
from store_core.export.runners.local import LocalRunner
from store_core.export.runners.runner import OnPiece, Walked
from store_core.export.source.options import parse_options
from store_core.export.source.planning import batch_readings
from store_core.export.source.reading import read_messages, read_ranges
from store_core.export.statistics import verify_stores
from store_core.export.tables_export import What, export_tables
from store_core.storage.store import Store
from tests import stores
from tests.conftest import GoldenStore, StoreCopy
from tests.damage import Damageable
from tests.export.exports import export_one, files_of, table_of
from tests.export.test_lakes import export_to, offsets_in

There = Callable[[Path], None]


class OtherMachine:
    """A runner whose second task, of several, is done where something is otherwise: ``there`` is done to a copy of the store that lies
    in its place meanwhile."""

    def __init__(self, root: Path, there: There) -> None:
        self._root, self._there = root, there

    def run(self, tasks: Sequence[Any], on_walked: Walked, on_piece: OnPiece[Any] | None = None) -> list[Any]:
        pieces = []
        for number, task in enumerate(tasks):
            if number == 1:
                with elsewhere(self._root, self._there):
                    pieces.append(task.run())
            else:
                pieces.append(task.run())
            if on_piece is not None:
                on_piece(number, pieces[-1])
        return pieces


@contextmanager
def elsewhere(root: Path, there: There) -> Iterator[None]:
    away = root.with_name(f"{root.name}-away")
    root.rename(away)
    try:
        shutil.copytree(away, root, copy_function=shutil.copy2)
        there(root)
        yield
    finally:
        shutil.rmtree(root)
        away.rename(root)


def without_the_log(root: Path) -> None:
    shutil.rmtree(root / "commitlog")


def with_an_empty_log(root: Path) -> None:
    without_the_log(root)
    (root / "commitlog").mkdir()


def with_half_the_log(root: Path) -> None:
    for path in sorted((root / "commitlog").iterdir())[1:]:
        path.unlink()


def with_short_files(root: Path) -> None:
    for path in (root / "commitlog").iterdir():
        os.truncate(path, 1000)


def with_another_log(golden: GoldenStore) -> There:
    def there(root: Path) -> None:
        without_the_log(root)
        shutil.copytree(golden("load-497") / "commitlog", root / "commitlog")

    return there


LACKING = [without_the_log, with_an_empty_log, with_half_the_log, with_short_files]


@pytest.fixture
def store(damageable: Callable[..., Damageable]) -> Path:
    return damageable("load-533").root


@pytest.mark.parametrize("there", LACKING)
def test_what_a_task_did_not_see_is_no_hole(there: There, store: Path, tmp_path: Path) -> None:
    out, split_size = tmp_path / "out", 131_072
    with pytest.raises(FailedError, match="a task did not see a file of the log"):
        export_one(store, out, runner=OtherMachine(store, there), split_size_bytes=split_size)
    assert not (out / "manifest.json").exists()
    assert export_one(store, out, split_size_bytes=split_size).taken in (
        1,
        7,
    )  # of eight: what was done before the failure, or all else
    export_one(store, tmp_path / "whole", split_size_bytes=split_size)
    assert files_of(out) == files_of(tmp_path / "whole")


def test_a_task_of_another_log_fails(golden: GoldenStore, store: Path, tmp_path: Path) -> None:
    there = with_another_log(golden)
    with pytest.raises(FailedError, match="is not the one that was planned"):
        export_one(store, tmp_path / "out", runner=OtherMachine(store, there), split_size_bytes=131_072)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_survey_does_not_count_less(store: Path) -> None:
    with Store.open(store) as opened, pytest.raises(FailedError, match="a task did not see"):
        verify_stores([("a", opened)], OtherMachine(store, with_half_the_log), split_size_bytes=131_072)


@pytest.mark.parametrize("table", ["messages", "quarantine"])
def test_the_source_reads_no_other_log(table: str, golden: GoldenStore, store: Path) -> None:
    parsed = parse_options({"path": f"a={store}", "table": table})
    readings = pickle.loads(pickle.dumps(batch_readings(parsed)))
    read = read_messages if table == "messages" else read_ranges
    with (
        elsewhere(store, with_another_log(golden)),
        pytest.raises(FailedError, match="is not the one that was planned"),
    ):
        list(read(readings[0]))
    rows = sum(len(batch) for reading in readings for batch in read(reading))
    assert rows == (0 if table == "quarantine" else len(stores.truth("load-533")["messages"]))


def without_queues(root: Path) -> None:
    shutil.rmtree(root / "consumequeue")


def without_the_index(root: Path) -> None:
    shutil.rmtree(root / "index")


@pytest.mark.parametrize(("what", "there"), [("queues", without_queues), ("index", without_the_index)])
def test_derived_files_that_a_task_did_not_see(what: What, there: There, store: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with Store.open(store) as opened:
        for name in ("20261121021838000", "20261121021839000"):  # the second task is the one elsewhere
            shutil.copy2(opened.index_files[0], store / "index" / name)
    runner = OtherMachine(store, there)
    with Store.open(store) as opened, pytest.raises(FailedError, match="a task did not see a queue or an index file"):
        export_tables([("a", opened)], out, what, runner, split_size_bytes=2_000)
    assert not (out / "manifest.json").exists()
    with Store.open(store) as opened:
        report = export_tables([("a", opened)], out, what, LocalRunner(), split_size_bytes=2_000)
    assert sum(pq.read_metadata(path).num_rows for path in (out / what).iterdir()) == report.rows > 0


def test_an_index_file_that_is_removed_meanwhile_is_none(store_copy: StoreCopy, tmp_path: Path) -> None:
    """Of a store whose queues are in RocksDB, too."""
    root = store_copy("rocks-533")

    class Removing(LocalRunner):
        def run(self, tasks: Sequence[Any], on_walked: Walked, on_piece: OnPiece[Any] | None = None) -> list[Any]:
            next((root / "index").iterdir()).unlink()
            return super().run(tasks, on_walked, on_piece)

    with Store.open(root) as opened:
        assert opened.index_files
        report = export_tables([("a", opened)], tmp_path / "out", "index", Removing())
    assert report.rows == 0


class OwnDisk(LocalRunner):
    """One task has written to a disk that nobody else sees."""

    def __init__(self, out: Path) -> None:
        super().__init__()
        self._out = out

    def run(self, tasks: Sequence[Any], on_walked: Walked, on_piece: OnPiece[Any] | None = None) -> list[Any]:
        pieces = super().run(tasks, on_walked, on_piece)
        for part in pieces[1].parts:
            [path] = [path for path in self._out.rglob("*.parquet") if path.name == Path(part.staged).name]
            path.unlink()
        return pieces


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_no_commit_names_a_file_that_is_not_there(kind: Format, store: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(FailedError, match="a file that a task has written is not there"):
        export_to(store, out, kind, runner=OwnDisk(out))
    report = export_to(store, out, kind)
    assert report.taken > 0
    rows = table_of(out)["phy_offset"].to_pylist() if kind == "parquet" else offsets_in(out, kind)
    assert len(set(rows)) == len(rows) == report.rows > 2000


def test_a_loser_that_goes_on_is_told_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(spark_job, "_PATIENCE_SECONDS", 0)

    class Counts:
        """One task at work, whenever Scala is asked."""

        def __init__(self) -> None:
            self._left = 1

        def hasNext(self) -> bool:  # as Scala calls it
            return self._left > 0

        def next(self) -> int:
            self._left -= 1
            return 1

    scheduler = SimpleNamespace(runningTasksByExecutors=lambda: SimpleNamespace(valuesIterator=Counts))
    context = SimpleNamespace(
        getConf=lambda: SimpleNamespace(get=lambda key, otherwise: "true"),
        _jsc=SimpleNamespace(sc=lambda: SimpleNamespace(taskScheduler=lambda: scheduler)),
    )
    job = spark_job.Job(context, tmp_path)
    job._wait_for_losers()
    [note] = job._notes
    assert "still at work" in note


@pytest.mark.parametrize("what", ["sources", "environment"])
def test_packing_to_where_nothing_can_be_written(what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert pyspark_rmqctl.main([what, str(tmp_path / "file" / "packed")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
