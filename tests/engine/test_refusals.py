"""A store that must not be written to is not: live, crashed, torn, or with an end that is in doubt."""

from __future__ import annotations

import fcntl
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from store_core.engine.files import LiveFiles
from store_core.engine.live_store import LiveStore, open_for_writing
from store_core.engine.message import NewMessage
from store_core.engine.put import put
from store_core.errors import FailedError, NotAStoreError, StoreInUseError, UsageError
from store_core.storage.settings import load_settings
from tests import stores
from tests.conftest import DamagedStore, StoreCopy
from tests.engine.writing import Writable, Written
from tests.recording import Killed, Primitive, RecordingOps, tree

Harm = Callable[[Path], object]
END = 975542  # of load-533's log, in its last segment
SEGMENT = "commitlog/00000000000000917504"
SEGMENT_START = 917504


def at(path: str, offset: int, data: bytes) -> Harm:
    def harm(root: Path) -> None:
        with (root / path).open("r+b") as file:
            file.seek(offset)
            file.write(data)

    return harm


def cut(path: str, size: int) -> Harm:
    def harm(root: Path) -> None:
        with (root / path).open("r+b") as file:
            file.truncate(size)

    return harm


def clear(pattern: str) -> Harm:
    def harm(root: Path) -> None:
        for path in root.glob(pattern):
            path.unlink()

    return harm


def newest_entry_of(root: Path) -> tuple[Path, int]:
    """File and place of the entry that points furthest."""
    found = []
    for path in (root / "consumequeue").glob("*/*/*"):
        data = path.read_bytes()
        for place in range(0, len(data), 20):
            found.append((int.from_bytes(data[place : place + 8], "big"), path, place))
    _, path, place = max(found)
    return path, place


def lose_newest_entry(root: Path) -> None:
    path, place = newest_entry_of(root)
    at(str(path.relative_to(root)), place, bytes(20))(root)


def point_behind_the_end(root: Path) -> None:
    path, place = newest_entry_of(root)
    at(str(path.relative_to(root)), place + 20, (END + 500).to_bytes(8, "big") + (200).to_bytes(4, "big"))(root)


def extra_segment(root: Path) -> None:
    (root / "commitlog" / f"{SEGMENT_START + 131072:020d}").write_bytes(b"\1" * 131072)


HARMS: dict[str, Harm] = {
    "abort": lambda root: (root / "abort").touch(),
    "torn tail": at(SEGMENT, END - SEGMENT_START, bytes.fromhex("00000130DAA320A7") + bytes(50) + b"torn"),
    "junk behind the end": at(SEGMENT, END - SEGMENT_START + 5000, b"junk"),
    "flipped byte in the newest segment": at(SEGMENT, 4000, b"\xff\xfe\xfd\xfc" * 30),
    "newest entry lost": lose_newest_entry,
    "an entry points behind the end": point_behind_the_end,
    "short segment": cut(SEGMENT, 100_000),
    "a segment of junk ahead": extra_segment,
    "foreign file": lambda root: (root / "commitlog" / "notes").write_text("x"),
    "no queues": clear("consumequeue/*/*/*"),
    "no log": clear("commitlog/*"),
}


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS.keys())
def test_an_end_in_doubt(store_copy: StoreCopy, harm: Harm) -> None:
    root = store_copy("load-533")
    harm(root)
    before = stores.snapshot(root)
    with pytest.raises(FailedError, match=r"recover|disk is mounted"):
        Written.of("load-533", root).put("Calm_orders")
    assert stores.snapshot(root) == before


@pytest.mark.parametrize("case", ["torn-tail", "flip-body-mid"])
def test_after_recover_it_can_be_written_to(damaged: DamagedStore, case: str) -> None:
    from store_core.recovery.apply.apply import apply
    from store_core.recovery.recover import recover

    written = Written.of("load-533", damaged("load-533", case))
    with pytest.raises(FailedError):
        written.put("Calm_orders")
    with written.store() as store:
        plan = recover(store).plan
    apply(plan, written.root)
    end = written.end_of("Calm_orders", 0)
    assert written.put("Calm_orders", b"again").stored is not None
    assert written.bodies("Calm_orders", 0, end) == [b"again"]
    assert written.problems() == []


def test_an_interrupted_recover_is_finished_first(damaged: DamagedStore) -> None:
    from store_core.recovery.apply.apply import apply
    from store_core.recovery.recover import recover

    written = Written.of("load-533", damaged("load-533", "torn-tail"))
    with written.store() as store:
        plan = recover(store).plan
    with pytest.raises(Killed):
        apply(plan, written.root, ops=RecordingOps(written.root, fault=_killed_at_first_change()))
    assert (written.root / "abort").exists()
    assert written.put("Calm_orders").stored is not None
    assert written.problems() == []


def _killed_at_first_change() -> Callable[[Primitive], None]:
    dead: list[Primitive] = []

    def fault(primitive: Primitive) -> None:
        if dead or (primitive.name == "write" and primitive.paths[0].startswith("commitlog")):
            dead.append(primitive)
            raise Killed

    return fault


def test_old_entries_behind_the_queues_end(store_copy: StoreCopy) -> None:
    root = store_copy("load-533")
    path = max((root / "consumequeue/Calm_orders/0").iterdir())
    at(str(path.relative_to(root)), 3980, b"\1" * 20)(root)
    with pytest.raises(FailedError, match="old entries"):
        Written.of("load-533", root).put("Calm_orders")


@pytest.mark.parametrize("name", ["index", "consumequeue/Calm_orders/0", "consumequeue/Calm_orders"])
def test_a_file_for_a_folder_is_noticed_before_the_first_byte(store_copy: StoreCopy, name: str) -> None:
    written = Written.of("load-533", store_copy("load-533"))
    shutil.rmtree(written.root / name)
    (written.root / name).write_bytes(b"hello")
    before = tree(written.root)
    with pytest.raises(FailedError, match="where a folder is needed") as told:
        written.put("Calm_orders")
    assert told.value.path == str(written.root / name)
    assert tree(written.root) == before


def test_a_folder_for_the_checkpoint_is_noticed_before_the_first_byte(store_copy: StoreCopy) -> None:
    written = Written.of("load-533", store_copy("load-533"))
    (written.root / "checkpoint").unlink()
    (written.root / "checkpoint").mkdir()
    with pytest.raises(FailedError, match="checkpoint is not a file"):
        written.put("Calm_orders")
    assert not (written.root / "abort").exists()
    assert written.end_of("Calm_orders", 0) == 128


def test_an_index_that_reaches_behind_the_log(store_copy: StoreCopy) -> None:
    root = store_copy("load-533")
    path = max((root / "index").iterdir())
    at(str(path.relative_to(root)), 24, END.to_bytes(8, "big"))(root)
    before = stores.contents(root / "commitlog")
    with pytest.raises(FailedError, match="rebuild index"):
        Written.of("load-533", root).put("Calm_orders")
    assert stores.contents(root / "commitlog") == before
    assert not (root / "abort").exists()


def test_a_held_lock(store_copy: StoreCopy) -> None:
    root = store_copy("load-533")
    script = (
        "import fcntl, sys, time\n"
        f"file = open({str(root / 'lock')!r}, 'r+b')\n"
        "fcntl.lockf(file, fcntl.LOCK_EX, 1, 0)\n"
        "print('held', flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(StoreInUseError):
            Written.of("load-533", root).put("Calm_orders")
        holder.kill()


def test_while_open_nobody_else_gets_the_lock(writable: Writable) -> None:
    written = writable("load-533")
    script = (
        "import fcntl, sys\n"
        f"file = open({str(written.root / 'lock')!r}, 'r+b')\n"
        "try:\n    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)\nexcept OSError:\n    print('refused')\n"
    )
    with written.live() as live:
        put(live, NewMessage("Calm_orders", b"", 0))
        assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout == b"refused\n"
    assert fcntl.LOCK_EX  # the same kind of lock that Java takes


def test_not_a_store(tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError), open_for_writing(load_settings(root=tmp_path)):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_log_elsewhere_must_be_named(store_copy: StoreCopy, tmp_path: Path) -> None:
    root = store_copy("load-533")
    (root / "commitlog").rename(tmp_path / "log")
    values = {"storePathCommitLog": str(tmp_path / "log")}
    with pytest.raises(UsageError, match="--commitlog"), open_for_writing(load_settings(root=root, values=values)):
        pass
    named = load_settings(root=root, values=values, commitlog=[tmp_path / "log"])
    with open_for_writing(named) as live:
        assert put(live, NewMessage("Calm_orders", b"", 0)).stored is not None


def test_rocksdb_queues_are_refused(store_copy: StoreCopy) -> None:
    with pytest.raises(FailedError, match="RocksDB"):
        Written.of("rocks-533", store_copy("rocks-533")).put("x")


def test_a_failed_write_leaves_abort_and_no_further_message(
    store_copy: StoreCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Written.of("load-533", store_copy("load-533"))

    def full(self: object, phy_offset: int, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    leaving = ExitStack()
    live = leaving.enter_context(written.live())
    put(live, NewMessage("Calm_orders", b"", 0))
    monkeypatch.setattr("store_core.engine.log.LogWriter._write", full)
    for message in ("cannot write", "an earlier write failed"):
        with pytest.raises(FailedError, match=message):
            put(live, NewMessage("Calm_orders", b"", 0))
    with pytest.raises(FailedError, match="an earlier write failed"):
        leaving.close()
    assert (written.root / "abort").exists()
    with pytest.raises(FailedError, match="recover"):
        written.put("Calm_orders")


@pytest.mark.parametrize(
    ("fails_at", "state", "to_do"),
    [
        ("store_core.engine.live_store.LiveFiles.make_file", "it was not stored", "and run the command again"),
        ("store_core.engine.log.LogWriter.make_room", "it was not stored", "run `rmqctl recover`"),
        ("store_core.engine.queues.PlainQueueWriter.append", "it may be stored, at {end}", "rmqctl get {end}` before"),
        ("store_core.engine.live_store.LiveFiles.remove", "all that was put is stored", "run `rmqctl recover`"),
    ],
)
def test_a_failed_write_says_whether_the_message_is_there(
    store_copy: StoreCopy, monkeypatch: pytest.MonkeyPatch, fails_at: str, state: str, to_do: str
) -> None:
    """Who sends again what is there has it twice."""
    written = Written.of("load-533", store_copy("load-533"))
    end = stores.truth("load-533")["messages"][-1]["phyOffset"] + stores.truth("load-533")["messages"][-1]["storeSize"]

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fails_at, full)
    with pytest.raises(FailedError) as raised, written.live() as live:
        put(live, NewMessage("Calm_orders", b"", 0))
    error = raised.value
    assert error.what == f"cannot write: No space left on device; {state.format(end=end)}"
    assert to_do.format(end=end) in error.to_do
    assert error.path == str(written.root)
    assert error.phy_offset == (end if "may be" in state else None)


def test_a_disk_that_fails_behind_the_last_step_does_not_unsay_the_message(
    store_copy: StoreCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Written.of("load-533", store_copy("load-533"))
    real = LiveFiles.remove

    def removed(self: LiveFiles, name: str) -> None:
        real(self, name)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(LiveFiles, "remove", removed)
    with pytest.raises(FailedError, match=r"all that was put is stored .*ddrescue"), written.live() as live:
        put(live, NewMessage("Calm_orders", b"", 0))


def test_a_signal_waits_for_the_message(writable: Writable, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM in the middle of an append: the append is finished, then the signal counts, and the store is clean."""

    class Asked(Exception):
        pass

    def handler(number: int, frame: object) -> None:
        raise Asked

    written = writable("load-533")
    end = written.end_of("Calm_orders", 0)
    write = LiveStore._tags_code

    def interrupted(self: LiveStore, *arguments: Any) -> int:
        signal.raise_signal(signal.SIGTERM)
        time.sleep(0)
        return write(self, *arguments)

    monkeypatch.setattr(LiveStore, "_tags_code", interrupted)
    before = signal.signal(signal.SIGTERM, handler)
    try:
        with pytest.raises(Asked):
            written.put("Calm_orders", b"whole")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert written.bodies("Calm_orders", 0, end) == [b"whole"]
