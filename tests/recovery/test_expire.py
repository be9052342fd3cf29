"""expire: the segments, queue files and index files that a broker's own clean-up removes, and undo gives them back."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from store_core.errors import UsageError
from store_core.layout import paths
from store_core.recovery.apply.undo import undo
from store_core.recovery.expire import expire
from store_core.recovery.losses import Planned
from store_core.storage.settings import load_settings
from store_core.storage.store import Store
from tests import stores
from tests.conftest import StoreCopy, differences
from tests.recovery.recovering import Opener, apply_to, place, places
from tests.rmqctl.calls import call

SettingsOf = Callable[[str], Path]
HOUR_S: Final = 3600


def age(root: Path, old: int) -> None:
    """Give the first segments an age of 100 hours, and the others none."""
    now = time.time()
    for number, segment in enumerate(sorted((root / paths.COMMITLOG).iterdir())):
        written = now - 100 * HOUR_S if number < old else now
        os.utime(segment, (written, written))


def expired(root: Path, config: Path, version: str, **options: int) -> Planned:
    with Store.open(root, load_settings(config, root, broker_version=version)) as store:
        return expire(store, **options)


@pytest.mark.parametrize("old", [1, 3, 99])
@pytest.mark.parametrize("name", ["load-533", "bcq-533"])
def test_what_is_due_goes(name: str, old: int, store_copy: StoreCopy, settings_of: SettingsOf) -> None:
    root, config, version = store_copy(name), settings_of(name), stores.truth(name)["written_by"]
    age(root, old)
    before = stores.snapshot(root)
    planned = expired(root, config, version, hours=72)
    assert differences(before, stores.snapshot(root)) == []
    segments = sorted((root / paths.COMMITLOG).iterdir())
    kept_from = int(segments[min(old, len(segments) - 1)].name)
    messages = stores.truth(name)["messages"]
    gone = [m for m in messages if m["phyOffset"] < kept_from]
    assert sum(run.messages or 0 for run in planned.lost) == sum(int(m["properties"].get("INNER_NUM", 1)) for m in gone)
    assert {place(m) for m in gone} <= places(planned.lost)
    applied = apply_to(planned, root)
    opener = Opener(config, version)
    assert {f.code for f in opener.check(root) if f.severity != "info"} <= {
        "L026"
    }  # young for a broker: this test made it old
    after = opener.predict(root)
    assert after == planned.after.as_json()
    assert (after["starts"], after["min_phy_offset"], after["ghosts"]) == (True, kept_from, [])
    assert after["max_phy_offset"] == max(m["phyOffset"] + m["storeSize"] for m in messages)
    undo(root, applied.undo_id, apply=True)
    assert [path for path in differences(before, stores.snapshot(root)) if not path.startswith(paths.OURS)] == []


def test_nothing_goes_that_is_not_due(store_copy: StoreCopy, settings_of: SettingsOf) -> None:
    root = store_copy("load-533")
    age(root, 0)
    planned = expired(root, settings_of("load-533"), "5.3.3", hours=72)
    assert (planned.plan.steps, planned.lost) == ((), ())


def test_segments_behind_a_young_one_stay(store_copy: StoreCopy, settings_of: SettingsOf) -> None:
    root = store_copy("load-533")
    age(root, 99)
    os.utime(sorted((root / paths.COMMITLOG).iterdir())[1])
    planned = expired(root, settings_of("load-533"), "5.3.3", hours=72)
    assert [step.path for step in planned.plan.steps if step.path.startswith(paths.COMMITLOG)] == [
        f"{paths.COMMITLOG}/{0:020d}"
    ]


def test_so_many_go_as_free_the_bytes_asked_for(store_copy: StoreCopy, settings_of: SettingsOf) -> None:
    root = store_copy("load-533")
    age(root, 0)
    size = next((root / paths.COMMITLOG).iterdir()).stat().st_size
    for free_bytes, count in (
        (1, 1),
        (size, 1),
        (size + 1, 2),
        (1 << 40, len(list((root / paths.COMMITLOG).iterdir())) - 1),
    ):
        steps = expired(root, settings_of("load-533"), "5.3.3", free_bytes=free_bytes).plan.steps
        assert len([step for step in steps if step.path.startswith(paths.COMMITLOG)]) == count


def test_an_odd_reserved_time_asks_for_an_age(store_copy: StoreCopy, tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text("fileReservedTime=soon\n")
    root = store_copy("load-533")
    with pytest.raises(UsageError, match="fileReservedTime"):
        expired(root, config, "5.3.3")
    assert expired(root, config, "5.3.3", hours=999_999).plan.steps == ()


def test_the_last_records_stay_before_files_that_are_made_ahead(store_copy: StoreCopy, settings_of: SettingsOf) -> None:
    root = store_copy("load-533")
    last = max((root / paths.COMMITLOG).iterdir())
    size = last.stat().st_size
    (root / paths.COMMITLOG / f"{int(last.name) + size:020d}").write_bytes(bytes(size))
    age(root, 99)
    planned = expired(root, settings_of("load-533"), "5.3.3", hours=0, free_bytes=1 << 40)
    assert planned.after.min_phy_offset == int(last.name)
    assert planned.after.max_phy_offset == stores.truth("load-533")["afterLoad"]["maxPhyOffset"]


def test_an_empty_log_has_nothing_to_expire(tmp_path: Path) -> None:
    (tmp_path / paths.COMMITLOG).mkdir()
    done = call("expire", "-s", tmp_path, "-o", "json")
    assert done.code in (0, 1), done.err
    assert "internal" not in done.err


def test_the_command(store_copy: StoreCopy) -> None:
    root = store_copy("load-533")
    before = stores.snapshot(root)
    dry = call("expire", "--free", "100k", "--older-than", 999_999, "-s", root, "-o", "json")
    assert (dry.code, dry.json["applied"], dry.json["after"]["min_phy_offset"]) == (3, False, 131072)
    done = call("expire", "--free", "100k", "--older-than", 999_999, "--apply", "-s", root, "-o", "json")
    assert (done.code, done.json["applied"]) == (0, True)
    assert not (root / paths.COMMITLOG / f"{0:020d}").exists()
    assert call("undo", "--apply", "-s", root).code == 0
    assert differences(before, stores.snapshot(root)) == []
