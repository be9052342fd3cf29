"""A broker's start, played through: it ends where real brokers ended on every store and every damaged copy there is."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from store_core.broker.start import start_broker
from store_core.broker.versions import Version, behaviour_of
from store_core.errors import FailedError
from store_core.layout import paths
from store_core.storage.settings import load_settings
from store_core.storage.store import Store
from tests import stores
from tests.broker.outcomes import compare_state, compare_with_recorded, deleted_files, recorded_cases
from tests.conftest import DamagedStore, GoldenStore, StoreCopy
from tests.surgery import Exit

SettingsOf = Callable[[str], Path]


def _name(case: tuple[str, str | None, str]) -> str:
    base, by, key = case
    return f"{base}-by-{by or 'its writer'}-{key}"


CASES = recorded_cases()
# A clean start is the same whatever a store's age.
REPRESENTATIVES = [case for case in CASES if not (case[0] == "load-551-aged" and case[2].endswith("/clean"))]


@pytest.mark.product(case=REPRESENTATIVES)
@pytest.mark.parametrize("case", CASES, ids=_name)
def test_start_ends_as_recorded(
    case: tuple[str, str | None, str], damaged: DamagedStore, settings_of: SettingsOf
) -> None:
    base, by, key = case
    name, exit_kind = key.split("/")
    exit: Exit = "crash" if exit_kind == "crash" else "clean"
    outcome = stores.outcomes(base, by)[key]
    root = damaged(base, name, exit)
    assert compare_with_recorded(root, settings_of(base), outcome, outcome["rocketmq"]) == {}


@pytest.mark.parametrize("name", stores.KILLED)
def test_start_of_a_killed_store_ends_as_recorded(name: str, golden: GoldenStore, settings_of: SettingsOf) -> None:
    truth = stores.truth(name)
    recovery = dict(truth["recovery"])
    recovery.setdefault("diffAfterLoad", None)
    if recovery["diffAfterLoad"] is None:
        after = {f["path"] for f in recovery["filesAfterLoad"]}
        recovery["diffAfterLoad"] = {"deleted": sorted(set(truth["files"]) - after - {paths.LOCK})}
    assert compare_with_recorded(golden(name), settings_of(name), recovery, truth["written_by"]) == {}


@pytest.mark.parametrize("name", stores.WITH_QUEUE_FILES)
def test_load_of_each_store_ends_as_recorded(name: str, golden: GoldenStore, settings_of: SettingsOf) -> None:
    truth = stores.truth(name)
    with Store.open(golden(name), load_settings(settings_of(name), golden(name))) as store:
        start = start_broker(store, behaviour_of(Version.parse(truth["written_by"])))
        assert not start.refusal
        assert compare_state(start, truth["afterLoad"]) == {}


CROSS = stores.extra_truth("cross")


@pytest.mark.parametrize("case", CROSS, ids=[f"{c['store']}-by-{c['opened_by']}" for c in CROSS])
def test_start_by_another_release_ends_as_recorded(
    case: dict[str, Any], golden: GoldenStore, settings_of: SettingsOf
) -> None:
    root = golden(case["store"])
    with Store.open(root, load_settings(settings_of(case["store"]), root)) as store:
        start = start_broker(store, behaviour_of(Version.parse(case["opened_by"])))
        entries = sum(queue.max_offset - queue.min_offset for queue in start.queues if queue.max_offset > 0)
        assert {
            "starts": not start.refusal,
            "end": start.log.max_phy_offset,
            "entries": entries,
            "deleted": deleted_files(start),
        } == {
            "starts": case["load"]["ok"] and case["start_returned"],
            "end": case["end"],
            "entries": case["entries"],
            "deleted": sorted(case["deleted"]),
        }


def test_queues_in_rocksdb_are_refused_with_an_error(golden: GoldenStore) -> None:
    with Store.open(golden("rocks-533")) as store, pytest.raises(FailedError, match="RocksDB"):
        start_broker(store, behaviour_of(Version.parse("5.3.3")))


PROPERTY_CRC = stores.extra_truth("propcrc")


@pytest.mark.parametrize("change", list(PROPERTY_CRC["outcomes"]))
def test_property_checksum_cuts_only_where_it_is_asked_for(change: str, store_copy: StoreCopy, tmp_path: Path) -> None:
    version, force, kind = change.split("/")
    root = store_copy("propcrc-533")
    truth = stores.truth("propcrc-533")
    message = next(m for m in truth["messages"] if m["phyOffset"] == PROPERTY_CRC["damaged"])
    _flip(root, message, kind, int(truth["properties"]["mappedFileSizeCommitLog"]))
    config = tmp_path / "broker.conf"
    config.write_text(stores.properties_text("propcrc-533") + f"forceVerifyPropCRC={force.removeprefix('force=')}\n")
    with Store.open(root, load_settings(config, root)) as store:
        start = start_broker(store, behaviour_of(Version.parse(version)))
    last = truth["messages"][-1]
    end = last["phyOffset"] + last["storeSize"]
    kept = f"cut at {start.log.max_phy_offset}" if start.log.max_phy_offset != end else "kept all"
    assert kept == PROPERTY_CRC["outcomes"][change]


def _flip(root: Path, message: dict[str, Any], kind: str, segment_size: int) -> None:
    """One byte of the record, in the part that the case names."""
    start = message["phyOffset"]
    at = {
        "flip-queueid": 15,
        "flip-storetime": 63,
        "flip-body": 88,
        "flip-topic": 88 + message["bodyLength"] + 1,
        "flip-property": 88 + message["bodyLength"] + 1 + len(message["topic"]) + 2 + 8,
        "flip-crc-digit": message["storeSize"] - 5,
        "crc-name-broken": message["storeSize"] - 18,
    }.get(kind)
    if at is None:
        assert kind == "untouched"
        return
    path = root / paths.COMMITLOG / paths.segment_name(start - start % segment_size)
    with path.open("r+b") as file:
        file.seek(start % segment_size + at)
        byte = file.read(1)[0]
        file.seek(start % segment_size + at)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize(("version", "starts"), [("4.9.8", True), ("5.0.0", False), ("5.4.0", True)])
def test_a_queue_left_with_an_empty_file_stops_5x_alone(
    version: str, starts: bool, store_copy: StoreCopy, settings_of: SettingsOf
) -> None:
    """Real code did so; 5.4.0 fills the file while it scans."""
    root = store_copy("load-533")
    queues = [*(root / paths.CONSUMEQUEUE).glob("*/*")]
    for queue in queues:
        if queue.parent.name != "Calm_audit":  # so that the queues end before the log does, and are not cut
            shutil.rmtree(queue)
    for emptied in sorted((root / paths.CONSUMEQUEUE / "Calm_audit/0").iterdir())[1:]:
        emptied.write_bytes(bytes(emptied.stat().st_size))
    with Store.open(root, load_settings(settings_of("load-533"), root)) as store:
        start = start_broker(store, behaviour_of(Version.parse(version)))
    assert (not start.refusal) is starts
    assert starts or "Calm_audit-0 is left without an entry" in start.refusal


@pytest.mark.parametrize(("name", "exit"), [(paths.ABORT, "crash"), (paths.ABORT_BAK, "clean")])
@pytest.mark.parametrize(("version", "starts"), [("4.9.8", True), ("5.0.0", False), ("5.4.0", False)])
def test_folder_in_place_of_abort_stops_5x_alone(
    version: str, starts: bool, name: str, exit: Exit, store_copy: StoreCopy, settings_of: SettingsOf
) -> None:
    """Real code did so: it writes its process id there when all is loaded; to 4.x it is a file like others."""
    root = store_copy("load-533", "clean")
    (root / name).unlink(missing_ok=True)
    (root / name).mkdir()
    with Store.open(root, load_settings(settings_of("load-533"), root)) as store:
        assert store.aborted is (exit == "crash")
        start = start_broker(store, behaviour_of(Version.parse(version)))
    assert start.refusal == ("" if starts else f"{name} is a folder")
    assert start.log.first_file_scanned


@pytest.mark.parametrize(
    ("version", "lost", "exit", "starts"),
    [
        ("4.3.0", "", "clean", True),
        ("4.3.0", "", "crash", False),
        ("5.3.3", "", "clean", True),
        ("5.3.3", "", "crash", False),
        ("5.4.0", "", "clean", True),
        ("5.4.0", "", "crash", False),
        ("4.9.7", paths.CONSUMEQUEUE, "clean", False),
        ("5.1.4", paths.CONSUMEQUEUE, "clean", True),  # dispatches nothing again
        ("5.3.3", paths.CONSUMEQUEUE, "clean", False),
    ],
)
def test_file_in_place_of_index_stops_a_start_that_has_to_fill_it(
    version: str, lost: str, exit: Exit, starts: bool, store_copy: StoreCopy, settings_of: SettingsOf
) -> None:
    """Real code did so where the queues are there."""
    base = "load-497" if version.startswith("4") else "load-533"
    root = store_copy(base, exit)
    for tree in filter(None, [lost, paths.INDEX]):
        shutil.rmtree(root / tree)
    (root / paths.INDEX).touch()
    with Store.open(root, load_settings(settings_of(base), root)) as store:
        start = start_broker(store, behaviour_of(Version.parse(version)))
    assert start.refusal.startswith("" if starts else "index is no folder")
    assert (not start.refusal) is starts


@pytest.mark.parametrize(("target", "starts"), [("missing/x", False), ("x", True)])
def test_a_link_for_abort_has_to_lead_to_a_folder(
    target: str, starts: bool, store_copy: StoreCopy, settings_of: SettingsOf
) -> None:
    root = store_copy("load-533", "clean")
    (root / paths.ABORT).symlink_to(target)
    with Store.open(root, load_settings(settings_of("load-533"), root)) as store:
        start = start_broker(store, behaviour_of(Version.parse("5.3.3")))
    assert (not start.refusal) is starts
    assert starts or "a folder that is not there" in start.refusal


def _renamed(number: int, name: Callable[[int], str]) -> Callable[[list[Path]], None]:
    def change(files: list[Path]) -> None:
        files[number].rename(files[number].with_name(name(int(files[number].name))))

    return change


def _all_moved(files: list[Path]) -> None:
    for file in reversed(files):
        file.rename(file.with_name(paths.segment_name(int(file.name) + 20)))


@pytest.mark.parametrize("exit", ["clean", "crash"])
@pytest.mark.parametrize(
    ("change", "span", "lost"),
    [
        (_renamed(0, str), (0, 517), []),
        (_renamed(1, str), (0, 400), [*range(400, 517)]),  # sorted behind the last one
        (_renamed(2, str), (0, 517), []),
        (_renamed(0, lambda n: paths.segment_name(n + 20)), (1, 517), [0]),
        (_renamed(0, lambda n: paths.segment_name(n + 3980)), (199, 517), [*range(199)]),
        (_renamed(1, lambda n: paths.segment_name(n + 20)), (0, 517), [200]),
        (_renamed(1, lambda n: paths.segment_name(n - 20)), (0, 517), [399]),
        (_renamed(2, lambda n: paths.segment_name(n + 20)), (0, 518), [400]),
        (_renamed(2, lambda n: paths.segment_name(n - 20)), (0, 516), [516]),
        (_renamed(0, lambda n: paths.segment_name(n + 7)), (0, 517), [0]),
        (_renamed(2, lambda n: paths.segment_name(n + 7)), (0, 517), [400]),
        (_all_moved, (1, 518), [400]),
    ],
)
def test_queue_file_whose_name_is_not_as_a_broker_writes_it(
    change: Callable[[list[Path]], None],
    span: tuple[int, int],
    lost: list[int],
    exit: Exit,
    store_copy: StoreCopy,
    settings_of: SettingsOf,
) -> None:
    """Real code had these spans, and gave out all messages but as many."""
    root = store_copy("load-533", exit)
    change(sorted((root / paths.CONSUMEQUEUE / "Calm_audit/0").iterdir()))
    with Store.open(root, load_settings(settings_of("load-533"), root)) as store:
        start = start_broker(store, behaviour_of(Version.parse("5.3.3")))
        queue = next(queue for queue in start.queues if queue.key == ("Calm_audit", 0))
        found = queue.entries(span[0] * 20, span[1] * 20)["phy_offset"].tolist()
    told = [m for m in stores.truth("load-533")["messages"] if (m["topic"], m["queueId"]) == queue.key]
    assert (queue.min_offset, queue.max_offset) == span
    assert [m["queueOffset"] for m in told if m["phyOffset"] not in found] == lost


def test_dispatch_goes_on_where_it_counts_not_where_it_reads(store_copy: StoreCopy, settings_of: SettingsOf) -> None:
    """A record whose parts do not add up, then one that is none: 4.x skips its size more than the segment, as real code did."""
    root = store_copy("load-497", "clean")
    shutil.rmtree(root / paths.CONSUMEQUEUE)
    page = 151_552  # inside the body of the record at 151319, of 456 bytes
    with (root / paths.COMMITLOG / paths.segment_name(131_072)).open("r+b") as segment:
        segment.seek(page - 131_072)
        segment.write(bytes(4096))
    with Store.open(root, load_settings(settings_of("load-497"), root)) as store:
        start = start_broker(store, behaviour_of(Version.parse("4.9.7")))
        found = [q.entries(q.min_position, q.end)["phy_offset"] for q in start.queues]
    offsets = {int(offset) for queue in found for offset in queue}
    skipped = [m["phyOffset"] for m in stores.truth("load-497")["messages"] if m["phyOffset"] not in offsets]
    assert (min(skipped), max(skipped)) == (151_319, 391_620)
    assert not offsets & {*range(262_144, 393_216)}
