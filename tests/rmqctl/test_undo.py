"""undo as people meet it: what it shows, that --forget asks, and that --list and --apply tell one story."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from rmqctl import exit_codes
from store_core.storage.journal import start_journal
from store_core.storage.writer import Writer
from tests.rmqctl.calls import ROOT, call, on_terminal


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / "sample_store", tmp_path / "store"))


@pytest.fixture
def changed(store: Path) -> Path:
    assert call("recover", "--apply", "-s", store).code == 0
    return store


def ids(store: Path) -> list[str]:
    return [change["id"] for change in call("undo", "--list", "-s", store, "-o", "json").json["changes"]]


def test_it_shows_the_bytes_that_come_back(changed: Path) -> None:
    look = call("undo", "-s", changed, "-o", "json")
    assert look.code == exit_codes.FINDINGS  # as every dry run that has found something to do
    items = {item["path"]: item for item in look.json["items"]}
    log, abort = items["commitlog/00000000000000524288"], items["abort"]
    assert (log["what"], log["size_bytes"], log["ranges"]) == (
        "restore bytes",
        131072,
        [{"offset": 42816, "size_bytes": 355}],
    )
    assert (abort["what"], abort["ranges"]) == ("bring back", [{"offset": 0, "size_bytes": 0}])
    [line] = [line for line in call("undo", "-s", changed).out.splitlines() if "restore bytes" in line]
    assert line.split()[-2:] == ["42816", "355"]
    assert "131072" not in line


def test_forgetting_wants_a_yes(changed: Path) -> None:
    [id] = ids(changed)
    refused = call("undo", "--forget", "-s", changed)
    assert (refused.code, refused.err) == (2, "error: undo needs a confirmation: give --yes\n")
    declined = on_terminal("undo", "--forget", "-s", changed, typed="n\n")
    assert declined.code == 2
    assert f"Forget {id}? It can never be undone then. [y/N]" in declined.text
    assert ids(changed) == [id]
    assert call("undo", "no-such", "--forget", "--yes", "-s", changed).code == 2
    assert on_terminal("undo", "--forget", "-s", changed, typed="y\n").code == 0
    assert ids(changed) == []


@pytest.mark.parametrize("named", [True, False])
def test_a_change_killed_while_preparing_is_listed_and_taken_back(store: Path, named: bool) -> None:
    with Writer(store) as writer:
        id = start_journal(writer, "recover", "0123456789abcdef", writable_roots=[], lock_created=False).id
    [listed] = call("undo", "--list", "-s", store, "-o", "json").json["changes"]
    assert (listed["id"], listed["state"]) == (id, "preparing")
    words = (id,) if named else ()
    look = call("undo", *words, "-s", store)
    assert (look.code, "was interrupted (preparing)" in look.out, ids(store)) == (exit_codes.FINDINGS, True, [id])
    done = call("undo", *words, "--apply", "-s", store, "-o", "json")
    assert done.code == 0
    assert (done.json["undo_id"], done.json["state"], done.json["items"], done.json["applied"]) == (
        id,
        "preparing",
        [],
        True,
    )
    assert ids(store) == []
    assert call("undo", "--apply", "-s", store).code == 2


def test_the_store_is_named_from_the_root_on(changed: Path) -> None:
    typed = os.path.relpath(changed, ROOT)
    for words in (("--list",), (), ("--apply",)):
        assert call("undo", *words, "-s", typed, "-o", "json").json["store"] == str(changed)
    assert call("recover", "--apply", "-s", typed).code == 0
    assert call("undo", "--forget", "--yes", "-s", typed, "-o", "json").json["store"] == str(changed)
