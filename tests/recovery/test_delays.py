"""How far the delay service has come, told by the log alone: held against the progress that real brokers wrote."""

from __future__ import annotations

import os
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from store_core.layout import paths
from store_core.recovery import lost_config as delays
from store_core.recovery.apply.undo import undo
from store_core.recovery.keep_options import KeepOptions
from store_core.storage.config_files import read_config
from tests import stores
from tests.conftest import GoldenStore, StoreCopy, differences
from tests.damage import Damageable
from tests.recovery.recovering import Opener, apply_to

SettingsOf = Callable[[str], Path]
# Stopped in order, so that the file says what the service had done; with delayed messages in the log.
STOPPED = ("clean-430", "clean-497", "clean-514", "clean-533", "clean-540", "ipv6-533", "propcrc-533", "load-497")
TOLD = (*STOPPED, "load-533", "cqext-497", "cqext-533")


@pytest.fixture
def opener_of(settings_of: SettingsOf) -> Callable[[str], Opener]:
    return lambda name: Opener(settings_of(name), stores.truth(name)["written_by"])


def _lose(root: Path) -> dict[int, int]:
    """What the broker had written, which is gone afterwards. A missing level says the same as 0."""
    written = read_config(root).delay_offsets
    assert written.source == "main"
    for name in (paths.DELAY_OFFSET_JSON, paths.DELAY_OFFSET_JSON + paths.BAK_SUFFIX):
        (root / name).unlink(missing_ok=True)
    return {level: offset for level, offset in written.value["offsets"].items() if offset}


def _told(root: Path) -> dict[int, int]:
    offsets = read_config(root).delay_offsets
    assert offsets.source == "main"
    return {level: offset for level, offset in offsets.value["offsets"].items() if offset}


def _copies(name: str, level: int) -> list[int]:
    """Numbers of the records that are delivered messages of a level."""
    return [
        number
        for number, message in enumerate(stores.truth(name)["messages"])
        if message["properties"].get("DELAY") == str(level) and message["topic"] != paths.SCHEDULE_TOPIC
    ]


@pytest.mark.product(4)
@pytest.mark.parametrize("name", TOLD)
def test_the_log_tells_what_the_broker_had_written(
    name: str, store_copy: StoreCopy, opener_of: Callable[[str], Opener]
) -> None:
    root, opener = store_copy(name), opener_of(name)
    written, before = _lose(root), stores.snapshot(root)
    assert "P009" in {found.code for found in opener.check(root)}
    recovery = opener.recover(root)
    assert [step.path for step in recovery.plan.steps] == [paths.DELAY_OFFSET_JSON]
    apply_to(recovery, root)
    assert _told(root) == written != {}
    assert opener.recover(root).plan.steps == ()
    undo(root, apply=True)
    assert differences(before, stores.snapshot(root)) == []


def test_what_is_written_has_the_form_of_the_release(
    golden: GoldenStore, store_copy: StoreCopy, opener_of: Callable[[str], Opener]
) -> None:
    for name in ("clean-430", "clean-514", "clean-533", "clean-540"):
        root = store_copy(name)
        _lose(root)
        apply_to(opener_of(name).recover(root), root)
        mine, its = ((each / paths.DELAY_OFFSET_JSON).read_text().splitlines() for each in (root, golden(name)))
        assert [line for line in mine if ":1795" not in line and "counter" not in line] == [
            line for line in its if ":1795" not in line and "counter" not in line
        ]


@pytest.mark.parametrize("name", ["clean-497", "clean-533"])
def test_a_message_whose_copy_is_lost_is_delivered_again(
    name: str, damageable: Callable[..., Damageable], opener_of: Callable[[str], Opener]
) -> None:
    """Consumers get it then, and those behind it a second time: better than never."""
    store, opener = damageable(name), opener_of(name)
    written, copies = _lose(store.root), _copies(name, 3)
    store.flip(copies[5], "body")
    recovery = opener.recover(store.root)
    assert any(f"{len(copies) - 6} messages after one whose copy is not there" in note for note in recovery.notes)
    apply_to(recovery, store.root)
    assert _told(store.root) == {**written, 3: 5}


def test_delayed_messages_that_are_lost_hold_nothing_up(
    damageable: Callable[..., Damageable], opener_of: Callable[[str], Opener]
) -> None:
    store, opener = damageable("clean-533"), opener_of("clean-533")
    written = _lose(store.root)
    waiting: list[dict[str, Any]] = stores.truth("clean-533")["messages"]
    of_level_3 = [n for n, m in enumerate(waiting) if (m["topic"], m["queueId"]) == (paths.SCHEDULE_TOPIC, 2)]
    store.flip(of_level_3[4], "body")
    apply_to(opener.recover(store.root), store.root)
    assert _told(store.root) == written


def test_the_copy_of_the_file_goes_before_the_log(store_copy: StoreCopy, opener_of: Callable[[str], Opener]) -> None:
    root = store_copy("clean-533")
    (root / paths.DELAY_OFFSET_JSON).write_bytes(b"{")
    (root / (paths.DELAY_OFFSET_JSON + paths.BAK_SUFFIX)).write_text('{"offsetTable":{1:2}}')
    apply_to(opener_of("clean-533").recover(root), root)
    assert _told(root) == {1: 2}


def test_a_sibling_goes_before_the_log(
    golden: GoldenStore, store_copy: StoreCopy, opener_of: Callable[[str], Opener]
) -> None:
    root, opener = store_copy("clean-533"), opener_of("clean-533")
    written = _lose(root)
    recovery = opener.recover(root, options=KeepOptions(siblings=(golden("clean-533"),)))
    assert [step.why for step in recovery.plan.steps] == ["as the sibling has it"]
    apply_to(recovery, root)
    assert _told(root) == written


@pytest.mark.parametrize("bak", [b"", b"{"])
def test_a_broken_file_is_answered_as_a_missing_one(
    bak: bytes, store_copy: StoreCopy, opener_of: Callable[[str], Opener]
) -> None:
    root, opener = store_copy("clean-533"), opener_of("clean-533")
    written = _lose(root)
    (root / paths.DELAY_OFFSET_JSON).write_bytes(b"{")
    (root / (paths.DELAY_OFFSET_JSON + paths.BAK_SUFFIX)).write_bytes(bak)
    recovery = opener.recover(root)
    assert {f.advice for f in recovery.findings if f.code == "P004"} == {"The plan mends it."}
    apply_to(recovery, root)
    assert _told(root) == written


def test_a_copy_of_the_log_without_config_files_gets_none(
    store_copy: StoreCopy, opener_of: Callable[[str], Opener]
) -> None:
    root, opener = store_copy("clean-533"), opener_of("clean-533")
    for path in sorted((root / paths.CONFIG).iterdir()):
        os.remove(path)
    assert opener.recover(root).plan.steps == ()
    assert "P009" not in {found.code for found in opener.check(root)}


@pytest.mark.parametrize("seed", range(12))
def test_what_is_struck_out_on_the_way_changes_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the rule said one by one: a copy answers to the first of its message that waits in front of it."""
    draw = random.Random(seed)
    monkeypatch.setattr(delays, "_PART_ROWS", draw.choice((3, 50, 1 << 17)))
    tracker, at_once = delays.DelayTracker(), delays.DelayTracker()
    waiting: dict[int, list[tuple[int, int]]] = {}
    delivered: dict[int, list[int]] = {1: [], 2: [], 3: []}
    for one in (tracker, at_once):
        for level in delivered:
            one._levels.append(level)
            one._known[level] = delays._Level()
    for number in range(400):
        digest = draw.choice((draw.randrange(40), draw.randrange(1 << 64)))
        place = draw.choice((0, 0, 1, 2, delays._DELIVERED, delays._DELIVERED))
        for one in (tracker, at_once):
            one._came(digest, place, number)
        if place != delays._DELIVERED:
            waiting.setdefault(digest, []).append((place + 1, number))
        elif waiting.get(digest):
            level, answered = waiting[digest].pop(0)
            delivered[level].append(answered)
        if draw.random() < 0.1:
            tracker._strike()
    found = tracker.progress({})
    assert found == at_once.progress({})
    for level, told in found.items():
        left = sorted(number for those in waiting.values() for at, number in those if at == level)
        assert (told.queue_offset, told.delivered) == (left[0], len(delivered[level]))
        passed = [number for number in left if number <= max(delivered[level])]
        assert told.again == max(max(delivered[level]) + 1 - left[0] - len(passed), 0)


def test_a_waiting_message_takes_few_bytes() -> None:
    tracker = delays.DelayTracker()
    tracker._levels.append(1)
    tracker._known[1] = delays._Level()
    tracemalloc.start()
    for number in range(200_000):
        tracker._came(hash(str(number)) & ((1 << 64) - 1), 0, number)
    tracker._strike()
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held < 200_000 * 24
