"""Starts of many releases look at plain records as one run where single ones are not needed, and share what they lose."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from store_core.broker import log_recovery, walk
from store_core.broker.load import IndexState
from store_core.broker.versions import RELEASES as RELEASES_KNOWN
from store_core.broker.versions import Version, behaviour_of, groups_of
from store_core.broker.walk import plain_runs
from store_core.kernel.codes import FrameCode
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
    if request.param == "windows":
        monkeypatch.setattr(walk.SegmentWalk, "_has_plain_part", False)


@pytest.mark.product
@pytest.mark.usefixtures("small_reads")
@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.parametrize("base", BASES)
def test_plain_records_as_one_run_change_nothing(
    base: str, name: str, damaged: DamagedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = damaged(base, name, "clean")
    with Store.open(root) as store:
        in_runs = [_played(store, release) for release in RELEASES]
        monkeypatch.setattr(log_recovery, "_not_dispatched", lambda *_: 0)  # single records everywhere
        assert in_runs == [_played(store, release) for release in RELEASES]


@pytest.mark.product(6)
@pytest.mark.parametrize("exit", ["clean", "crash"])
@pytest.mark.parametrize("name", [*DAMAGES, "cq-hole", "log-missing-mid", "log-missing-first"])
@pytest.mark.parametrize("base", BASES)
def test_losses_that_were_listed_are_those_of_every_start(
    base: str, name: str, exit: str, damaged: DamagedStore
) -> None:
    with Store.open(damaged(base, name, exit)) as store:
        books = Books()
        behaviours = [behaviour for behaviour, _ in groups_of(RELEASES_KNOWN)]
        shared = [outcome_of(store, behaviour, books=books) for behaviour in behaviours]
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


def test_no_plain_records_are_found_in_a_file_that_cannot_be_opened(damaged: DamagedStore) -> None:
    """The walk then reads it in another way, which reports the error."""
    root = damaged("load-533", "untouched", "clean")
    with Store.open(root) as store:
        newest = store.log.segments[-1]
        newest.path.rename(root / "elsewhere")
        begin, end = newest.phy_offset, newest.end_phy_offset
        assert not list(plain_runs(store.log, newest, begin, end, end, check_crc=True))


def _played(store: Store, release: str) -> tuple[Outcome, list[str]]:
    return outcome_of(store, behaviour_of(Version.parse(release)))


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
