"""Whose files rmqctl leaves in a store, who may read what is made from one, and plans that know what they are for."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from rmqctl import exit_codes
from rmqctl.failures import failure_of
from tests.conftest import StoreCopy
from tests.damage import Damageable
from tests.rmqctl.calls import call
from tests.stores import truth

NAME = "load-533"
OWNER = (12345, 12346)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def given_away(root: Path) -> None:
    for path in (root, *root.rglob("*")):
        os.chown(path, *OWNER)


@needs_root
@pytest.mark.leaves_damage("a damaged record is what recover is for")
def test_what_root_leaves_belongs_to_the_store_s_owner(store_copy: StoreCopy) -> None:
    store = Damageable(store_copy(NAME), truth(NAME))
    store.flip(record=700, field="body")
    (store.root / "abort").touch()
    given_away(store.root)
    assert call("recover", "--apply", "-s", store.root).code in (exit_codes.OK, exit_codes.FINDINGS)
    assert call("put", "Calm_orders", "body", "-s", store.root).code == exit_codes.OK
    ours = [store.root / ".rmqctl", *(store.root / ".rmqctl").rglob("*")]
    assert any(path.name == "journal" for path in ours)
    for path in (*ours, *store.root.rglob("*")):
        info = path.lstat()
        assert (info.st_uid, info.st_gid) == OWNER, path


@needs_root
def test_a_refusal_says_who_owns_what(tmp_path: Path) -> None:
    os.chown(tmp_path, *OWNER)
    told = failure_of(PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "commitlog" / "0")))
    assert told.line.endswith(f"{tmp_path} belongs to user {OWNER[0]}: run it as that user")


@pytest.mark.leaves_damage("a damaged record is what recover is for")
@pytest.mark.parametrize(("folder_mode", "file_mode", "widest"), [(0o750, 0o640, 0o640), (0o700, 0o644, 0o600)])
def test_plans_and_reports_are_no_wider_than_the_store(
    store_copy: StoreCopy, tmp_path: Path, folder_mode: int, file_mode: int, widest: int
) -> None:
    store = Damageable(store_copy(NAME), truth(NAME))
    store.flip(record=700, field="body")
    for path in (store.root, *store.root.rglob("*")):
        path.chmod(folder_mode if path.is_dir() else file_mode)
    plan, report = tmp_path / "plan.json", tmp_path / "report.json"
    assert call("recover", "--save", plan, "--report", report, "-s", store.root).code == exit_codes.FINDINGS
    assert call("export", tmp_path / "out", "-s", store.root, "--jobs", 1).code == exit_codes.FINDINGS
    made = [plan, report, *(path for path in (tmp_path / "out").rglob("*") if path.is_file())]
    assert len(made) > 3
    for path in made:
        assert stat.S_IMODE(path.stat().st_mode) & ~widest == 0, path


@pytest.mark.leaves_damage("a damaged record is what recover is for")
def test_a_plan_knows_its_store_and_configuration(store_copy: StoreCopy, tmp_path: Path) -> None:
    """A log outside the root, named by ``-c`` and allowed by ``--commitlog``: `apply PLAN` alone needs neither again."""
    store = Damageable(store_copy(NAME), truth(NAME))
    store.flip(record=700, field="body")
    log = tmp_path / "elsewhere" / "commitlog"
    log.parent.mkdir()
    (store.root / "commitlog").rename(log)
    config = tmp_path / "broker.conf"
    config.write_text(f"storePathRootDir={store.root}\nstorePathCommitLog={log}\n")
    plan = tmp_path / "plan.json"
    words = ("recover", "-c", config, "--commitlog", log, "--save", plan)
    assert call(*words).code == exit_codes.FINDINGS
    config.unlink()
    applied = call("apply", plan, "-o", "json", RMQCTL_STORE=None)
    assert applied.code == exit_codes.OK, applied.err
    assert applied.json["store"] == str(store.root)
    assert applied.json["applied"] is True
