"""Exports of a log of which there are copies: every record once, and damage made good where a copy can."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from store_core.export.export import ExportReport, export_stores
from store_core.export.runners.local import LocalRunner
from store_core.export.runners.runner import Runner
from store_core.read.log import LogFilter
from store_core.read.log_copies import find_copies, joint_settings
from store_core.storage.store import Store
from tests.damage import Damageable
from tests.export.exports import export_one, ranges_of, table_of
from tests.export.test_copies import expire, lag, opened

DamageableStore = Callable[..., Damageable]
GoldenStore = Callable[[str], Path]
SPLITS = (20_000, 1 << 20)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    """The rows of the store that all are copies of."""
    from tests import stores

    folder = tmp_path_factory.mktemp("whole")
    export_one(stores.unpack("load-533", folder / "store"), folder / "out")
    return table_of(folder / "out")


@pytest.fixture
def master(damageable: DamageableStore) -> Damageable:
    return damageable("load-533")


@pytest.fixture
def slave(damageable: DamageableStore) -> Damageable:
    return damageable("load-533")


def export(
    dest: Path,
    split_size_bytes: int,
    *copies: Damageable,
    wanted: LogFilter | None = None,
    runner: Runner | None = None,
) -> ExportReport:
    with opened(copies) as stores:
        [group] = find_copies(stores).groups
        settings = joint_settings([stores[number] for number in group])
    with Store.open(settings.root, settings) as store:
        return export_stores([("a", store)], dest, runner or LocalRunner(), wanted, split_size_bytes=split_size_bytes)


def codes(report: ExportReport) -> list[str]:
    return sorted(found.code for found in report.findings)


@pytest.mark.parametrize("split_size_bytes", SPLITS)
def test_copies_that_are_whole_give_what_one_of_them_does(
    split_size_bytes: int, master: Damageable, slave: Damageable, whole: pa.Table, tmp_path: Path
) -> None:
    report = export(tmp_path / "out", split_size_bytes, master, lag(slave, 1500))
    assert table_of(tmp_path / "out").equals(whole)
    assert (report.findings, report.stores[0].healed) == ([], [])


@pytest.mark.parametrize("split_size_bytes", SPLITS)
def test_what_one_lacks_the_other_has(
    split_size_bytes: int, master: Damageable, slave: Damageable, whole: pa.Table, tmp_path: Path
) -> None:
    expire(master, 3).lose(segment=2)
    report = export(tmp_path / "out", split_size_bytes, master, lag(slave, 2000))
    assert table_of(tmp_path / "out").equals(whole)
    assert report.findings == []


@pytest.mark.parametrize("split_size_bytes", SPLITS)
def test_damage_is_made_good_from_the_copy_that_has_it_whole(
    split_size_bytes: int, master: Damageable, slave: Damageable, whole: pa.Table, tmp_path: Path
) -> None:
    """Both are damaged, nowhere in the same place: a body, a header, a page, a segment's begin and its end, a whole one."""
    size = master.segment_size_bytes
    master.flip(record=100, field="body")
    slave.flip(record=101, field="body")
    master.flip(record=150, field="magic")
    slave.zero(master.message(300)["phyOffset"] - 10, 3000)
    master.zero(2 * size - 5000, 5000)
    master.zero(2 * size, 4000)
    slave.zero(3 * size + 40_000, 9000)
    for at in range(4 * size, 5 * size - 900, 1000):
        master.zero(at, 900)
    lag(slave, 2000)
    report = export(tmp_path / "out", split_size_bytes, master, slave)
    assert table_of(tmp_path / "out").equals(whole)
    assert (report.findings, ranges_of(tmp_path / "out")) == ([], [])
    assert report.rows == len(whole)
    healed = report.stores[0].healed
    assert healed == sorted(healed)
    assert any(low <= master.message(100)["phyOffset"] < high for low, high in healed)


def test_what_is_damaged_in_both_is_told(master: Damageable, slave: Damageable, tmp_path: Path) -> None:
    for store in (master, slave):
        store.flip(record=100, field="body")
        store.flip(record=700, field="magic")
    slave.flip(record=400, field="body")
    report = export(tmp_path / "out", 20_000, master, slave)
    assert codes(report) == ["L001", "L002"]
    alone = export_one(master.root, tmp_path / "alone", split_size_bytes=20_000)
    assert table_of(tmp_path / "out").equals(table_of(tmp_path / "alone"))
    assert [(f.code, f.phy_offset) for f in report.findings] == [(f.code, f.phy_offset) for f in alone.findings]
    assert report.stores[0].healed == []


@pytest.mark.parametrize("split_size_bytes", SPLITS)
def test_the_least_harmed_copy_counts_where_none_is_whole(
    split_size_bytes: int, master: Damageable, slave: Damageable, whole: pa.Table, tmp_path: Path
) -> None:
    """The master has lost a page, the slave one record of it, and a file of the slave ends amid another page."""
    low, high = (int(master.message(number)["phyOffset"]) for number in (700, 710))
    master.zero(low, high - low)
    slave.flip(record=705, field="magic")
    short = int(master.message(1500)["phyOffset"])
    master.zero(short, 2000)
    slave.cut(segment=short // slave.segment_size_bytes, size_bytes=short % slave.segment_size_bytes + 700)
    report = export(tmp_path / "out", split_size_bytes, master, slave)
    found = table_of(tmp_path / "out")
    lost = {int(master.message(number)["phyOffset"]) for number in (705, 1501, 1502, 1503, 1504, 1505, 1506)}
    missing = set(whole.column("phy_offset").to_pylist()) - set(found.column("phy_offset").to_pylist())
    assert master.message(705)["phyOffset"] in missing
    assert missing <= lost
    assert found.equals(whole.filter(~pc.field("phy_offset").isin(sorted(missing))))
    assert sum(size for at, size, *_ in ranges_of(tmp_path / "out")) == sum(
        size
        for at, size in zip(whole.column("phy_offset").to_pylist(), whole.column("size_bytes").to_pylist(), strict=True)
        if at in missing
    )
    assert "L002" in codes(report)


@pytest.mark.parametrize("split_size_bytes", SPLITS)
def test_what_the_least_harmed_copy_lacks_the_next_one_has(
    split_size_bytes: int,
    master: Damageable,
    slave: Damageable,
    damageable: DamageableStore,
    whole: pa.Table,
    tmp_path: Path,
) -> None:
    """A whole segment here, and a page of it in each of the others, of which one more has a third one."""
    start = 3 * master.segment_size_bytes
    third = damageable("load-533")
    master.zero(start, master.segment_size_bytes)
    for store, pages in ((slave, (4,)), (third, (12, 20))):
        for page in pages:
            store.zero(start + page * 4096, 4096)
    report = export(tmp_path / "out", split_size_bytes, master, slave, third)
    assert table_of(tmp_path / "out").sort_by("phy_offset").equals(whole.sort_by("phy_offset"))
    assert codes(report) == []


def test_a_range_of_offsets(master: Damageable, slave: Damageable, whole: pa.Table, tmp_path: Path) -> None:
    low, high = (int(master.message(number)["phyOffset"]) for number in (95, 1200))
    master.flip(record=100, field="body")
    master.zero(high - 2000, 2500)  # the damage goes on behind what is asked for
    export(tmp_path / "out", 20_000, master, slave, wanted=LogFilter(from_phy_offset=low, to_phy_offset=high))
    rows = whole.filter((pc.field("phy_offset") >= low) & (pc.field("phy_offset") < high))
    assert table_of(tmp_path / "out").equals(rows)


def _harmed(store: Damageable, drawn: random.Random, first: int, last: int) -> None:
    """Some of the records [first, last) made such that anybody sees that they are: a body, a header, whole ranges."""
    for _ in range(drawn.randrange(1, 6)):
        record = drawn.randrange(first, last)
        if drawn.random() < 0.5:
            store.flip(record, drawn.choice(("body", "magic", "own_phy_offset")))
            continue
        low, high = (int(store.message(n)["phyOffset"]) for n in (record, drawn.randrange(record, last)))
        while low < high:
            size = min(high, low - low % store.segment_size_bytes + store.segment_size_bytes) - low
            store.write(low, drawn.randbytes(size) if drawn.random() < 0.5 else bytes(size))
            low += size


@pytest.mark.product(3)
@pytest.mark.parametrize("seed", range(8))
def test_drawn_damage_on_either_side_of_a_drawn_place(
    seed: int, master: Damageable, slave: Damageable, whole: pa.Table, tmp_path: Path
) -> None:
    """Damage in alternating stretches of two copies, one of which may lag and one have lost its oldest files."""
    drawn = random.Random(seed)
    bounds = sorted(drawn.randrange(2180) for _ in range(6))
    for number, (low, high) in enumerate(pairwise(bounds)):
        if low < high:
            _harmed((master, slave)[number % 2], drawn, low, high)
    if drawn.random() < 0.5:
        lag(slave, bounds[-1] + 1)
    report = export(tmp_path / "out", drawn.choice((7000, 50_000, 1 << 20)), *_ordered(drawn, [master, slave]))
    assert [finding for finding in report.findings if finding.severity != "info"] == []
    assert table_of(tmp_path / "out").equals(whole)


def _ordered(drawn: random.Random, stores: Sequence[Damageable]) -> list[Damageable]:
    return drawn.sample(list(stores), len(stores))
