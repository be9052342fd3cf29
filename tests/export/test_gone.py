"""Segments that go away, or are cut, while they are read: a query ends with an error, for rows would be missing without a word."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from store_core.errors import FailedError
from store_core.export.query.catalog import Tables
from store_core.export.runners.local import LocalRunner
from store_core.export.source import reading, walk
from store_core.export.source.planning import stream_readings
from store_core.export.splits import split_task as piece
from store_core.export.statistics import verify_stores
from store_core.storage.sequence import Segment
from store_core.storage.store import Store
from tests.damage import Damageable
from tests.export.exports import export_one, ranges_of
from tests.export.sources import source_table
from tests.export.streams import Stream, told
from tests.export.test_query import ask
from tests.export.test_splits import SEGMENT_BYTES

Damage = Callable[[Damageable], None]


def second_goes(store: Damageable) -> None:
    store.segments[1].unlink()


def second_is_cut(store: Damageable) -> None:
    os.truncate(store.segments[1], 1000)


def last_is_cut(store: Damageable) -> None:
    os.truncate(store.segments[-1], 1000)


def store_goes(store: Damageable) -> None:
    shutil.rmtree(store.root)


CHANGES = [
    (second_goes, "went away"),
    (second_is_cut, "was cut"),
    (last_is_cut, "was cut"),
    (store_goes, "went away"),
]


@pytest.fixture
def store(damageable: Callable[..., Damageable]) -> Damageable:
    return damageable("load-533")


@pytest.fixture
def once_listed(monkeypatch: pytest.MonkeyPatch, store: Damageable) -> Callable[[Damage], None]:
    """Has something done to the store when the first segment is about to be read, and all of them are listed."""

    def arm(damage: Damage) -> None:
        real, left = walk.scan_segment, [damage]

        def scan_segment(*arguments: Any, **more: Any) -> Iterator[Any]:
            while left:
                left.pop()(store)
            return real(*arguments, **more)

        for module in (walk, reading):
            monkeypatch.setattr(module, "scan_segment", scan_segment)

    return arm


@pytest.mark.parametrize("mode", ["PERMISSIVE", "DROPMALFORMED", "FAILFAST"])
@pytest.mark.parametrize(("damage", "what"), CHANGES)
def test_a_batch_ends_with_an_error(
    damage: Damage, what: str, mode: str, store: Damageable, once_listed: Callable[[Damage], None]
) -> None:
    once_listed(damage)
    with pytest.raises(FailedError, match=f"a file of the store {what} while it was read"):
        source_table(store.root, mode=mode)


@pytest.fixture
def goes_on_the_way(store: Damageable, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second segment goes while the way to a split in its middle is walked, and so is missing in front of the split as well."""
    real = walk.chained_end

    def chained_end(opened: Store, segment: Segment, certain: int, stop: int) -> int | None:
        if segment.phy_offset == SEGMENT_BYTES and segment.path.exists():
            segment.path.unlink()
        return real(opened, segment, certain, stop)

    monkeypatch.setattr(walk, "chained_end", chained_end)


@pytest.mark.usefixtures("goes_on_the_way")
def test_a_split_in_the_middle_of_a_file_ends_with_an_error(store: Damageable) -> None:
    with pytest.raises(FailedError, match="a file of the store went away while it was read"):
        source_table(store.root, splitSize="20k")


@pytest.mark.usefixtures("goes_on_the_way")
def test_the_last_split_of_a_file_ends_with_an_error(store: Damageable) -> None:
    stream = Stream(store.root, splitSize="20k")
    readings = stream_readings(stream.options, stream.offsets, stream.plan())
    last = next(each for each in reversed(readings) if each.split.start_phy_offset < 2 * SEGMENT_BYTES)
    assert last.split.start_phy_offset > SEGMENT_BYTES
    with pytest.raises(FailedError, match="a file of the store went away while it was read"):
        list(reading.read_messages(last))


def test_its_quarantine_ends_with_an_error(store: Damageable, once_listed: Callable[[Damage], None]) -> None:
    once_listed(second_goes)
    with pytest.raises(FailedError, match="a file of the store went away while it was read"):
        source_table(store.root, table="quarantine")


@pytest.mark.parametrize(("damage", "what"), CHANGES)
def test_a_stream_ends_with_an_error(
    damage: Damage, what: str, store: Damageable, once_listed: Callable[[Damage], None]
) -> None:
    stream = Stream(store.root)
    end = stream.plan()
    once_listed(damage)
    with pytest.raises(FailedError, match=f"a file of the store {what} while it was read"):
        stream.read(end)


def test_a_stream_that_may_lose_goes_on(store: Damageable, once_listed: Callable[[Damage], None]) -> None:
    stream = Stream(store.root, failOnDataLoss="false")
    end = stream.plan()
    once_listed(second_goes)
    stream.read(end)
    gone = range(SEGMENT_BYTES, 2 * SEGMENT_BYTES)
    assert stream.rows == [row for row in told("load-533") if row[0] not in gone]


@pytest.mark.parametrize(("damage", "what"), CHANGES)
def test_sql_ends_with_an_error(damage: Damage, what: str, store: Damageable) -> None:
    with Store.open(store.root) as listed:
        assert listed.log.segments
        damage(store)
        with pytest.raises(FailedError, match=f"a file of the store {what} while it was read"):
            ask(Tables([("a", listed)]), "select count(*) from messages")


def first_two_go(store: Damageable) -> None:
    store.segments[0].unlink()
    store.segments[0].unlink()


@pytest.mark.parametrize(
    ("damage", "code", "start", "size"),
    [(second_goes, "L006", SEGMENT_BYTES, SEGMENT_BYTES), (first_two_go, "L025", 0, 2 * SEGMENT_BYTES)],
)
def test_an_export_has_a_hole_for_it(
    damage: Damage, code: str, start: int, size: int, store: Damageable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no damage, which ``recover`` would be advised for: the file is what is missing, or has expired."""
    real, left = piece.scan_segment, [damage]

    def scan_segment(*arguments: Any, **more: Any) -> Any:
        while left:
            left.pop()(store)
        return real(*arguments, **more)

    monkeypatch.setattr(piece, "scan_segment", scan_segment)
    report = export_one(store.root, tmp_path / "out")
    assert [(found.code, found.phy_offset, found.size_bytes) for found in report.findings] == [(code, start, size)]
    rows = [(row[0], row[1], row[2], row[4]) for row in ranges_of(tmp_path / "out")]
    assert rows == [(at, SEGMENT_BYTES, "hole", code) for at in range(start, start + size, SEGMENT_BYTES)]


def test_a_survey_does_not_count_what_expires(store: Damageable) -> None:
    with Store.open(store.root) as opened:
        before = opened.log.size_bytes
        first_two_go(store)
        [report] = verify_stores([("a", opened)], LocalRunner())
    assert [found.code for found in report.findings] == ["L025"]
    assert report.size_bytes == before - 2 * SEGMENT_BYTES
    assert [segment.name for segment in report.segments] == [path.name for path in store.segments]
