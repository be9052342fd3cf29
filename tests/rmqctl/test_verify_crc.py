"""`verify-crc` in a process of its own: its document, its options, and where it keeps what is left."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqctl import exit_codes
from store_core.layout import paths
from tests import stores
from tests.conftest import GoldenStore, StoreCopy
from tests.rmqctl.calls import call

NAME = "load-533"
COUNT = len(stores.truth(NAME)["messages"])


def test_the_document(golden: GoldenStore, read_only: Callable[[Path], Path]) -> None:
    result = call("verify-crc", "-s", f"here={read_only(golden(NAME))}", "-o", "json")
    assert result.code == exit_codes.OK
    assert list(result.json) == ["stores", "seconds", "bytes_per_second"]
    (store,) = result.json["stores"]
    segments = store.pop("segments")
    assert store == {
        "store": "here",
        "bytes": sum(segment["bytes"] for segment in segments),
        "records": COUNT,
        "complete": True,
        "next_phy_offset": None,
        "findings": [],
    }
    assert [list(segment) for segment in segments] == [["name", "records", "bytes", "ok", "bad"]] * len(segments)
    assert sum(segment["ok"] for segment in segments) == COUNT


def test_several_stores_and_damage(golden: GoldenStore, damageable: Callable[..., Any]) -> None:
    store = damageable("clean-533")
    at = store.flip(record=3, field="body")
    result = call("verify-crc", "-s", f"a={golden(NAME)}", "-s", f"b={store.root}", "-o", "json")
    assert result.code == exit_codes.FINDINGS
    good, bad = result.json["stores"]
    assert (good["findings"], [found["code"] for found in bad["findings"]]) == ([], ["L001"])
    found = bad["findings"][0]
    assert found["phy_offset"] <= at < found["phy_offset"] + found["size_bytes"]
    assert sum(segment["bad"] for segment in bad["segments"]) == 1


def test_a_range_and_a_sample(golden: GoldenStore) -> None:
    low, high = 200_000, 400_000
    ranged = call("verify-crc", "-s", golden(NAME), "--from", low, "--to", high, "-o", "json").json["stores"][0]
    assert ranged["records"] == sum(low <= m["phyOffset"] < high for m in stores.truth(NAME)["messages"])
    sampled = call("verify-crc", "-s", golden(NAME), "--sample", "25%", "-o", "json").json["stores"][0]
    assert sampled["sample"] == {"share": 0.25, "windows": 4, "bytes": sampled["bytes"], "log_bytes": 1 << 20} or (
        sampled["sample"]["windows"] < 4  # neighbours are joined
    )
    assert 0 < sampled["bytes"] <= 1 << 18
    assert 0 <= sampled["records"] < COUNT


def test_stops_in_time_and_goes_on(store_copy: StoreCopy, read_only: Callable[[Path], Path], tmp_path: Path) -> None:
    root = read_only(store_copy(NAME))
    options = ("verify-crc", "-s", root, "-o", "json", "--max-seconds", 0, "--jobs", 1)
    first = call(*options, XDG_STATE_HOME=str(tmp_path))
    assert first.code == exit_codes.OK
    (part,) = first.json["stores"]
    assert (part["complete"], part["next_phy_offset"]) == (False, 131_072)
    assert "--resume goes on there" in first.err
    kept = list((tmp_path / "rmqctl").iterdir())
    assert len(kept) == 1
    rest = call("verify-crc", "-s", root, "-o", "json", "--resume", XDG_STATE_HOME=str(tmp_path)).json["stores"][0]
    assert rest["complete"]
    assert part["records"] + rest["records"] == COUNT
    assert not kept[0].exists()
    again = call("verify-crc", "-s", root, "-o", "json", "--resume", XDG_STATE_HOME=str(tmp_path))
    assert "starting at the log's start" in again.err
    assert again.json["stores"][0]["records"] == COUNT


def test_the_state_may_be_any_file(golden: GoldenStore, tmp_path: Path) -> None:
    state = tmp_path / "left.json"
    stopped = call("verify-crc", "-s", golden(NAME), "--max-seconds", 0, "--state", state, "--jobs", 1)
    assert stopped.code == exit_codes.OK
    assert state.exists()
    other = call("verify-crc", "-s", golden("clean-533"), "--resume", "--state", state)
    assert other.code == exit_codes.FAILED
    assert "the file is about" in other.err


@pytest.mark.parametrize(
    "options",
    [
        ("--from", "5", "--resume"),
        ("--sample", "5%", "--to", "9"),
        ("--sample", "many"),
        ("--sample", "0%"),
        ("--sample", "101%"),
        ("--state", "file"),
        ("--from", str(1 << 40)),
        ("--from", "-1"),
    ],
)
def test_contradictions_are_usage_errors(golden: GoldenStore, options: tuple[str, ...]) -> None:
    result = call("verify-crc", "-s", golden(NAME), *options)
    assert result.code == exit_codes.USAGE
    assert result.err.startswith("error: ") or "Usage" in result.err
    assert "Traceback" not in result.err


def test_a_store_without_a_log_file(store_copy: StoreCopy, read_only: Callable[[Path], Path]) -> None:
    root = store_copy(NAME)
    shutil.rmtree(root / paths.COMMITLOG)
    result = call("verify-crc", "-s", read_only(root), "-o", "json")
    assert result.code == exit_codes.FINDINGS
    (store,) = result.json["stores"]
    assert (store["bytes"], store["records"], store["segments"]) == (0, 0, [])
    assert [(found["code"], found["message"]) for found in store["findings"]] == [("S007", "there is no log file")]
