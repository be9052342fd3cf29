"""The running store: what holds while threads put, dispatch and flush, and what is left when it is closed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from store_core.engine.live_store import WriteOptions
from store_core.engine.message import NewMessage, PutResult, PutStatus
from store_core.engine.store import MessageStore
from store_core.errors import FailedError, StoreInUseError, UsageError
from store_core.layout.checkpoint import CHECKPOINT
from store_core.read.query import KeyQuery, query_key
from store_core.scan.log import scan_log
from store_core.storage.lock import StoreLock
from store_core.storage.syscalls import FileOps
from tests import stores
from tests.conftest import StoreCopy, differences
from tests.engine.writing import Writable, Written

TOPIC = "Calm_orders"
QUEUES = 4


@contextmanager
def running(written: Written, **options: Any) -> Iterator[MessageStore]:
    with MessageStore.open(written.root, settings=written.settings, options=WriteOptions(**options)) as store:
        yield store


def message(number: int, writer: int = 0) -> NewMessage:
    properties = {"KEYS": f"w{writer}n{number} all", "TAGS": f"T{number % 3}"}
    return NewMessage(TOPIC, b"%d-%d" % (writer, number) * 20, number % QUEUES, properties)


def by_threads(store: MessageStore, writers: int, each: int) -> list[PutResult]:
    """What ``writers`` threads got for ``each`` message."""
    results: list[PutResult] = []

    def work(writer: int) -> None:
        results.extend(store.put(message(number, writer)) for number in range(each))

    threads = [threading.Thread(target=work, args=(writer,)) for writer in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def columns(written: Written, end: int) -> list[tuple[int, int, int]]:
    """(phy_offset, queue_id * 2^32 + queue_offset, store time) of each of the topic's records from a place on, in log order."""
    found = []
    with written.store() as store:
        for table in scan_log(store):
            for row in range(len(table)):
                if not table.kind[row] and table.phy_offset[row] >= end:
                    one = table.message(row)
                    found.append((one.phy_offset, one.queue_id << 32 | one.queue_offset, one.store_timestamp_ms))
    return found


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("writers", [1, pytest.param(16, marks=pytest.mark.exhaustive), 6])
def test_offsets_and_times_grow_together_and_no_number_is_given_twice(
    writable: Writable, flush: str, writers: int
) -> None:
    written = writable("load-533")
    begun = [written.end_of(TOPIC, queue_id) for queue_id in range(QUEUES)]
    with running(written, flush=flush) as store:
        end = store.end_phy_offset
        results = by_threads(store, writers, 120)
        assert {result.status for result in results} == {PutStatus.PUT_OK}
    told = sorted(
        (s.phy_offset, s.queue_id << 32 | s.queue_offset, s.store_timestamp_ms) for r in results if (s := r.stored)
    )
    found = columns(written, end)
    assert found == told
    assert [ms for *_, ms in found] == sorted(ms for *_, ms in found)
    for queue_id in range(QUEUES):
        numbers = [number & 0xFFFFFFFF for _, number, _ in found if number >> 32 == queue_id]
        assert numbers == [*range(begun[queue_id], begun[queue_id] + writers * 30)]


class _SyncedBytes(FileOps):
    """Counts what is on the disk of the log: bytes that were written before a sync of their file began."""

    def __init__(self) -> None:
        super().__init__()
        self.written: dict[Path, int] = {}
        self.synced: dict[Path, int] = {}
        self.syncs = 0

    def write(self, path: Path, offset: int, data: Any) -> None:
        super().write(path, offset, data)
        self.written[path] = max(self.written.get(path, 0), offset + len(data))

    def sync_file(self, path: Path, data_only: bool = False) -> None:
        written = self.written.get(path, 0)
        super().sync_file(path, data_only)
        self.synced[path] = max(self.synced.get(path, 0), written)
        self.syncs += path.parent.name == "commitlog"

    def is_synced(self, root: Path, segment_size: int, end_phy_offset: int) -> bool:
        start = (end_phy_offset - 1) // segment_size * segment_size
        return self.synced.get(root / f"commitlog/{start:020d}", 0) >= end_phy_offset - start


def test_what_is_answered_under_sync_is_on_the_disk(writable: Writable) -> None:
    written, ops = writable("load-533"), _SyncedBytes()
    missing: list[int] = []
    with running(written, flush="sync", ops=ops) as store:
        ops.syncs = 0

        def work(writer: int) -> None:
            for number in range(40):
                stored = store.put(message(number, writer)).stored
                assert stored is not None
                end = stored.phy_offset + stored.size_bytes
                if store.durable_phy_offset < end or not ops.is_synced(written.root, 131_072, end):
                    missing.append(end)

        threads = [threading.Thread(target=work, args=(writer,)) for writer in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert missing == []


def test_one_sync_serves_all_that_wait_for_it(writable: Writable) -> None:
    """The first caller's sync is held until all others wait: a second one covers them all."""
    written = writable("load-533")
    held, writers = threading.Event(), 8

    class Ops(FileOps):
        syncs = 0

        def sync_file(self, path: Path, data_only: bool = False) -> None:
            if path.parent.name == "commitlog":
                Ops.syncs += 1
                held.wait(30)
            super().sync_file(path, data_only)

    with running(written, flush="sync", ops=Ops()) as store:
        begun = store.end_phy_offset
        threads = [threading.Thread(target=store.put, args=(message(0, writer),)) for writer in range(writers)]
        for thread in threads:
            thread.start()
        while len(columns(written, begun)) < writers:
            pass
        held.set()
        for thread in threads:
            thread.join()
        assert Ops.syncs == 2


def test_a_sync_that_takes_too_long_is_told_and_the_message_is_there(writable: Writable) -> None:
    written = writable("load-533", syncFlushTimeout="1")
    entered, held = threading.Event(), threading.Event()

    class Ops(FileOps):
        def sync_file(self, path: Path, data_only: bool = False) -> None:
            if path.parent.name == "commitlog" and not held.is_set():
                entered.set()
                held.wait(30)
            super().sync_file(path, data_only)

    with running(written, flush="sync", ops=Ops()) as store:
        first = threading.Thread(target=store.put, args=(message(0),))
        first.start()
        assert entered.wait(30)
        late = store.put(message(1))
        held.set()
        first.join()
    assert late.status == PutStatus.FLUSH_DISK_TIMEOUT
    assert late.stored is not None
    assert written.bodies(TOPIC, 1, late.stored.queue_offset) == [message(1).body]


def test_what_was_put_a_moment_ago_is_seen(writable: Writable) -> None:
    written = writable("load-533")
    with running(written, flush="async") as store:
        for number in range(60):
            stored = store.put(message(number)).stored
            assert stored is not None
            found = store.get(TOPIC, stored.queue_id, stored.queue_offset)
            assert found is not None
            assert found.body == message(number).body
            assert store.get(TOPIC, stored.queue_id, stored.queue_offset + 1) is None
        assert store.get(TOPIC, 99, 0) is None
        with store.reading() as view:
            answer = query_key(view, KeyQuery(TOPIC, "w0n59"), "index")
            assert [found.keys[0] for found in answer.messages] == ["w0n59"]


def test_a_batch_has_an_answer_for_each_and_one_sync(writable: Writable) -> None:
    written, ops = writable("load-533"), _SyncedBytes()
    refused = NewMessage("no such topic", b"x", 0)
    messages = [message(0), refused, *(message(number) for number in range(1, 900))]
    with running(written, flush="sync", ops=ops) as store:
        syncs = store._live.flusher.syncs
        results = store.put_batch(messages)
        assert store._live.flusher.syncs == syncs + 1
    assert [r.status for r in results].count(PutStatus.PUT_OK) == 900
    assert results[1].status == PutStatus.MESSAGE_ILLEGAL
    places = [s.phy_offset for r in results if (s := r.stored)]
    assert places == sorted(places)
    segments = {place // 131_072 for place in places}
    assert len(segments) > 1
    last = results[-1].stored
    assert last is not None
    assert written.bodies(TOPIC, 899 % QUEUES, last.queue_offset) == [message(899).body]


def test_a_half_is_ended_once_by_several_threads(writable: Writable) -> None:
    written = writable("load-533")
    with running(written, flush="async") as store:
        half = store.put(message(0), half=True).stored
        assert half is not None
        ended: list[object] = []

        def end(act: Callable[[int], PutResult]) -> None:
            try:
                ended.append(act(half.phy_offset).status)
            except UsageError as error:
                ended.append(str(error))

        threads = [threading.Thread(target=end, args=(act,)) for act in (store.commit, store.rollback, store.commit)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert ended.count(PutStatus.PUT_OK) == 1
    assert len([word for word in ended if "already" in str(word)]) == 2


def test_the_next_segment_is_made_ahead_and_not_left_behind(writable: Writable) -> None:
    written = writable("load-533")
    before = sorted(path.name for path in (written.root / "commitlog").iterdir())
    with running(written, flush="async") as store:
        store.put(message(0))
        store._live.make_segment_ahead()
        ahead = sorted(path.name for path in (written.root / "commitlog").iterdir())
        assert [int(name) for name in ahead[len(before) :]] == [int(before[-1]) + 131_072]
        assert (written.root / "commitlog" / ahead[-1]).stat().st_size == 131_072
        assert (written.root / "commitlog" / ahead[-1]).stat().st_blocks * 512 >= 131_072  # not sparse: reserved
    assert sorted(path.name for path in (written.root / "commitlog").iterdir()) == before
    with running(written, flush="async") as store:
        store._live.make_segment_ahead()  # nothing was put: nothing is made
    assert sorted(path.name for path in (written.root / "commitlog").iterdir()) == before


def test_abort_stands_from_the_first_message_to_the_end(writable: Writable) -> None:
    written = writable("load-533")
    with running(written, flush="async") as store:
        assert not (written.root / "abort").exists()
        store.put(message(0))
        assert (written.root / "abort").exists()
        with pytest.raises(StoreInUseError):
            StoreLock(written.root).acquire()
    assert not (written.root / "abort").exists()
    with StoreLock(written.root):
        pass


def test_the_checkpoint_names_only_what_is_synced(writable: Writable) -> None:
    written, ops = writable("load-533"), _SyncedBytes()
    path = written.root / "checkpoint"
    before = path.read_bytes()
    with running(written, flush="async", ops=ops) as store:
        stored = store.put(message(0)).stored
        assert stored is not None
        assert path.read_bytes() == before
        store._live.save_checkpoint()
        assert ops.is_synced(written.root, 131_072, store.end_phy_offset)
        fields = CHECKPOINT.read(path.read_bytes()[: CHECKPOINT.size_bytes])
        assert fields["physic_msg_timestamp_ms"] == fields["logics_msg_timestamp_ms"] == stored.store_timestamp_ms


def test_the_checkpoint_never_names_more_than_is_synced_while_threads_put(writable: Writable) -> None:
    """Of 5.5, whose checkpoint also names a place."""
    written, ops = writable("load-551-aged"), _SyncedBytes()
    path, size = written.root / "checkpoint", int(written.settings.value("mappedFileSizeCommitLog"))
    stopped = threading.Event()
    with running(written, flush="async", ops=ops) as store:
        end = store.end_phy_offset

        def work() -> None:
            for _ in range(20_000):
                if stopped.is_set():
                    break
                store.put(NewMessage("Long_orders", b"x" * 50, 0, {"KEYS": "k", "TAGS": "T"}))

        writer = threading.Thread(target=work)
        writer.start()
        named, too_far = set(), []
        for _ in range(15):
            before = store.end_phy_offset
            while store.end_phy_offset == before and writer.is_alive():
                pass
            store._live.save_checkpoint()
            place = CHECKPOINT.read(path.read_bytes()[: CHECKPOINT.size_bytes])["logics_phy_offset"]
            if place >= end:
                named.add(place)
                too_far += [] if ops.is_synced(written.root, size, place + 1) else [place]
        stopped.set()
        writer.join()
    assert too_far == []
    assert len(named) > 5


@pytest.mark.parametrize("policy", ["broker", "keep"])
def test_a_crashed_store_is_recovered_at_opening(store_copy: StoreCopy, policy: Any) -> None:
    written = Written.of("load-533", store_copy("load-533"))
    (written.root / "abort").touch()
    unrecovered = MessageStore.open(written.root, settings=written.settings, recover=None)
    with pytest.raises(FailedError, match="not stopped cleanly"), unrecovered:
        pass
    with MessageStore.open(written.root, settings=written.settings, recover=policy) as store:
        assert store.recovered is not None
        assert store.put(message(0)).status == PutStatus.PUT_OK
    assert not (written.root / "abort").exists()
    assert written.problems() == []


def test_an_error_of_a_thread_ends_the_store(store_copy: StoreCopy) -> None:
    written = Written.of("load-533", store_copy("load-533"))

    class Ops(FileOps):
        def write(self, path: Path, offset: int, data: Any) -> None:
            if "consumequeue" in str(path):
                raise OSError(28, "No space left on device")
            super().write(path, offset, data)

    leaving = ExitStack()
    store = leaving.enter_context(running(written, flush="async", ops=Ops()))
    assert store.put(message(0)).status == PutStatus.PUT_OK
    with pytest.raises(FailedError), store.reading():
        pass
    with pytest.raises(FailedError, match="earlier write failed"):
        store.put(message(1))
    with pytest.raises(FailedError, match="earlier write failed"):
        leaving.close()
    assert (written.root / "abort").exists()
    with StoreLock(written.root):
        pass


def test_a_closed_store_takes_and_gives_nothing(writable: Writable) -> None:
    root = writable("load-533").root
    with MessageStore.open(root) as store:
        store.put(NewMessage("Calm_orders", b"x"))
    before = stores.snapshot(root)
    for use in (
        lambda: store.put(NewMessage("Calm_orders", b"y")),
        lambda: store.put_batch([NewMessage("Calm_orders", b"y")]),
        lambda: store.get("Calm_orders", 0, 0),
        lambda: store.commit_offset("g", "Calm_orders", 0, 1),
    ):
        with pytest.raises(FailedError, match="closed"):
            use()
    assert differences(before, stores.snapshot(root)) == []


@pytest.mark.parametrize(
    "message",
    [
        NewMessage("Calm_orders", b"x", queue_id=True),
        NewMessage("Calm_orders", b"x", flag=1.0),  # type: ignore[arg-type]
        NewMessage("Calm_orders", b"x", sys_flag=4),
        NewMessage("Calm_orders", b"x", sys_flag=12),
        NewMessage("Calm_orders", b"x", sys_flag=-1),
    ],
)
def test_numbers_that_cannot_be_stored_are_refused_before_anything_is_written(
    writable: Writable, message: NewMessage
) -> None:
    with MessageStore.open(writable("load-533").root) as store:
        with pytest.raises(UsageError):
            store.put(message)
        with pytest.raises(UsageError):
            store.commit_offset("g", "Calm_orders", 0, "x")  # type: ignore[arg-type]
        assert store.put(NewMessage("Calm_orders", b"x")).stored is not None
