"""Index files of any sizes, written by a real broker: their sizes are proven, or nothing touches the files."""

from __future__ import annotations

import random
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from store_core.codec.tags import index_key_hash
from store_core.codec.times import END_OF_TIME_MS
from store_core.layout import index as layout
from store_core.layout import paths
from store_core.read.index import Index
from store_core.read.index_sizes import IndexSizes, index_sizes
from store_core.recovery.rebuild import rebuild
from store_core.storage.files import FileCache
from store_core.storage.settings import load_settings
from store_core.storage.store import Store
from tests import stores
from tests.conftest import GoldenStore
from tests.recovery.recovering import Opener, apply_to
from tests.rmqctl.calls import call

BASE: Final = "load-533"
SIZES: Final = ((311, 1500), (411, 1700), (277, 1300), (1009, 997), (607, 996), (3, 6000), (5_000_000, 20_000_000))
OPENER: Final = Opener(None, "5.3.3")
Sized = Callable[[int, int], Path]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Index folders that a broker of 5.3.3 wrote for the log of load-533, by their sizes."""
    root = tmp_path_factory.mktemp("index-sizes")
    with tarfile.open(stores.DATA / "index-sizes-533.tgz") as archive:
        archive.extractall(root, filter="data")
    return root


@pytest.fixture
def sized(folders: Path, golden: GoldenStore, tmp_path: Path) -> Sized:
    """``sized(slots, entries)``: a copy of load-533 with the index of that broker; the files of the largest are only linked to."""

    def made(slots: int, entries: int) -> Path:
        root = stores.copy_store(golden(BASE), tmp_path / f"{slots}-{entries}")
        shutil.rmtree(root / paths.INDEX)
        source = folders / f"{slots}-{entries}"
        if entries > 1 << 20:
            (root / paths.INDEX).mkdir()
            for path in source.iterdir():
                (root / paths.INDEX / path.name).symlink_to(path)
        else:
            shutil.copytree(source, root / paths.INDEX)
        return root

    return made


def told(root: Path, config: Path | None = None) -> tuple[IndexSizes | None, list[str]]:
    with Store.open(root, load_settings(config, root)) as store:
        found = index_sizes(store)
        return found.sizes, [finding.code for finding in found.findings]


def files(root: Path) -> dict[str, stores.Entry]:
    return {path: entry for path, entry in stores.snapshot(root).items() if path.startswith(f"{paths.INDEX}/")}


def unprovable(root: Path) -> None:
    """Empty all slots: entries hang on nothing."""
    for path in (root / paths.INDEX).iterdir():
        sizes = root.name.split("-")
        with path.open("r+b") as file:
            file.seek(layout.slot_at(0))
            file.write(bytes(int(sizes[0]) * layout.SLOT.size_bytes))


@pytest.mark.parametrize(("slots", "entries"), SIZES)
def test_each_file_proves_its_sizes(slots: int, entries: int, sized: Sized) -> None:
    """Also a file with one entry (607 : 996 has one), whether it is full or not."""
    root = sized(slots, entries)
    assert told(root) == (IndexSizes(slots, entries), [])
    every = sorted((root / paths.INDEX).iterdir())
    for kept in every:
        for path in every:
            path.rename(root / path.name) if path != kept and path.exists() else None
        assert told(root) == (IndexSizes(slots, entries), [])
        for path in every:
            (root / path.name).rename(path) if path != kept else None


@pytest.mark.parametrize("has_header", [True, False])
def test_a_large_file_is_not_read_as_a_whole(
    has_header: bool, sized: Sized, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = sized(5_000_000, 20_000_000)
    read_bytes = 0

    def counted(cache: FileCache, path: Path, at: int, size_bytes: int) -> bytes:
        nonlocal read_bytes
        data = read(cache, path, at, size_bytes)
        if path.parent.name == paths.INDEX and not (at == 0 and not has_header):
            read_bytes += len(data)
            return data
        return data if path.parent.name != paths.INDEX else bytes(len(data))

    read = FileCache.read
    monkeypatch.setattr(FileCache, "read", counted)
    assert told(root) == (IndexSizes(5_000_000, 20_000_000), [])
    assert read_bytes < (1 << 16 if has_header else 1 << 21)


@pytest.mark.parametrize(("slots", "entries"), [(311, 1500), (607, 996), (3, 6000)])
def test_damage_never_proves_other_sizes(slots: int, entries: int, sized: Sized) -> None:
    """Of a newest file alone: with one entry all of it has to agree."""
    root = sized(slots, entries)
    *others, path = sorted((root / paths.INDEX).iterdir())
    for other in others:
        other.unlink()
    whole, rng = path.read_bytes(), random.Random(47)
    proven = 0
    for number in range(120):
        data = bytearray(whole)
        for _ in range(1 + number % 3):
            at = rng.choice([rng.randrange(layout.HEADER.size_bytes), rng.randrange(len(data))])
            size = rng.choice([1, 1, 4, 20, 512, 4096])
            data[at : at + size] = (
                rng.randbytes(size)[: len(data) - at] if number % 2 else bytes(len(data[at : at + size]))
            )
        path.write_bytes(data)
        sizes, codes = told(root)
        assert sizes in (None, IndexSizes(slots, entries)), number
        is_empty = not data[layout.HEADER.size_bytes :].strip(b"\0")
        assert codes == ([] if sizes else ["S005"]) or (is_empty and not codes)
        proven += sizes is not None
    assert proven > 30


@pytest.mark.parametrize(("slots", "entries"), [(311, 1500), (411, 1700), (277, 1300), (3, 6000)])
def test_good_files_stay_as_they_are(slots: int, entries: int, sized: Sized) -> None:
    root = sized(slots, entries)
    before = files(root)
    assert OPENER.check(root) == []
    recovery = OPENER.recover(root)
    assert [step.path for step in recovery.plan.steps if step.path.startswith(paths.INDEX)] == []
    assert call("rebuild", "index", "-s", root, "--apply").code == 0
    assert files(root) == before


def test_queries_by_key_find_what_a_broker_finds(sized: Sized) -> None:
    with Store.open(sized(411, 1700)) as store, Index(store) as index:
        for asked in stores.truth(BASE)["keyQueries"]:
            if (asked["begin"], asked["end"]) == (0, END_OF_TIME_MS):
                found = index.query(index_key_hash(asked["topic"], asked["key"]), asked["max"])
                assert set(found) >= set(asked["phyOffsets"])


def test_files_that_prove_nothing_are_left_alone(sized: Sized) -> None:
    root = sized(311, 1500)
    unprovable(root)
    before = files(root)
    assert [finding.code for finding in OPENER.check(root)] == ["S005"]
    recovery = OPENER.recover(root)
    assert "S005" in [finding.code for finding in recovery.findings]
    apply_to(recovery, root) if recovery.plan.steps else None
    rebuilt = call("rebuild", "index", "-s", root, "--apply", "-o", "json")
    assert (rebuilt.code, [found["code"] for found in rebuilt.json["findings"]]) == (3, ["S005"])
    assert files(root) == before
    put = call("put", stores.truth(BASE)["acknowledged"][0][1], "body", "-s", root)
    assert put.code == 1
    assert "nothing proves how many slots" in put.err
    assert call("info", "-s", root, "-o", "json").json["stores"][0]["index"][0]["slots"] is None


def test_a_query_answers_from_the_log_or_says_why_not(sized: Sized) -> None:
    root = sized(311, 1500)
    unprovable(root)
    asked = next(q for q in stores.truth(BASE)["keyQueries"] if q["phyOffsets"] and q["begin"] == 0)
    by_log = call("query-key", asked["topic"], asked["key"], "-s", root, "-o", "json")
    assert (by_log.code, by_log.json["source"]) == (0, "scan")
    assert [m["phy_offset"] for m in by_log.json["messages"]] == sorted(asked["phyOffsets"])
    by_index = call("query-key", asked["topic"], asked["key"], "-s", root, "-o", "json", "--source", "index")
    assert (by_index.code, by_index.json["messages"]) == (3, [])
    assert "S005" in by_index.err
    assert call("dump-index", "-s", root, "-o", "json").code == 3


def test_a_configuration_wins_and_a_contradiction_is_told(sized: Sized, tmp_path: Path) -> None:
    root, config = sized(311, 1500), tmp_path / "broker.conf"
    config.write_text("maxHashSlotNum=500\nmaxIndexNum=2000\n")
    assert told(root, config) == (IndexSizes(500, 2000), ["I012"])
    config.write_text("maxHashSlotNum=311\n")
    assert told(root, config) == (IndexSizes(311, 1500), [])
    config.write_text("maxIndexNum=1501\n")
    assert told(root, config)[1] == ["I012"]


def test_files_that_prove_different_sizes_prove_none(sized: Sized) -> None:
    root, other = sized(311, 1500), sized(411, 1700)
    newest = max((other / paths.INDEX).iterdir())
    shutil.copy(newest, root / paths.INDEX)
    assert told(root) == (None, ["S005"])


def test_no_index_is_made_of_sizes_that_nothing_tells(sized: Sized, tmp_path: Path) -> None:
    root, config = sized(311, 1500), tmp_path / "broker.conf"
    good = {path.name: path.read_bytes() for path in (root / paths.INDEX).iterdir()}
    shutil.rmtree(root / paths.INDEX)

    def planned(config: Path | None) -> tuple[list[str], list[str]]:
        with Store.open(root, load_settings(config, root)) as store:
            found: Any = rebuild(store, "index")
        return [step.path for step in found.plan.steps], [finding.code for finding in found.findings]

    assert planned(None) == ([], ["S005"])
    config.write_text("maxHashSlotNum=311\nmaxIndexNum=1500\n")
    paths_made, codes = planned(config)
    assert (len(paths_made) >= len(good), codes) == (True, [])
