"""`rmqctl checkpoint` against what the real StoreCheckpoint said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import stores
from tests.rmqctl.calls import artificial, call, on_terminal

FIELDS = {
    "physic_msg_timestamp_ms": "physicMsgTimestamp",
    "logics_msg_timestamp_ms": "logicsMsgTimestamp",
    "index_msg_timestamp_ms": "indexMsgTimestamp",
    "master_flushed_offset": "masterFlushedOffset",
    "confirm_phy_offset": "confirmPhyOffset",
    "logics_phy_offset": "logicsPhysicalOffset",
    "min_timestamp_ms": "minTimestamp",
}


def expected(name: str) -> dict[str, Any]:
    found = stores.truth(name)["checkpointAsFound"]
    return {**{ours: found.get(theirs, 0) for ours, theirs in FIELDS.items()}, "findings": []}


@pytest.mark.parametrize("name", ["clean-430", "clean-514", "crash-533", "rocks-533", "load-551-aged"])
def test_json_is_exactly_this(name: str, golden: Callable[[str], Path]) -> None:
    result = call("checkpoint", "-s", golden(name), "-o", "json")
    assert (result.code, result.err) == (0, "")
    assert list(result.json) == [*FIELDS, "findings"]
    assert result.json == expected(name)


def test_rows(golden: Callable[[str], Path]) -> None:
    row = {key: value for key, value in expected("crash-533").items() if key != "findings"}
    assert call("checkpoint", "-s", golden("crash-533"), "-o", "ndjson").lines == [row]
    header, values = call("checkpoint", "-s", golden("crash-533"), "-o", "csv").out.splitlines()
    assert dict(zip(header.split(","), map(int, values.split(",")), strict=True)) == row


def test_for_people(golden: Callable[[str], Path]) -> None:
    assert call("checkpoint", "-s", golden("clean-533"), "--tz", "+08:00").out.splitlines() == [
        "physic_msg_timestamp   2026-11-21T10:12:05.343+08:00",
        "logics_msg_timestamp   2026-11-21T10:12:05.343+08:00",
        "index_msg_timestamp    2026-11-21T10:11:45.372+08:00",
        "master_flushed_offset  0",
        "confirm_phy_offset     0",
        "logics_phy_offset      0",
        "min_timestamp          2026-11-21T10:12:02.343+08:00",
        "",
        "Findings",
        "none",
    ]
    assert "2026-11-21T02:12:02.343Z" in on_terminal("checkpoint", "-s", golden("clean-533")).text


def test_a_finding_ends_with_3(store_copy: Callable[..., Path]) -> None:
    root = store_copy("clean-533")
    (root / "checkpoint").unlink()
    result = call("checkpoint", "-s", root, "-o", "json")
    assert result.code == 3
    assert [f["code"] for f in result.json["findings"]] == ["C001"]
    assert {result.json[field] for field in FIELDS} == {0}
    assert "C001" in call("checkpoint", "-s", root).out


def test_where_there_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for path, what in (("missing", "no such folder"), ("file", "not a folder"), ("empty", "not a RocketMQ store")):
        result = call("checkpoint", "-s", tmp_path / path, "-o", "json")
        assert result.code == 10
        assert result.json["error"]["code"] == "not_a_store"
        assert result.json["error"]["path"] == str(tmp_path / path)
        assert result.err.startswith(f"error: {what}")
        assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("beside", "is_store"),
    [
        (("commitlog/",), True),
        (("checkpoint", "consumequeue/"), True),
        (("checkpoint",), False),
        (("checkpoint/", "consumequeue/"), False),  # of a stream of Spark's, for one
        (("commitlog",), False),
    ],
)
def test_the_folder_above_is_named_where_it_looks_like_a_store(
    tmp_path: Path, beside: tuple[str, ...], is_store: bool
) -> None:
    for name in (*beside, "index/"):
        (tmp_path / name).mkdir() if name.endswith("/") else (tmp_path / name).touch()
    to_do = "name the folder above it" if is_store else "name the folder that holds commitlog/"
    assert call("checkpoint", "-s", tmp_path / "index").err.endswith(f"({tmp_path}/index): {to_do}\n")


def test_reading_leaves_no_trace(golden: Callable[[str], Path], read_only: Callable[[Path], Path]) -> None:
    assert call("checkpoint", "-s", read_only(golden("crash-497"))).code == 0


def test_the_configured_root(golden: Callable[[str], Path], tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"storePathRootDir={golden('clean-533')}\n")
    assert call("checkpoint", "-c", conf, "-o", "json").json == expected("clean-533")
    assert call("checkpoint", "-c", tmp_path / "none.conf").code == 2
    assert artificial("one-store", "-c", conf, "-o", "json").json == {"root": str(golden("clean-533"))}
