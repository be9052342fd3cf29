"""verify-crc: what it counts and finds, in whole, in ranges, in samples, and in parts that follow each other."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest

from store_core.check.store import check_store
from store_core.check.verify import VerifyReport, log_range, random_pieces, verify_log, whole_log
from store_core.check.verify_resume import load_left, save_left
from store_core.errors import FailedError, UsageError
from store_core.scan.log import Piece
from store_core.storage.settings import load_settings
from store_core.storage.store import Store
from tests import stores
from tests.conftest import GoldenStore, StoreCopy
from tests.damage import Damageable


def counted(report: VerifyReport) -> dict[str, tuple[int, int]]:
    return {segment.name: (segment.records, segment.bad) for segment in report.segments}


def told(name: str, low: int = 0, high: int = 1 << 62) -> int:
    """How many records start in [low, high), as the real code says."""
    return sum(low <= message["phyOffset"] < high for message in stores.truth(name)["messages"])


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("name", stores.GOLDEN)
def test_counts_are_the_truth(golden: GoldenStore, name: str, jobs: int) -> None:
    truth = stores.truth(name)
    size = int(truth["properties"]["mappedFileSizeCommitLog"])
    with Store.open(golden(name)) as store:
        report = verify_log(store, jobs=jobs)
    assert report.next_phy_offset is None
    for segment in report.segments:
        start = int(segment.name)
        assert (segment.records, segment.bad) == (told(name, start, start + size), 0)
    assert report.records == told(name)


@pytest.mark.parametrize("jobs", [1, 2])
def test_damage_is_told_and_walked_past(damageable: Callable[..., Damageable], jobs: int) -> None:
    store = damageable("load-533")
    flipped = [store.message(n)["phyOffset"] for n in (7, 700, 1500)]
    for number in (7, 700, 1500):
        store.flip(record=number, field="body")
    lost = store.message(900)
    store.zero(lost["phyOffset"], lost["storeSize"])
    with Store.open(store.root) as opened:
        report = verify_log(opened, jobs=jobs)
    assert report.records == told("load-533") - 1
    assert sum(segment.bad for segment in report.segments) == 3
    assert [(f.code, f.phy_offset) for f in report.findings] == sorted(
        [*(("L001", at) for at in flipped), ("L003", lost["phyOffset"])], key=lambda found: found[1]
    )


@pytest.mark.parametrize(("low", "high"), [(200_001, 400_000), (131_072, 262_144), (0, 1), (300_000, 300_001)])
def test_a_range_has_the_records_that_start_in_it(golden: GoldenStore, low: int, high: int) -> None:
    with Store.open(golden("load-533")) as store:
        starts = any(low <= m["phyOffset"] < high for m in stores.truth("load-533")["messages"])
        report = verify_log(store, log_range(store, low, high))
    assert (report.records, report.findings) == (told("load-533", low, high), [])
    assert (report.size_bytes > 0) == starts


def test_ranges_that_join_have_every_record_once(golden: GoldenStore) -> None:
    cuts = [0, 1000, 99_999, 131_072, 500_000, 500_100, None]
    with Store.open(golden("load-533")) as store:
        reports = [verify_log(store, log_range(store, a, b)) for a, b in pairwise(cuts)]
    assert sum(report.records for report in reports) == told("load-533")


def test_a_range_that_begins_in_damage(damageable: Callable[..., Damageable]) -> None:
    store = damageable("load-533")
    first, last = store.message(300), store.message(305)
    store.write(first["phyOffset"], b"\x55" * (last["phyOffset"] - first["phyOffset"]))
    begin = first["phyOffset"] + 10
    with Store.open(store.root) as opened:
        report = verify_log(opened, log_range(opened, begin, last["phyOffset"] + 1000))
    assert report.records == told("load-533", last["phyOffset"], last["phyOffset"] + 1000)


def test_damage_at_the_end_of_a_range_is_no_torn_tail(damageable: Callable[..., Damageable]) -> None:
    store = damageable("load-533")
    victim = store.message(300)
    store.write(victim["phyOffset"], b"\x55" * victim["storeSize"])
    with Store.open(store.root) as opened:
        report = verify_log(opened, log_range(opened, None, victim["phyOffset"] + 1))
    assert [f.code for f in report.findings] == ["L002"]


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("first", [0, 4])
def test_whole_segments_of_garbage_are_no_torn_tail(
    damageable: Callable[..., Damageable], first: int, jobs: int
) -> None:
    store = damageable("load-533")
    size = store.segment_size_bytes
    for number in range(first, 8):
        store.write(number * size, b"\x5a" * size)
    with Store.open(store.root) as opened:
        report = verify_log(opened, jobs=jobs)
    told = [(found.code, found.phy_offset, found.size_bytes) for found in report.findings]
    garbage = [(number * size, size) for number in range(first, 8)]
    assert told == [("L004" if n < 2 else "L002", *where) for n, where in enumerate(garbage)]


def test_a_range_outside_the_log_is_a_usage_error(golden: GoldenStore) -> None:
    with Store.open(golden("load-533")) as store, pytest.raises(UsageError, match="outside the log"):
        log_range(store, 1 << 40, None)


@pytest.mark.parametrize("seed", range(8))
def test_a_sample_finds_only_what_is_there(damageable: Callable[..., Damageable], seed: int) -> None:
    store = damageable("load-533")
    bad = store.message(700)["phyOffset"]
    store.flip(record=700, field="body")
    with Store.open(store.root) as opened:
        pieces = random_pieces(opened, 0.4, seed)
        report = verify_log(opened, pieces)
    covered = sum(piece.to_phy_offset - piece.from_phy_offset for piece in pieces)
    assert 0.3 < covered / opened.log.size_bytes < 0.5
    assert 0 < report.size_bytes <= covered
    is_in = any(piece.from_phy_offset <= bad < piece.to_phy_offset for piece in pieces)
    assert [(f.code, f.phy_offset) for f in report.findings] == ([("L001", bad)] if is_in else [])
    assert report.records == sum(told("load-533", piece.from_phy_offset, piece.to_phy_offset) for piece in pieces)


def test_a_sample_of_everything_is_everything(golden: GoldenStore) -> None:
    with Store.open(golden("load-533")) as store:
        report = verify_log(store, random_pieces(store, 1.0))
        assert (report.records, report.size_bytes) == (told("load-533"), store.log.size_bytes)


@pytest.mark.parametrize("share", [0.0, -1.0, 1.01, float("nan")])
def test_an_impossible_share_is_a_usage_error(golden: GoldenStore, share: float) -> None:
    with Store.open(golden("load-533")) as store, pytest.raises(UsageError):
        random_pieces(store, share)


@pytest.mark.parametrize("jobs", [1, 2])
def test_parts_one_after_the_other_are_the_whole(damageable: Callable[..., Damageable], jobs: int) -> None:
    store = damageable("load-533")
    for number in (3, 800, 2000):
        store.flip(record=number, field="body")
    store.tear(tail=20)
    with Store.open(store.root) as opened:
        whole = verify_log(opened)
        counts: dict[str, tuple[int, int]] = {}
        found: list[Any] = []
        left, calls = whole_log(opened), 0
        while left:
            part = verify_log(opened, left, jobs=jobs, max_seconds=0)
            assert part.next_phy_offset != left[0].from_phy_offset
            for name, (records, bad) in counted(part).items():
                before = counts.get(name, (0, 0))
                counts[name] = before[0] + records, before[1] + bad
            found += part.findings
            left, calls = list(part.left), calls + 1
    assert calls == len(whole.segments)
    assert counts == counted(whole)
    assert found == whole.findings


def test_a_rest_that_begins_with_damage_tells_all_of_it(damageable: Callable[..., Damageable]) -> None:
    """What a stop leaves begins where the last good record ended, so that damage behind it is told in one piece."""
    store = damageable("load-533")
    victim = store.message(150)
    store.write(victim["phyOffset"], b"\x55" * victim["storeSize"])
    with Store.open(store.root) as opened:
        segment = opened.log.segments[0]
        report = verify_log(opened, [Piece(segment, victim["phyOffset"], segment.end_phy_offset, True)])
    assert [(f.code, f.phy_offset, f.size_bytes) for f in report.findings] == [
        ("L002", victim["phyOffset"], victim["storeSize"])
    ]
    assert report.records == told("load-533", victim["phyOffset"] + 1, segment.end_phy_offset)


def test_what_is_left_survives_a_file(store_copy: StoreCopy, tmp_path: Path) -> None:
    state = tmp_path / "deep" / "state.json"
    with Store.open(store_copy("load-533")) as store:
        assert load_left(state, store) is None
        left = verify_log(store, max_seconds=0).left
        save_left(state, store, left)
        assert load_left(state, store) == list(left)
        store.log.segments[2].path.unlink()
    with Store.open(store.root) as store:
        assert load_left(state, store) == [piece for piece in left if piece.segment.name != f"{262144:020d}"]
        save_left(state, store, [])
        assert not state.exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1, "store": "/elsewhere", "left": []}', '{"format": 2}'])
def test_a_file_that_says_something_else_is_refused(golden: GoldenStore, tmp_path: Path, text: str) -> None:
    state = tmp_path / "state.json"
    state.write_text(text)
    with Store.open(golden("load-533")) as store, pytest.raises(FailedError):
        load_left(state, store)


def test_a_range_starts_with_a_whole_record(golden: GoldenStore) -> None:
    """Every record's start is found from any offset inside the record in front of it."""
    messages = stores.truth("load-533")["messages"][:40]
    with Store.open(golden("load-533")) as store:
        for before, message in pairwise(messages):
            for offset in (before["phyOffset"] + 1, message["phyOffset"] - 1, message["phyOffset"]):
                piece = log_range(store, offset, None)[0]
                assert (piece.from_phy_offset, piece.chained) == (message["phyOffset"], True)


SEGMENT_BYTES: Final = 131072


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_expires_meanwhile_is_no_damage(damageable: Callable[..., Damageable], jobs: int) -> None:
    damage = damageable("load-533")
    with Store.open(damage.root) as store:
        listed = store.log.size_bytes
        for path in damage.segments[:3]:
            path.unlink()
        report = verify_log(store, jobs=jobs)
    gone = 3 * SEGMENT_BYTES
    [found] = report.findings
    assert (found.code, found.severity, found.phy_offset, found.size_bytes) == ("L025", "warning", 0, gone)
    assert found.message == f"{gone} bytes of the log went away while it was read"
    assert report.counts == {"L025": 1}
    assert (report.size_bytes, report.records) == (listed - gone, told("load-533", gone))
    assert [segment.name for segment in report.segments] == [path.name for path in damage.segments]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_segment_that_goes_with_older_ones_left_is_missing(damageable: Callable[..., Damageable], jobs: int) -> None:
    damage = damageable("load-533")
    with Store.open(damage.root) as store:
        listed = store.log.size_bytes
        for path in damage.segments[1:3]:
            path.unlink()
        report = verify_log(store, jobs=jobs)
    places = [(found.code, found.severity, found.phy_offset, found.size_bytes) for found in report.findings]
    assert places == [("L006", "error", n * SEGMENT_BYTES, SEGMENT_BYTES) for n in (1, 2)]
    assert report.size_bytes == listed - 2 * SEGMENT_BYTES
    assert [segment.name for segment in report.segments] == [path.name for path in damage.segments]


def test_a_log_of_which_nothing_is_left_has_not_expired(damageable: Callable[..., Damageable]) -> None:
    damage = damageable("load-533")
    with Store.open(damage.root) as store:
        assert store.log.segments
        for path in damage.segments:
            path.unlink()
        assert {found.code for found in verify_log(store).findings} == {"L006"}


def test_the_whole_check_takes_what_expires_for_no_damage_of_the_log(damageable: Callable[..., Damageable]) -> None:
    damage = damageable("load-533")
    with Store.open(damage.root) as store:
        assert store.log.segments
        for path in damage.segments[:2]:
            path.unlink()
        report = check_store(store)
    assert {code: count for code, count in report.summary.items() if code[0] == "L"} == {"L025": 1}


def test_a_folder_of_a_log_that_goes_away_has_not_expired(
    damageable: Callable[..., Damageable], tmp_path: Path
) -> None:
    """Its disk is no longer mounted."""
    damage = damageable("load-533")
    away = damage.root / "first"
    away.mkdir()
    for path in damage.segments[:3]:
        path.rename(away / path.name)
    settings = load_settings(None, damage.root, commitlog=[away, damage.root / "commitlog"])
    with Store.open(damage.root, settings) as store:
        assert len(store.log.segments) == 8, "the store's own folder is one of them"
        away.rename(tmp_path / "away")
        away.mkdir()
        assert {found.code for found in verify_log(store).findings} == {"L006"}
