"""The timer log of real brokers against the messages they speak of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from store_core.layout.timer import TIMER_TOPIC
from store_core.read.timer import timer_log, timer_units
from store_core.storage.store import Store
from tests.stores import truth

WITH_TIMER = ("clean-533", "clean-540")


@pytest.mark.parametrize("name", WITH_TIMER)
def test_every_unit_is_a_record_of_the_timer_topic(golden: Callable[[str], Path], name: str) -> None:
    records = {m["phyOffset"]: m for m in truth(name)["messages"] if m["topic"] == TIMER_TOPIC}
    with Store.open(golden(name)) as store:
        units = list(timer_units(timer_log(store)))
    assert units
    assert {unit.phy_offset for unit in units} <= set(records)
    for unit in units:
        record = records[unit.phy_offset]
        assert unit.record_size_bytes == record["storeSize"]
        assert unit.is_delete == ("TIMER_DEL_UNIQKEY" in record["properties"])
        assert unit.is_roll or unit.delivery_timestamp_ms == int(record["properties"]["TIMER_OUT_MS"])


def test_a_store_without_a_timer_has_none(golden: Callable[[str], Path]) -> None:
    with Store.open(golden("clean-430")) as store:
        assert list(timer_units(timer_log(store))) == []


def test_a_damaged_log_ends_where_the_damage_begins(store_copy: Callable[..., Path]) -> None:
    root = store_copy("clean-533")
    with Store.open(root) as store:
        log = timer_log(store)
        whole = list(timer_units(log))
        first = log.segments[0]
        data = bytearray(first.path.read_bytes())
        data[whole[2].position - first.phy_offset] ^= 1
        first.path.write_bytes(data)
    with Store.open(root) as store:
        rest = [u for u in timer_units(timer_log(store)) if u.position < first.end_phy_offset]
    assert rest == whole[:2]
