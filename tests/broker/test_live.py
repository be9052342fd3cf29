"""A broker that runs, or that is amid its start, is noticed by every writing command and never touched."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from rmqctl import exit_codes
from store_core.layout import paths
from store_core.storage.live import is_live
from tests import stores
from tests.broker.running import RunningBroker
from tests.conftest import DamagedStore
from tests.rmqctl.calls import Result, call

Started = Callable[..., RunningBroker]
RELEASES: Final = (("4.9.7", "load-497"), ("5.3.3", "load-533"))
WRITING: Final = (
    ("recover", "--apply", "--yes"),
    ("recover", "--apply", "--yes", "--policy", "broker"),
    ("truncate", "0", "--policy", "keep", "--yes", "--apply"),
    ("rebuild", "all", "--apply"),
    ("checkpoint", "--set", "physic=1", "--apply"),
    ("put", "{topic}", "x"),
    ("pull", "{topic}", "0", "--group", "g", "--commit"),
)
READING: Final = (
    ("info",),
    ("log",),
    ("dump-cq", "{topic}", "0"),
    ("verify-crc",),
    ("recover",),
    ("checkpoint",),
)


def topic_of(base: str) -> str:
    return next(str(m["topic"]) for m in stores.truth(base)["messages"] if "TOPIC" not in m["topic"])


def called(words: tuple[str, ...], root: Path, base: str) -> Result:
    return call(*(word.format(topic=topic_of(base)) for word in words), "-s", root)


def log_and_ours(root: Path, *, sealed: bool = False) -> dict[str, bytes]:
    """The log's files (``sealed``: without the one that a broker's own services write to), and whether we left anything."""
    files = sorted((root / paths.COMMITLOG).iterdir())[: -1 if sealed else None]
    return {path.name: path.read_bytes() for path in files} | {"ours": str((root / paths.OURS).exists()).encode()}


def assert_refused(root: Path, base: str, *, running: bool = False) -> None:
    before = log_and_ours(root, sealed=running)
    for words in WRITING:
        done = called(words, root, base)
        assert (done.code, "Traceback" in done.err) == (exit_codes.IN_USE, False), (words, done.err)
        assert log_and_ours(root, sealed=running) == before, words


@pytest.mark.leaves_damage("the damage is what the broker was started on")
@pytest.mark.parametrize(("version", "base"), RELEASES)
def test_a_running_broker_is_left_alone(
    version: str, base: str, store_copy: Callable[[str], Path], running_broker: Started
) -> None:
    root = store_copy(base)
    broker = running_broker(version, root, stores.properties_text(base))
    assert is_live(root).lock_holder is not None
    assert_refused(root, base, running=True)
    for words in READING:
        done = called(words, root, base)
        assert done.code in (exit_codes.OK, exit_codes.FINDINGS), (words, done.err)
    sent = broker.send(topic_of(base))  # and the broker goes on as if nobody had been there
    assert all(answer["status"] == "SEND_OK" for answer in sent.values())


@contextmanager
def stopped_amid_its_start(broker: RunningBroker) -> Iterator[bool]:
    """The broker's process is stopped once it has mapped the log; gives whether it had not taken the lock by then."""
    starting = threading.Thread(target=broker.__enter__)
    starting.start()
    try:
        end = time.monotonic() + 60
        while not maps_the_log(broker.pid) and time.monotonic() < end:
            time.sleep(0.0005)
        assert broker.pid is not None
        os.kill(broker.pid, signal.SIGSTOP)
        yield is_live(broker.root).lock_holder is None
    finally:
        if broker.pid is not None:
            os.kill(broker.pid, signal.SIGCONT)
        starting.join()


def maps_the_log(pid: int | None) -> bool:
    try:
        return pid is not None and f"/{paths.COMMITLOG}/" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False


@pytest.mark.leaves_damage("the broker makes what it likes of the damage")
@pytest.mark.parametrize(("version", "base"), RELEASES)
def test_a_broker_amid_its_start_is_left_alone(
    version: str, base: str, damaged: DamagedStore, jars: Callable[[str], Path], tmp_path: Path
) -> None:
    """It has no lock yet, and its recovery is about to cut the log: nothing may be written now."""
    jars(version)
    for attempt in range(5):
        root = damaged(base, "flip-body-mid", "crash")
        broker = RunningBroker(version, root, stores.properties_text(base), tmp_path / f"starting-{attempt}")
        try:
            with stopped_amid_its_start(broker) as without_lock:
                if without_lock:
                    assert is_live(root).live
                    assert_refused(root, base)
            if without_lock:
                assert is_live(root).lock_holder is not None  # it has gone on with its start, and serves
                return
        finally:
            broker.kill()
    pytest.fail("the broker had the lock each time")
