"""Queues built from the log alone are, byte for byte, the ones real brokers wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from store_core.derive.batch import BatchQueueBuilder
from store_core.derive.dispatch import Dispatcher, dispatch_rules
from store_core.derive.queues import QueueBuilder, QueueFile
from store_core.derive.spool import QueueSpooler, RowsByQueue
from store_core.layout.paths import SCHEDULE_TOPIC
from store_core.layout.queue import ENTRY
from store_core.scan.log import ScanOptions, scan_log
from store_core.storage.settings import load_settings
from store_core.storage.spool import Spool
from store_core.storage.store import QueueKey, Store
from tests import stores
from tests.chunks import joined
from tests.conftest import DamagedStore, GoldenStore, StoreCopy

SMALL_WINDOWS = ScanOptions(window_size_bytes=50_000)


def spooled(store: Store, folder: Path, run_rows: int = 700) -> RowsByQueue:
    spooler = QueueSpooler(Dispatcher(dispatch_rules(store)), folder, run_rows)
    for table in scan_log(store, options=SMALL_WINDOWS):
        spooler.add(table)
    return spooler.finish()


def contents(files: Iterator[QueueFile]) -> dict[str, bytes]:
    return {file.name: joined(file.read()) for file in files}


def test_zeros_after_the_last_message_are_a_hole(golden: GoldenStore, tmp_path: Path) -> None:
    """Files of 6 MB with a few entries each: 50,000 queues would have 300 GB of zeros."""
    with Store.open(golden("clean-533")) as store, spooled(store, tmp_path) as rows:
        builder = QueueBuilder(rows, 6_000_000)
        for key in builder.queue_keys():
            for file in builder.files(key):
                chunks = list(file.read())
                assert sum(map(len, chunks)) == file.size_bytes
                assert sum(len(chunk) for chunk in chunks if isinstance(chunk, bytes)) <= file.data_bytes < 100_000


def standing(store: Store, tree: str, key: QueueKey) -> dict[str, bytes]:
    folder = store.root / tree / key.topic / str(key.queue_id)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def folders(root: Path, tree: str) -> set[QueueKey]:
    return {QueueKey(p.parent.parent.name, int(p.parent.name)) for p in (root / tree).glob("*/*/*")}


@pytest.mark.parametrize("name", stores.WITH_QUEUE_FILES)
def test_queue_files_are_the_brokers(golden: GoldenStore, tmp_path: Path, name: str) -> None:
    with Store.open(golden(name)) as store, spooled(store, tmp_path) as rows:
        ext_size = next((files.file_size_bytes for files in store.ext_queues.values()), None)
        builder = QueueBuilder(rows, store.queues[builder_key(store)].file_size_bytes, ext_file_size_bytes=ext_size)
        keys = builder.queue_keys()
        assert set(keys) == folders(store.root, "consumequeue")
        for key in keys:
            assert contents(builder.files(key)) == standing(store, "consumequeue", key), key
            assert builder.summary(key).gaps == ()
        if ext_size is not None:
            for key in folders(store.root, "consumequeue_ext"):
                assert contents(builder.ext_files(key)) == standing(store, "consumequeue_ext", key), key


def builder_key(store: Store) -> QueueKey:
    return next(iter(store.queues))


def test_batch_queue_files_are_the_brokers(golden: GoldenStore, tmp_path: Path) -> None:
    with Store.open(golden("bcq-533")) as store, spooled(store, tmp_path) as rows:
        builder = BatchQueueBuilder(rows, 4600)
        keys = builder.queue_keys()
        assert set(keys) == folders(store.root, "batchconsumequeue") == set(store.batch_queues)
        for key in keys:
            assert contents(builder.files(key)) == standing(store, "batchconsumequeue", key)


@pytest.mark.parametrize("name", stores.WITH_QUEUE_FILES)
def test_entries_are_what_the_broker_says_after_load(golden: GoldenStore, tmp_path: Path, name: str) -> None:
    with Store.open(golden(name)) as store, spooled(store, tmp_path) as rows:
        builder = QueueBuilder(rows, 4000)
        for queue in stores.truth(name)["afterLoad"]["queues"]:
            key = QueueKey(queue["topic"], queue["queueId"])
            if queue["type"] != "ConsumeQueue" or queue["max"] == 0:
                continue
            data = b"".join(contents(builder.files(key)).values())
            entries = list(ENTRY.struct.iter_unpack(data))
            for index, phy_offset, size, tags, *resolved in queue["entries"]:
                # With ConsumeQueueExt the truth's last but one column is what stands behind the address.
                expected = resolved[1] if len(resolved) > 1 else tags
                if expected > -(1 << 31) - 1:
                    assert entries[index] == (phy_offset, size, expected)
                else:
                    assert entries[index][:2] == (phy_offset, size)
            assert builder.summary(key).end_queue_offset == queue["max"]


def test_a_queue_whose_begin_has_expired_starts_with_its_own_file(store_copy: StoreCopy, tmp_path: Path) -> None:
    root = store_copy("load-533")
    for segment in sorted((root / "commitlog").iterdir())[:3]:
        segment.unlink()
    key = QueueKey("Calm_audit", 0)
    with Store.open(root) as store, spooled(store, tmp_path) as rows:
        plain = contents(QueueBuilder(rows, 4000).files(key))
        carried = contents(
            QueueBuilder(rows, 4000, existing=dict(store.queues), log_min_phy_offset=store.log.min_phy_offset).files(
                key
            )
        )
        first = QueueBuilder(rows, 4000).summary(key).first_queue_offset
        real = standing(store, "consumequeue", key)
    assert sorted(plain) == sorted(real)[first // 200 :]
    assert carried == {name: real[name] for name in plain}
    opening = list(ENTRY.struct.iter_unpack(plain[min(plain)]))
    assert opening[: first % 200] == [(0, 0x7FFFFFFF, 0)] * (first % 200)
    assert plain[min(plain)][first % 200 * ENTRY.size_bytes :] == real[min(plain)][first % 200 * ENTRY.size_bytes :]


def test_lost_messages_leave_gaps_for_the_caller(damaged: DamagedStore, tmp_path: Path) -> None:
    key = QueueKey("Calm_audit", 0)
    with Store.open(damaged("load-533", "log-missing-mid")) as store, spooled(store, tmp_path) as rows:
        asked: list[tuple[QueueKey, int]] = []

        def gap_entry(key: QueueKey, queue_offset: int) -> tuple[int, int, int]:
            asked.append((key, queue_offset))
            return 7, 100, 0

        builder = QueueBuilder(rows, 4000, gap_entry=gap_entry)
        built = contents(builder.files(key))
        real = standing(store, "consumequeue", key)
        gaps = builder.summary(key).gaps
        plain = contents(QueueBuilder(rows, 4000).files(key))
    lost = [
        m["queueOffset"]
        for m in stores.truth("load-533")["messages"]
        if (m["topic"], m["queueId"]) == key and 524288 <= m["phyOffset"] < 655360
    ]
    assert gaps == ((lost[0], len(lost)),)
    assert [number for _, number in asked] == lost
    joined, true = (list(ENTRY.struct.iter_unpack(b"".join(f[n] for n in sorted(f)))) for f in (built, real))
    assert [e for n, e in enumerate(joined) if n not in lost] == [e for n, e in enumerate(true) if n not in lost]
    assert {joined[number] for number in lost} == {(7, 100, 0)}
    fillers = list(ENTRY.struct.iter_unpack(b"".join(plain[n] for n in sorted(plain))))
    assert {fillers[number] for number in lost} == {(0, 0x7FFFFFFF, 0)}


def test_files_carry_the_store_time_of_their_last_message(golden: GoldenStore, tmp_path: Path) -> None:
    key = QueueKey("Calm_audit", 0)
    messages = [m for m in stores.truth("load-533")["messages"] if (m["topic"], m["queueId"]) == key]
    times = {m["queueOffset"]: m["storeTimestamp"] for m in messages}
    with Store.open(golden("load-533")) as store, spooled(store, tmp_path) as rows:
        found = [file.mtime_ms for file in QueueBuilder(rows, 4000).files(key)]
    assert found == [times[199], times[399], times[max(times)]]


def test_delay_levels_come_from_the_delay_queues_own_entries(golden: GoldenStore) -> None:
    with Store.open(golden("clean-533")) as store:
        delays = dispatch_rules(store).delays
    configured = stores.truth("clean-533")["properties"]["messageDelayLevel"].split()
    units = {"s": 1000, "m": 60_000, "h": 3_600_000}
    milliseconds = [int(level[:-1]) * units[level[-1]] for level in configured]
    assert {level: delays.delays_ms[level - 1] for level in delays.proven} == {
        level: milliseconds[level - 1] for level in delays.proven
    }
    assert delays.proven == {
        int(m["queueId"]) + 1 for m in stores.truth("clean-533")["messages"] if m["topic"] == SCHEDULE_TOPIC
    }


def test_configured_delay_levels_win_and_missing_ones_are_said(
    damaged: DamagedStore, settings_of: Callable[[str], Path]
) -> None:
    root = damaged("load-533", "cq-removed")
    for settings, codes in ((load_settings(root=root), ["S006"]), (load_settings(settings_of("load-533"), root), [])):
        with Store.open(root, settings) as store:
            dispatcher = Dispatcher(dispatch_rules(store))
            for table in scan_log(store, options=SMALL_WINDOWS):
                dispatcher.columns(table)
        assert [found.code for found in dispatcher.findings()] == codes


def test_a_queue_with_few_rows_lies_in_one_place(
    golden: GoldenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 50,000 queues each run of the scratch file has a few rows of each: every look at one read as many places as runs."""
    places: list[int] = []
    read = Spool.read

    def counted(spool: Spool, at: int, size_bytes: int) -> bytes:
        places.append(at)
        return read(spool, at, size_bytes)

    few = 100
    with (
        Store.open(golden("clean-533")) as store,
        spooled(store, tmp_path, few) as rows,
        spooled(store, tmp_path, 1 << 16) as unsplit,
    ):
        monkeypatch.setattr(Spool, "read", counted)
        assert rows.queue_keys() == unsplit.queue_keys()
        seen = {True: 0, False: 0}
        for key in rows.queue_keys():
            places.clear()
            found = [row for part in rows.rows(key) for row in part.tolist()]
            is_few = rows.count(key) <= few
            assert len(places) == 1 or not is_few
            assert found == [row for part in unsplit.rows(key) for row in part.tolist()]
            seen[is_few] += 1
        assert all(seen.values())
