"""A check beside a broker that writes, rolls over and deletes while it runs: what it does is no fault, what is damaged stays one."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from store_core.check import live_check as now
from store_core.check.report import MOST_FINDINGS_PER_CODE, Findings
from store_core.check.store import check_store
from store_core.derive.index import index_style
from store_core.layout import index, paths
from store_core.read.index_sizes import index_sizes
from store_core.read.queue import end_of_entries
from store_core.scan.frames import FrameTable
from store_core.scan.log import scan_log
from store_core.storage.settings import load_settings
from store_core.storage.store import QueueKey, Store
from tests.at_work import ENTRY_BYTES, MESSAGES, SEGMENT_BYTES, STORE, Broker
from tests.conftest import StoreCopy

QUEUE_FILE_BYTES: Final = 4000
WALKED: Final = 2000  # so many records are there when the log is walked
DISPATCHED: Final = 1500  # and so many have entries when the queues are listed
LONGEST: Final = "Rush_audit/0"
Change = Callable[[Broker], None]


@pytest.fixture
def broker(store_copy: StoreCopy) -> Broker:
    return Broker(store_copy(STORE, "crash"))


@pytest.fixture(autouse=True)
def in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(now, "_PAUSE_SECONDS", 0)


def after_the_walk(monkeypatch: pytest.MonkeyPatch, change: Callable[[], None]) -> None:
    """Change something when the log has been walked, and the queues are to be looked at."""

    def walked(*args: Any, **options: Any) -> Iterator[FrameTable]:
        yield from scan_log(*args, **options)
        change()

    monkeypatch.setattr("store_core.check.store.scan_log", walked)


def told(root: Path) -> dict[str, int]:
    """How often each code is told that is worse than an information."""
    with Store.open(root, load_settings(None, root)) as store:
        report = check_store(store, live=True)
    return dict(Counter(found.code for found in report.findings if found.severity != "info"))


def test_a_broker_that_dispatches_and_rolls_over(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of queue files that were not there when the store was listed, and entries of records behind those that were walked over."""
    broker.back_to(WALKED, DISPATCHED)
    after_the_walk(monkeypatch, broker.go_on)
    assert told(broker.root) == {}


def test_entries_that_come_while_their_queue_is_read(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time the end of a queue has been read, it has got on."""
    steps = iter(range(DISPATCHED, WALKED, 5))

    def end_now(*args: Any) -> int:
        end = end_of_entries(*args)
        if (number := next(steps, None)) is not None:
            broker.back_to(WALKED, number)
        return end

    broker.back_to(WALKED, DISPATCHED)
    monkeypatch.setattr("store_core.check.queues.end_of_entries", end_now)
    assert told(broker.root) == {}


def test_a_record_whose_properties_are_written_last(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """No checksum tells that they are not there yet."""
    number = next(n for n in range(WALKED, len(MESSAGES)) if MESSAGES[n]["tagsCode"] and not MESSAGES[n]["queueId"])
    message = MESSAGES[number]
    end = message["phyOffset"] + message["storeSize"]
    path = broker.root / paths.COMMITLOG / paths.segment_name(end - end % SEGMENT_BYTES)
    with path.open("r+b") as file:
        file.seek(end % SEGMENT_BYTES - 100)
        written = file.read(100)
        assert b"TAGS" in written
        file.seek(-100, 1)
        file.write(bytes(100))
    assert told(broker.root)["Q005"] == 1
    after_the_walk(monkeypatch, lambda: overwrite(path, end % SEGMENT_BYTES - 100, written))
    assert told(broker.root) == {}


def test_an_index_whose_header_goes_on(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release is told by counts of one moment: with more used slots by now, a file looks as if each entry had its own."""
    newest = max((broker.root / paths.INDEX).iterdir())
    header = index.HEADER.read(newest.read_bytes())
    earlier = index.HEADER.struct.pack(*{**header, "index_count": header["used_slots"] + 1}.values())
    with Store.open(broker.root, load_settings(None, broker.root)) as store:
        sizes, reads, read = index_sizes(store).sizes, iter([earlier]), store.cache.read
        assert sizes
        monkeypatch.setattr(
            store.cache,
            "read",
            lambda path, at, size: (
                next(reads, read(path, at, size))
                if (path, at, size) == (newest, 0, index.HEADER.size_bytes)
                else read(path, at, size)
            ),
        )
        assert header["used_slots"] < header["index_count"] - 1
        assert not index_style(store, sizes.slots, sizes.entries).counts_every_put


def queue_path(broker: Broker, file: int, queue_name: str = LONGEST) -> Path:
    return broker.root / paths.CONSUMEQUEUE / queue_name / paths.segment_name(file * QUEUE_FILE_BYTES)


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def zero_entry(broker: Broker) -> None:
    overwrite(queue_path(broker, 0), 7 * ENTRY_BYTES, bytes(ENTRY_BYTES))


def wrong_entry(broker: Broker) -> None:
    """An entry that points to the next message of another queue."""
    path = queue_path(broker, 0)
    other = queue_path(broker, 0, "Rush_bills/0").read_bytes()[:ENTRY_BYTES]
    overwrite(path, 7 * ENTRY_BYTES, other)


def far_entry(broker: Broker) -> None:
    """An entry in the midst that points behind the log's end, though not behind its last file's."""
    overwrite(queue_path(broker, 0), 7 * ENTRY_BYTES, struct.pack(">q", MESSAGES[WALKED + 3]["phyOffset"]))


def lost_file(broker: Broker) -> None:
    queue_path(broker, 1).unlink()
    del broker.now[queue_path(broker, 1)]


@pytest.mark.parametrize(
    ("harm", "found"),
    [
        (zero_entry, {"Q006": 1, "Q008": 1}),
        (wrong_entry, {"Q002": 1, "Q006": 1}),
        (far_entry, {"Q006": 1, "Q011": 1}),
        (lost_file, {"Q006": 1, "Q012": 1}),
    ],
)
def test_true_damage_beside_a_broker(
    harm: Change, found: dict[str, int], broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.back_to(WALKED, DISPATCHED)
    harm(broker)
    after_the_walk(monkeypatch, broker.go_on)
    assert told(broker.root) == found


@pytest.mark.parametrize("looks", [1, 2])
def test_files_that_expire_while_they_are_read(looks: int, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the walk, and again each time the queues have been listed."""
    listed: list[int] = []
    list_now = now.store_now

    def store_now(store: Store) -> Store:
        found = list_now(store)
        if len(listed) < looks:
            listed.append(1)
            broker.expire(5 + 2 * len(listed))
        return found

    after_the_walk(monkeypatch, lambda: broker.expire(5))
    monkeypatch.setattr(now, "store_now", store_now)
    assert told(broker.root) == {}


def test_files_that_expire_when_the_store_has_been_listed(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The walk no longer finds the log's first files, and entries lead nowhere."""

    def walked(*args: Any, **options: Any) -> Iterator[FrameTable]:
        broker.expire(7)
        yield from scan_log(*args, **options)

    monkeypatch.setattr("store_core.check.store.scan_log", walked)
    assert set(told(broker.root)) == {"L025"}


def test_what_is_found_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    first, again = Findings(), Findings()
    first.say("Q006", "one message")
    first.say("Q009", "bytes", severity="info")
    for number in range(MOST_FINDINGS_PER_CODE + 2):
        again.say("Q006", f"{number}")
    again.say("Q009", "bytes")
    again.say("Q011", "cut at the next start", severity="info")
    kept, whole = again.also_in(first.serious_codes), Findings()
    assert kept.is_serious
    assert {found.code for found in kept.listed} == {"Q006", "Q011"}
    whole.join(kept)
    assert whole.counts == {"Q006": MOST_FINDINGS_PER_CODE + 2, "Q011": 1}


@pytest.mark.parametrize(("queues", "looks"), [(3, 3), (100, 2)])
def test_what_seems_wrong_is_looked_at_again(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, queues: int, looks: int
) -> None:
    """All of it is told, however much there is, and little is held of each queue."""
    monkeypatch.setattr("store_core.check.live_check._PAUSE_SECONDS", 0)
    asked: Counter[QueueKey] = Counter()

    def look(store: Store, key: QueueKey, findings: Findings) -> None:
        asked[key] += 1
        findings.say("Q006", "one message", queue_id=key.queue_id)
        findings.say("Q009", "bytes", queue_id=key.queue_id, severity="info")
        if asked[key] == 1:
            findings.say("Q001", "only once", queue_id=key.queue_id)

    found = Findings()
    with Store.open(broker.root) as store:
        now.look_at_queues(store, [QueueKey("T", number) for number in range(queues)], look, found, live=True)
    assert set(asked.values()) == {looks}
    assert found.counts == {"Q006": queues, "Q009": queues}
