"""`rmqctl config` on golden stores and damaged files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from store_core.layout import paths
from tests import stores
from tests.rmqctl.calls import call, on_terminal


def test_json_is_the_files_typed(golden: Callable[[str], Path], read_only: Callable[[Path], Path]) -> None:
    result = call("config", "-s", read_only(golden("clean-533")), "-o", "json")
    assert (result.code, result.err) == (0, "")
    assert list(result.json) == ["files", "findings"]
    files = result.json["files"]
    assert list(files) == [
        "topics.json",
        "consumerOffset.json",
        "subscriptionGroup.json",
        "consumerFilter.json",
        "consumerOrderInfo.json",
        "delayOffset.json",
        "messageRequestMode.json",
        "timermetrics",
        "transactionMetrics",
        "position-checkpoint",
        "timercheck",
    ]
    assert result.json["findings"] == []
    told = stores.truth("clean-533")["consumerOffsets"]
    assert files["consumerOffset.json"]["offsets"] == told
    assert files["consumerOffset.json"]["entries"] == len(told)
    assert all(file["source"] == "main" and file["broker_loads"] for file in files.values())
    assert files["topics.json"]["data_version"] == {"counter": 22, "timestamp_ms": 1795227121101, "state_version": 0}
    assert files["topics.json"]["topics"]["Shop_fifo"] == {
        "topic": "Shop_fifo",
        "read_queues": 3,
        "write_queues": 3,
        "perm": 6,
        "order": False,
        "filter_type": "SINGLE_TAG",
        "sys_flag": 0,
        "attributes": {"message.type": "FIFO"},
    }
    assert files["topics.json"]["size_bytes"] == stores.truth("clean-533")["files"]["config/topics.json"][0]
    assert files["delayOffset.json"]["offsets"] == {"1": 3, "2": 3, "3": 26, "4": 12, "17": 0, "18": 0}
    assert files["timercheck"]["last_timer_queue_offset"] == 46


def test_rows_and_people(golden: Callable[[str], Path]) -> None:
    rows = call("config", "-s", golden("clean-497"), "-o", "ndjson").lines
    assert [row["file"] for row in rows] == [
        "topics.json",
        "consumerOffset.json",
        "subscriptionGroup.json",
        "consumerFilter.json",
        "delayOffset.json",
    ]
    header, *lines = call("config", "-s", golden("clean-497"), "-o", "csv").out.splitlines()
    assert header == "file,source,broker_loads,entries,size_bytes,modified_timestamp_ms"
    assert len(lines) == len(rows)
    for text in (call("config", "-s", golden("clean-497")).out, on_terminal("config", "-s", golden("clean-497")).text):
        assert "Mill_orders" in text
        assert "Mill_g_fifo" in text
        assert "consumerOffset.json" in text


def test_a_broken_file_is_told_and_its_copy_shown(store_copy: Callable[..., Path]) -> None:
    root = store_copy("clean-533")
    (root / paths.TOPICS_JSON).write_text("{{{")
    os.remove(root / paths.DELAY_OFFSET_JSON)
    os.remove(root / (paths.DELAY_OFFSET_JSON + paths.BAK_SUFFIX))
    for name in (paths.CONSUMER_OFFSET_JSON, paths.CONSUMER_OFFSET_JSON + paths.BAK_SUFFIX):
        (root / name).write_bytes(b"\0" * 50)
    result = call("config", "-s", root, "-o", "json")
    assert result.code == 3
    files = result.json["files"]
    assert [(f["code"], f["file"]) for f in result.json["findings"]] == [
        ("P003", "config/topics.json"),
        ("P004", "config/consumerOffset.json"),
    ]
    assert (files["topics.json"]["source"], files["topics.json"]["broker_loads"]) == ("bak", True)
    assert "Shop_fifo" in files["topics.json"]["topics"]
    assert (files["consumerOffset.json"]["source"], files["consumerOffset.json"]["broker_loads"]) == ("none", False)
    assert files["consumerOffset.json"]["offsets"] == {}
    assert "delayOffset.json" not in files
    assert "P004" in call("config", "-s", root).out


def test_rocksdb_is_a_notice(golden: Callable[[str], Path]) -> None:
    result = call("config", "-s", golden("rocks-533"), "-o", "json")
    assert result.code == 0
    assert [(f["code"], f["severity"]) for f in result.json["findings"]] == [("P008", "info")]
    assert "topics.json" not in result.json["files"]


def test_a_store_without_config(store_copy: Callable[..., Path]) -> None:
    root = store_copy("bcq-533")
    for path in (root / paths.CONFIG).iterdir():
        path.unlink()
    (root / paths.COMPACTION_POSITIONS).unlink()
    result = call("config", "-s", root, "-o", "json")
    assert (result.code, result.json) == (0, {"files": {}, "findings": []})
    assert "no config files" in call("config", "-s", root).out
