"""`rmqctl check`: the document, the table, the exit codes."""

from __future__ import annotations

from pathlib import Path

from store_core.layout import paths
from tests.conftest import DamagedStore, GoldenStore, StoreCopy
from tests.rmqctl.calls import call


def test_a_sane_store(golden: GoldenStore) -> None:
    root = golden("clean-533")
    result = call("check", "-s", root, "-o", "json")
    assert (result.code, result.err) == (0, "")
    assert result.json == {"store": str(root), "findings": [], "summary": {}}


def test_only_infos_end_with_0(golden: GoldenStore) -> None:
    result = call("check", "-s", golden("crash-533"), "-o", "json")
    assert result.code == 0
    assert result.json["summary"] == {"L014": 1, "S001": 1}


def test_damage_ends_with_3_and_is_named(damaged: DamagedStore) -> None:
    root = damaged("load-533", "cq-hole", "clean")
    result = call("check", "-s", root, "-o", "json", "--jobs", "2")
    assert result.code == 3
    assert result.json["summary"] == {"Q006": 1, "Q008": 1}
    hole = result.json["findings"][0]
    assert {name: value for name, value in hole.items() if name != "advice"} == {
        "code": "Q008",
        "severity": "error",
        "file": "consumequeue/Calm_audit/0/00000000000000008000",
        "phy_offset": None,
        "size_bytes": 60,
        "topic": "Calm_audit",
        "queue_id": 0,
        "queue_offset": 504,
        "message": "3 entries of size 0, with good ones after",
    }
    rows = call("check", "-s", root, "-o", "ndjson").lines
    assert [row["code"] for row in rows] == ["Q008", "Q006"]


def test_no_store(tmp_path: Path) -> None:
    assert call("check", "-s", tmp_path / "nowhere").code == 10


def test_plain_names_each_code(damaged: DamagedStore) -> None:
    result = call("check", "-s", damaged("load-533", "flip-body-mid", "clean"), "-o", "plain")
    assert result.code == 3
    assert "L001" in result.out
    assert "567104" in result.out


def test_a_config_file_that_no_broker_loads_is_told(store_copy: StoreCopy) -> None:
    root = store_copy("clean-533")
    for name in (paths.TOPICS_JSON, paths.TOPICS_JSON + paths.BAK_SUFFIX):
        (root / name).write_text('{"topicConfigTable":{"T1":null}}')
    result = call("check", "-s", root, "-o", "json")
    assert result.code == 3
    [told] = [found for found in result.json["findings"] if found["code"] == "P004"]
    why = "topicConfigTable of T1 is null"
    assert told["message"] == f"config/topics.json: {why}; its .bak: {why}: a broker refuses to start"
