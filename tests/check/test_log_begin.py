"""A log without its first segments: missing where the signs say so (L026), and expired as in a broker's normal life where they do not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqctl import exit_codes
from tests import stores
from tests.damage import Damageable
from tests.recovery.recovering import is_queued
from tests.recovery.test_recover_kinds import KEPT_FOR_NO_TIME, expire
from tests.rmqctl.calls import call

DamageableOf = Callable[..., Damageable]
SettingsOf = Callable[[str], Path]
NAMES = ("load-533", "load-497", "clean-540", "bcq-533")
TOO_YOUNG = "too young to expire"


def _l026(result: object) -> list[str]:
    return [f["message"] for f in result.json["findings"] if f["code"] == "L026"]  # type: ignore[attr-defined]  # a document, as JSON has it


@pytest.mark.product
@pytest.mark.parametrize("segments", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_missing_first_segments_are_told(
    name: str, segments: int, damageable: DamageableOf, settings_of: SettingsOf
) -> None:
    """Without a sibling: by check, by recover and by its dry runs, with exit 3 and the messages as expired or missing."""
    store = damageable(name, "clean")
    for _ in range(segments):
        store.lose(0)
    begin = segments * store.segment_size_bytes
    queued = [m for m in store.truth["messages"] if m["phyOffset"] < begin and is_queued(m)]
    options = ("-s", store.root, "-c", settings_of(name), "-o", "json")
    for command in (("check",), ("recover",), ("recover", "--predict")):
        result = call(*command, *options)
        assert result.code == exit_codes.FINDINGS
        (message,) = _l026(result)
        assert TOO_YOUNG in message
    losses = call("recover", *options).json["losses"]
    assert losses["begin_is_missing"]
    assert losses["expired_or_missing_messages"] == sum(run["messages"] for run in losses["expired_or_missing"])
    if name != "bcq-533":  # there one record may hold several
        assert losses["expired_or_missing_messages"] == len(queued)
    assert call("recover", "--policy", "strict", "--apply", *options).code == exit_codes.FAILED


@pytest.mark.product
@pytest.mark.parametrize("segments", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_what_has_expired_is_no_loss(
    name: str, segments: int, damageable: DamageableOf, settings_of: SettingsOf
) -> None:
    """As a broker leaves it that keeps segments for a shorter time than they are old."""
    root, config = damageable(name, "clean").root, settings_of(name)
    expire(root, segments)
    config.write_text(f"{config.read_text()}\n{KEPT_FOR_NO_TIME}\n")
    for command in (("check",), ("recover",), ("recover", "--predict"), ("doctor",)):
        result = call(*command, "-s", root, "-c", config, "-o", "json")
        assert (result.code, _l026(result)) == (exit_codes.OK, []), command


def test_files_that_a_broker_deletes_along_are_a_sign(damageable: DamageableOf, settings_of: SettingsOf) -> None:
    """Old enough to expire, and queue and index files that lead to nothing else stand."""
    store, config = damageable("load-533", "clean"), settings_of("load-533")
    for _ in range(4):
        store.lose(0)
    config.write_text(f"{config.read_text()}\n{KEPT_FOR_NO_TIME}\n")
    (message,) = _l026(call("check", "-s", store.root, "-c", config, "-o", "json"))
    assert TOO_YOUNG not in message
    assert "that a broker deletes with it" in message


def test_followed_by_queue_files_it_has_expired(damageable: DamageableOf, settings_of: SettingsOf) -> None:
    """The queues' first files were deleted as well, up to the log's begin: a broker did that, whatever its configuration."""
    root = damageable("load-533", "clean").root
    expire(root, 3)
    assert _l026(call("check", "-s", root, "-c", settings_of("load-533"), "-o", "json")) == []


@pytest.mark.parametrize("emptied", [False, True], ids=["no folder", "empty folder"])
@pytest.mark.parametrize("command", ["check", "recover", "predict", "info", "doctor"])
def test_without_a_log_nothing_else_is_told(command: str, emptied: bool, damageable: DamageableOf) -> None:
    """S007 comes first, no other advice is given, and no figure of what would become of a log that nobody sees."""
    store = damageable("load-533", "crash")
    folder = store.root / "commitlog"
    for path in folder.iterdir():
        path.unlink()
    if not emptied:
        folder.rmdir()
    words = ("recover", "--predict") if command == "predict" else (command,)
    result = call(*words, "-s", store.root, "-o", "json")
    document = result.json["stores"][0] if command == "info" else result.json
    assert result.code == exit_codes.FINDINGS
    assert document["findings"][0]["code"] == "S007"
    assert [f["code"] for f in document["findings"] if f["advice"]] == ["S007"]
    assert "rebuild" not in json.dumps(document["findings"])
    told = call(*words, "-s", store.root).out
    assert "rebuild" not in told
    for figure in ("thrown away", "messages lost", "log cut at", "Nothing to change", "Kept"):
        assert figure not in told
    if command != "info":
        assert told.index("S007") < 400


def test_writing_commands_say_that_the_disk_is_away(damageable: DamageableOf) -> None:
    store = damageable("load-533", "crash")
    for path in (store.root / "commitlog").iterdir():
        path.unlink()
    before = stores.snapshot(store.root)
    for words in (("truncate", "1000"), ("rebuild", "queues"), ("put", "Calm_orders", "body")):
        result = call(*words, "-s", store.root)
        assert result.code == exit_codes.FAILED
        assert "disk is mounted" in result.err
    assert stores.snapshot(store.root) == before
