"""What loading decides: config files, files of wrong length, folders, the checkpoint, index files, the timer wheel."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from store_core.broker.load import load, read_checkpoint
from store_core.broker.versions import RELEASES, Version, behaviour_of
from store_core.layout import paths
from store_core.storage.store import Store
from tests import stores
from tests.conftest import StoreCopy

CONFIG = stores.extra_truth("conf")
CONFIG_CASES = [(version, case) for version, cases in CONFIG.items() for case in cases]
BASE_OF = {"4.9.7": "clean-497", "5.1.4": "clean-514", "5.3.3": "clean-533", "5.4.0": "clean-540"}
PROGRESS = "config/consumerOffset.json"


def load_by(root: Path, version: str) -> Any:
    with Store.open(root) as store:
        return load(store, behaviour_of(Version.parse(version)))


def content(kind: str, good: bytes) -> bytes | None:
    """The text of a config file that the recorded cases call so."""
    text = good.decode()
    return {
        "good": good,
        "missing": None,
        "empty": b"",
        "torn": text[: len(text) * 2 // 3].encode(),
        "junk": b"\0\1garbage{{",
        "zeros": bytes(300),
        "extra": good + b"\n}}}",
        "braces": b"{}",
        "null": b"null",
        "quoted-keys": re.sub(r"(?<=[{,\s])(\d+):", r'"\1":', text).encode(),
        "trailing-comma": re.sub(r"(\d)\s*\}", r"\1,}", text, count=1).encode(),
        "bom": b"\xef\xbb\xbf" + good,
    }[kind]


@pytest.mark.parametrize(
    ("version", "case"), CONFIG_CASES, ids=[f"{version}-{case['main/bak']}" for version, case in CONFIG_CASES]
)
def test_damaged_config_file_is_judged_as_recorded(version: str, case: dict[str, Any], store_copy: StoreCopy) -> None:
    root = store_copy(BASE_OF[version])
    good = (root / PROGRESS).read_bytes()
    for kind, path in zip(case["main/bak"].split("/"), (root / PROGRESS, root / f"{PROGRESS}.bak"), strict=True):
        path.unlink(missing_ok=True)
        text = content(kind, good)
        if text is not None:
            path.write_bytes(text)
    main = case["main/bak"].split("/")[0]
    loaded = load_by(root, version)
    gone = case["mainAfter"] == "absent" and main != "missing"
    assert (not loaded.refusal, loaded.deleted_config_files) == (case["load"], [PROGRESS] if gone else [])


def put(path: Path, kind: str, good: bytes) -> None:
    """A config file of that kind, or a folder in its place."""
    path.unlink(missing_ok=True)
    if kind.endswith("folder"):
        path.mkdir()
        if kind == "full folder":
            (path / "x").touch()
    elif (text := content(kind, good)) is not None:
        path.write_bytes(text)


@pytest.mark.parametrize("version", ["4.3.0", "4.9.7", "5.1.4", "5.3.3", "5.4.0"])
@pytest.mark.parametrize(
    ("main", "bak", "starts", "deleted"),
    [
        ("good", "folder", True, False),
        ("torn", "folder", False, True),
        ("missing", "folder", False, False),
        ("folder", "good", True, True),
        ("folder", "missing", True, True),
        ("full folder", "missing", True, False),
    ],
)
def test_folder_in_place_of_a_config_file(
    main: str, bak: str, starts: bool, deleted: bool, version: str, store_copy: StoreCopy
) -> None:
    """Real code did so, but for a missing and a full one, which its code tells; 5.4.0 alone deletes what it cannot read."""
    root = store_copy("clean-497")
    topics = root / paths.TOPICS_JSON
    good = topics.read_bytes()
    put(topics, main, good)
    put(topics.with_name(topics.name + paths.BAK_SUFFIX), bak, good)
    loaded = load_by(root, version)
    gone = [paths.TOPICS_JSON] if deleted and version == "5.4.0" else []
    assert (not loaded.refusal, loaded.deleted_config_files) == (starts, gone)


def test_folder_in_place_of_the_lock_or_the_checkpoint_stops_every_release(store_copy: StoreCopy) -> None:
    root = store_copy("clean-430")
    for name in (paths.LOCK, paths.CHECKPOINT):
        kept = (root / name).rename(root / "kept")
        (root / name).mkdir()
        assert {load_by(root, str(release)).refusal for release in RELEASES} == {f"{name} is a folder"}
        (root / name).rmdir()
        kept.rename(root / name)


@pytest.mark.parametrize("version", [str(release) for release in RELEASES])
def test_short_last_segment_ends_the_list_only_in_some_releases(version: str, store_copy: StoreCopy) -> None:
    root = store_copy("clean-430")
    last = sorted((root / paths.COMMITLOG).iterdir())[-1]
    with last.open("r+b") as file:
        file.truncate(1000)
    loaded = load_by(root, version)
    quiet = version in ("4.3.0", "4.3.1", "4.3.2", "4.4.0", "4.9.2")
    assert bool(loaded.refusal) is not quiet
    assert len(loaded.segments) == 2


@pytest.mark.parametrize(("version", "refused"), [("4.9.8", True), ("5.0.0", True), ("5.1.0", False), ("5.4.0", False)])
def test_folder_between_queue_files(version: str, refused: bool, store_copy: StoreCopy) -> None:
    root = store_copy("clean-430")
    queue = next((root / paths.CONSUMEQUEUE).glob("*/0"))
    (queue / "old").mkdir()
    assert bool(load_by(root, version).refusal) is refused


@pytest.mark.parametrize(("version", "refused"), [("5.1.2", True), ("5.1.3", False), ("5.3.3", False)])
def test_empty_last_queue_file(version: str, refused: bool, store_copy: StoreCopy) -> None:
    root = store_copy("clean-514")
    empty = next((root / paths.CONSUMEQUEUE).glob("*/0")) / paths.segment_name(400_000)
    empty.touch()
    loaded = load_by(root, version)
    assert bool(loaded.refusal) is refused
    assert loaded.deleted_queue_files == ([] if refused else [str(empty.relative_to(root))])


@pytest.mark.parametrize(
    ("name", "is_last"),
    [("tmp", True), ("99999999999999999999", True), ("-00000000000000001000", False), (".nfs123", False)],
)
@pytest.mark.parametrize("is_link", [False, True])
@pytest.mark.parametrize(("version", "deletes"), [("4.9.7", False), ("5.1.2", False), ("5.1.4", True), ("5.4.0", True)])
def test_empty_last_file_is_deleted_whatever_its_name(
    version: str, deletes: bool, is_link: bool, name: str, is_last: bool, store_copy: StoreCopy
) -> None:
    """Real code did so; a link that leads nowhere counts as one."""
    root = store_copy("clean-514")
    queue = next((root / paths.CONSUMEQUEUE).glob("*/0"))
    for folder in (root / paths.COMMITLOG, queue):
        if is_link:
            (folder / name).symlink_to("/nowhere/x")
        else:
            (folder / name).touch()
    loaded = load_by(root, version)
    assert bool(loaded.refusal) is not (deletes and is_last)
    gone = ([name], [str((queue / name).relative_to(root))]) if deletes and is_last else ([], [])
    assert (loaded.deleted_segments, loaded.deleted_queue_files) == gone


@pytest.mark.parametrize("name", ["20200101000000000", "-5", "+5"])
@pytest.mark.parametrize(("version", "refused"), [("4.9.7", False), ("5.0.0", True), ("5.3.3", True)])
def test_folder_in_index(version: str, refused: bool, name: str, store_copy: StoreCopy) -> None:
    root = store_copy("clean-430")
    (root / paths.INDEX / name).mkdir()
    loaded = load_by(root, version)
    assert bool(loaded.refusal) is refused
    assert loaded.index.files == []  # what sorts behind the folder is not loaded


@pytest.mark.parametrize(
    ("name", "loaded"), [("-5", True), ("+5", True), ("99999999999999999999999", False), ("abc", False)]
)
@pytest.mark.parametrize("version", ["4.3.0", "4.9.7", "5.1.4", "5.3.3", "5.4.0"])
def test_a_file_in_index_is_loaded_if_its_name_is_a_long(
    version: str, name: str, loaded: bool, store_copy: StoreCopy
) -> None:
    root = store_copy("clean-430")
    files = sorted(path.name for path in (root / paths.INDEX).iterdir())
    shutil.copy(root / paths.INDEX / files[0], root / paths.INDEX / name)
    found = load_by(root, version)
    assert not found.refusal
    assert [file.name for file in found.index.files] == ([name] if loaded else []) + files


def test_timer_wheel_of_wrong_length_stops_5x_alone(store_copy: StoreCopy) -> None:
    root = store_copy("clean-430")
    (root / paths.TIMERWHEEL).write_bytes(bytes(100))
    assert not load_by(root, "4.9.7").refusal
    assert paths.TIMERWHEEL in load_by(root, "5.3.3").refusal


def test_batch_queue_needs_a_topic_of_its_type(store_copy: StoreCopy) -> None:
    root = store_copy("bcq-533")
    assert not load_by(root, "5.3.3").refusal
    for path in (root / paths.CONFIG).glob("topics.json*"):
        path.write_bytes(path.read_bytes().replace(b"BatchCQ", b"SimpleCQ"))
    assert "queue type" in load_by(root, "5.3.3").refusal
    assert not load_by(root, "4.9.7").refusal


@pytest.mark.parametrize("name", stores.GOLDEN)
def test_checkpoint_is_read_as_the_real_class_does(name: str, golden: Any) -> None:
    with Store.open(golden(name)) as store:
        times = read_checkpoint(store)
    found = stores.truth(name)["checkpointAsFound"]
    assert (times.physic_msg_timestamp_ms, times.logics_msg_timestamp_ms, times.index_msg_timestamp_ms) == (
        found["physicMsgTimestamp"],
        found["logicsMsgTimestamp"],
        found["indexMsgTimestamp"],
    )
    assert times.min_timestamp_ms == found["minTimestamp"]
