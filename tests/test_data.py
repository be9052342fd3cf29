"""The test data are the ones that were recorded, and the fixtures hand out what the truth says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from store_core.layout import record
from tests import stores
from tests.conftest import DamagedStore, GoldenStore, StoreCopy
from tests.damage import Damageable


def test_every_file_has_its_recorded_digest() -> None:
    lines = (stores.DATA / "SHA256SUMS").read_text().splitlines()
    recorded = {name: digest for digest, name in (line.split("  ") for line in lines)}
    present = {p.name: stores.sha256(p) for p in stores.DATA.iterdir() if p.name not in ("SHA256SUMS", "README.md")}
    assert present == recorded


@pytest.mark.parametrize("name", stores.GOLDEN)
def test_an_unpacked_store_is_what_the_broker_left(golden: GoldenStore, name: str) -> None:
    assert stores.contents(golden(name)) == stores.truth(name)["files"]


def test_there_is_no_store_that_the_lists_forget() -> None:
    assert sorted(stores.GOLDEN) == sorted(p.name.removesuffix(".tar.gz") for p in stores.DATA.glob("*.tar.gz"))


def test_a_copy_keeps_every_time(golden: GoldenStore, store_copy: StoreCopy) -> None:
    assert stores.snapshot(store_copy("load-533")) == stores.snapshot(golden("load-533"))


@pytest.mark.parametrize("base", [*stores.BASES, *stores.BASES_OF_55, "crash-551-aged"])
def test_every_case_was_given_to_a_real_broker(base: str) -> None:
    recorded = {f"{name}/{exit}" for name in stores.cases(base) for exit in ("clean", "crash")}
    assert recorded >= stores.outcomes(base).keys()
    assert recorded == stores.outcomes(base).keys() or base.startswith("crash")  # of that one only some cases were


@pytest.mark.parametrize(
    ("base", "by"),
    [
        ("load-533", "5.1.4"),
        ("load-533", "5.4.0"),
        ("load-533", "5.5.1"),
        ("crash-533", "5.4.0"),
        ("load-551-aged", "5.5.0"),
    ],
)
def test_outcomes_by_another_release_are_of_known_cases(base: str, by: str) -> None:
    found = stores.outcomes(base, by)
    assert found
    assert {key.split("/")[0] for key in found} <= stores.cases(base).keys()
    assert {outcome["rocketmq"] for outcome in found.values()} == {by}


def test_a_damaged_copy_differs_where_the_case_says(golden: GoldenStore, damaged: DamagedStore) -> None:
    before, after = stores.contents(golden("load-533")), stores.contents(damaged("load-533", "flip-body-mid", "crash"))
    op = stores.cases("load-533")["flip-body-mid"]["ops"][0]
    assert {p for p in before.keys() | after.keys() if before.get(p) != after.get(p)} == {op["path"], "abort"}


@pytest.mark.parametrize("name", ["load-533", "ipv6-533", "clean-514"])
def test_fields_lie_where_the_damage_helper_says(damageable: Callable[..., Damageable], name: str) -> None:
    store = damageable(name)
    for number, message in enumerate(store.truth["messages"]):
        topic = message["topic"].encode()
        assert store.read(store.field_at(number, "topic"), len(topic)) == topic
        assert store.read(store.field_at(number, "queue_offset"), 8) == message["queueOffset"].to_bytes(8, "big")
        assert store.read(store.field_at(number, "store_timestamp_ms"), 8) == message["storeTimestamp"].to_bytes(8)
        assert store.read(store.field_at(number, "body_length"), 4) == message["bodyLength"].to_bytes(4)


def test_damage_touches_one_place(damageable: Callable[..., Damageable]) -> None:
    store = damageable("load-533")
    at = store.flip(record=7, field="body")
    clean = damageable("load-533")
    message = store.message(7)
    assert store.read(at, 1)[0] == clean.read(at, 1)[0] ^ 1
    assert at == message["phyOffset"] + record.body_at(message["sysFlag"])
    assert store.tear(tail=13) == store.end_phy_offset - 13
    assert store.lose(segment=1).name == "00000000000000131072"


def test_settings_carry_the_sizes(settings_of: Callable[[str], Path]) -> None:
    assert "mappedFileSizeCommitLog=131072\n" in settings_of("load-533").read_text()
