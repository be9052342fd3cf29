"""The prediction: OUTCOME as the contract has it, what is lost, what comes back, and which release is assumed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from store_core.broker.start import Start, _no_folders, start_broker
from store_core.broker.versions import Version, behaviour_of
from store_core.layout import paths
from store_core.recovery.prediction.predict import outcome_of, predict
from store_core.recovery.recover import broker_result
from store_core.storage.settings import load_settings
from store_core.storage.store import Store
from tests import stores
from tests.broker.outcomes import recorded_cases
from tests.chunks import joined
from tests.conftest import DamagedStore, GoldenStore, StoreCopy
from tests.recovery.recovering import batch_size
from tests.surgery import Exit

SettingsOf = Callable[[str], Path]

OUTCOME = {
    "starts", "reason", "queue_error", "recovery", "first_file_scanned", "max_phy_offset", "min_phy_offset",
    "commitlog_files", "deleted_commitlog_files", "index_files", "deleted_index_files", "index_rebuilt",
    "queues", "lost_messages", "lost", "delivered_early", "ghosts",
}  # fmt: skip
LOST = {"topic", "queue_id", "first_queue_offset", "last_queue_offset", "messages", "bytes", "keys"}
QUEUED = (0, 8)  # transaction types none and commit
TRANSACTION_MASK = 0xC


def predicted(root: Path, version: str | None, config: Path | None = None) -> dict[str, Any]:
    with Store.open(root, load_settings(config, root)) as store:
        found = predict(store, Version.parse(version) if version else None).outcome.as_json()
    assert found.keys() == OUTCOME
    assert all(run.keys() == LOST for run in found["lost"])
    return found


def test_outcome_of_the_sample_store(damaged: DamagedStore) -> None:
    found = predicted(damaged("load-533", "flip-body-mid", "crash"), None)
    queues, lost = found.pop("queues"), found.pop("lost")
    segments = [f"{n * 131072:020d}" for n in range(8)]
    assert found == {
        "starts": True,
        "reason": None,
        "queue_error": None,
        "recovery": "abnormal",
        "first_file_scanned": segments[1],
        "max_phy_offset": 567104,
        "min_phy_offset": 0,
        "commitlog_files": segments[:5],
        "deleted_commitlog_files": segments[5:],
        "index_files": ["20261121021835007", "20261121021837937"],
        "deleted_index_files": ["20261121021839107"],
        "index_rebuilt": False,
        "lost_messages": 895,
        "delivered_early": [],
        "ghosts": [],
    }
    assert queues["Calm_audit"] == {"0": {"min_offset": 0, "max_offset": 316}}
    assert sum(run["messages"] for run in lost) == 895
    audit = next(run for run in lost if run["topic"] == "Calm_audit")
    assert (audit["first_queue_offset"], audit["last_queue_offset"]) == (316, 516)
    assert 0 < len(audit["keys"]) <= 10


@pytest.mark.product(120)
@pytest.mark.parametrize("case", recorded_cases(), ids=lambda case: f"{case[0]}-by-{case[1]}-{case[2]}")
def test_lost_messages_are_those_no_queue_leads_to(
    case: tuple[str, str | None, str], damaged: DamagedStore, golden: GoldenStore, settings_of: SettingsOf
) -> None:
    """Every record of the truth that is still whole counts if no entry points to it; one that was damaged may count."""
    base, by, key = case
    name, exit_kind = key.split("/")
    exit: Exit = "crash" if exit_kind == "crash" else "clean"
    root = damaged(base, name, exit)
    behaviour = behaviour_of(Version.parse(by or stores.truth(base)["written_by"]))
    with Store.open(root, load_settings(settings_of(base), root)) as store, Store.open(golden(base)) as pristine:
        outcome, _ = outcome_of(store, behaviour)
        assert outcome.lost_messages == sum(run.messages or 0 for run in outcome.lost)
        if not outcome.starts:
            assert outcome.lost_messages == 0
            return
        reached = _reached(start_broker(store, behaviour))
        whole = damaged_ones = 0
        for message in stores.truth(base)["messages"]:
            at, size = message["phyOffset"], message["storeSize"]
            if at in reached or message["sysFlag"] & TRANSACTION_MASK not in QUEUED:
                continue
            if pristine.log.read(at, size) == store.log.read(at, size):
                whole += 1
            else:
                damaged_ones += 1
    assert whole <= outcome.lost_messages <= whole + damaged_ones


def _reached(start: Start) -> set[int]:
    found: set[int] = set()
    for queue in start.queues:
        if queue.max_offset > 0:
            found.update(queue.entries(queue.min_position, queue.end)["phy_offset"].tolist())
    return {at for at in found if at < start.log.max_phy_offset}


@pytest.mark.parametrize("name", stores.WITH_QUEUE_FILES)
def test_nothing_is_lost_where_nothing_is_wrong(name: str, store_copy: StoreCopy, settings_of: SettingsOf) -> None:
    found = predicted(store_copy(name), stores.truth(name)["written_by"], settings_of(name))
    assert (found["starts"], found["lost_messages"], found["ghosts"], found["delivered_early"]) == (True, 0, [], [])


@pytest.mark.parametrize(
    ("version", "exit", "lost"),
    [("5.1.4", "clean", 2183), ("5.3.3", "clean", 0), ("5.3.3", "crash", 313), ("5.4.0", "crash", 313)],
)
def test_queues_removed(version: str, exit: Exit, lost: int, damaged: DamagedStore) -> None:
    assert predicted(damaged("load-533", "cq-removed", exit), version)["lost_messages"] == lost


def test_worst_of_the_possible_releases_is_assumed_and_the_others_are_told(damaged: DamagedStore) -> None:
    with Store.open(damaged("load-533", "cq-removed", "clean")) as store:
        found = predict(store)
    assert found.broker_version["possible"] == ["5.2.0", "5.3.0", "5.3.1", "5.3.2", "5.3.3"]
    assert (str(found.assumed), found.outcome.lost_messages) == ("5.3.1", 2183)
    assert [([str(v) for v in o.versions], o.outcome.lost_messages) for o in found.others] == [(["5.3.2", "5.3.3"], 0)]
    assert found.as_json().keys() == {"broker_version", "prediction", "other_predictions", "notes"}


def test_refusal_is_worse_than_any_loss(damaged: DamagedStore) -> None:
    """Before 5.3.2 the size is believed, and the array for it can not be had."""
    with Store.open(damaged("load-533", "size-huge-mid", "crash")) as store:
        found = predict(store)
    assert not found.outcome.starts
    assert "VM limit" in found.outcome.reason
    assert [o.outcome.lost_messages for o in found.others] == [876]  # of 877, the damaged one is none any more


def test_version_of_the_settings_decides(damaged: DamagedStore) -> None:
    root = damaged("load-533", "cq-removed", "clean")
    with Store.open(root, load_settings(None, root, broker_version="5.3.3")) as store:
        found = predict(store)
    assert (found.broker_version["possible"], found.others) == (["5.3.3"], ())


@pytest.mark.parametrize(("copy", "starts"), [(None, True), (b"{{", False)])
@pytest.mark.parametrize(
    ("version", "notes"), [("5.4.0", ("a broker deletes config/topics.json, which it cannot read",)), ("5.3.3", ())]
)
def test_deleted_config_file_is_told(
    version: str, notes: tuple[str, ...], copy: bytes | None, starts: bool, store_copy: StoreCopy
) -> None:
    root = store_copy("load-533")
    topics = root / paths.TOPICS_JSON
    topics.write_bytes(b"{{")
    if copy is not None:
        topics.with_name(topics.name + paths.BAK_SUFFIX).write_bytes(copy)
    with Store.open(root) as store:
        found = predict(store, Version.parse(version))
    assert (found.outcome.starts, found.notes) == (starts, notes)


def test_queue_file_of_a_short_name_loses_nothing(store_copy: StoreCopy, settings_of: SettingsOf) -> None:
    root = store_copy("load-533")
    first = min((root / paths.CONSUMEQUEUE / "Calm_audit/0").iterdir())
    first.rename(first.with_name("0"))
    assert predicted(root, "5.3.3", settings_of("load-533"))["lost"] == []


@pytest.mark.parametrize(
    ("version", "file", "exit", "lost", "notes"),
    [
        ("5.3.3", "consumequeue/Calm_audit/0", "clean", 517, 0),  # nothing is to be dispatched into it
        ("5.3.3", "consumequeue/Calm_audit/0", "crash", 517, 1),
        ("5.4.0", "consumequeue/Calm_audit", "crash", 517, 1),
        ("5.1.4", "consumequeue", "clean", 2183, 0),
        ("5.1.4", "consumequeue", "crash", 2183, 1),
        ("5.3.3", "consumequeue", "clean", 2183, 1),
        ("4.3.0", "consumequeue", "clean", 1961, 0),
        ("4.9.7", "consumequeue", "clean", 1961, 1),
        ("4.9.7", "consumequeue/Soft_audit/0", "clean", 459, 0),
        ("4.9.7", "consumequeue/Soft_audit/0", "crash", 459, 1),
    ],
)
def test_file_where_a_folder_of_queues_belongs(
    version: str, file: str, exit: Exit, lost: int, notes: int, store_copy: StoreCopy, settings_of: SettingsOf
) -> None:
    """Real brokers gave out just as many less."""
    base = "load-497" if version.startswith("4") else "load-533"
    root = store_copy(base, exit)
    shutil.rmtree(root / file)
    (root / file).touch()
    with Store.open(root, load_settings(settings_of(base), root)) as store:
        found = predict(store, Version.parse(version))
    assert (found.outcome.starts, found.outcome.lost_messages, len(found.notes)) == (True, lost, notes)
    assert all(note.startswith(f"{file} is no folder: ") for note in found.notes)


def test_no_queue_gets_entries_behind_one_that_cannot_be_made(store_copy: StoreCopy, settings_of: SettingsOf) -> None:
    """A broker flags all of them as broken then."""
    root = store_copy("load-533", "clean")
    shutil.rmtree(root / "consumequeue")
    (root / "consumequeue/Calm_audit").mkdir(parents=True)
    (root / "consumequeue/Calm_audit/0").touch()
    told = [m for m in stores.truth("load-533")["messages"] if m["sysFlag"] & TRANSACTION_MASK in QUEUED]
    first = next(place for place, m in enumerate(told) if (m["topic"], m["queueId"]) == ("Calm_audit", 0))
    found = predicted(root, "5.3.3", settings_of("load-533"))
    kept = sum(q["max_offset"] - q["min_offset"] for queues in found["queues"].values() for q in queues.values())
    assert (kept, found["lost_messages"]) == (first, len(told) - first)


def test_ghost_record_and_ghost_entries_are_named(damaged: DamagedStore) -> None:
    record = predicted(damaged("load-533", "ghost-tail", "crash"), "5.3.3")["ghosts"]
    assert [(g["kind"], g["phy_offset"]) for g in record] == [("record", 975542)]
    entries = predicted(damaged("load-533", "cq-ghost-entries", "clean"), "5.3.3")["ghosts"]
    assert [(g["kind"], g["topic"], g["queue_offset"]) for g in entries] == [
        ("entry", "Calm_audit", 517),
        ("entry", "Calm_audit", 518),
        ("entry", "Calm_audit", 519),
    ]


@pytest.mark.parametrize(("version", "early"), [("4.9.1", 0), ("4.9.2", 4), ("4.9.8", 4), ("5.0.0", 0)])
def test_delayed_messages_are_delivered_early_by_4_9_2_to_4_9_8(
    version: str, early: int, damaged: DamagedStore
) -> None:
    found = predicted(damaged("load-497", "cq-removed", "crash"), version)["delivered_early"]
    assert len(found) == early
    assert {message["topic"][:5] for message in found} == ({"Soft_"} if early else set())


def test_deleted_topic_is_nobodys_loss(damaged: DamagedStore) -> None:
    """Its records are in the log still, but neither its queues nor its configuration are there."""
    root = damaged("load-533", "cq-queue-missing", "clean")
    before = predicted(root, "5.3.3")
    assert {run["topic"] for run in before["lost"]} == {"Calm_bills"}
    for queue in (root / "consumequeue" / "Calm_bills").iterdir():
        for file in queue.iterdir():
            file.unlink()
        queue.rmdir()
    (root / "consumequeue" / "Calm_bills").rmdir()
    for path in (root / "config").glob("topics.json*"):
        path.write_bytes(path.read_bytes().replace(b"Calm_bills", b"Calm_gone"))
    assert predicted(root, "5.3.3")["lost_messages"] == 0


def test_prediction_changes_nothing(damaged: DamagedStore, read_only: Callable[[Path], Path]) -> None:
    root = read_only(damaged("load-497", "cq-removed-flip-mid", "crash"))
    predicted(root, "4.9.7")


def test_progress_reaches_what_is_scanned(golden: GoldenStore) -> None:
    seen: list[int] = []
    with Store.open(golden("crash-533")) as store:
        predict(store, Version.parse("5.3.3"), on_progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] > 0


def test_a_queue_with_a_hole_of_a_petabyte_is_not_walked_through(store_copy: StoreCopy) -> None:
    root = store_copy("load-533")
    first = root / "consumequeue/Calm_bills/0/00000000000000000000"
    entries = first.stat().st_size // 20
    first.rename(first.with_name(f"{4000 << 50:020d}"))
    [lost] = [run for run in predicted(root, "5.3.3")["lost"] if run["queue_id"] == 0]
    assert (lost["topic"], lost["first_queue_offset"]) == ("Calm_bills", 0)
    assert 0 < lost["messages"] <= entries


@pytest.mark.parametrize(("version", "starts"), [("4.9.7", False), ("5.1.4", True), ("5.3.3", True), ("5.4.0", True)])
def test_a_log_file_that_reaches_beyond_all_offsets(store_copy: StoreCopy, version: str, starts: bool) -> None:
    root = store_copy("clean-430")
    last = sorted((root / "commitlog").iterdir())[-1]
    last.rename(last.with_name(f"{(1 << 63) - 65536:020d}"))
    assert predicted(root, version)["starts"] is starts


def test_a_lost_batch_counts_as_its_messages(store_copy: StoreCopy, settings_of: SettingsOf) -> None:
    """One run for batches that follow each other in their queue."""
    root = store_copy("bcq-533", "crash")
    batches = [m for m in stores.truth("bcq-533")["messages"] if "INNER_NUM" in m["properties"]]
    torn = batches[len(batches) // 2]
    segment_size = int(stores.truth("bcq-533")["properties"]["mappedFileSizeCommitLog"])
    at = torn["phyOffset"] % segment_size
    path = root / "commitlog" / f"{torn['phyOffset'] - at:020d}"
    path.write_bytes(path.read_bytes()[:at] + bytes(segment_size - at))
    for later in root.glob("commitlog/*"):
        if int(later.name) > int(path.name):
            later.unlink()
    told = predicted(root, "5.3.3", settings_of("bcq-533"))
    assert told["max_phy_offset"] <= torn["phyOffset"]
    assert told["lost"] == []  # nothing that can be read is behind the cut

    whole = store_copy("bcq-533", "crash")
    path = whole / "commitlog" / path.name
    data = bytearray(path.read_bytes())
    data[at : at + torn["storeSize"]] = bytes(torn["storeSize"])
    path.write_bytes(data)
    told = predicted(whole, "5.3.3", settings_of("bcq-533"))
    everything = stores.truth("bcq-533")["messages"]
    behind = [m for m in everything if m["topic"] == torn["topic"] and m["phyOffset"] > torn["phyOffset"]]
    lost = [run for run in told["lost"] if run["topic"] == torn["topic"]]
    numbers = {(r["queue_id"], n) for r in lost for n in range(r["first_queue_offset"], r["last_queue_offset"] + 1)}
    assert numbers == {(m["queueId"], m["queueOffset"] + n) for m in behind for n in range(batch_size(m))}
    assert sum(run["messages"] for run in lost) == len(numbers)
    assert len(lost) == len({m["queueId"] for m in behind})


@pytest.mark.parametrize("version", ["5.3.3", "5.4.0"])
def test_lost_batch_queues_are_built_anew_whole(version: str, store_copy: StoreCopy, settings_of: SettingsOf) -> None:
    """A record of such a topic that is no batch gets an entry of one, as real store code of both releases has shown."""
    root = store_copy("bcq-533", "crash")
    for folder in ("consumequeue", "batchconsumequeue"):
        shutil.rmtree(root / folder)
    told = predicted(root, version, settings_of("bcq-533"))
    assert told["queues"]["Bcq_inner"] == {str(n): {"min_offset": 0, "max_offset": 615} for n in range(2)}
    assert (told["lost_messages"], told["lost"]) == (0, [])


@pytest.mark.parametrize("number", [b"x", b"-", b"\xff"])
@pytest.mark.parametrize("name", [b"INNER_NUM", b"INNER_BASE"])
def test_numbers_of_batches_that_are_none(
    name: bytes, number: bytes, store_copy: StoreCopy, settings_of: SettingsOf
) -> None:
    root = store_copy("bcq-533", "crash")
    for path in (root / "commitlog").iterdir():
        data = bytearray(path.read_bytes())
        at = data.find(name + b"\x01")
        if at >= 0:
            data[at + len(name) + 1 : at + len(name) + 2] = number
            path.write_bytes(data)
    shutil.rmtree(root / "batchconsumequeue")
    assert predicted(root, "5.3.3", settings_of("bcq-533"))["starts"]


def test_a_file_that_another_lies_over_is_left_as_it_is(store_copy: StoreCopy, settings_of: SettingsOf) -> None:
    """The last file of a queue begins within the one in front, and nothing is in it: that one stays to the byte."""
    root = store_copy("clean-533")
    first = max((root / paths.CONSUMEQUEUE).glob("*/*/*"), key=lambda path: len(path.read_bytes().rstrip(b"\0")))
    size = first.stat().st_size
    for other in first.parent.iterdir():
        if other != first:
            other.unlink()
    (first.parent / f"{int(first.name) + size // 40 * 20 + 20:020d}").write_bytes(bytes(size))
    with (
        Store.open(root, load_settings(settings_of("clean-533"), root)) as store,
        broker_result(store, behaviour_of(Version(5, 3, 3))) as result,
    ):
        made = {new.path: joined(new.read()) for new in result.queue_changes.new}
    assert made.get(store.relative(first), first.read_bytes()) == first.read_bytes()


def test_files_that_stand_in_no_queues_way(store_copy: StoreCopy) -> None:
    """Where one may stand for a queue's folder, every record is looked at by itself, which takes four times as long."""
    root = store_copy("clean-533")
    (root / paths.CONSUMEQUEUE / "A").mkdir()
    for name in (".DS_Store", "notes.txt", "B", "A/0", "A/0.bak"):
        (root / paths.CONSUMEQUEUE / name).touch()
    with Store.open(root) as store:
        assert _no_folders(store) == {"consumequeue/B", "consumequeue/A/0"}
