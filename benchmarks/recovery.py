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
from benchmarks.commands import rmqctl, timed
from benchmarks.make_store import GIB, Made, Recipe, made_store

LIBRARY: Final = "rmqctl, one pass"
COMMAND: Final = "rmqctl rebuild all --apply"
BROKER: Final = "broker's load and dispatch"
_PASS: Final = """
import sys, tempfile
from pathlib import Path
from store_core.mend.salvage.derived import Derivation
from store_core.storage.store import Store

with Store.open(Path(sys.argv[1])) as store, tempfile.TemporaryDirectory() as scratch:
    with Derivation(store, store, Path(scratch)) as derived:
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


def by_library(made: Made) -> float:
    with only_the_log(made) as root:
        return timed([sys.executable, "-c", _PASS, str(root)])


def by_command(made: Made) -> float:
    with only_the_log(made) as root:
        return timed(rmqctl("rebuild", "all", "-s", root, "--apply", "-o", "json"), accept=(0, 3))


def by_broker(made: Made) -> float:
    with only_the_log(made) as root:
        return broker.recover(root)


def main() -> None:
    parser = contest.arguments("recovery", __doc__, size="2GiB", rounds=5)
    parser.add_argument("--record", type=int, default=533, help="bytes of a record")
    told = parser.parse_args()
    with made_store(Recipe(told.size, told.record), told.work) as made:
        contestants: dict[str, Callable[[], float]] = {
            LIBRARY: lambda: by_library(made),
            COMMAND: lambda: by_command(made),
        }
        if broker.is_available():
            contestants[BROKER] = lambda: by_broker(made)
        times = contest.interleave(contestants, told.rounds)
    rows = []
    if BROKER in times:
        rows = [
            contest.ratio("recovery", times, BROKER, LIBRARY, (">=", 6 if told.record < 1000 else 4)),
            contest.ratio("recovery", times, BROKER, COMMAND),
        ]
    store = f"{made.log_bytes / GIB:g} GiB of log, {made.messages} records of {told.record} B, made by {made.maker}"
    command = f"python -m benchmarks.recovery --size {told.size / GIB:g}GiB --record {told.record}"
    contest.finish(told, f"recovery, {told.record} B", command, store, times, rows)


if __name__ == "__main__":
    main()
