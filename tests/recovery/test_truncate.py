"""truncate: the log ends at the record named, and everything derived with it; undo gives all back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from store_core.errors import FailedError, UsageError
from store_core.layout import paths, timer
from store_core.read.checkpoint import read_checkpoint
from store_core.recovery.apply.undo import undo
from store_core.recovery.losses import Planned
from store_core.recovery.truncate import assert_boundary, truncate
from store_core.storage.settings import load_settings
from store_core.storage.store import Store
from tests import stores
from tests.conftest import GoldenStore, StoreCopy, differences
from tests.damage import Damageable
from tests.recovery.recovering import Opener, apply_to, assert_kept, is_queued, place, places

SettingsOf = Callable[[str], Path]


def truncated(root: Path, config: Path, phy_offset: int, version: str | None = None) -> Planned:
    with Store.open(root, load_settings(config, root, broker_version=version)) as store:
        return truncate(store, phy_offset)


def cuts(name: str) -> dict[str, int]:
    """Every kind of place where a log may be cut."""
    truth = stores.truth(name)
    messages, size = truth["messages"], int(truth["properties"]["mappedFileSizeCommitLog"])
    middle = messages[len(messages) // 2]
    start = middle["phyOffset"] // size * size
    behind_last_of_segment = max(
        m["phyOffset"] + m["storeSize"] for m in messages if m["phyOffset"] // size == start // size
    )
    return {
        "first record": messages[0]["phyOffset"],
        "second record": messages[1]["phyOffset"],
        "middle": middle["phyOffset"],
        "segment start": start,
        "segment's blank": behind_last_of_segment,
        "last record": messages[-1]["phyOffset"],
        "log's end": messages[-1]["phyOffset"] + messages[-1]["storeSize"],
    }


CASES: Final = [
    (name, what) for name in ("load-533", "load-497", "clean-540", "lmq-533", "bcq-533") for what in cuts(name)
]


@pytest.mark.product
@pytest.mark.parametrize(("name", "what"), CASES, ids=[f"{name}-{what}" for name, what in CASES])
def test_cut(name: str, what: str, golden: GoldenStore, store_copy: StoreCopy, settings_of: SettingsOf) -> None:
    root, config, version = store_copy(name), settings_of(name), stores.truth(name)["written_by"]
    messages, cut = stores.truth(name)["messages"], cuts(name)[what]
    gone = [m for m in messages if m["phyOffset"] >= cut]
    before = stores.snapshot(root)
    result = truncated(root, config, cut, version)
    assert differences(before, stores.snapshot(root)) == []
    assert sum(run.messages or 0 for run in result.lost) == sum(int(m["properties"].get("INNER_NUM", 1)) for m in gone)
    assert {place(m) for m in gone} <= places(result.lost)

    applied = apply_to(result, root)
    opener = Opener(config, version)
    # A log without a record tells nothing of its queues, nor of topics that only it knew.
    assert [f.code for f in opener.check(root) if f.severity != "info"] == []
    after = opener.predict(root)
    assert after == result.after.as_json()
    assert (after["starts"], after["max_phy_offset"], after["lost_messages"], after["ghosts"]) == (True, cut, 0, [])
    kept = [m for m in messages if m["phyOffset"] < cut and m["topic"] != "Bcq_inner"]
    assert_kept(golden(name), root, name, kept)
    numbers = dict.fromkeys({place(m)[:2] for m in messages if is_queued(m) and m["topic"] != "Bcq_inner"}, 0)
    for message in kept:
        if is_queued(message):
            topic, queue_id, number = place(message)
            numbers[topic, queue_id] = max(numbers[topic, queue_id], number + 1)
    for (topic, queue_id), end in numbers.items():
        assert after["queues"].get(topic, {}).get(str(queue_id), {"max_offset": 0})["max_offset"] == end
    _assert_progress_fits(root, after)
    assert truncated(root, config, cut, version).plan.steps == ()

    if applied is not None:
        undo(root, applied.undo_id, apply=True)
    now = {path: entry for path, entry in stores.snapshot(root).items() if not path.startswith(".rmqctl")}
    assert differences(before, now) == []


def _assert_progress_fits(root: Path, after: dict[str, Any]) -> None:
    ends = {
        (topic, queue_id): span["max_offset"]
        for topic, queues in after["queues"].items()
        for queue_id, span in queues.items()
    }
    delays = _tables(root / paths.CONFIG / "delayOffset.json")
    for level, offset in delays.items():
        assert offset <= ends.get((paths.SCHEDULE_TOPIC, str(int(level) - 1)), 0)
    check = root / paths.TIMERCHECK
    if check.exists() and (fields := timer.CHECK.read(check.read_bytes())):
        assert fields["last_timer_queue_offset"] <= ends.get((timer.TIMER_TOPIC, "0"), 0)


def _tables(path: Path) -> dict[str, int]:
    """The offset table of a file whose keys are bare numbers."""
    if not path.exists():
        return {}
    import re

    table: dict[str, int] = json.loads(re.sub(r"([{,]\s*)(\d+):", r'\1"\2":', path.read_text()))["offsetTable"]
    return table


def test_checkpoint_promises_no_more_than_is_left(store_copy: StoreCopy, settings_of: SettingsOf) -> None:
    root = store_copy("load-533")
    messages = stores.truth("load-533")["messages"]
    middle = len(messages) // 2
    apply_to(truncated(root, settings_of("load-533"), messages[middle]["phyOffset"]), root)
    found = read_checkpoint(root)
    last = messages[middle - 1]["storeTimestamp"]
    assert (found.physic_msg_timestamp_ms, found.logics_msg_timestamp_ms) == (last, last)
    assert found.index_msg_timestamp_ms <= last


def test_every_boundary_of_a_log_and_nothing_between(golden: GoldenStore, settings_of: SettingsOf) -> None:
    messages = stores.truth("lmq-533")["messages"]
    with Store.open(golden("lmq-533"), load_settings(settings_of("lmq-533"), golden("lmq-533"))) as store:
        for message in messages[::7]:
            assert_boundary(store, message["phyOffset"])
            assert_boundary(store, message["phyOffset"] + message["storeSize"])
            for offset in (message["phyOffset"] + 1, message["phyOffset"] + message["storeSize"] - 1):
                with pytest.raises(UsageError, match="no record starts") as caught:
                    assert_boundary(store, offset)
                assert caught.value.to_do == f"the nearest boundary below is {message['phyOffset']}"
        for offset in (-1, 1 << 40):
            with pytest.raises(UsageError, match="outside the log"):
                assert_boundary(store, offset)


def test_a_log_that_is_damaged_before_the_cut_is_not_cut(
    damageable: Callable[..., Damageable], settings_of: SettingsOf
) -> None:
    store = damageable("load-533")
    store.flip(100, "magic")
    with pytest.raises(FailedError, match="damaged before the cut") as caught:
        truncated(store.root, settings_of("load-533"), store.message(500)["phyOffset"])
    assert caught.value.phy_offset == store.message(100)["phyOffset"]


def test_damage_behind_the_cut_goes_with_it(damageable: Callable[..., Damageable], settings_of: SettingsOf) -> None:
    store = damageable("load-533", "crash")
    store.flip(900, "magic")
    cut = store.message(900)["phyOffset"]
    apply_to(truncated(store.root, settings_of("load-533"), cut), store.root)
    assert [f.code for f in Opener(settings_of("load-533"), "5.3.3").check(store.root) if f.severity != "info"] == []


def test_what_goes_is_named_by_its_first_keys(golden: GoldenStore, settings_of: SettingsOf) -> None:
    messages = stores.truth("load-533")["messages"]
    cut = messages[len(messages) // 2]["phyOffset"]
    wanted: dict[tuple[str, int], list[str]] = {}
    for message in messages:
        if message["phyOffset"] >= cut:
            known = wanted.setdefault((message["topic"], message["queueId"]), [])
            known += [k for k in message["properties"].get("KEYS", "").split(" ") if k and k not in known]
    lost = truncated(golden("load-533"), settings_of("load-533"), cut).lost
    assert {(run.topic, run.queue_id): list(run.keys) for run in lost} == {q: k[:10] for q, k in wanted.items()}
    assert any(wanted.values())


def test_a_log_is_cut_where_a_file_is_missing(damageable: Callable[..., Damageable], settings_of: SettingsOf) -> None:
    store = damageable("load-533", "crash")
    store.lose(3)
    size = store.segment_size_bytes
    with pytest.raises(UsageError, match="outside the log"):
        truncated(store.root, settings_of("load-533"), 3 * size + 1)
    apply_to(truncated(store.root, settings_of("load-533"), 3 * size), store.root)
    assert [int(path.name) for path in store.segments] == [0, size, 2 * size]
    assert [f.code for f in Opener(settings_of("load-533"), "5.3.3").check(store.root) if f.severity != "info"] == []


@pytest.mark.parametrize("exit_", ["clean", "crash"])
@pytest.mark.parametrize("segment", [1, 3])
def test_a_recovery_leaves_a_cut_at_a_segments_begin_as_it_is(
    segment: int, exit_: str, damageable: Callable[..., Damageable], settings_of: SettingsOf
) -> None:
    """The emptied segment is where a broker would go on, for the one in front of it is full."""
    store, config = damageable("load-533", exit_), settings_of("load-533")
    begin = segment * store.segment_size_bytes
    apply_to(truncated(store.root, config, begin), store.root)
    names = [path.name for path in store.segments]
    assert names[-1] == paths.segment_name(begin)
    opener = Opener(config, "5.3.3")
    recovery = opener.recover(store.root)
    assert [step.path for step in recovery.plan.steps if step.path != paths.ABORT] == []
    assert (recovery.after.starts, recovery.after.max_phy_offset) == (True, begin)
    (store.root / paths.COMMITLOG / paths.segment_name(begin + store.segment_size_bytes)).write_bytes(
        bytes(store.segment_size_bytes)
    )
    further = opener.recover(store.root)
    assert [step.path for step in further.plan.steps if step.path != paths.ABORT] == [
        f"{paths.COMMITLOG}/{paths.segment_name(begin + store.segment_size_bytes)}"
    ]
