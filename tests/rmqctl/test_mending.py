"""recover, truncate, rebuild, apply, undo and checkpoint --set as commands: their documents, exit codes and words."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from rmqctl import exit_codes
from store_core.codec.hosts import host_bytes
from store_core.codec.record import encode_record
from store_core.layout import paths
from store_core.storage.lock import StoreLock
from tests import stores
from tests.conftest import DamagedStore, GoldenStore, StoreCopy, differences
from tests.damage import Damageable
from tests.rmqctl.calls import call, on_terminal

STEP: Final = ["op", "path", "offset", "size_bytes", "expect_crc32c"]
LOST: Final = ["topic", "queue_id", "first_queue_offset", "last_queue_offset", "messages", "bytes", "keys"]
OUTCOME: Final = [
    "starts", "reason", "queue_error", "recovery", "first_file_scanned", "max_phy_offset", "min_phy_offset", "commitlog_files",
    "deleted_commitlog_files", "index_files", "deleted_index_files", "index_rebuilt", "queues", "lost_messages", "lost",
    "delivered_early", "ghosts",
]  # fmt: skip
PLANNED: Final = {"store", "plan", "after", "lost", "findings", "applied", "undo_id"}
PREDICTED: Final = {"last_exit", "broker_version", "prediction"}
BEYOND_THE_CONTRACT: Final = {  # added, never to be taken away
    "other_predictions", "notes", "plan_notes", "given_up", "kept_messages", "siblings", "repaired", "lost_records",
    "losses", "verdict",
}  # fmt: skip


def assert_document(document: dict[str, Any], *more: str) -> None:
    assert document.keys() - BEYOND_THE_CONTRACT == PLANNED | set(more)
    assert list(document["plan"]) == ["id", "policy", "steps"]
    assert all(list(step) == STEP for step in document["plan"]["steps"])
    assert list(document["after"]) == OUTCOME
    assert all(list(run) == LOST for run in document["lost"])


@pytest.fixture
def sample(damaged: DamagedStore) -> Path:
    return damaged("load-533", "flip-body-mid", "crash")


def kept(root: Path) -> dict[str, stores.Entry]:
    return {path: entry for path, entry in stores.snapshot(root).items() if not path.startswith(paths.OURS)}


def test_recover_from_first_look_to_undo(sample: Path) -> None:
    before = stores.snapshot(sample)
    dry = call("recover", "-s", sample, "-o", "json")
    assert (dry.code, dry.err) == (3, "")
    assert_document(dry.json, *PREDICTED)
    assert (dry.json["last_exit"], dry.json["prediction"]["lost_messages"]) == ("crash", 895)
    assert (dry.json["applied"], dry.json["undo_id"], dry.json["after"]["lost_messages"]) == (False, None, 0)
    assert sum(run["messages"] for run in dry.json["lost"]) == 1
    assert differences(before, stores.snapshot(sample)) == []

    done = call("recover", "-s", sample, "-o", "json", "--apply")
    assert done.code == 0
    assert (done.json["applied"], done.json["plan"]) == (True, dry.json["plan"])
    assert {f["severity"] for f in done.json["findings"]} == {"info"}
    assert done.json["undo_id"] in done.err

    again = call("recover", "-s", sample, "-o", "json", "--apply")
    assert (again.code, again.json["plan"]["steps"], again.json["applied"], again.json["undo_id"]) == (
        0,
        [],
        True,
        None,
    )
    listed = call("undo", "--list", "-s", sample, "-o", "json").json["changes"]
    assert [(c["id"], c["state"], c["kind"], c["policy"]) for c in listed] == [
        (done.json["undo_id"], "done", "recover", "keep")
    ]
    look = call("undo", "-s", sample, "-o", "json")
    assert (look.code, look.json["applied"]) == (3, False)
    back = call("undo", "-s", sample, "-o", "json", "--apply")
    assert (back.code, back.json["applied"], back.json["undo_id"]) == (0, True, done.json["undo_id"])
    assert differences(before, kept(sample)) == []


def test_recover_tells_people_in_order(sample: Path) -> None:
    told = call("recover", "-s", sample).out
    parts = ("What the broker would do", "What can be kept", "Lost either way: 1 message", "Plan ")
    places = [told.index(part) for part in parts]
    assert places == sorted(places)
    assert "Add --apply" in told


def test_predict_alone(sample: Path, golden: GoldenStore, read_only: Callable[[Path], Path]) -> None:
    found = call("recover", "--predict", "-s", read_only(sample), "-o", "json")
    assert found.code == 3
    assert found.json.keys() - BEYOND_THE_CONTRACT == PREDICTED | {"store", "findings"}
    assert list(found.json["prediction"]) == OUTCOME
    assert call("recover", "--predict", "-s", golden("load-533"), "-o", "json").code == 0


@pytest.mark.leaves_damage("what no broker loads is looked at, not mended")
def test_predict_tells_what_is_wrong_in_a_config_file(store_copy: StoreCopy) -> None:
    root = store_copy("clean-533")
    topics = root / paths.TOPICS_JSON
    topics.write_text('{"topicConfigTable":{"T1":{"perm":99999999999}}}')
    good = call("recover", "--predict", "-s", root, "--broker-version", "5.4.0", "-o", "json")
    assert "a broker deletes config/topics.json, which it cannot read" in str(good.json)
    topics.with_name(topics.name + paths.BAK_SUFFIX).write_bytes(topics.read_bytes())
    refused = call("recover", "--predict", "-s", root, "--broker-version", "5.4.0", "-o", "json")
    why = "config/topics.json and its .bak copy cannot be loaded: perm of T1 is too large a number"
    assert (refused.code, refused.json["prediction"]["starts"], refused.json["prediction"]["reason"]) == (3, False, why)
    cut = call("recover", "--predict", "-s", root, "--broker-version", "4.3.0", "-o", "json")
    assert cut.json["prediction"]["starts"]


def test_strict_applies_only_without_loss(
    sample: Path, store_copy: StoreCopy, read_only: Callable[[Path], Path]
) -> None:
    result = call("recover", "--policy", "strict", "--apply", "-s", read_only(sample), "-o", "json")
    assert (result.code, result.json["error"]["code"]) == (1, "failed")
    whole = store_copy("load-533", "crash")
    assert call("recover", "--policy", "strict", "--apply", "-s", whole, "-o", "json").code == 0
    assert not (whole / paths.ABORT).exists()


@pytest.mark.leaves_damage("a broker leaves progress behind the new ends")
def test_policy_broker_cuts(sample: Path) -> None:
    result = call("recover", "--policy", "broker", "--apply", "-s", sample, "-o", "json")
    # A broker leaves consumers' progress where it was, behind the new ends; keep does not.
    assert (result.code, {f["code"] for f in result.json["findings"] if f["severity"] != "info"}) == (3, {"P001"})
    behind = {f["message"].split()[1] for f in result.json["findings"] if f["code"] == "P001"}
    [note] = result.json["plan_notes"]
    assert "stays, for a broker's start leaves it (P001)" in note
    assert {group for group in behind if group in note} == behind != set()
    assert result.json["plan"]["policy"] == "broker"
    assert result.json["after"]["max_phy_offset"] == 567104
    assert sum(run["messages"] for run in result.json["lost"]) == 895


def test_unknown_policy(golden: GoldenStore) -> None:
    assert call("recover", "--policy", "hope", "-s", golden("load-533")).code == 2


def test_a_readable_message_is_only_given_up_with_a_yes(damageable: Callable[..., Damageable]) -> None:
    store = damageable("load-533")
    message = store.message(900)
    host = host_bytes("127.0.0.1:1")
    size = message["storeSize"] - 50

    def record(body: bytes) -> bytes:
        return encode_record(
            topic=message["topic"], body=body, properties={}, queue_id=message["queueId"],
            queue_offset=message["queueOffset"], phy_offset=message["phyOffset"] + 50, born_timestamp_ms=1, born_host=host,
            store_timestamp_ms=message["storeTimestamp"], store_host=host,
        )  # fmt: skip

    store.write(message["phyOffset"], b"\1" * 50 + record(b"x" * (size - len(record(b"")))))
    before = stores.snapshot(store.root)
    asked = call("recover", "--apply", "-s", store.root, "-o", "json")
    assert (asked.code, asked.json["error"]["code"]) == (2, "usage")
    assert differences(before, stores.snapshot(store.root)) == []
    assert on_terminal("recover", "--apply", "-s", store.root, typed="n\n").code == 2
    assert differences(before, stores.snapshot(store.root)) == []
    assert call("recover", "--apply", "--yes", "-s", store.root, "-o", "json").code == 0


def test_truncate(store_copy: StoreCopy) -> None:
    root = store_copy("load-533")
    messages = stores.truth("load-533")["messages"]
    cut = messages[1500]["phyOffset"]
    before = stores.snapshot(root)
    wrong = call("truncate", cut + 1, "-s", root, "-o", "json")
    assert wrong.code == 2
    assert str(cut) in wrong.err
    dry = call("truncate", cut, "-s", root, "-o", "json")
    assert dry.code == 3
    assert_document(dry.json)
    assert sum(run["messages"] for run in dry.json["lost"]) == len(messages) - 1500
    done = call("truncate", cut, "-s", root, "-o", "json", "--apply")
    assert (done.code, done.json["after"]["max_phy_offset"]) == (0, cut)
    assert call("undo", "--apply", "-s", root).code == 0
    assert differences(before, kept(root)) == []


def test_truncate_asks_where_its_policy_gives_up_less(damaged: DamagedStore) -> None:
    root = damaged("load-533", "flip-body-mid", "crash")
    before = stores.snapshot(root)
    end = call("recover", "--predict", "-s", root, "-o", "json").json["prediction"]["max_phy_offset"]
    inside = next(m["phyOffset"] for m in stores.truth("load-533")["messages"] if m["phyOffset"] > end // 2)
    for policy, cut, code in (("keep", inside, 2), ("strict", end, 2), ("broker", inside, 2), ("none", inside, 2)):
        done = call("truncate", cut, "--policy", policy, "--apply", "-s", root)
        assert (done.code, done.err.count("\n")) == (code, 1), done.err
        assert differences(before, kept(root)) == []
    assert call("truncate", end, "--policy", "broker", "--apply", "-s", root).code == 0
    assert call("undo", "--apply", "-s", root).code == 0
    assert call("truncate", inside, "--policy", "keep", "--apply", "--yes", "-s", root).code == 0


def test_rebuild(store_copy: StoreCopy, settings_of: Callable[[str], Path]) -> None:
    root, config = store_copy("load-533"), settings_of("load-533")
    assert call("rebuild", "all", "-s", root, "-o", "json").code == 0
    shutil.rmtree(root / paths.INDEX)
    dry = call("rebuild", "index", "-s", root, "-c", config, "-o", "json")
    assert dry.code == 3
    assert_document(dry.json)
    done = call("rebuild", "index", "-s", root, "-c", config, "-o", "json", "--apply")
    assert (done.code, done.json["applied"], done.json["lost"]) == (0, True, [])
    assert call("rebuild", "everything", "-s", root).code == 2


def test_checkpoint_is_set_and_rebuilt(store_copy: StoreCopy) -> None:
    root = store_copy("load-533")
    before = call("checkpoint", "-s", root, "-o", "json").json
    dry = call("checkpoint", "--set", "physic_msg_timestamp_ms=2020-01-01T00:00:00Z", "-s", root, "-o", "json")
    assert dry.code == 3
    assert_document(dry.json)
    as_shown = call("checkpoint", "--set", "physic_msg_timestamp=2020-01-01T00:00:00Z", "-s", root, "-o", "json")
    assert as_shown.json["plan"]["steps"] == dry.json["plan"]["steps"]
    words = ("--set", "physic_msg_timestamp_ms=2020-01-01T00:00:00Z", "--set", "confirm_phy_offset=7")
    assert call("checkpoint", *words, "--apply", "-s", root, "-o", "json").code == 0
    after = call("checkpoint", "-s", root, "-o", "json").json
    changed = {"physic_msg_timestamp_ms": 1577836800000, "confirm_phy_offset": 7, "min_timestamp_ms": 1577836797000}
    assert after == {**before, **changed}
    assert call("checkpoint", "--set", "confirm_phy_offset=0", "--apply", "-s", root).code == 0
    assert call("checkpoint", "--rebuild", "--apply", "-s", root, "-o", "json").code == 0
    assert call("checkpoint", "-s", root, "-o", "json").json == before


@pytest.mark.parametrize(
    "words",
    [("--set", "nothing=1"), ("--set", "confirm_phy_offset=-1"), ("--set", "confirm_phy_offset=x"), ("--set", "x"),
     ("--set", "confirm_phy_offset=1", "--rebuild"), ("--apply",)],
    ids=" ".join,
)  # fmt: skip
def test_checkpoint_refuses(words: tuple[str, ...], golden: GoldenStore) -> None:
    result = call("checkpoint", *words, "-s", golden("load-533"))
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error: ")


def test_a_saved_plan_is_applied_once_and_only_to_what_it_was_made_for(sample: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    saved = call("recover", "--save", plan, "-s", sample, "-o", "json")
    assert saved.code == 3
    applied = call("apply", plan, "-s", sample, "-o", "json")
    assert (applied.code, applied.json["plan"], applied.json["applied"]) == (0, saved.json["plan"], True)
    twice = call("apply", plan, "-s", sample, "-o", "json")
    assert (twice.code, twice.json["error"]["code"]) == (12, "out_of_date")
    assert call("undo", "--apply", "-s", sample).code == 0
    with (sample / paths.CHECKPOINT).open("r+b") as file:
        file.write(b"\x01")
    segment = next(iter(sorted((sample / paths.COMMITLOG).iterdir())))
    with segment.open("r+b") as file:
        file.seek(100)
        file.write(b"\xff\xff")
    stale = call("apply", plan, "-s", sample, "-o", "json")
    assert (stale.code, stale.json["error"]["code"]) == (12, "out_of_date")


@pytest.mark.beside
def test_a_store_in_use_is_not_written_to(sample: Path) -> None:
    index = sorted((sample / paths.INDEX).iterdir())
    index[-1].unlink()  # so that there is something to rebuild
    before = stores.snapshot(sample)
    with StoreLock(sample):
        for words in (
            ("recover",),
            ("rebuild", "all"),
            ("truncate", "0"),
            ("checkpoint", "--set", "confirm_phy_offset=1"),
            ("undo",),
        ):
            result = call(*words, "--apply", "--yes" if words == ("recover",) else "-q", "-s", sample, "-o", "json")
            assert (result.code, result.json.get("error", {}).get("code")) == (11, "in_use"), words
    assert differences(before, stores.snapshot(sample)) == []


@pytest.mark.leaves_damage("it changes a file behind the back of undo")
def test_undo_refuses_what_has_changed_since(sample: Path) -> None:
    assert call("recover", "--apply", "-s", sample).code == 0
    segment = sorted((sample / paths.COMMITLOG).iterdir())[4]
    with segment.open("r+b") as file:
        file.seek(43000)
        file.write(b"later")
    assert call("undo", "--apply", "-s", sample).code == 12
    assert call("undo", "no-such-change", "--apply", "-s", sample).code == 2


def moved_log(root: Path, *folders: Path) -> None:
    """Deal the segments out to folders in turn, as a broker with several log paths does."""
    for number, path in enumerate(sorted((root / paths.COMMITLOG).iterdir())):
        target = folders[number % len(folders)]
        target.mkdir(exist_ok=True)
        path.rename(target / path.name)
    (root / paths.COMMITLOG).rmdir()


def test_a_log_in_several_folders(damaged: DamagedStore, settings_of: Callable[[str], Path]) -> None:
    root, config = damaged("load-533", "flip-body-mid", "crash"), settings_of("load-533")
    folders = root / "log-a", root / "log-b"
    moved_log(root, *folders)
    config.write_text(config.read_text() + f"storePathCommitLog={folders[0]},{folders[1]}\nstorePathRootDir={root}\n")
    before = stores.snapshot(root)
    done = call("recover", "--apply", "-c", config, "-o", "json")
    assert done.code == 0, done.err
    assert done.json["after"]["lost_messages"] == 0
    assert [s["path"] for s in done.json["plan"]["steps"] if s["path"].startswith("log-")] == [
        f"log-a/{4 * 131072:020d}"
    ]
    assert call("undo", "--apply", "-c", config).code == 0
    assert differences(before, kept(root)) == []


@pytest.mark.leaves_damage("its log is found with its own configuration alone; the command checked it")
def test_a_lost_segment_comes_back_in_the_folder_a_broker_would_take(
    damaged: DamagedStore, settings_of: Callable[[str], Path]
) -> None:
    root, config = damaged("load-533", "log-missing-mid", "crash"), settings_of("load-533")
    config.write_text(
        config.read_text() + f"storePathCommitLog={root / 'log-a'},{root / 'log-b'}\nstorePathRootDir={root}\n"
    )
    for number, path in enumerate(sorted((root / paths.COMMITLOG).iterdir())):
        folder = root / ("log-a" if number % 2 == 0 else "log-b")
        folder.mkdir(exist_ok=True)
        path.rename(folder / path.name)
    (root / paths.COMMITLOG).rmdir()
    done = call("recover", "--apply", "-c", config, "-o", "json")
    assert done.code == 0, done.err
    assert (root / "log-a" / f"{4 * 131072:020d}").stat().st_size == 131072


def test_a_log_outside_the_root_is_read_but_written_only_when_named(
    sample: Path, tmp_path: Path, settings_of: Callable[[str], Path]
) -> None:
    outside, config = tmp_path / "elsewhere", settings_of("load-533")
    (sample / paths.COMMITLOG).rename(outside)
    config.write_text(config.read_text() + f"storePathCommitLog={outside}\nstorePathRootDir={sample}\n")
    before = stores.snapshot(outside)
    looked = call("recover", "-c", config, "-o", "json")
    assert looked.json.get("prediction", {}).get("lost_messages") == 895, looked
    refused = call("recover", "--apply", "-c", config, "-o", "json")
    assert (refused.code, refused.json["error"]["code"]) == (2, "usage")
    assert "--commitlog" in refused.err
    assert differences(before, stores.snapshot(outside)) == []
    done = call("recover", "--apply", "-c", config, "--commitlog", outside, "-o", "json")
    assert (done.code, done.json["after"]["lost_messages"]) == (0, 0)
    assert call("undo", "--apply", "-c", config, "--commitlog", outside).code == 0
    assert {p: e for p, e in stores.snapshot(outside).items() if paths.OURS not in p} == before


def test_queues_in_rocksdb_end_with_one_clear_error(golden: GoldenStore, read_only: Callable[[Path], Path]) -> None:
    root = read_only(golden("rocks-533"))
    for words in (("recover",), ("rebuild", "queues"), ("truncate", "0")):
        result = call(*words, "-s", root, "-o", "json")
        assert (result.code, result.json["error"]["code"]) == (1, "failed"), words
        assert "RocksDB" in result.err


def test_a_log_of_zeros_behind_all_that_has_expired(store_copy: StoreCopy) -> None:
    """Its newest file is one made ahead: a real broker keeps every queue then, and goes on behind the file's begin."""
    root = store_copy("load-533", "crash")
    log = root / paths.COMMITLOG
    names = sorted(path.name for path in log.iterdir())
    size = (log / names[-1]).stat().st_size
    for name in names:
        (log / name).unlink()
    (log / paths.segment_name(int(names[-1]) + size)).write_bytes(bytes(size))
    told = call("recover", "--predict", "-s", root, "-o", "json").json
    assert told["prediction"]["queues"]
    assert "S007" not in [found["code"] for found in told["findings"]]


@pytest.mark.leaves_damage("there is nothing to mend it with")
def test_a_log_of_nothing_but_zeros_is_no_success(damageable: Callable[..., Damageable]) -> None:
    """A disk that came up empty: nothing is changed, and nobody is told that all is well."""
    store = damageable("load-533", "crash")
    for path in store.segments:
        path.write_bytes(bytes(store.segment_size_bytes))
    before = stores.snapshot(store.root)
    for words in (("check",), ("recover", "--predict"), ("recover",), ("recover", "--apply", "--yes")):
        result = call(*words, "-s", store.root, "-o", "json")
        assert result.code == exit_codes.FINDINGS, words
        assert "S007" in [found["code"] for found in result.json["findings"]]
        assert differences(before, stores.snapshot(store.root)) == []
