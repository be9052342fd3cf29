"""Records for whose topic no broker can make a queue file: one stops all queues, so recovery leaves none of them in the log."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from store_core.layout import paths
from tests import stores
from tests.conftest import StoreCopy, differences
from tests.recovery.recovering import Opener, apply_to, places, undo
from tests.surgery import apply_case

SettingsOf = Callable[[str], Path]


@pytest.mark.parametrize("queues", ["there", "gone"])
@pytest.mark.parametrize(("case", "lost"), [("topic-nul", 0), ("topic-comma", 0), ("topic-too-long", 1)])
def test_broker_takes_messages_after_recovery(
    case: str, lost: int, queues: str, store_copy: StoreCopy, settings_of: SettingsOf
) -> None:
    """A name that all else proves comes back; where nothing does, a tombstone keeps the number, and the loss is told."""
    root = store_copy("load-533")
    apply_case(root, stores.cases("multidamage-load-533")[case], "crash")
    if queues == "gone":
        shutil.rmtree(root / paths.CONSUMEQUEUE)
    before = stores.snapshot(root)
    opener = Opener(settings_of("load-533"), "5.3.3")
    error = opener.predict(root)["queue_error"]
    assert error.startswith("queue 0 of topic ")
    assert "L029" in {found.code for found in opener.check(root)}
    recovery = opener.recover(root)
    assert recovery.prediction.outcome.queue_error == error
    assert any(note.startswith(error) for note in recovery.prediction.notes)
    assert (recovery.after.starts, recovery.after.queue_error, recovery.after.lost_messages) == (True, "", 0)
    assert len(places(recovery.lost)) == lost
    applied = apply_to(recovery, root)
    assert applied is not None
    assert opener.predict(root)["queue_error"] is None
    assert [found for found in opener.check(root) if found.severity != "info"] == []
    undo(root, applied.undo_id, apply=True)
    changed = differences(before, stores.snapshot(root))
    assert [path for path in changed if path != "." and not path.startswith(paths.OURS)] == []
