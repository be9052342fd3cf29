"""`rmqctl log` in a process of its own, against the truth and behind damage."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Final

import pytest

from rmqctl import exit_codes
from tests import stores
from tests.conftest import DamagedStore, GoldenStore, StoreCopy
from tests.damage import Damageable
from tests.rmqctl.calls import ROOT, call, command, environment
from tests.rmqctl.messages import MESSAGE, NAME, body_of, told

SEGMENT_BYTES: Final = 131072


@pytest.mark.parametrize("name", ["clean-533", "clean-430", "ipv6-533", "propcrc-533", "rocks-533"])
def test_log_is_the_truth_field_by_field(golden: GoldenStore, name: str) -> None:
    import hashlib

    result = call("log", "-s", golden(name))
    assert result.code == exit_codes.OK
    rows = result.lines
    assert len(rows) == len(told(name))
    for row, message in zip(rows, told(name), strict=True):
        assert list(row) == MESSAGE
        host, _, port = message["storeHost"].rpartition("|")
        shown = {
            "topic": message["topic"],
            "queue_id": message["queueId"],
            "queue_offset": message["queueOffset"],
            "phy_offset": message["phyOffset"],
            "size_bytes": message["storeSize"],
            "offset_msg_id": message["msgId"],
            "unique_key": message["properties"].get("UNIQ_KEY"),
            "tags": message["properties"].get("TAGS"),
            "keys": [key for key in message["properties"].get("KEYS", "").split(" ") if key],
            "flag": message["flag"],
            "sys_flag": message["sysFlag"],
            "born_timestamp_ms": message["bornTimestamp"],
            "store_timestamp_ms": message["storeTimestamp"],
            "reconsume_times": message["reconsumeTimes"],
            "prepared_transaction_offset": message["preparedTransactionOffset"],
            "body_crc": message["bodyCRC"],
            "crc": "ok",
            "body_size_bytes": message["bodyLength"],
        }
        assert {key: row[key] for key in shown} == shown
        assert row["store_host"] == (f"[::1]:{port}" if ":" in host else f"{host}:{port}")
        is_compressed = message["sysFlag"] & 1
        sha256 = message["plainSha256"] if is_compressed else message["bodySha256"]
        assert hashlib.sha256(body_of(row)).hexdigest() == sha256
        assert (row["compression"] != "none") == bool(is_compressed)


def test_log_as_one_document_with_ranges(golden: GoldenStore) -> None:
    result = call("log", "-s", golden(NAME), "-o", "json", "--all", "--no-body", "--from", 100_000, "--to", 300_000)
    assert list(result.json) == ["messages", "findings"]
    rows = result.json["messages"]
    assert [r["phy_offset"] for r in rows if "topic" in r] == [
        m["phyOffset"] for m in told() if 100_000 <= m["phyOffset"] < 300_000
    ]
    assert [r for r in rows if "kind" in r] == [
        {"kind": "blank", "phy_offset": 130711, "size_bytes": 361, "code": None},
        {"kind": "blank", "phy_offset": 261587, "size_bytes": 557, "code": None},
    ]
    assert "body" not in rows[0]
    assert (result.json["findings"], result.code) == ([], exit_codes.OK)


def test_log_goes_on_behind_damage(damaged: DamagedStore) -> None:
    root = damaged(NAME, "zero-page-mid", "clean")
    result = call("log", "-s", root, "-o", "json", "--all", "--no-body")
    assert result.code == exit_codes.FINDINGS
    # The first record that is hit loses only properties, which no checksum covers: brokers keep it as well.
    stop = stores.outcomes(NAME)["zero-page-mid/crash"]["afterLoad"]["maxPhyOffset"]
    behind = next(m["phyOffset"] for m in told() if m["phyOffset"] >= 581632 + 4096)
    rows = result.json["messages"]
    kept = [m["phyOffset"] for m in told() if not stop <= m["phyOffset"] < behind]
    assert [r["phy_offset"] for r in rows if "topic" in r] == kept
    ranges = [r for r in rows if r.get("kind") in ("damage", "zeros") and r["phy_offset"] < behind]
    assert (ranges[0]["phy_offset"], sum(r["size_bytes"] for r in ranges)) == (stop, behind - stop)
    assert [found["code"] for found in result.json["findings"]] == ["L003", "L002"]


def test_log_tells_only_of_what_was_asked_for(damageable: Callable[..., Damageable]) -> None:
    store = damageable("load-533")
    bad, last = 300, len(store.truth["messages"]) - 1
    store.flip(record=bad, field="body")
    torn = store.message(600)
    store.zero(torn["phyOffset"], torn["storeSize"])
    about, next_one = store.message(bad), store.message(bad + 1)
    at, end = about["phyOffset"], next_one["phyOffset"]

    def codes(*words: object) -> list[str]:
        return [f["code"] for f in call("log", "-s", store.root, "-o", "json", "--no-body", *words).json["findings"]]

    assert codes() == ["L001", "L003"]
    assert codes("--from", at, "--to", end) == ["L001"]
    assert codes("--from", at + 1, "--to", at + 2) == []
    assert codes("--to", at) == codes("--from", store.message(601)["phyOffset"]) == []
    assert codes("--max", bad) == []
    assert codes("--max", bad + 1) == ["L001"]
    assert codes("--topic", about["topic"], "--to", end) == ["L001"]
    assert codes("--queue-id", about["queueId"] + 1, "--to", end) == []
    assert codes("--topic", "none") == ["L003"]  # nobody knows what stood there
    assert codes("--to", torn["phyOffset"] + torn["storeSize"]) == ["L001", "L003"]
    assert codes("--begin", about["storeTimestamp"], "--end", about["storeTimestamp"]) == ["L001"]
    assert codes("--begin", store.message(last)["storeTimestamp"]) == []
    assert codes("--end", store.message(0)["storeTimestamp"]) == []


def test_findings_of_rows_are_called_what_they_are() -> None:
    told = call("log", "-s", ROOT / "sample_store", "-o", "ndjson", "--from", 567104, "--max", 1, "-q").err
    assert told.startswith("error: L001 ")


def test_a_store_without_a_log_is_no_empty_log(damageable: Callable[..., Damageable]) -> None:
    store = damageable(NAME)
    for _ in store.segments:
        store.lose(0)
    result = call("log", "-s", store.root, "-o", "json")
    assert (result.code, result.json["messages"]) == (exit_codes.FINDINGS, [])
    assert [found["code"] for found in result.json["findings"]] == ["S007"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("log --from 10 --to 5", "the range from 10 to 5 ends before it begins: give --to after --from"),
        ("log --begin 10 --end 5", "the range ends before it begins: give --end after --begin"),
        ("query-key T K --begin 10 --end 5", "the range ends before it begins: give --end after --begin"),
        ("export OUT --begin 10 --end 5", "the range ends before it begins: give --end after --begin"),
        ("dump-cq T 0 --from 10 --to 5", "the range from 10 to 5 ends before it begins: give --to after --from"),
        ("verify-crc --from 10 --to 5", "the range from 10 to 5 ends before it begins: give --to after --from"),
    ],
)
def test_a_range_that_ends_before_it_begins_is_wrong_usage(words: str, told: str, golden: GoldenStore) -> None:
    result = call(*words.split(), "-o", "json", "-s", golden("load-533"))
    assert (result.code, list(result.json), result.json["error"]["code"]) == (2, ["error"], "usage")
    assert result.err == f"error: {told}\n"


@pytest.mark.parametrize(
    "words", ["log --from 10 --to 10", "log --begin 10 --end 10", "dump-cq Calm_bills 0 --from 3 --to 3"]
)
def test_a_range_of_nothing_is_empty(words: str, golden: GoldenStore) -> None:
    empty = call(*words.split(), "-s", golden("load-533"))
    assert (empty.code, empty.out) == (0, "")


def test_what_expires_while_its_rows_are_read_is_one_finding(store_copy: StoreCopy) -> None:
    root = store_copy("load-533")
    segments = sorted((root / "commitlog").iterdir())
    words = command("log", "-s", root, "-o", "ndjson")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "bufsize": 0}
    with subprocess.Popen(words, cwd=ROOT, env=environment(), **pipes) as process:  # type: ignore[call-overload]
        first = process.stdout.readline()  # it waits for the next ones to be taken
        for path in segments[:-2]:
            path.unlink()
        rest, errors = process.communicate()
    assert process.returncode == exit_codes.FINDINGS
    rows = [json.loads(line)["phy_offset"] for line in (first + rest).splitlines()]
    end = int(segments[-2].name)
    start = max(at for at in rows if at < end) // SEGMENT_BYTES * SEGMENT_BYTES + SEGMENT_BYTES
    assert start < end
    assert errors.decode() == (
        f"warning: L025 {end - start} bytes of the log went away while it was read (phy_offset {start})\n"
    )
