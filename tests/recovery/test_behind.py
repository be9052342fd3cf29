"""What lay behind the log's last record: whom queue entries and the index tell of there, and who is there all the same."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from store_core.layout import index, paths
from tests import stores
from tests.damage import Damageable
from tests.recovery.recovering import VERSIONS, Opener, apply_to, is_queued, places

SettingsOf = Callable[[str], Path]
OpenerOf = Callable[[str], Opener]


@pytest.fixture
def opener_of(settings_of: SettingsOf) -> OpenerOf:
    return lambda base: Opener(settings_of(base), VERSIONS.get(base) or stores.truth(base)["written_by"])


@pytest.mark.parametrize("beyond", [1_000, 2_000_000])
def test_an_entry_behind_the_log_whose_message_is_there_tells_of_no_loss(
    beyond: int, damageable: Callable[..., Damageable], opener_of: OpenerOf
) -> None:
    store = damageable("load-533")
    message = next(m for m in store.truth["messages"] if m["topic"] == "Calm_audit" and m["queueOffset"] == 258)
    place = message["topic"], message["queueId"], message["queueOffset"]
    store.set_entry(*place, (store.end_phy_offset + beyond, message["storeSize"], 1))
    recovery = opener_of("load-533").recover(store.root)
    assert (recovery.lost, recovery.lost_records) == ((), ())
    store.zero(message["phyOffset"], message["storeSize"])
    assert places(opener_of("load-533").recover(store.root).lost) == {place}


@pytest.mark.parametrize("rows", [40, 1500])
def test_many_entries_behind_the_log_tell_of_those_that_are_gone(
    rows: int, damageable: Callable[..., Damageable], opener_of: OpenerOf
) -> None:
    """A queue file that another life of the log has left."""
    store = damageable("load-533")
    last: dict[tuple[str, int], int] = {}
    for message in store.truth["messages"]:
        if is_queued(message):
            last[message["topic"], message["queueId"]] = message["queueOffset"]
    (topic, queue_id), end = max(last.items(), key=lambda item: item[1])
    for number in range(rows):
        path, _ = store.queue_file(topic, queue_id, end - 10 + number)
        if not path.exists():
            path.write_bytes(bytes(store.queue_file_size_bytes))
        at = (store.end_phy_offset // 128 + 1 + number) * 128  # none across the end of a segment
        store.set_entry(topic, queue_id, end - 10 + number, (at, 128, 1))
    lost = opener_of("load-533").recover(store.root).lost
    assert places(lost) == {(topic, queue_id, number) for number in range(end + 1, end - 10 + rows)}


def test_the_index_tells_of_messages_behind_the_log(damageable: Callable[..., Damageable], opener_of: OpenerOf) -> None:
    """Where queues are gone as well, nothing else does."""
    store = damageable("load-533")
    with_keys = [m for m in store.truth["messages"][-8:] if "KEYS" in m["properties"] or "UNIQ_KEY" in m["properties"]]
    begin = store.message(-8)["phyOffset"]
    store.zero(begin, store.end_phy_offset - begin)
    shutil.rmtree(store.root / paths.CONSUMEQUEUE)
    opener = opener_of("load-533")
    recovery = opener.recover(store.root)
    assert len(with_keys) > 2
    assert [(run.topic, run.messages) for run in recovery.lost] == [(None, len(with_keys))]
    assert [record["phy_offset"] for record in recovery.lost_records] == [m["phyOffset"] for m in with_keys]
    apply_to(recovery, store.root)
    assert (opener.recover(store.root).lost, opener.recover(store.root).plan.steps) == ((), ())


@pytest.mark.parametrize("messages", [40, 1500])
def test_the_index_tells_of_nobody_twice(
    messages: int, damageable: Callable[..., Damageable], opener_of: OpenerOf
) -> None:
    """Queue entries tell of all messages behind the end, few or many; one of them leads there, though its message stands."""
    store = damageable("load-533")
    begin = store.message(-messages)["phyOffset"]
    lost = [m for m in store.truth["messages"] if m["phyOffset"] >= begin and is_queued(m)]
    for path in store.segments:
        if int(path.name) > begin:
            path.unlink()
    rest = min(store.segment_size_bytes - begin % store.segment_size_bytes, store.end_phy_offset - begin)
    store.zero(begin, rest)
    recovery = opener_of("load-533").recover(store.root)
    assert sum(run.messages or 0 for run in recovery.lost) == len(lost)
    assert None not in {run.topic for run in recovery.lost}


def test_a_damaged_index_entry_is_no_lost_record(damageable: Callable[..., Damageable], opener_of: OpenerOf) -> None:
    store = damageable("load-533")
    path = min((store.root / paths.INDEX).iterdir())
    with path.open("r+b") as file:
        slots = int(store.truth["properties"]["maxHashSlotNum"])
        at = index.entry_at(slots, 30) + index.ENTRY.offset_of("phy_offset") + 5
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 0x80]))
    gone = store.message(50)
    store.zero(gone["phyOffset"], gone["storeSize"])
    recovery = opener_of("load-533").recover(store.root)
    assert [record["phy_offset"] for record in recovery.lost_records] == [gone["phyOffset"]]
