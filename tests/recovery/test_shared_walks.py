"""A prediction for many releases looks at plain records once, and as one run where nobody asks for single ones."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from store_core.broker import log_recovery, walk
from store_core.broker import plain_records as plain
from store_core.broker.checked_ranges import CheckedRanges
from store_core.broker.index_service import IndexState
from store_core.broker.plain_records import WalkAhead, reading_ahead
from store_core.broker.versions import RELEASES as RELEASES_KNOWN
from store_core.broker.versions import Version, behaviour_of, groups_of
from store_core.kernel import scan_window
from store_core.kernel.codes import FrameCode
from store_core.kernel.columns import WindowColumns
from store_core.kernel.file import FileWalk, Walked
from store_core.kernel.file import walk as walk_file
from store_core.recovery.prediction import predict as predict_module
from store_core.recovery.prediction.outcome import Outcome
from store_core.recovery.prediction.predict import Books, outcome_of
from store_core.scan.frames import select
from store_core.scan.log import ScanOptions, scan_log
from store_core.storage.store import Store
from tests.conftest import DamagedStore, GoldenStore

RELEASES = ("5.4.0", "4.3.0", "4.9.7", "5.1.4", "5.3.3", "4.5.2", "5.0.0")  # formats and checks go back and forth
DAMAGES = (
    "untouched",
    "flip-body-mid",
    "flip-phyoffset-last",
    "zero-page-mid",
    "torn-tail",
    "ghost-tail",
    "log-last-short",
    "cq-tail-lost",
    "cq-beyond-log",
    "cq-removed",
)
SMALL_WINDOW_BYTES = 16 << 10
BASES = ("load-533", "load-497")


@pytest.fixture(params=["file", "windows"])
def small_reads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Log files are read in many parts, by the kernel or as windows."""
    monkeypatch.setattr(walk, "WINDOW_SIZE_BYTES", SMALL_WINDOW_BYTES)
    monkeypatch.setattr(plain, "BLOCK_SIZE_BYTES", SMALL_WINDOW_BYTES)
    monkeypatch.setattr(plain, "CALL_SECONDS", 0.0)
    monkeypatch.setattr(plain, "_STEP_SECONDS", 0.0)
    if request.param == "windows":
        monkeypatch.setattr(walk.SegmentWalk, "_has_plain_part", False)


@pytest.mark.product
@pytest.mark.usefixtures("small_reads")
@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.parametrize("base", BASES)
def test_what_other_releases_found_changes_nothing(
    base: str, name: str, damaged: DamagedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = damaged(base, name, "clean")
    with Store.open(root) as store:
        proven = CheckedRanges()
        shared = [_played(store, release, proven) for release in RELEASES]
        monkeypatch.setattr(log_recovery, "_not_dispatched", lambda *_: 0)  # single records everywhere
        assert shared == [_played(store, release, None) for release in RELEASES]


@pytest.mark.product(6)
@pytest.mark.parametrize("exit", ["clean", "crash"])
@pytest.mark.parametrize("name", [*DAMAGES, "cq-hole", "log-missing-mid", "log-missing-first"])
@pytest.mark.parametrize("base", BASES)
def test_losses_that_were_listed_are_those_of_every_start(
    base: str, name: str, exit: str, damaged: DamagedStore
) -> None:
    with Store.open(damaged(base, name, exit)) as store:
        proven, books = CheckedRanges(), Books()
        behaviours = [behaviour for behaviour, _ in groups_of(RELEASES_KNOWN)]
        shared = [outcome_of(store, behaviour, proven=proven, books=books) for behaviour in behaviours]
        assert shared == [outcome_of(store, behaviour) for behaviour in behaviours]


def test_losses_are_listed_once_for_starts_that_lose_alike(
    damaged: DamagedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[int] = []
    real = predict_module.losses
    monkeypatch.setattr(predict_module, "losses", lambda *call, **more: listed.append(1) or real(*call, **more))
    with Store.open(damaged("load-533", "flip-body-mid", "clean")) as store:
        prediction = predict_module.predict(store)
        groups = groups_of(prediction.evidence.possible)
    assert 0 < len(listed) < len(groups)


@pytest.mark.usefixtures("small_reads")
def test_a_log_is_read_once_for_releases_that_want_the_same(
    damaged: DamagedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = damaged("load-533", "untouched", "clean")
    calls: list[int] = []

    def counted(window: memoryview, phy_offset: int, at: int, end: int, state: int, flags: int) -> WindowColumns:
        calls.append(phy_offset)
        return scan_window(window, phy_offset, at, end, state, flags)

    def counted_file(file: FileWalk, at: int, to: int, state: int, flags: int, seconds: float) -> Walked:
        calls.append(at)
        return walk_file(file, at, to, state, flags, seconds)

    monkeypatch.setattr(walk, "scan_window", counted)
    monkeypatch.setattr(plain, "walk_file", counted_file)
    with Store.open(root) as store:
        proven = CheckedRanges()
        _played(store, "5.2.0", proven)
        alone = len(calls)
        _played(store, "5.4.0", proven)
    assert alone > 8
    assert len(calls) - alone <= 3  # what is left is where the last record ends


@pytest.mark.product(6)
@pytest.mark.usefixtures("small_reads")
@pytest.mark.parametrize(
    ("name", "exit"),
    [
        *((name, "clean") for name in (*DAMAGES, "cq-hole", "cq-ghost-entries", "cq-last-short")),
        *((name, "crash") for name in ("untouched", "torn-tail", "cq-removed")),  # then nothing is read ahead
    ],
)
@pytest.mark.parametrize("base", BASES)
def test_what_is_read_ahead_changes_nothing(
    base: str, name: str, exit: str, damaged: DamagedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each release alone, in both orders, and all of them together; queues that are sane in part only, too."""
    monkeypatch.setattr(plain, "WORTH_BYTES", 1)
    monkeypatch.setattr(plain, "_LOOK_SECONDS", 0.001)
    root = damaged(base, name, exit)
    with Store.open(root) as store:
        expected = {release: _played(store, release, None) for release in RELEASES}
        for release in RELEASES:
            with reading_ahead(store) as ahead:
                assert (ahead.ahead is None) == (exit == "crash")
                assert _played(store, release, ahead) == expected[release]
        for releases in (RELEASES, RELEASES[::-1]):
            with reading_ahead(store) as ahead:
                assert {release: _played(store, release, ahead) for release in releases} == expected


def test_a_thread_that_reads_ahead_ends_with_who_asked(damaged: DamagedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "WORTH_BYTES", 1)
    with Store.open(damaged("load-533", "untouched", "clean")) as store:
        with pytest.raises(KeyboardInterrupt), reading_ahead(store):
            raise KeyboardInterrupt
        assert not [thread for thread in threading.enumerate() if thread.name.endswith("ahead")]


def test_who_comes_first_to_a_segment_walks_it(damaged: DamagedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment that the thread has not come to is left to who asks, and the thread passes over it."""
    monkeypatch.setattr(plain, "WORTH_BYTES", 1)
    with Store.open(damaged("load-533", "untouched", "clean")) as store:
        *others, newest = store.log.segments
        with closing(WalkAhead(newest)) as ahead:
            assert not list(ahead.found(others[0]))
            found = list(ahead.found(newest))
            ahead.want(store.log.segments)
            assert not list(ahead.found(others[0]))
            assert found == sorted(found)
            assert newest.phy_offset < found[-1] <= newest.end_phy_offset


def test_files_that_cannot_be_read_ahead_are_left_to_who_says_so(
    damaged: DamagedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain, "WORTH_BYTES", 1)
    root = damaged("load-533", "untouched", "clean")
    with Store.open(root) as store:
        newest = store.log.segments[-1]
        newest.path.rename(root / "elsewhere")
        with closing(WalkAhead(newest)) as ahead:
            assert not list(ahead.found(newest))


def _played(store: Store, release: str, proven: CheckedRanges | None) -> tuple[Outcome, list[str]]:
    return outcome_of(store, behaviour_of(Version.parse(release)), proven=proven)


@pytest.mark.parametrize("entries_per_file", [2, 7, 100, 1000, 5000])
def test_keys_of_good_tables_are_added_as_those_of_others(golden: GoldenStore, entries_per_file: int) -> None:
    """Tables that nobody has counted, and of which some records lie in front of the index's end, go the long way."""
    with Store.open(golden("load-533")) as store:
        options = ScanOptions(index_keys=True, window_size_bytes=20_000)
        states = [IndexState(entries_per_file), IndexState(entries_per_file)]
        for repeated in (False, True):
            for table in scan_log(store, options=options, from_phy_offset=100_000 if repeated else None):
                good = select(table, table.messages)
                if len(good):
                    states[0].dispatch(good)
                    states[1].dispatch(
                        replace(good, code=np.full_like(good.code, FrameCode.OWN_OFFSET), odd_count=None)
                    )
                assert states[0] == states[1]
        assert states[0].entries_added > 3000
