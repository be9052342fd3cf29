"""Two rmqctl at work on one store: one carries out, the other is told so and ends with 11, and undo is still exact."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from rmqctl import exit_codes
from store_core.errors import StoreInUseError
from store_core.layout import paths
from store_core.storage import lock
from tests import stores
from tests.conftest import DamagedStore, StoreCopy, differences
from tests.rmqctl.calls import ROOT, call, command, environment
from tests.rmqctl.stopping import stopped

pytestmark = pytest.mark.beside

RECOVER: Final = ("recover", "--apply", "--yes")
PUT: Final = ("put", "Calm_orders", "hello", "--queue-id", "0")
PLANNING: Final = "store_core.recovery.recover:recover"
CHANGING: Final = "store_core.recovery.apply.execute:Change.forward"
LOCKING: Final = "store_core.storage.lock:StoreLock._locked"
PUTTING: Final = "store_core.engine.put:put"


def go_on(process: subprocess.Popen[str]) -> Any:
    """Let a stopped rmqctl finish; its document."""
    process.send_signal(signal.SIGCONT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == exit_codes.OK, err
    return json.loads(out)


def without_ours(root: Path) -> dict[str, stores.Entry]:
    return {path: entry for path, entry in stores.snapshot(root).items() if not path.startswith(paths.OURS)}


def assert_undone_exactly(root: Path, before: dict[str, stores.Entry]) -> None:
    assert call("undo", "--apply", "-s", root).code == exit_codes.OK
    assert differences(before, without_ours(root)) == []


@pytest.fixture
def sample(damaged: DamagedStore) -> Path:
    return damaged("load-533", "flip-body-mid", "crash")


@pytest.mark.parametrize(
    ("moment", "other"),
    [(PLANNING, RECOVER), (CHANGING, RECOVER), (CHANGING, PUT), (CHANGING, ("truncate", "0", "--apply"))],
    ids=["recover, planning", "recover", "put", "truncate"],
)
def test_who_comes_while_a_recovery_is_carried_out_is_refused(
    moment: str, other: tuple[str, ...], sample: Path
) -> None:
    before = stores.snapshot(sample)
    with stopped(moment, *RECOVER, "-s", sample, "-o", "json") as first:
        meanwhile = stores.snapshot(sample)
        second = call(*other, "-s", sample, "-o", "json")
        assert (second.code, second.json["error"]["code"]) == (exit_codes.IN_USE, "in_use"), second.err
        assert f"process {first.pid}" in second.err
        assert differences(meanwhile, stores.snapshot(sample)) == []
        done = go_on(first)
    assert (done["applied"], [f for f in done["findings"] if f["severity"] != "info"]) == (True, [])
    assert_undone_exactly(sample, before)


def test_two_recoveries_started_together(sample: Path) -> None:
    before = stores.snapshot(sample)
    args = command(*RECOVER, "-s", sample, "-o", "json")
    both = [
        subprocess.Popen(args, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    ended = [(json.loads(process.communicate(timeout=60)[0]), process.returncode) for process in both]
    # Whoever comes when all is done finds nothing to do, and that is no failure.
    assert {code for _, code in ended} <= {exit_codes.OK, exit_codes.IN_USE}
    assert [bool(document.get("undo_id")) for document, _ in ended].count(True) == 1, ended
    assert_undone_exactly(sample, before)


def test_who_has_made_the_lock_file_is_the_first_to_lock_it(sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else another one would take it for the store's own, and undo would leave it behind."""
    (sample / paths.LOCK).unlink()
    before = stores.snapshot(sample)
    monkeypatch.setattr(lock, "_PATIENCE_SECONDS", 0.1)
    with stopped(LOCKING, *RECOVER, "-s", sample, "-o", "json") as first:
        assert (sample / paths.LOCK).exists()
        with pytest.raises(StoreInUseError, match="about to lock"):
            lock.StoreLock(sample).acquire()
        done = go_on(first)
    assert done["applied"]
    assert_undone_exactly(sample, before)


def test_a_recovery_while_a_message_is_stored_is_refused(store_copy: StoreCopy) -> None:
    root = store_copy("load-533")
    with stopped(PUTTING, *PUT, "-s", root, "-o", "json") as first:
        refused = call(*RECOVER, "-s", root, "-o", "json")
        assert (refused.code, refused.json["error"]["code"]) == (exit_codes.IN_USE, "in_use"), refused.err
        stored = go_on(first)
    assert stored["status"] == "PUT_OK"
    assert call(*RECOVER, "-s", root, "-o", "json").json["plan"]["steps"] == []
    got = call("get", stored["offset_msg_id"], "-s", root, "-o", "json").json
    assert (got["body"], got["queue_offset"]) == ("hello", stored["queue_offset"])


def test_who_only_tries_the_lock_stops_nobody(sample: Path) -> None:
    """Another rmqctl that is about to be refused has the lock file open for a moment."""
    with (sample / paths.LOCK).open("r+b") as held:
        passed = subprocess.Popen(["sleep", "60"], stdin=held)
    try:
        result = call(*RECOVER, "-s", sample, "-o", "json")
    finally:
        passed.kill()
        passed.wait()
    assert (result.code, result.json["applied"]) == (exit_codes.OK, True), result.err
