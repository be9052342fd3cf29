"""A store without a log: one that never had a message, or one whose log's disk is away."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from store_core.check.store import check_store
from store_core.recovery.recover import recover
from store_core.storage.store import Store
from tests.beside import at_work_on
from tests.export.test_incremental import add_to

pytestmark = pytest.mark.beside


@pytest.mark.parametrize("live", [True, False])
def test_a_broker_that_has_no_message_yet(live: bool, tmp_path: Path) -> None:
    """There is nothing to be said of a log that is not there, be it at work or not."""
    root = without_messages(tmp_path / "store")
    assert s007_of(root, tmp_path / "out", live=live) == (False, False)


@pytest.mark.parametrize(
    "sign",
    [
        "checkpoint",
        "short",
        "consumequeue/T/0/00000000000000000000",
        "index/20261119143000000",
        "commitlog/0/00000000000000000000",
        "progress",
        "folder",
    ],
)
def test_a_log_that_is_away(sign: str, tmp_path: Path) -> None:
    """Something tells of messages, so that the disk with the log is not mounted."""
    root = without_messages(tmp_path / "store")
    match sign:
        case "checkpoint":
            (root / sign).write_bytes(bytes([0, 0, 1, 0, 0, 0, 0, 0]).ljust(4096, b"\0"))
        case "short":
            (root / "checkpoint").write_bytes(bytes(8))
        case "progress":
            (root / "config/consumerOffset.json").write_text('{"offsetTable": {"T@G": {0: 1}}}')
        case "folder":
            (root / "commitlog").rmdir()
        case _:
            (root / sign).parent.mkdir(parents=True)
            (root / sign).write_bytes(bytes(6000))
    assert s007_of(root, tmp_path / "out", live=sign != "folder") == (True, True)


def without_messages(root: Path) -> Path:
    """What real brokers of 4.9.7 to 5.4.0 have before their first message, in what counts here; measured."""
    for folder in ("commitlog", "consumequeue", "config"):
        (root / folder).mkdir(parents=True)
    (root / "checkpoint").write_bytes(bytes(4096))
    (root / "abort").touch()
    (root / "config/consumerOffset.json").write_text('{"dataVersion": {"counter": 0}, "offsetTable": {}}')
    return root


def s007_of(root: Path, out: Path, *, live: bool) -> tuple[bool, bool]:
    """Whether a check and a recovery, and an export, say that the log is away."""
    with at_work_on(root) if live else nullcontext(), Store.open(root) as store:
        findings = [check_store(store, live=live).findings, recover(store).findings, add_to(root, out).findings]
    checked, mended, exported = ("S007" in [found.code for found in found] for found in findings)
    assert checked == mended
    return checked, exported
