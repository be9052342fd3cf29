"""Half messages and their ends, and a group's progress."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from store_core.engine.message import NewMessage, PutStatus
from store_core.engine.progress import commit_offset
from store_core.engine.put import put
from store_core.engine.transactions import commit, rollback
from store_core.errors import FailedError, UsageError
from store_core.layout import paths
from store_core.read.progress import read_progress
from store_core.read.records import read_message
from store_core.storage.config_files import read_config
from store_core.storage.syscalls import FileOps
from tests.conftest import StoreCopy
from tests.engine.writing import Writable, Written


def half_of(written: Written, topic: str, body: bytes = b"half") -> int:
    with written.live() as live:
        result = put(live, NewMessage(topic, body, 1, {"KEYS": "k"}, sys_flag=0x4), half=True)
    assert result.stored is not None
    return result.stored.phy_offset


def test_a_half_message_is_hidden(writable: Writable) -> None:
    written = writable("load-533")
    end = written.end_of("Calm_orders", 1)
    at = half_of(written, "Calm_orders")
    with written.store() as store:
        half = read_message(store.log, at)
    assert half is not None
    assert (half.topic, half.queue_id, half.transaction) == (paths.HALF_TOPIC, 0, "none")
    assert half.properties["__transactionId__"] == half.unique_key
    assert written.end_of("Calm_orders", 1) == end


def test_commit_delivers_it_and_names_it_done(writable: Writable) -> None:
    written = writable("load-533")
    end = written.end_of("Calm_orders", 1)
    at = half_of(written, "Calm_orders")
    with written.live() as live:
        result = commit(live, at)
    assert (result.status, result.topic, result.queue_id) == (PutStatus.PUT_OK, "Calm_orders", 1)
    assert result.stored is not None
    with written.store() as store:
        message = read_message(store.log, result.stored.phy_offset)
    assert message is not None
    assert (message.transaction, message.prepared_transaction_offset, message.queue_offset) == ("commit", at, end)
    assert written.bodies(paths.OP_TOPIC, 0, 0)[-1] == b"0,"
    for again in (commit, rollback):
        with written.live() as live, pytest.raises(UsageError, match="already"):
            again(live, at)


def test_rollback_writes_the_op_message_alone(writable: Writable) -> None:
    written = writable("load-497")
    end = written.end_of("Soft_orders", 1)
    first, second = half_of(written, "Soft_orders"), half_of(written, "Soft_orders")
    with written.live() as live:
        result = rollback(live, second)
    assert (result.topic, written.end_of("Soft_orders", 1)) == (paths.OP_TOPIC, end)
    assert written.bodies(paths.OP_TOPIC, 0, 0)[-1] == b"1"
    with written.live() as live:
        assert commit(live, first).stored is not None


def test_one_opening_sees_what_it_has_written(writable: Writable) -> None:
    """A half that was just put can be ended, and only once, also where it began a queue and a segment of its own."""
    written = writable("load-533")
    with written.live(flush="async") as live:
        while live.next_queue_offset("Calm_orders", 0) < 300:
            put(live, NewMessage("Calm_orders", bytes(2000), 0))
        half = put(live, NewMessage("Calm_orders", b"half", 0, sys_flag=0x4), half=True)
        assert half.stored is not None
        assert commit(live, half.stored.phy_offset).stored is not None
        for again in (commit, rollback):
            with pytest.raises(UsageError, match="already"):
                again(live, half.stored.phy_offset)


def test_async_is_on_the_disk_after_a_clean_close(writable: Writable) -> None:
    synced: list[str] = []

    class Ops(FileOps):
        def sync_file(self, path: Path, data_only: bool = False) -> None:
            synced.append(path.name)
            super().sync_file(path, data_only)

    written = writable("load-533")
    with written.live(flush="async", ops=Ops()) as live:
        result = put(live, NewMessage("Calm_orders", b"body", 1))
        assert synced == []
    assert result.stored is not None
    size = written.settings.segment_size_bytes
    assert size is not None
    assert paths.segment_name(result.stored.phy_offset // size * size) in synced
    assert "checkpoint" in synced


@pytest.mark.parametrize("at", [0, 1, 1 << 40])
def test_only_half_messages_can_be_ended(writable: Writable, at: int) -> None:
    with writable("load-533").live() as live, pytest.raises(UsageError, match="no half message"):
        commit(live, at)


def test_a_half_message_cannot_be_delayed(writable: Writable) -> None:
    with writable("load-533").live() as live, pytest.raises(UsageError, match="delayed"):
        put(live, NewMessage("Calm_orders", b"", 0, {"DELAY": "1"}), half=True)


def raw(root: Path, name: str) -> str:
    return (root / name).read_text()


@pytest.mark.parametrize("name", ["load-533", "load-497", "clean-540", "clean-430"])
def test_progress_is_stored_as_the_release_writes_it(writable: Writable, name: str) -> None:
    written = writable(name)
    before, bytes_before = read_config(written.root), raw(written.root, paths.CONSUMER_OFFSET_JSON)
    rows = read_progress(written.root).rows
    topic = {"load-533": "Calm_orders", "load-497": "Soft_orders", "clean-540": "Port_orders"}.get(name, "Barn_orders")
    with written.live(now_ms=lambda: 1_999_999_999_999) as live:
        commit_offset(live, "readers", topic, 0, 5)
        commit_offset(live, "readers", topic, 1, 6)
        commit_offset(live, "readers", topic, 0, 4)
    after = read_config(written.root)
    table = read_progress(written.root)
    assert (table.offset_of("readers", topic, 0), table.offset_of("readers", topic, 1)) == (4, 6)
    assert set(table.rows) > set(rows)
    assert after.progress.source == "main"
    assert raw(written.root, f"{paths.CONSUMER_OFFSET_JSON}.bak") != bytes_before  # two commits later
    old, new = before.progress.value["data_version"], after.progress.value["data_version"]
    if name in ("load-497", "clean-430"):
        assert (old, new) == (None, None)
    else:
        assert new is not None
        assert (new["counter"], new["timestamp_ms"]) == ((old["counter"] if old else 0) + 3, 1_999_999_999_999)
    assert after.progress.layout == before.progress.layout
    assert not (written.root / f"{paths.CONSUMER_OFFSET_JSON}.tmp").exists()


def test_the_copy_holds_what_stood_before(writable: Writable) -> None:
    written = writable("load-533")
    before = raw(written.root, paths.CONSUMER_OFFSET_JSON)
    with written.live() as live:
        commit_offset(live, "g", "Calm_orders", 0, 1)
    assert raw(written.root, f"{paths.CONSUMER_OFFSET_JSON}.bak") == before


def test_a_good_copy_is_not_overwritten_by_a_torn_file(writable: Writable) -> None:
    written = writable("load-533")
    name = paths.CONSUMER_OFFSET_JSON
    good = raw(written.root, name)
    (written.root / f"{name}.bak").write_text(good)
    (written.root / name).write_text(good[: len(good) // 2])
    with written.live() as live:
        commit_offset(live, "g", "Calm_orders", 0, 1)
    assert raw(written.root, f"{name}.bak") == good
    assert read_progress(written.root).offset_of("g", "Calm_orders", 0) == 1


def test_two_torn_files_are_left_alone(store_copy: StoreCopy) -> None:
    root = store_copy("load-533")
    for suffix in ("", ".bak"):
        (root / f"{paths.CONSUMER_OFFSET_JSON}{suffix}").write_text('{"offsetTable":{')
    with Written.of("load-533", root).live() as live, pytest.raises(FailedError, match="damaged"):
        commit_offset(live, "g", "Calm_orders", 0, 1)
    assert raw(root, paths.CONSUMER_OFFSET_JSON) == '{"offsetTable":{'


def test_a_group_with_an_at_sign_is_none(writable: Writable) -> None:
    with writable("load-533").live() as live, pytest.raises(UsageError, match="no group"):
        commit_offset(live, "a@b", "Calm_orders", 0, 1)


def test_a_store_without_progress_gets_its_first(writable: Writable) -> None:
    written = writable("load-533")
    for suffix in ("", ".bak"):
        (written.root / f"{paths.CONSUMER_OFFSET_JSON}{suffix}").unlink()
    with written.live() as live:
        commit_offset(live, "g", "Calm_orders", 0, 1)
    assert json.loads(raw(written.root, paths.CONSUMER_OFFSET_JSON).replace("{0:", '{"0":'))["offsetTable"] == {
        "Calm_orders@g": {"0": 1}
    }
