"""A process that puts by several threads is killed at any moment: what it was answered for is there, once, and the store goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from random import Random

import pytest

from store_core.engine.live_store import WriteOptions
from store_core.engine.message import NewMessage, PutStatus
from store_core.engine.store import MessageStore, Recover
from store_core.scan.log import scan_log
from tests.conftest import StoreCopy
from tests.engine.writing import Written

TOPIC = "Calm_orders"
_ROOT = Path(__file__).parent.parent.parent
# Each answer is a line: the message's key and its place.
_PUTTER = """
import sys, threading
from store_core.engine.message import NewMessage
from tests.engine.writing import Written
from tests.engine.test_killed import open_store
from pathlib import Path

written = Written.of("load-533", Path(sys.argv[1]))
lines = threading.Lock()

def work(store, writer):
    for number in range(100000):
        key = f"r{sys.argv[2]}w{writer}n{number}"
        message = NewMessage("Calm_orders", key.encode() * 9, number % 4, {"KEYS": key})
        stored = (store.put_batch([message]) if number % 5 == 4 else [store.put(message)])[0].stored
        with lines:
            print(key, stored.phy_offset, stored.queue_id, stored.queue_offset, flush=True)

with open_store(written) as store:
    threads = [threading.Thread(target=work, args=(store, writer), daemon=True) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def open_store(written: Written, recover: Recover = "broker") -> AbstractContextManager[MessageStore]:
    return MessageStore.open(
        written.root, settings=written.settings, recover=recover, options=WriteOptions(flush="sync")
    )


def put_until_killed(written: Written, round_number: int, lines: int) -> list[list[str]]:
    """The answers of a process that gave at least ``lines`` of them before it was killed."""
    command = [sys.executable, "-c", _PUTTER, str(written.root), str(round_number)]
    answered = []
    with subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            answered.append(line.split())
            if len(answered) == lines:
                process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    return [words for words in answered if len(words) == 4]


def places(written: Written) -> dict[str, tuple[int, int, int]]:
    """Key -> place of each message of the topic; each key has one."""
    found: dict[str, tuple[int, int, int]] = {}
    numbers = set()
    with written.store() as store:
        for table in scan_log(store):
            for row in range(len(table)):
                if table.kind[row]:
                    continue
                message = table.message(row)
                for key in message.keys if message.topic == TOPIC else ():
                    if key.startswith("r"):
                        assert key not in found
                        assert (message.queue_id, message.queue_offset) not in numbers
                        numbers.add((message.queue_id, message.queue_offset))
                        found[key] = message.phy_offset, message.queue_id, message.queue_offset
    return found


@pytest.mark.parametrize("policy", ["broker", "keep"])
@pytest.mark.parametrize("kills", [2, pytest.param(50, marks=pytest.mark.exhaustive)])
def test_what_was_answered_for_survives_each_kill(store_copy: StoreCopy, policy: Recover, kills: int) -> None:
    written, random = Written.of("load-533", store_copy("load-533")), Random(f"{policy} {kills}")
    answered: dict[str, tuple[int, ...]] = {}
    for round_number in range(kills):
        for key, *place in put_until_killed(written, round_number, random.randrange(1, 300)):
            answered[key] = tuple(map(int, place))
        with open_store(written, policy) as store:
            again = NewMessage(TOPIC, b"again", 0, {"KEYS": f"ragain{round_number}"})
            result = store.put(again)
            assert result.status == PutStatus.PUT_OK
            assert result.stored is not None
            stored = result.stored
            answered[f"ragain{round_number}"] = stored.phy_offset, stored.queue_id, stored.queue_offset
        found = places(written)
        assert {key: found.get(key) for key in answered} == answered
        assert written.problems() == []
    assert len(answered) > kills
