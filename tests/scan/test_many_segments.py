"""However many segments a log has, walking one of them looks at no other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from store_core.check.store import check_store
from store_core.check.verify import verify_log
from store_core.storage import sequence
from store_core.storage.overlay import Patch, overlaid
from store_core.storage.sequence import Segment
from store_core.storage.store import Store
from tests.conftest import GoldenStore


class Looks:
    """How often all files of a log were checked against each other, and how often one was compared with another."""

    def __init__(self) -> None:
        self.checks = 0
        self.comparisons = 0


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    found = Looks()
    check, compare = sequence.SegmentSequence._on_the_grid, Segment.__eq__

    def checked(self: sequence.SegmentSequence, segments: tuple[Segment, ...]) -> Iterator[Segment]:
        found.checks += len(segments) > 1
        return check(self, segments)

    def compared(self: Segment, other: object) -> bool:
        found.comparisons += 1
        return compare(self, other)

    monkeypatch.setattr(sequence.SegmentSequence, "_on_the_grid", checked)
    monkeypatch.setattr(Segment, "__eq__", compared)
    return found


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_verification(golden: GoldenStore, looks: Looks, jobs: int) -> None:
    with Store.open(golden("load-533")) as store:
        assert len(store.log.segments) == 8
        assert not verify_log(store, jobs=jobs).findings
    assert (looks.checks, looks.comparisons) == (1, 0)


def test_a_check(golden: GoldenStore, looks: Looks) -> None:
    with Store.open(golden("load-533")) as store:
        queues = sum(len(files.segments) > 1 for files in store.queues.values())
        check_store(store)
    assert looks.checks == queues + 1


def test_a_view(golden: GoldenStore, looks: Looks) -> None:
    with Store.open(golden("load-533")) as store:
        segments = store.log.segments
        overlaid(store.log, {segments[3].path: [Patch(0, 10)]}, segments).cache.close()
    assert looks.comparisons == 0
