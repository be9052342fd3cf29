"""A log folder outside the store's root: nothing there is changed, and nothing taken back, unless `--commitlog` names it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rmqctl import exit_codes
from store_core.layout import paths
from tests import stores
from tests.conftest import DamagedStore, differences
from tests.rmqctl.calls import call


@pytest.fixture
def outside(damaged: DamagedStore, settings_of: Callable[[str], Path], tmp_path: Path) -> tuple[Path, Path, Path]:
    """Root, log folder and configuration of a damaged store whose log lies elsewhere."""
    root, config, log = damaged("load-533", "flip-body-mid", "crash"), settings_of("load-533"), tmp_path / "disk/log"
    log.parent.mkdir()
    (root / paths.COMMITLOG).rename(log)
    config.write_text(config.read_text() + f"storePathCommitLog={log}\nstorePathRootDir={root}\n")
    return root, log, config


def theirs(*folders: Path) -> dict[str, stores.Entry]:
    """Everything but what rmqctl keeps for itself."""
    found = {f"{folder}/{path}": entry for folder in folders for path, entry in stores.snapshot(folder).items()}
    return {path: entry for path, entry in found.items() if f"/{paths.OURS}" not in path}


def test_undo_is_refused_without_the_name_and_exact_with_it(outside: tuple[Path, Path, Path]) -> None:
    root, log, config = outside
    before = theirs(root, log.parent)
    assert call("recover", "--apply", "-c", config, "--commitlog", log).code == exit_codes.OK
    mended = theirs(root, log.parent)
    assert any(path.startswith(str(log)) for path in differences(before, mended))
    for words in (("undo", "--apply", "-c", config), ("undo", "--apply", "-s", root)):
        refused = call(*words, "-o", "json")
        assert (refused.code, refused.json["error"]["code"]) == (exit_codes.USAGE, "usage"), refused.err
        assert f"--commitlog {log}" in refused.err
        assert differences(mended, theirs(root, log.parent)) == []
    looked = call("undo", "-c", config, "-o", "json")
    assert (looked.code, looked.json["applied"]) == (exit_codes.FINDINGS, False)
    undone = call("undo", "--apply", "-c", config, "--commitlog", log, "-o", "json")
    assert (undone.code, undone.json["applied"]) == (exit_codes.OK, True), undone.err
    assert differences(before, theirs(root, log.parent)) == []
    assert not (log.parent / paths.OURS).exists()


def test_a_saved_plan_carries_the_name(outside: tuple[Path, Path, Path], tmp_path: Path) -> None:
    root, log, config = outside
    plan = tmp_path / "plan.json"
    named = ("-c", config, "--commitlog", log, "-o", "json")
    assert call("recover", "--save", plan, *named).code == exit_codes.FINDINGS
    before = theirs(root, log.parent)
    applied = call("apply", plan, "-o", "json")
    assert applied.code == exit_codes.OK, applied.err
    assert differences(before, theirs(root, log.parent)) != []
    assert call("undo", "--apply", *named).code == exit_codes.OK
    assert differences(before, theirs(root, log.parent)) == []


def test_an_unrelated_change_makes_a_plan_for_a_log_elsewhere_out_of_date(
    outside: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    _, log, config = outside
    plan = tmp_path / "plan.json"
    named = ("-c", config, "--commitlog", log, "-o", "json")
    assert call("recover", "--save", plan, *named).code == exit_codes.FINDINGS
    (log / paths.segment_name(99 << 17)).write_bytes(b"new")
    refused = call("apply", plan, *named)
    assert (refused.code, refused.json["error"]["code"]) == (exit_codes.OUT_OF_DATE, "out_of_date"), refused.err


def test_a_segment_of_one_of_two_outside_folders_gets_its_name_back(
    outside: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    root, log, config = outside
    second = tmp_path / "other/log"
    second.mkdir(parents=True)
    config.write_text(config.read_text().replace(f"={log}\n", f"={log},{second}\n"))
    for number, path in enumerate(sorted(log.iterdir())):
        if number % 2:
            path.rename(second / path.name)
    there = sorted(log.iterdir())
    contents = [path.read_bytes() for path in there]
    there[1].write_bytes(contents[2])
    there[2].unlink()
    (second / "x").write_bytes(contents[1])
    before = theirs(root, log.parent, second.parent)
    named = ("--commitlog", log, "--commitlog", second)
    done = call("recover", "--apply", "-c", config, *named, "-o", "json")
    assert (done.code, done.json["after"]["lost_messages"]) == (exit_codes.OK, 0), done.err
    assert [path.read_bytes()[:32_768] for path in there] == [data[:32_768] for data in contents]
    assert sorted(int(path.name) // 131072 % 2 for path in second.iterdir()) == [1] * 4
    assert call("undo", "--apply", "-c", config, *named).code == exit_codes.OK
    assert differences(before, theirs(root, log.parent, second.parent)) == []
