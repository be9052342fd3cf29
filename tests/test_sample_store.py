"""The sample store is the golden store load-533 with one flipped bit and ``abort``, and nothing else (docs/sample_store.md)."""

from __future__ import annotations

from pathlib import Path

from tests import stores
from tests.conftest import DamagedStore

SAMPLE = Path(__file__).parent.parent / "sample_store"


def test_the_sample_store_is_the_recorded_surgery_case(damaged: DamagedStore) -> None:
    assert stores.contents(SAMPLE) == stores.contents(damaged("load-533", "flip-body-mid", "crash"))


def test_a_real_broker_throws_895_of_its_messages_away() -> None:
    outcome = stores.outcomes("load-533")["flip-body-mid/crash"]
    assert len(stores.truth("load-533")["messages"]) - outcome["afterStart"]["log"]["messages"] == 895
    assert outcome["afterStart"]["maxPhyOffset"] == 567104
