"""The index against the real IndexService: every key query of every golden store."""

from __future__ import annotations

import errno
import os

import pytest

from store_core.broker.load import entries_per_file
from store_core.codec.tags import index_key_hash, index_text_hash
from store_core.codec.times import END_OF_TIME_MS
from store_core.errors import FailedError
from store_core.layout import index as layout
from store_core.read.index import MAX_ANSWER, Index, IndexFile
from store_core.read.index_sizes import IndexSizes
from store_core.storage.store import Store
from tests import stores
from tests.conftest import GoldenStore, StoreCopy

# The broker was asked after its recovery, which puts records into the index that a killed 5.5 had not.
ASKED = [name for name in stores.GOLDEN if name not in ("crash-551", "crash-551-aged")]


@pytest.mark.parametrize("name", ASKED)
def test_every_query_gives_the_offsets_the_broker_gives(golden: GoldenStore, name: str) -> None:
    truth = stores.truth(name)
    with Store.open(golden(name)) as store, Index(store) as index:
        for asked in truth["keyQueries"]:
            key_hash = index_key_hash(asked["topic"], asked["key"])
            found = index.query(key_hash, asked["max"], asked["begin"], asked["end"])
            assert found == asked["indexPhyOffsets"], asked
        for asked in truth.get("tagQueries", []):
            found = index.query(index_text_hash(f"{asked['topic']}{layout.TAG_MARK}{asked['tag']}"), asked["max"])
            assert sorted(found) == asked["phyOffsets"], asked


def test_a_file_that_went_away_since_it_was_listed(store_copy: StoreCopy) -> None:
    """A broker that starts after a crash removes some."""
    root = store_copy("clean-533")
    with Store.open(root) as store:
        told = entries_per_file(store)
        first, *others = store.index_files
        first.unlink()
        assert entries_per_file(store) == told
        with Index(store) as index:
            assert [file.size_bytes > 0 for file in index.files] == [False, *[True] * len(others)]


@pytest.mark.parametrize("name", [*stores.CLEAN, *stores.BASES, *stores.SPECIAL])
def test_headers(golden: GoldenStore, name: str) -> None:
    with Store.open(golden(name)) as store, Index(store) as index:
        found = [(file.path.name, *file.header) for file in index.files]
    keys = ("file", "beginTimestamp", "endTimestamp", "beginPhyOffset", "endPhyOffset", "hashSlotCount", "indexCount")
    assert found == [tuple(told[key] for key in keys) for told in stores.truth(name)["afterLoad"]["indexFiles"]]


@pytest.mark.parametrize("name", stores.GOLDEN)
def test_sizes_are_proven_by_the_chains(golden: GoldenStore, name: str) -> None:
    properties = stores.truth(name)["properties"]
    with Store.open(golden(name)) as store, Index(store) as index:
        assert index.sizes == IndexSizes(int(properties["maxHashSlotNum"]), int(properties["maxIndexNum"]))


def test_rows_tell_every_key_in_the_order_of_dispatch(golden: GoldenStore) -> None:
    expected = []
    for message in stores.truth("load-533")["messages"]:
        properties = message["properties"]
        keys = [properties["UNIQ_KEY"], *filter(None, properties.get("KEYS", "").split(" "))]
        expected += [(index_key_hash(message["topic"], key), message["phyOffset"]) for key in keys]
    with Store.open(golden("load-533")) as store, Index(store) as index:
        rows = [row for file in index.files for row in file.rows()]
        chained = sorted(row for file in index.files for slot in range(500) for row in file.slot_rows(slot))
    assert [(row.key_hash, row.phy_offset) for row in rows] == expected
    assert chained == sorted(rows)


def test_a_file_cut_short_counts_as_zeros_behind_its_end(store_copy: StoreCopy) -> None:
    root = store_copy("load-533")
    path = sorted((root / "index").iterdir())[0]
    with path.open("r+b") as file:
        file.truncate(layout.entry_at(500, 1000) + 5)
    with Store.open(root) as store, Index(store) as index:
        assert index.sizes == IndexSizes(500, 2000)
        assert len(list(index.files[0].rows())) == 999
        cut_at = index.files[0].entry(999)[1]
        for asked in stores.truth("load-533")["keyQueries"]:
            if (asked["begin"], asked["end"], asked["max"]) != (0, END_OF_TIME_MS, MAX_ANSWER):
                continue
            found = index.query(index_key_hash(asked["topic"], asked["key"]), asked["max"])
            # Chains are read from the newest entry: what hangs behind a lost one is lost too.
            assert found == [o for o in asked["indexPhyOffsets"] if o in found]
            assert set(asked["indexPhyOffsets"]) - set(found) <= {o for o in asked["indexPhyOffsets"] if o < 400_000}
            assert cut_at < 400_000


def test_a_chain_that_runs_in_a_circle_ends(store_copy: StoreCopy) -> None:
    root = store_copy("load-533")
    path = sorted((root / "index").iterdir())[0]
    sizes = IndexSizes(500, 2000)
    file = IndexFile(path, sizes)
    number = next(n for n in range(1, 2000) if file.entry(n)[3] > 0)
    key_hash = file.entry(number)[0]
    file.close()
    with path.open("r+b") as raw:
        for place in range(1, 2000):
            raw.seek(layout.entry_at(500, place) + layout.ENTRY.offset_of("previous"))
            raw.write(layout.ENTRY.field_struct("previous").pack(1999 if place == number else place))
    file = IndexFile(path, sizes)
    assert len(file.select(key_hash, 0, 1 << 62, 64)[1]) <= 1
    assert len(list(file.slot_rows(key_hash % 500))) == 1
    file.close()


def test_a_file_that_is_cut_while_it_is_read_goes_on_in_zeros(store_copy: StoreCopy) -> None:
    path = sorted((store_copy("load-533") / "index").iterdir())[0]
    file = IndexFile(path, IndexSizes(500, 2000))
    assert any(file.entry(1999))
    with path.open("r+b") as raw:
        raw.truncate(layout.entry_at(500, 1000))
    assert file.entry(1999) == (0, 0, 0, 0)
    assert len(list(file.rows())) == file.last_entry


def test_a_disk_that_fails_under_an_index_is_an_error(golden: GoldenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with Store.open(golden("load-533")) as store, Index(store) as index:
        monkeypatch.setattr(os, "pread", fail)
        with pytest.raises(FailedError, match="cannot read"):
            index.query(1, 64)


def test_sizes_that_cannot_be_proven_are_a_finding(store_copy: StoreCopy) -> None:
    root = store_copy("load-533")
    for path in (root / "index").iterdir():
        with path.open("r+b") as file:
            file.seek(layout.slot_at(0))
            file.write(bytes(500 * layout.SLOT.size_bytes))
    with Store.open(root) as store, Index(store) as index:
        assert index.sizes is None
        assert [found.code for found in index.findings] == ["S005"]
