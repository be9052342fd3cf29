"""The checkpoint file: the truth of every golden store, every length, every field."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from store_core.errors import FailedError
from store_core.layout.checkpoint import CHECKPOINT
from store_core.read.checkpoint import Checkpoint, read_checkpoint
from tests import stores

NAMES = [field.name for field in fields(Checkpoint) if field.name != "findings"]
THEIRS = [
    "physicMsgTimestamp",
    "logicsMsgTimestamp",
    "indexMsgTimestamp",
    "masterFlushedOffset",
    "confirmPhyOffset",
    "logicsPhysicalOffset",
]


def values(found: Checkpoint) -> list[int]:
    return [getattr(found, name) for name in NAMES]


@pytest.mark.parametrize("name", stores.GOLDEN)
def test_every_golden_store(name: str, golden: Callable[[str], Path]) -> None:
    truth = stores.truth(name)["checkpointAsFound"]
    found = read_checkpoint(golden(name))
    assert values(found) == [truth.get(theirs, 0) for theirs in THEIRS]
    assert found.min_timestamp_ms == truth["minTimestamp"]
    assert found.findings == ()


def test_the_fields_are_the_layouts() -> None:
    assert tuple(NAMES) == CHECKPOINT.names


@pytest.mark.parametrize("size_bytes", range(52))
def test_every_length(size_bytes: int, tmp_path: Path) -> None:
    whole = b"".join(bytes([field]) * 8 for field in range(1, 7)) + b"\0" * 4
    (tmp_path / "checkpoint").write_bytes(whole[:size_bytes])
    found = read_checkpoint(tmp_path)
    padded = whole[:size_bytes].ljust(48, b"\0")
    assert values(found) == [int.from_bytes(padded[at : at + 8]) for at in range(0, 48, 8)]
    assert [f.code for f in found.findings] == ([] if size_bytes in (24, 32, 40) or size_bytes >= 48 else ["C002"])


@pytest.mark.parametrize("name", NAMES)
def test_a_negative_field(name: str, tmp_path: Path) -> None:
    row = dict.fromkeys(NAMES, 5) | {name: -(2**63)}
    (tmp_path / "checkpoint").write_bytes(CHECKPOINT.struct.pack(*row.values()))
    found = read_checkpoint(tmp_path)
    [finding] = found.findings
    assert (finding.code, finding.file, finding.message) == ("C004", "checkpoint", f"{name} is {-(2**63)}")
    assert found.min_timestamp_ms == 0


def test_a_missing_file(tmp_path: Path) -> None:
    found = read_checkpoint(tmp_path)
    assert values(found) == [0] * 6
    assert [f.code for f in found.findings] == ["C001"]


def test_a_folder_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    with pytest.raises(FailedError) as caught:
        read_checkpoint(tmp_path)
    assert caught.value.path == str(tmp_path / "checkpoint")


@pytest.mark.parametrize(
    ("physic", "logics", "least"),
    [(0, 0, 0), (2999, 9999, 0), (3000, 3001, 0), (9000, 3001, 1), (10**13, 10**12, 10**12 - 3000)],
)
def test_the_least_time(physic: int, logics: int, least: int) -> None:
    assert Checkpoint(physic, logics).min_timestamp_ms == least
