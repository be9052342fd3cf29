"""What stands in the way of a Delta or Iceberg table, and what is refused before anything is read."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog

from store_core.errors import FailedError, UsageError
from store_core.export.dest.address import Format, destination_of
from store_core.export.dest.layout import Layout
from store_core.export.export import export_stores
from store_core.export.runners.local import LocalRunner
from store_core.storage.settings import load_settings
from store_core.storage.store import Store
from tests.conftest import GoldenStore
from tests.export.test_incremental import OFFSETS, STORE
from tests.export.test_lakes import FORMATS, export_to, offsets_in


@pytest.mark.parametrize("kind", FORMATS)
def test_what_stands_in_the_way(golden: GoldenStore, tmp_path: Path, kind: Format) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "mine.txt").write_text("precious")
    (foreign / "manifest.json").write_text("{}")
    with pytest.raises(UsageError, match="not empty"):
        export_to(golden(STORE), foreign, kind)
    assert sorted(path.name for path in foreign.iterdir()) == ["manifest.json", "mine.txt"]
    (tmp_path / "other" / "data").mkdir(parents=True)
    (tmp_path / "other" / "data" / "mine.parquet").write_text("precious")
    with pytest.raises(UsageError, match="not empty"):
        export_to(golden(STORE), tmp_path / "other", kind, overwrite=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"a file is there .*: name a folder"):
        export_to(golden(STORE), tmp_path / "file", kind)


@pytest.mark.parametrize("options", [{}, {"overwrite": True}, {"incremental": True}])
def test_an_iceberg_table_whose_catalog_is_lost_is_not_begun_anew(
    golden: GoldenStore, tmp_path: Path, options: dict[str, bool]
) -> None:
    out = tmp_path / "out"
    export_to(golden(STORE), out, "iceberg")
    kept = (out / "catalog.db").rename(tmp_path / "kept.db")
    for catalog in (None, f"sqlite:///{tmp_path}/mistyped.db"):
        with pytest.raises(
            UsageError, match=r"a table is there that the catalog does not know.*: bring catalog.db back"
        ):
            export_to(golden(STORE), out, "iceberg", catalog=catalog, **options)
    kept.rename(out / "catalog.db")
    assert offsets_in(out, "iceberg") == OFFSETS
    export_to(golden(STORE), out, "iceberg", incremental=True)


@pytest.mark.parametrize("options", [{}, {"overwrite": True}, {"incremental": True}])
def test_a_folder_is_of_one_format_and_a_catalog_of_one_folder(
    golden: GoldenStore, tmp_path: Path, options: dict[str, bool]
) -> None:
    """Who cleans a Delta table up takes all for left over that is not its own."""
    export_to(golden(STORE), tmp_path / "delta", "delta")
    for other in ("iceberg", "parquet"):
        with pytest.raises(UsageError, match=r"an export of format delta is there .*: give --format delta"):
            export_to(golden(STORE), tmp_path / "delta", cast("Format", other), **options)
    catalog = f"sqlite:///{tmp_path}/catalog.db"
    export_to(golden(STORE), tmp_path / "here", "iceberg", catalog=catalog)
    with pytest.raises(
        UsageError, match=f"those of an export to {tmp_path}/here .*: export to there, or name another catalog"
    ):
        export_to(golden(STORE), tmp_path / "there", "iceberg", catalog=catalog, **options)
    assert offsets_in(tmp_path / "delta", "delta") == OFFSETS
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "mine.txt").write_text("precious")
    with pytest.raises(UsageError, match="not empty"):
        export_to(golden(STORE), foreign, "iceberg", catalog=f"sqlite:///{tmp_path}/new.db", **options)
    assert [path.name for path in foreign.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("options", [{}, {"overwrite": True}, {"incremental": True}])
def test_a_delta_table_of_others_stays(golden: GoldenStore, tmp_path: Path, options: dict[str, bool]) -> None:
    write_deltalake(str(tmp_path / "data"), pa.table({"mine": ["precious"]}))
    with pytest.raises(UsageError, match="a table that is none of an export is there"):
        export_to(golden(STORE), tmp_path, "delta", **options)
    assert DeltaTable(str(tmp_path / "data")).to_pyarrow_table().to_pylist() == [{"mine": "precious"}]


@pytest.mark.parametrize("is_filled", [True, False])
@pytest.mark.parametrize("name", ["messages", "quarantine"])
@pytest.mark.parametrize("options", [{}, {"overwrite": True}, {"incremental": True}])
def test_an_iceberg_table_of_others_stays(
    golden: GoldenStore, tmp_path: Path, name: str, is_filled: bool, options: dict[str, bool]
) -> None:
    uri = f"sqlite:///{tmp_path}/catalog.db"
    catalog = SqlCatalog("rmqctl", uri=uri, warehouse=str(tmp_path / "warehouse"))
    catalog.create_namespace("rmqctl")
    mine = pa.table({"mine": ["precious"]})
    catalog.create_table(f"rmqctl.{name}", mine.schema)
    if is_filled:
        catalog.load_table(f"rmqctl.{name}").append(mine)
    with pytest.raises(UsageError, match=rf"a table that is none of an export is there .*rmqctl\.{name}"):
        export_to(golden(STORE), tmp_path / "out", "iceberg", catalog=uri, **options)
    assert catalog.list_tables("rmqctl") == [("rmqctl", name)]
    assert catalog.load_table(f"rmqctl.{name}").scan().to_arrow().num_rows == is_filled
    assert not (tmp_path / "out").exists() or list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    "address", ["nonsense", "nosuch://host/name", "postgresql://user:secret@host:port/name", "sqlite://"]
)
def test_an_address_of_no_catalog_is_told_before_anything_is_read(tmp_path: Path, address: str) -> None:
    with pytest.raises(
        UsageError, match=r"--catalog is no address of an SQL database|a catalog in memory is gone"
    ) as error:
        destination_of(tmp_path / "out", "iceberg", catalog=address)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(("kind", "module"), [("delta", "deltalake"), ("iceberg", "pyiceberg")])
def test_a_missing_extra_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Format, module: str) -> None:
    from store_core import extras

    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == module else builtins)
    with pytest.raises(FailedError, match=rf"needs the package {module}: run `.* -m pip install .*\[lake\]'`"):
        destination_of(tmp_path / "out", kind)


@pytest.mark.parametrize("kind", ["parquet", *FORMATS])
def test_a_store_whose_files_no_file_system_takes(golden: GoldenStore, tmp_path: Path, kind: Format) -> None:
    root, dest = golden(STORE), destination_of(tmp_path / "out", kind)
    layout = Layout(whole_files=kind == "iceberg")
    with Store.open(root, load_settings(None, root)) as store:
        named = [("x" * 230, store)]
        with pytest.raises(UsageError, match=r"the store's name is too long for a file's .*: give it a shorter one"):
            export_stores(named, dest, LocalRunner(1), layout=layout)


def test_options_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--catalog is for"):
        destination_of(tmp_path, "delta", catalog="sqlite://")
    with pytest.raises(UsageError, match="cannot be a file in an object store"):
        destination_of("s3://bucket/x", "iceberg")
    with pytest.raises(UsageError, match="unknown kind of address"):
        destination_of("ftp://host/x")
    with pytest.raises(UsageError, match="give one of them"):
        destination_of(tmp_path, overwrite=True, incremental=True)
