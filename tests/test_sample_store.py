"""The sample store is the golden store load-533 with one flipped bit and ``abort``, and nothing else (docs/sample_store.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import stores
from tests.conftest import DamagedStore

SAMPLE = Path(__file__).parent.parent / "sample_store"


def test_the_sample_store_is_the_recorded_surgery_case(damaged: DamagedStore) -> None:
    assert stores.contents(SAMPLE) == stores.contents(damaged("load-533", "flip-body-mid", "crash"))


@pytest.mark.parametrize("by", [None, "5.1.4", "5.4.0"])
def test_real_brokers_throw_895_of_its_messages_away(by: str | None) -> None:
    outcome = stores.outcomes("load-533", by)["flip-body-mid/crash"]
    assert len(stores.truth("load-533")["messages"]) - outcome["afterLoad"]["log"]["messages"] == 895
    assert outcome["afterStart"]["maxPhyOffset"] == 567104
