"""A prediction for many releases looks at plain records once, and as one run where nobody asks for single ones."""

from __future__ import annotations

import pytest

from store_core.broker import log_recovery, walk
from store_core.broker.proven import Proven
from store_core.broker.versions import Version, behaviour_of
from store_core.kernel import scan_window
from store_core.kernel.columns import WindowColumns
from store_core.kernel.file import FileWalk, Walked
from store_core.kernel.file import walk as walk_file
from store_core.mend.prediction.outcome import Outcome
from store_core.mend.prediction.predict import outcome_of
from store_core.storage.store import Store
from tests.conftest import DamagedStore

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
    monkeypatch.setattr(walk, "BLOCK_SIZE_BYTES", SMALL_WINDOW_BYTES)
    monkeypatch.setattr(walk, "CALL_SECONDS", 0.0)
    if request.param == "windows":
        monkeypatch.setattr(walk.SegmentWalk, "_has_plain_part", False)


@pytest.mark.usefixtures("small_reads")
@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.parametrize("base", BASES)
def test_what_other_releases_found_changes_nothing(
    base: str, name: str, damaged: DamagedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = damaged(base, name, "clean")
    with Store.open(root) as store:
        proven = Proven()
        shared = [_played(store, release, proven) for release in RELEASES]
        monkeypatch.setattr(log_recovery, "_not_dispatched", lambda *_: 0)  # single records everywhere
        assert shared == [_played(store, release, None) for release in RELEASES]


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
    monkeypatch.setattr(walk, "walk_file", counted_file)
    with Store.open(root) as store:
        proven = Proven()
        _played(store, "5.2.0", proven)
        alone = len(calls)
        _played(store, "5.4.0", proven)
    assert alone > 8
    assert len(calls) - alone <= 3  # what is left is where the last record ends


def _played(store: Store, release: str, proven: Proven | None) -> tuple[Outcome, list[str]]:
    return outcome_of(store, behaviour_of(Version.parse(release)), proven=proven)
