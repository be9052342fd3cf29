"""Queues and index from the log alone: rmqctl's builders against the real broker's start on a store without them.

    python -m benchmarks.recovery --size 2GiB

Both read the whole log, check every body, and make every queue and index file. Of rmqctl that is one pass of the library
(what recover, rebuild and truncate build on) in a process of its own, files written to a scratch folder; of the broker its
load and dispatch, in a JVM that has just started, as a broker's is. The whole command is measured too: rebuild plans,
predicts, writes, syncs and checks.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks import broker, contest
from benchmarks.commands import measure, rmqctl
from benchmarks.make_store import GIB, Made, Recipe, made_store

LIBRARY: Final = "rmqctl, one pass"
TWO: Final = "rmqctl, one pass, two threads"
COMMAND: Final = "rmqctl rebuild all --apply"
BROKER: Final = "broker's load and dispatch"
CPU: Final = ", processor time"
_PASS: Final = """
import sys, tempfile
from pathlib import Path
from store_core.mend.salvage.derived import Derivation
from store_core.storage.store import Store

with Store.open(Path(sys.argv[1])) as store, tempfile.TemporaryDirectory() as scratch:
    with Derivation(store, store, Path(scratch), jobs=int(sys.argv[2])) as derived:
        changes = [derived.queue_changes(), derived.index_changes()]
        for file in (file for change in changes for file in change.new):
            for _ in file.read():
                pass
"""


@contextmanager
def only_the_log(made: Made) -> Iterator[Path]:
    """A store that has the same log and nothing that follows from it."""
    with tempfile.TemporaryDirectory(prefix="rmqctl-recovery-", dir=made.root.parent) as folder:
        root = Path(folder) / "store"
        (root / "commitlog").mkdir(parents=True)
        for segment in made.segments:
            os.link(segment, root / "commitlog" / segment.name)  # nobody writes to it
        shutil.copy(made.root / "checkpoint", root / "checkpoint")
        yield root


class Times:
    """What each contestant took of the processor, in the order of its rounds; wall times are the contest's own."""

    def __init__(self) -> None:
        self.cpu: dict[str, list[float]] = {}

    def __call__(self, name: str, seconds: float, cpu_seconds: float) -> float:
        self.cpu.setdefault(name + CPU, []).append(cpu_seconds)
        return seconds


def by_library(made: Made, jobs: int) -> tuple[float, float]:
    with only_the_log(made) as root:
        found = measure([sys.executable, "-c", _PASS, str(root), str(jobs)])
        return found.seconds, found.cpu_seconds


def by_command(made: Made) -> tuple[float, float]:
    with only_the_log(made) as root:
        found = measure(rmqctl("rebuild", "all", "-s", root, "--apply", "-o", "json"), accept=(0, 3))
        return found.seconds, found.cpu_seconds


def by_broker(made: Made) -> tuple[float, float]:
    with only_the_log(made) as root:
        return broker.recover(root)


def main() -> None:
    parser = contest.arguments("recovery", __doc__, size="2GiB", rounds=5)
    parser.add_argument("--record", type=int, default=533, help="bytes of a record")
    told = parser.parse_args()
    with made_store(Recipe(told.size, told.record), told.work) as made:
        took = Times()
        contestants: dict[str, Callable[[], float]] = {
            LIBRARY: lambda: took(LIBRARY, *by_library(made, 1)),
            TWO: lambda: took(TWO, *by_library(made, 2)),
            COMMAND: lambda: took(COMMAND, *by_command(made)),
        }
        if broker.is_available():
            contestants[BROKER] = lambda: took(BROKER, *by_broker(made))
        walls = contest.interleave(contestants, told.rounds)
    # The warm-up round's processor time does not count either.
    times = {**walls, **{name: found[-told.rounds :] for name, found in took.cpu.items()}}
    rows = []
    if BROKER in times:
        long_records = told.record >= 1000
        rows = [
            contest.ratio("recovery", times, BROKER, LIBRARY, (">=", 4 if long_records else 6)),
            contest.ratio("recovery", times, BROKER, TWO, None if long_records else (">=", 9)),
            contest.ratio("recovery", times, BROKER, COMMAND),
            contest.ratio("recovery", times, BROKER + CPU, LIBRARY + CPU),
            contest.ratio("recovery", times, BROKER + CPU, TWO + CPU),
            contest.ratio("recovery", times, BROKER + CPU, COMMAND + CPU),
        ]
    store = f"{made.log_bytes / GIB:g} GiB of log, {made.messages} records of {told.record} B, made by {made.maker}"
    command = f"python -m benchmarks.recovery --size {told.size / GIB:g}GiB --record {told.record}"
    contest.finish(told, f"recovery, {told.record} B", command, store, times, rows)


if __name__ == "__main__":
    main()
