"""rebuild: derived files deleted or damaged come back byte for byte as the broker wrote them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from store_core.errors import UsageError
from store_core.layout import paths, queue
from store_core.read.checkpoint import read_checkpoint
from store_core.recovery.apply.undo import undo
from store_core.recovery.losses import Planned
from store_core.recovery.rebuild import rebuild
from store_core.storage.settings import load_settings
from store_core.storage.store import Store
from tests import stores
from tests.conftest import GoldenStore, StoreCopy, differences
from tests.damage import Damageable
from tests.recovery.recovering import Opener, apply_to

SettingsOf = Callable[[str], Path]
NAMES: Final = ("bcq-533", "clean-430", "clean-497", "clean-514", "clean-540", "cqext-533", "lmq-533", "load-533")
QUEUE_TREES: Final = (paths.CONSUMEQUEUE, paths.BATCHCONSUMEQUEUE)


def rebuilt(root: Path, config: Path, what: str, version: str) -> Planned:
    with Store.open(root, load_settings(config, root, broker_version=version)) as store:
        return rebuild(store, what)


def queue_files(root: Path) -> dict[str, str]:
    """Digests of all queue files that hold anything: a broker makes a file also where it only looked."""
    found = {}
    for tree in QUEUE_TREES:
        for path in (root / tree).rglob("*"):
            if path.is_file() and path.read_bytes().strip(b"\0"):
                found[path.relative_to(root).as_posix()] = stores.sha256(path)
    return found


def last_store_times(name: str) -> dict[str, int]:
    """Store time of the last message of each ordinary queue's last file, in ms."""
    truth = stores.truth(name)
    size = queue.rounded_file_size_bytes(int(truth["properties"]["mappedFileSizeConsumeQueue"]))
    times = {}
    for m in truth["messages"]:
        if m["sysFlag"] & 0xC in (0, 8):
            start = m["queueOffset"] * queue.ENTRY.size_bytes // size * size
            times[f"{paths.CONSUMEQUEUE}/{m['topic']}/{m['queueId']}/{paths.segment_name(start)}"] = m["storeTimestamp"]
    return times


@pytest.mark.product(4)
@pytest.mark.parametrize("name", NAMES)
def test_queues_come_back_as_they_were(
    name: str, golden: GoldenStore, store_copy: StoreCopy, settings_of: SettingsOf
) -> None:
    root, config, version = store_copy(name), settings_of(name), stores.truth(name)["written_by"]
    for tree in (*QUEUE_TREES, *((paths.CONSUMEQUEUE_EXT,) if name.startswith("cqext") else ())):
        for folder in (root / tree).glob("*/*"):
            for number, file in enumerate(sorted(folder.iterdir())):
                if number % 2:
                    file.unlink()
                else:
                    file.write_bytes(bytes(file.stat().st_size))
    before = stores.snapshot(root)
    result = rebuilt(root, config, "queues", version)
    assert differences(before, stores.snapshot(root)) == []
    applied = apply_to(result, root)
    assert applied is not None
    assert queue_files(root) == queue_files(golden(name))
    if not name.startswith(("bcq", "lmq")):
        for path, time_ms in last_store_times(name).items():
            assert os.stat(root / path).st_mtime_ns == time_ms * 1_000_000
    assert Opener(config, version).predict(root) == result.after.as_json()
    assert rebuilt(root, config, "queues", version).plan.steps == ()
    undo(root, applied.undo_id, apply=True)
    now = {path: entry for path, entry in stores.snapshot(root).items() if not path.startswith(".rmqctl")}
    assert differences(before, now) == []


@pytest.mark.product(4)
@pytest.mark.parametrize("name", NAMES)
def test_the_index_comes_back_as_it_was(
    name: str, golden: GoldenStore, store_copy: StoreCopy, settings_of: SettingsOf
) -> None:
    root, config, version = store_copy(name), settings_of(name), stores.truth(name)["written_by"]
    files = sorted((root / paths.INDEX).iterdir())
    with files[0].open("r+b") as file:
        file.seek(2100)
        file.write(b"\x55" * 300)
    apply_to(rebuilt(root, config, "index", version), root)
    assert {p.name: p.read_bytes() for p in (root / paths.INDEX).iterdir()} == {
        p.name: p.read_bytes() for p in (golden(name) / paths.INDEX).iterdir()
    }
    if not name.endswith("-540") and name != "clean-430":  # without a file nothing tells these releases' ways
        shutil.rmtree(root / paths.INDEX)
        apply_to(rebuilt(root, config, "index", version), root)
        contents = [p.read_bytes() for p in sorted((root / paths.INDEX).iterdir())]
        assert contents == [p.read_bytes() for p in sorted((golden(name) / paths.INDEX).iterdir())]


def test_the_checkpoint_comes_back(store_copy: StoreCopy, settings_of: SettingsOf) -> None:
    root, config = store_copy("load-533"), settings_of("load-533")
    right = read_checkpoint(root)
    (root / paths.CHECKPOINT).unlink()
    apply_to(rebuilt(root, config, "checkpoint", "5.3.3"), root)
    found = read_checkpoint(root)
    last = stores.truth("load-533")["messages"][-1]["storeTimestamp"]
    assert (found.physic_msg_timestamp_ms, found.logics_msg_timestamp_ms) == (last, last)
    assert found.index_msg_timestamp_ms == right.index_msg_timestamp_ms
    assert rebuilt(root, config, "checkpoint", "5.3.3").plan.steps == ()


def test_missing_topics_come_back(store_copy: StoreCopy, settings_of: SettingsOf) -> None:
    root, config = store_copy("load-533"), settings_of("load-533")
    for name in ("topics.json", "topics.json.bak"):
        (root / paths.CONFIG / name).unlink(missing_ok=True)
    assert "P002" in {f.code for f in Opener(config, "5.3.3").check(root)}
    apply_to(rebuilt(root, config, "topics", "5.3.3"), root)
    assert "P002" not in {f.code for f in Opener(config, "5.3.3").check(root)}


def test_all_of_them_at_once(golden: GoldenStore, store_copy: StoreCopy, settings_of: SettingsOf) -> None:
    root, config = store_copy("load-533"), settings_of("load-533")
    for name in (paths.CONSUMEQUEUE, paths.INDEX):
        shutil.rmtree(root / name)
    (root / paths.CHECKPOINT).unlink()
    apply_to(rebuilt(root, config, "all", "5.3.3"), root)
    assert queue_files(root) == queue_files(golden("load-533"))
    assert [f.code for f in Opener(config, "5.3.3").check(root) if f.severity != "info"] == []


@pytest.mark.product
@pytest.mark.parametrize("name", ["load-533", "clean-540", "bcq-533"])
@pytest.mark.parametrize("what", ["queues", "index", "topics", "all"])
def test_what_is_right_stays(
    name: str, what: str, golden: GoldenStore, read_only: Callable[[Path], Path], settings_of: SettingsOf
) -> None:
    version = stores.truth(name)["written_by"]
    steps = rebuilt(read_only(golden(name)), settings_of(name), what, version).plan.steps
    assert [s.path for s in steps if s.path != paths.CHECKPOINT] == []


@pytest.mark.leaves_damage("rebuild leaves the log as it is, and its body stays wrong")
def test_a_record_with_a_wrong_checksum_keeps_its_entry(
    damageable: Callable[..., Damageable], golden: GoldenStore, settings_of: SettingsOf
) -> None:
    """Dispatch never looks at it; recover is the command that does."""
    store = damageable("load-533")
    store.flip(900, "body")
    assert rebuilt(store.root, settings_of("load-533"), "queues", "5.3.3").plan.steps == ()
    shutil.rmtree(store.root / paths.CONSUMEQUEUE)
    apply_to(rebuilt(store.root, settings_of("load-533"), "queues", "5.3.3"), store.root)
    assert queue_files(store.root) == queue_files(golden("load-533"))


def test_unknown_parts_are_refused(golden: GoldenStore, settings_of: SettingsOf) -> None:
    with pytest.raises(UsageError, match="cannot rebuild 'everything'"):
        rebuilt(golden("load-533"), settings_of("load-533"), "everything", "5.3.3")
