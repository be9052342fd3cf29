"""Times in what is said to people: ISO 8601, never a bare count of milliseconds."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from store_core.check.store import check_store
from store_core.layout import checkpoint
from store_core.storage.store import Store
from tests.conftest import DamagedStore, StoreCopy
from tests.rmqctl.calls import call

BARE_MS = re.compile(r"(?<!\d)1[5-9]\d{11}(?!\d)")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def messages_of(root: Path, code: str) -> list[str]:
    with Store.open(root) as store:
        found = [each.message for each in check_store(store).findings if each.code == code]
    assert found
    return found


def ahead(copy: StoreCopy, _: DamagedStore) -> Path:
    root = copy("load-533")
    values = checkpoint.CHECKPOINT.read((root / "checkpoint").read_bytes())
    values["physic_msg_timestamp_ms"] += 3_600_000
    data = (root / "checkpoint").read_bytes()
    (root / "checkpoint").write_bytes(
        checkpoint.CHECKPOINT.struct.pack(*values.values()) + data[checkpoint.CHECKPOINT.size_bytes :]
    )
    return root


def unset(copy: StoreCopy, _: DamagedStore) -> Path:
    return copy("crash-497")


def timeless(_: StoreCopy, damaged: DamagedStore) -> Path:
    return damaged("load-533", "storetime-zero-first", "clean")


@pytest.mark.parametrize(
    ("code", "made", "told"),
    [
        ("C003", ahead, "physic_msg_timestamp_ms is 2026-11-21T03:18:"),
        ("C005", unset, "store time is 2026-11-2"),
        ("L019", timeless, "the store time is 0, 1970-01-01T00:00:00.000Z"),
    ],
)
def test_findings(
    store_copy: StoreCopy,
    damaged: DamagedStore,
    code: str,
    made: Callable[[StoreCopy, DamagedStore], Path],
    told: str,
) -> None:
    said = messages_of(made(store_copy, damaged), code)
    assert told in said[0]
    assert not any(map(BARE_MS.search, said))


def test_entries_of_delayed_messages(golden: Callable[[str], Path]) -> None:
    """A tags code is a number for scripts, and for people the time when the message is due."""
    words = ("dump-cq", "SCHEDULE_TOPIC_XXXX", "0", "-s", golden("load-533"), "-o")
    stored = [row["tags_code"] for row in call(*words, "ndjson").lines]
    assert stored
    shown = call(*words, "plain").out
    assert not BARE_MS.search(shown)
    for number in stored:
        assert f"{(EPOCH + timedelta(milliseconds=number)).isoformat(timespec='milliseconds')[:23]}Z" in shown
