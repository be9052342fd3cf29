"""What a recovery puts where a message was lost is no message of its topic, whoever asks."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.export.sources import source_table
from tests.rmqctl.calls import ROOT, call

LOST = 567104  # where the one damaged record of the sample store lies
RECORDS = 2183
BY_KIND = "select kind, count(*) messages from messages where topic = 'Calm_steps' group by 1 order by 1"


@pytest.fixture
def recovered(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    shutil.copytree(ROOT / "sample_store", root)
    assert call("recover", "--apply", "-s", root, "-q").code == 0
    return root


def test_log_and_sql_tell_tombstones_apart(recovered: Path) -> None:
    rows = call("log", "-s", recovered, "--topic", "Calm_steps", "--no-body", "-o", "ndjson").lines
    assert [(row["phy_offset"], row["kind"]) for row in rows if "kind" in row] == [(LOST, "tombstone")]
    found = csv.DictReader(call("log", "-s", recovered, "--from", LOST, "--max", 2, "-o", "csv").out.splitlines())
    assert [row["kind"] for row in found] == ["tombstone", ""]
    assert "a message was lost here" in call("log", "-s", recovered, "--from", LOST, "--max", 1, "-o", "plain").out
    counted = call("sql", BY_KIND, "-s", recovered, "-o", "ndjson").lines
    assert counted == [{"kind": "tombstone", "messages": 1}, {"kind": "user", "messages": 541}]


@pytest.mark.parametrize("forced", [{}, {"RMQCTL_KERNEL": "python"}])
def test_an_export_tells_them_apart(recovered: Path, tmp_path: Path, forced: dict[str, str]) -> None:
    out = tmp_path / "out"
    assert call("export", out, "-s", recovered, "-q", **forced).code == 0
    table = pq.read_table(out / "data", columns=["phy_offset", "kind"])
    kinds = dict(zip(table["phy_offset"].to_pylist(), table["kind"].to_pylist(), strict=True))
    assert [offset for offset, kind in kinds.items() if kind == "tombstone"] == [LOST]
    assert len(kinds) == RECORDS
    assert set(kinds.values()) == {"user", "delayed", "tombstone"}


def test_so_does_the_source_for_spark(recovered: Path) -> None:
    table = source_table(recovered, columns="phy_offset,kind")
    assert table.filter(pc.equal(table["kind"], "tombstone"))["phy_offset"].to_pylist() == [LOST]


def test_statistics_do_not_count_them(recovered: Path, tmp_path: Path) -> None:
    assert call("export", tmp_path / "out", "--what", "stats", "-s", recovered, "-q").code == 0
    topics = pq.read_table(tmp_path / "out" / "topics").to_pylist()
    assert {row["topic"]: row["messages"] for row in topics}["Calm_steps"] == 541
    assert sum(row["messages"] for row in topics) == RECORDS - 1
