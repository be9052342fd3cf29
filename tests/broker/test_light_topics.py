"""Lists of light queues in records of retry, system and delayed topics: what real releases make of them, and what we do."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Final

import pytest

from store_core.check.store import check_store
from store_core.layout import paths
from store_core.recovery.recover import recover
from store_core.storage.settings import load_settings
from store_core.storage.store import Store
from tests import stores
from tests.broker import oracle
from tests.broker.conftest import OpenStore
from tests.broker.outcomes import compare_with_recorded
from tests.conftest import StoreCopy
from tests.recovery.recovering import SettingsOf, apply_to

QUEUE_ID: Final = 17
LIGHT: Final = ("%LMQ%fresh", "%LMQ%more")
LIST: Final = {"INNER_MULTI_DISPATCH": ",".join(LIGHT), "KEYS": "k"}
OLD_NUMBERS: Final = {"INNER_MULTI_QUEUE_OFFSET": "0,0"}  # of a message that was sent on
NEARLY_DELAYED: Final = f"{paths.SCHEDULE_TOPIC}Y"
TOPICS: Final = ("T", "%RETRY%g", "rmq_sys_wheel_timer", "rmq_sys_other", paths.SCHEDULE_TOPIC, NEARLY_DELAYED)
# Release, the golden store that it writes on, and the topics whose lists it enters.
RUNS: Final = (
    ("4.9.7", "lmq-497", TOPICS),
    ("5.1.4", "lmq-533", ("T", "rmq_sys_other", NEARLY_DELAYED)),
    ("5.3.3", "lmq-533", ("T", NEARLY_DELAYED)),
)


def _entries(told: dict[str, Any], topic: str) -> list[int]:
    found = [q for q in told["afterStart"]["queues"] if q["topic"] == topic]
    return [entry[1] for entry in found[0]["entries"]] if found else []


def _light_files(root: Path) -> dict[str, bytes]:
    folders = [root / paths.CONSUMEQUEUE / topic for topic in LIGHT]
    return {str(p.relative_to(root)): p.read_bytes() for folder in folders for p in folder.rglob("0*") if p.is_file()}


@pytest.mark.parametrize(("version", "base", "entered"), RUNS)
def test_lists_count_where_the_release_says(
    open_store: OpenStore,
    store_copy: StoreCopy,
    settings_of: SettingsOf,
    version: str,
    base: str,
    entered: tuple[str, ...],
) -> None:
    """Two messages a topic, the second one with numbers of its own already."""
    properties = stores.properties_text(base)
    puts = [
        oracle.put(topic, QUEUE_ID, f"{topic} {numbers}", {**LIST, **numbers})
        for topic in TOPICS
        for numbers in ({}, OLD_NUMBERS)
    ]
    told = open_store(version, store_copy(base), properties, requests=puts, start_ms=2000, entries=True)
    written = Path(told["root"])
    puts_at = [answer["phyOffset"] for answer in told["answers"]]
    expected = [
        at for at, topic in zip(puts_at, (t for t in TOPICS for _ in range(2)), strict=True) if topic in entered
    ]
    again = open_store(version, written, properties, entries=True, start_ms=2000, stop=False)
    assert [_entries(again, topic) for topic in LIGHT] == [expected] * 2

    _agree(open_store, written, settings_of(base), properties, version)


def _agree(open_store: OpenStore, written: Path, config: Path, properties: str, version: str) -> None:
    """Check, prediction and recovery find the same as the release."""
    settings = load_settings(config, written, broker_version=version)
    for told in (settings, load_settings(None, written)):  # what stands tells it too
        with Store.open(written, told) as store:
            assert [f for f in check_store(store).findings if f.topic in LIGHT] == []
    files = _light_files(written)
    for topic in LIGHT:
        shutil.rmtree(written / paths.CONSUMEQUEUE / topic, ignore_errors=True)
    started = open_store(version, written, properties, start_ms=2000, stop=False)
    assert compare_with_recorded(written, config, started, version) == {}
    with Store.open(written, settings) as store:
        recovery = recover(store)
    apply_to(recovery, written)
    assert _light_files(written) == files


@pytest.mark.parametrize(
    ("version", "base", "entered"), [("4.9.7", "clean-497", 2), ("5.1.4", "clean-514", 0), ("5.3.3", "clean-533", 1)]
)
def test_without_lmq_a_list_means_queues_of_the_records_own_number(
    open_store: OpenStore, store_copy: StoreCopy, tmp_path: Path, version: str, base: str, entered: int
) -> None:
    """5.x numbers none then; of messages that were sent on 5.1.4 blots out the numbers, and 5.3.3 enters them."""
    properties = f"{stores.properties_text(base)}\nenableMultiDispatch=true\n"
    (tmp_path / "broker.conf").write_text(properties)
    puts = [oracle.put("T", QUEUE_ID, f"{numbers}", {**LIST, **numbers}) for numbers in ({}, OLD_NUMBERS)]
    told = open_store(version, store_copy(base), properties, requests=puts, start_ms=2000, entries=True)
    written = Path(told["root"])
    again = open_store(version, written, properties, entries=True, start_ms=2000, stop=False)
    lights = [(q["topic"], q["queueId"]) for q in again["afterStart"]["queues"] if q["topic"] in LIGHT]
    assert sorted(lights) == ([(topic, QUEUE_ID) for topic in LIGHT] if entered else [])
    assert [len(_entries(again, topic)) for topic in LIGHT] == [entered] * 2
    _agree(open_store, written, tmp_path / "broker.conf", properties, version)
