"""Threads that walk pieces of a segment give the rows that one walk gives, whatever is in the pieces."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

from store_core.derive.dispatch import LOOKED_INTO
from store_core.errors import FailedError
from store_core.kernel.codes import FrameCode, FrameKind, PropertyFlag
from store_core.layout import record
from store_core.scan import parallel as side_by_side
from store_core.scan.frames import ROW_COLUMNS, FrameTable
from store_core.scan.log import ScanOptions, scan_log
from store_core.storage.store import Store
from tests.conftest import DamagedStore, GoldenStore
from tests.damage import Damageable
from tests.threads import running

PIECES = (900, 20_000)
_IN_WINDOW = ("body_at", "topic_at", "properties_at", "topic_id")  # count from each window's own begin


@pytest.fixture(autouse=True)
def small_segments_are_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "WORTH_BYTES", 0)


def _rows(
    root: Path, jobs: int, *, bytes_for: PropertyFlag | None = None, told: bool = True
) -> list[tuple[object, ...]]:
    with Store.open(root) as store:
        options = ScanOptions(index_keys=True, check_property_crc=True, jobs=jobs, bytes_for=bytes_for)
        return [row for table in scan_log(store, options=options) for row in _told(table, bytes_told=told)]


def _told(table: FrameTable, *, bytes_told: bool = True) -> Iterator[tuple[object, ...]]:
    assert table.is_good == bool((table.messages & table.of_code(FrameCode.OK)).all())
    assert table.message_count == int(np.count_nonzero(table.messages))
    names = [name for name in ROW_COLUMNS if name not in _IN_WINDOW]
    for row in table.rows():
        keys = table.key_hash[np.flatnonzero(table.key_row == row)].tolist()
        said = tuple(int(getattr(table, name)[row]) for name in names)
        if table.kind[row] == FrameKind.MESSAGE:
            content = (table.properties(row), table.body(row)) if bytes_told else ()
            yield (*said, keys, table.topic(row), *content)
        else:
            yield (*said, keys)


@pytest.mark.product
@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("name", ["load-533", "clean-540", "crash-497"])
def test_the_same_rows(golden: GoldenStore, name: str, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "PIECE_SIZE_BYTES", piece)
    assert _rows(golden(name), 3) == _rows(golden(name), 1) == _rows(golden(name), 0)


@pytest.mark.product
@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("name", ["load-533", "crash-497", "lmq-533", "bcq-533", "ipv6-533"])
def test_the_same_rows_where_most_come_without_their_bytes(
    golden: GoldenStore, name: str, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of messages with one of the properties come with them, with one of batches and light queues from there on."""
    monkeypatch.setattr(side_by_side, "PIECE_SIZE_BYTES", 4096)
    monkeypatch.setattr(side_by_side, "BARE_PIECE_SIZE_BYTES", piece)
    expected = _rows(golden(name), 0, told=False)
    for jobs in (1, 2, 3):
        assert _rows(golden(name), jobs, bytes_for=LOOKED_INTO, told=False) == expected
    wanted = {row[2]: row for row in _rows(golden(name), 0)}
    bare = 0
    with Store.open(golden(name)) as store:
        for table in scan_log(store, options=ScanOptions(jobs=2, bytes_for=LOOKED_INTO)):
            bare += len(table) if not table.window else 0
            for row in np.flatnonzero(table.with_property(LOOKED_INTO)).tolist():
                assert (table.properties(row), table.body(row)) == wanted[int(table.phy_offset[row])][-2:]
    assert bool(bare) == (name not in ("lmq-533", "bcq-533"))


@pytest.mark.parametrize("piece", PIECES)
def test_the_same_rows_of_a_damaged_log(
    damageable: Callable[..., Damageable], piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = damageable("load-533")
    for number in range(20, 2000, 300):
        store.zero(store.message(number)["phyOffset"] + 3, 700)
        store.flip(record=number + 100, field="size_bytes", byte=2)
        store.flip(record=number + 150, field="body")
    monkeypatch.setattr(side_by_side, "PIECE_SIZE_BYTES", piece)
    assert _rows(store.root, 2) == _rows(store.root, 1) == _rows(store.root, 0)
    monkeypatch.setattr(side_by_side, "BARE_PIECE_SIZE_BYTES", piece)
    assert _rows(store.root, 2, bytes_for=LOOKED_INTO, told=False) == _rows(store.root, 0, told=False)


def test_the_same_stale_records(damaged: DamagedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    root = damaged("load-533", "ghost-tail")
    monkeypatch.setattr(side_by_side, "PIECE_SIZE_BYTES", PIECES[0])
    rows = _rows(root, 2)
    assert rows == _rows(root, 1) == _rows(root, 0)
    monkeypatch.setattr(side_by_side, "BARE_PIECE_SIZE_BYTES", PIECES[0])
    assert _rows(root, 2, bytes_for=LOOKED_INTO, told=False) == _rows(root, 0, told=False)
    assert any(row[0] == FrameKind.STALE for row in rows)


def test_a_body_full_of_records_does_not_mislead(
    damageable: Callable[..., Damageable], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A piece that begins in a body which holds records of just those places does not join, and does not count."""
    store = damageable("load-533")
    first, last = store.message(1), store.message(40)
    start, end = store.field_at(1, "body"), store.field_at(40, "body") + last["bodyLength"]
    body = store.read(start, end - start)
    store.set_field(1, "size_bytes", last["phyOffset"] + last["storeSize"] - first["phyOffset"])
    store.set_field(1, "body_length", len(body))
    store.set_field(1, "body_crc", crc32(body) & record.CRC_MASK)
    monkeypatch.setattr(side_by_side, "PIECE_SIZE_BYTES", PIECES[0])
    rows = _rows(store.root, 2)
    assert rows == _rows(store.root, 1)
    assert [row[2] for row in rows[:3]] == [0, first["phyOffset"], store.message(41)["phyOffset"]]


@pytest.mark.parametrize("jobs", [1, 2, 4])
def test_it_is_threads_that_walk(golden: GoldenStore, jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several the caller's is one; it walks while the first piece is not done."""
    monkeypatch.setattr(side_by_side, "PIECE_SIZE_BYTES", PIECES[1])
    walked: set[str] = set()
    real = side_by_side._Walker.walk

    def seen(walker: side_by_side._Walker, start: int, stop: int) -> list[FrameTable]:
        name = threading.current_thread().name
        if name not in walked and jobs > 1:
            walked.add(name)
            everybody.wait(30)  # nobody goes on before all have begun one
        walked.add(name)
        return real(walker, start, stop)

    everybody = threading.Barrier(jobs)
    monkeypatch.setattr(side_by_side._Walker, "walk", seen)
    with Store.open(golden("load-533")) as store:
        tables = scan_log(store, options=ScanOptions(jobs=jobs))
        next(tables)
        assert running("walk") == max(jobs - 1, 1)
        tables.close()  # type: ignore[attr-defined]  # a generator
        assert not running("walk")
    assert len(walked) == jobs
    assert (threading.current_thread().name in walked) == (jobs > 1)


@pytest.mark.parametrize("jobs", [1, 2, 3])
@pytest.mark.parametrize("number", [0, 1, 7])
def test_what_cannot_be_read_is_told_behind_what_could(
    golden: GoldenStore, number: int, jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_by_side, "PIECE_SIZE_BYTES", PIECES[0])
    real = side_by_side._Walker.walk

    def refused(walker: side_by_side._Walker, start: int, stop: int) -> list[FrameTable]:
        if start == number * PIECES[0]:
            raise FailedError("a bad sector")
        return real(walker, start, stop)

    expected = [row for row in _rows(golden("load-533"), 0) if int(str(row[2])) < number * PIECES[0]]
    monkeypatch.setattr(side_by_side._Walker, "walk", refused)
    found: list[tuple[object, ...]] = []
    with Store.open(golden("load-533")) as store:
        tables = scan_log(store, options=ScanOptions(index_keys=True, check_property_crc=True, jobs=jobs))
        with pytest.raises(FailedError, match="a bad sector"):
            found.extend(row for table in tables for row in _told(table))
    assert found == expected
