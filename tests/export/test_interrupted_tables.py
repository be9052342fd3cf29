"""An export of tables that is interrupted or killed is ended by the same command, as one of messages is."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, Final

import pytest

from rmqctl import signals
from rmqctl.app import main
from store_core.export import tables_export
from store_core.export.dest.address import Format, destination_of
from store_core.export.dest.object_dest import LooseDestination
from store_core.export.runners import local
from store_core.export.runners.local import LocalRunner
from store_core.export.tables_export import TablesReport, What, export_tables, table_set
from store_core.storage.publish import MANIFEST, UNFINISHED
from store_core.storage.settings import load_settings
from store_core.storage.store import Store
from tests.conftest import GoldenStore, StoreCopy
from tests.export.exports import files_of, manifest_of
from tests.export.killing import run_killed

NAME = "load-533"
TABLES: Final[tuple[What, ...]] = ("queues", "index", "stats")
SPLIT_SIZES: Final = {"queues": 4000, "index": 1, "stats": 100_000}
CHANGES: Final = {"store_core.storage.syscalls:FileOps": "create rename unlink mkdir sync_file sync_folder rmdir"}


def words_of(root: Path, out: Path, what: What, jobs: int = 1) -> list[str]:
    words = ["export", out, "--what", what, "-s", f"a={root}", "--jobs", jobs, "-o", "json"]
    return list(map(str, [*words, "--split-size", max(SPLIT_SIZES[what], 256)]))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), signals.Terminated(15)], ids=["Ctrl-C", "SIGTERM"])
@pytest.mark.parametrize("what", TABLES)
def test_what_is_done_is_kept(
    what: What,
    error: BaseException,
    golden: GoldenStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(words_of(golden(NAME), tmp_path / "whole", what)) == 0
    words = words_of(golden(NAME), tmp_path / "out", what)

    def interrupted(*_: object) -> object:
        """All files are written, none is published."""
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(tables_export, "_told", interrupted)
        assert main(words) in (130, 143)
    assert "finished splits are kept: run the same command to go on" in capfd.readouterr().err
    assert not (tmp_path / "out" / MANIFEST).exists()
    with monkeypatch.context() as patch:
        patch.setattr("store_core.export.splits.count_task.run_work", interrupted)
        patch.setattr("store_core.export.tables.tasks.TableTask.run", interrupted)
        assert main(words) == 0  # no task is done again
    assert "splits had been done before" in capfd.readouterr().err
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")
    assert not (tmp_path / "out" / UNFINISHED).exists()


@pytest.mark.parametrize(
    ("format", "behind"),
    [
        ("delta", f"{LooseDestination.__module__}.LooseDestination.tidy"),
        ("parquet", "store_core.storage.publish.ResultFolder._clear"),
    ],
)
def test_a_result_that_is_published_is_called_so(
    format: Format,
    behind: str,
    golden: GoldenStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Interrupted behind its commit, while what is left of the work is removed."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    words = ["export", str(tmp_path / "out"), "-s", f"a={golden(NAME)}", "--format", format]
    with monkeypatch.context() as patch:
        patch.setattr(behind, interrupted)
        assert main(words) == 130
    assert "the export is published: run the same command" in capfd.readouterr().err
    assert main(words) == 0
    assert not (tmp_path / "out" / UNFINISHED).exists()


def test_a_command_ends_behind_its_workers(golden: GoldenStore, tmp_path: Path) -> None:
    """Else Python, as it ends, now and then complains of a pool that is just being closed."""
    assert main(words_of(golden(NAME), tmp_path / "out", "queues", 2)) == 0
    assert local._LEAVING == []


@pytest.mark.product(1)
@pytest.mark.parametrize(("what", "jobs"), [("queues", 2), ("index", 1), ("stats", 1)])
def test_a_real_process_killed_again_and_again(golden: GoldenStore, tmp_path: Path, what: What, jobs: int) -> None:
    """Killed ever later, each run going on where the last one was: it comes to an end."""
    assert main(words_of(golden(NAME), tmp_path / "whole", what)) == 0
    out = tmp_path / "out"
    for step in range(30):
        done = run_killed(9 + 11 * step, CHANGES, *words_of(golden(NAME), out, what, jobs))
        if done.code != -signal.SIGKILL:
            break
        if (out / MANIFEST).exists():
            assert files_of(out) == files_of(tmp_path / "whole")
    if "a finished export is there" not in done.err:  # killed as it left, all done
        assert (done.code, done.err.count("Traceback")) == (0, 0), done.err
    assert step > 0
    assert files_of(out) == files_of(tmp_path / "whole")


@pytest.mark.parametrize("what", TABLES)
def test_of_a_changed_store_nothing_is_taken(
    store_copy: StoreCopy, tmp_path: Path, what: What, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = store_copy(NAME)

    def interrupted(*_: object) -> object:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(tables_export, "_told", interrupted)
        assert main(words_of(root, tmp_path / "out", what)) == 130
    assert list((tmp_path / "out" / UNFINISHED).glob("*.note"))
    for path in [*root.rglob("0*"), *(root / "index").iterdir()]:
        if path.is_file():
            os.utime(path)
    assert main(words_of(root, tmp_path / "out", what)) == 0
    assert main(words_of(root, tmp_path / "anew", what)) == 0
    assert files_of(tmp_path / "out") == files_of(tmp_path / "anew")


def test_progress_that_moved_is_told(store_copy: StoreCopy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finished export of an earlier state of the groups is none of this one, though the log is the same."""
    root, out = store_copy(NAME), tmp_path / "out"
    assert main(words_of(root, out, "stats")) == 0
    config = root / "config" / "consumerOffset.json"
    config.write_text(config.read_text().replace(":1,", ":2,"))

    def killed(*_: object, **__: object) -> object:
        raise KeyboardInterrupt

    before = manifest_of(out)
    words = [*words_of(root, out, "stats"), "--overwrite"]
    with monkeypatch.context() as patch:
        patch.setattr(tables_export, "write_table", killed)
        assert main(words) == 130
    assert manifest_of(out) == before
    assert main(words) == 0
    assert main(words_of(root, tmp_path / "anew", "stats")) == 0
    assert files_of(out) == files_of(tmp_path / "anew")


@pytest.mark.product
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("format", ["delta", "iceberg"])
@pytest.mark.parametrize("what", TABLES)
def test_killed_behind_the_commit_of_a_lake(
    golden: GoldenStore, tmp_path: Path, what: What, format: Format, overwrite: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command finds its own commit, and adds nothing once more."""
    root, out = golden(NAME), tmp_path / "out"

    def export() -> TablesReport:
        destination = destination_of(str(out), format, tables=table_set(what), overwrite=overwrite)
        with Store.open(root, load_settings(None, root)) as store:
            return export_tables([("a", store)], destination, what, LocalRunner(), split_size_bytes=100_000)

    if overwrite:
        export()
    real = LooseDestination.publish

    def publish(self: Any, *arguments: Any) -> None:
        real(self, *arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LooseDestination, "publish", publish)
        patch.setattr(LooseDestination, "_clear", lambda self: None)
        with pytest.raises(KeyboardInterrupt):
            export()
    expected = rows_in(out, format, what)
    report = export()
    assert report.taken > 0
    assert rows_in(out, format, what) == expected == report.rows
    assert not (out / UNFINISHED).exists()


def rows_in(out: Path, format: Format, what: What) -> int:
    """Rows of all tables, by their own libraries."""
    names = table_set(what).folders
    if format == "delta":
        from deltalake import DeltaTable

        return sum(len(DeltaTable(str(out / name)).to_pyarrow_table()) for name in names)
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("rmqctl", uri=f"sqlite:///{out}/catalog.db")
    return sum(len(catalog.load_table(f"rmqctl.{name}").scan().to_arrow()) for name in names)


def test_a_note_is_of_one_kind() -> None:
    """What a note holds goes through the same gate as those of messages."""
    from store_core.export.splits.count_task import SurveyPiece
    from store_core.export.splits.notes import note_of, piece_of
    from store_core.export.tables.tasks import TablePiece

    piece = TablePiece(1, [], [])
    note = note_of(piece)
    assert piece_of(note, TablePiece) == piece
    assert piece_of(note, SurveyPiece) is None
