"""Index files built from the log alone are, byte for byte, the ones real brokers wrote."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from store_core.derive.index import IndexBuilder, IndexFileResult, IndexStyle, index_file_name, index_names, index_style
from store_core.kernel.derive import chain_entries
from store_core.layout import index
from store_core.read.index_sizes import index_sizes
from store_core.scan.log import ScanOptions, scan_log
from store_core.storage.store import Store
from tests import stores
from tests.conftest import GoldenStore, StoreCopy

SLOTS, ENTRIES = 500, 2000


def built(
    store: Store,
    folder: Path,
    style: IndexStyle,
    *,
    window_size_bytes: int = 60_000,
    names: Sequence[str] | Mapping[int, str] = (),
) -> tuple[IndexBuilder, list[IndexFileResult]]:
    builder = IndexBuilder(folder, SLOTS, ENTRIES, names, counts_every_put=style.counts_every_put)
    options = ScanOptions(index_keys=True, index_tags=style.tags, window_size_bytes=window_size_bytes)
    for table in scan_log(store, options=options):
        builder.add(table)
    return builder, builder.finish()


@pytest.mark.parametrize("name", stores.GOLDEN)
def test_index_files_are_the_brokers(golden: GoldenStore, tmp_path: Path, name: str) -> None:
    with Store.open(golden(name)) as store:
        style = index_style(store, SLOTS, ENTRIES)
        builder, files = built(store, tmp_path, style, names=tuple(p.name for p in store.index_files))
        assert {file.name: b"".join(file.read()) for file in files} == {
            path.name: path.read_bytes() for path in store.index_files
        }
        builder.close()
    assert style == IndexStyle(tags=stores.truth(name)["written_by"] >= "5.4", counts_every_put=name == "clean-430")


@pytest.mark.parametrize("window_size_bytes", [8_000, 300_000])
def test_windows_make_no_difference(golden: GoldenStore, tmp_path: Path, window_size_bytes: int) -> None:
    with Store.open(golden("load-533")) as store:
        names = tuple(path.name for path in store.index_files)
        builder, files = built(store, tmp_path, IndexStyle(), window_size_bytes=window_size_bytes, names=names)
        assert [b"".join(f.read()) for f in files] == [path.read_bytes() for path in store.index_files]
        builder.close()


def test_a_file_keeps_the_name_it_had_although_one_in_front_is_gone(store_copy: StoreCopy, tmp_path: Path) -> None:
    root = store_copy("load-533")
    first, second, third = sorted(path.name for path in (root / "index").iterdir())
    (root / "index" / first).unlink()
    with Store.open(root) as store:
        builder, files = built(store, tmp_path, IndexStyle(), names=index_names(store))
        builder.close()
    assert [file.name for file in files][1:] == [second, third]
    assert re.fullmatch(r"\d{17}", files[0].name)
    assert files[0].name < second


def test_a_name_that_no_broker_gives_is_not_kept(golden: GoldenStore, tmp_path: Path) -> None:
    with Store.open(golden("load-533")) as store:
        builder, files = built(store, tmp_path, IndexStyle(), names=("99999999999999999999", "x"))
        builder.close()
    assert [len(file.name) for file in files] == [17, 17, 17]
    assert sorted(file.name for file in files) == [file.name for file in files]


def test_full_files_and_their_times(golden: GoldenStore, tmp_path: Path) -> None:
    truth = stores.truth("load-533")["afterLoad"]["indexFiles"]
    with Store.open(golden("load-533")) as store:
        builder, files = built(store, tmp_path, IndexStyle())
        builder.close()
    assert [(f.header.end_timestamp_ms, f.header.index_count) for f in files] == [
        (header["endTimestamp"], header["indexCount"]) for header in truth
    ]
    assert [f.is_full for f in files] == [True, True, False]
    assert all(re.fullmatch(r"\d{17}", f.name) for f in files)
    assert len({f.name for f in files}) == len(files)


def test_a_file_name_is_local_time_to_the_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "Asia/Shanghai")
    time.tzset()
    try:
        assert index_file_name(1_700_000_000_007) == "20231115061320007"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_chains_across_windows_hang_on_their_slots() -> None:
    table = np.zeros(4, np.int32)
    previous, new = chain_entries(table, np.array([1, 2, 1, 1]), 1)
    assert (previous.tolist(), new, table.tolist()) == ([0, 0, 1, 3], 2, [0, 4, 2, 0])
    previous, new = chain_entries(table, np.array([2, 3, 1]), 5)
    assert (previous.tolist(), new, table.tolist()) == ([2, 0, 4], 1, [0, 7, 5, 6])


def test_no_messages_make_no_file(tmp_path: Path) -> None:
    builder = IndexBuilder(tmp_path, SLOTS, ENTRIES)
    assert builder.finish() == []
    assert builder.file_size_bytes == index.file_size_bytes(SLOTS, ENTRIES)
    builder.close()


def test_tags_are_indexed_from_the_first_on(golden: GoldenStore) -> None:
    with Store.open(golden("clean-540")) as store:
        sizes = index_sizes(store).sizes
        assert sizes
        style = index_style(store, sizes.slots, sizes.entries)
    assert (style.tags, style.tags_from_phy_offset) == (True, 0)
