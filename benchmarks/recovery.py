"""Queues and index from the log alone: rmqctl's builders against the real broker's start on a store without them.

    python -m benchmarks.recovery --size 4GiB
    python -m benchmarks.recovery --size 4GiB --no-crc      against 4.9.7, whose dispatch looks at no checksum

Both read the whole log, check every body (unless told not to), and make every queue and index file. Of rmqctl that is one
pass of the library (what rebuild and truncate build on; recover's looks at records' bytes as well) in a process of its own,
set up as the program's: queue files are written, the index stands in its scratch file. Commands walk with two threads where
there are two processors; one has the second look at what is found. Of the broker its load and dispatch, in a JVM that has
just started, as a broker's is; against its dispatch alone its load does not count. Neither waits for the disk. The whole
commands are measured too: rebuild plans, predicts, writes, keeps what it replaces, syncs every file and checks its result;
recover also says what the start of each release that may have written the log would do, and looks for what is wrong with it.
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
RECOVER: Final = "rmqctl recover --apply"
BROKER: Final = "broker's load and dispatch"
DISPATCH: Final = "4.9.7's dispatch"
WITHOUT_CRC: Final = "rmqctl, one pass without checksums, two threads"
WITHOUT_CRC_ALONE: Final = "rmqctl, one pass without checksums"
CPU: Final = ", processor time"
_UNCHECKED_RELEASE: Final = "4.9.7"
_PASS: Final = """
import gc, sys
from pathlib import Path

from rmqctl.app import prepare_process

prepare_process()
from store_core.recovery.derived_files import Derivation
from store_core.storage.scratch import create_files
from store_core.storage.store import Store

root, jobs, unchecked = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "unchecked"
with Store.open(root) as store, Derivation(store, store, root.parent, include_bad_crc=unchecked, jobs=jobs) as derived:
    create_files(root, {file.path: file.read for file in derived.queue_changes().new})
gc.freeze()
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


def by_library(made: Made, jobs: int, *, unchecked: bool = False) -> tuple[float, float]:
    with only_the_log(made) as root:
        how = "unchecked" if unchecked else "checked"
        found = measure([sys.executable, "-c", _PASS, str(root), str(jobs), how])
        return found.seconds, found.cpu_seconds


def by_command(made: Made, *command: str) -> tuple[float, float]:
    with only_the_log(made) as root:
        found = measure(rmqctl(*command, "-s", root, "--apply", "-q", "-o", "json"), accept=(0, 3))
        return found.seconds, found.cpu_seconds


def by_broker(made: Made) -> tuple[float, float]:
    with only_the_log(made) as root:
        found = broker.recover(root)
        return found.seconds, found.cpu_seconds


def by_dispatch(made: Made) -> tuple[float, float]:
    with only_the_log(made) as root:
        found = broker.recover(root, _UNCHECKED_RELEASE)
        return found.seconds - found.load_seconds, found.cpu_seconds - found.load_cpu_seconds


def main() -> None:
    parser = contest.arguments("recovery", __doc__, size="4GiB", rounds=3)
    parser.add_argument("--record", type=int, default=533, help="bytes of a record")
    parser.add_argument("--no-crc", action="store_true", help=f"against the dispatch of {_UNCHECKED_RELEASE}")
    told = parser.parse_args()
    with made_store(Recipe(told.size, told.record), told.work) as made:
        took = Times()
        contestants: dict[str, Callable[[], float]]
        if told.no_crc:
            contestants = {
                WITHOUT_CRC: lambda: took(WITHOUT_CRC, *by_library(made, 2, unchecked=True)),
                WITHOUT_CRC_ALONE: lambda: took(WITHOUT_CRC_ALONE, *by_library(made, 1, unchecked=True)),
            }
        else:
            contestants = {
                LIBRARY: lambda: took(LIBRARY, *by_library(made, 1)),
                TWO: lambda: took(TWO, *by_library(made, 2)),
                COMMAND: lambda: took(COMMAND, *by_command(made, "rebuild", "all")),
                RECOVER: lambda: took(RECOVER, *by_command(made, "recover")),
            }
        if broker.is_available() and told.no_crc:
            contestants[DISPATCH] = lambda: took(DISPATCH, *by_dispatch(made))
        elif broker.is_available():
            contestants[BROKER] = lambda: took(BROKER, *by_broker(made))
        walls = contest.interleave(contestants, told.rounds)
    # The warm-up round's processor time does not count either.
    times = {**walls, **{name: found[-told.rounds :] for name, found in took.cpu.items()}}
    store = f"{made.log_bytes / GIB:g} GiB of log, {made.messages} records of {told.record} B, made by {made.maker}"
    command = f"python -m benchmarks.recovery --size {told.size / GIB:g}GiB --record {told.record}"
    command += " --no-crc" if told.no_crc else ""
    name = f"recovery {'without checksums, ' if told.no_crc else ''}{told.record} B"
    contest.finish(told, name.replace("recovery ", "recovery, ", 1), command, store, times, _rows(times, told.record))


def _rows(times: contest.Times, record_bytes: int) -> list[contest.Row]:
    if DISPATCH in times:
        return [
            contest.ratio("recovery", times, DISPATCH, WITHOUT_CRC, (">=", 3)),
            contest.ratio("recovery", times, DISPATCH, WITHOUT_CRC_ALONE),
            contest.ratio("recovery", times, DISPATCH + CPU, WITHOUT_CRC + CPU),
        ]
    if BROKER not in times:
        return []
    long_records = record_bytes >= 1000
    return [
        contest.ratio("recovery", times, BROKER, LIBRARY, (">=", 4 if long_records else 6)),
        contest.ratio("recovery", times, BROKER, TWO, None if long_records else (">=", 9)),
        contest.ratio("recovery", times, BROKER, COMMAND),
        contest.ratio("recovery", times, BROKER, RECOVER),
        contest.ratio("recovery", times, BROKER + CPU, LIBRARY + CPU),
        contest.ratio("recovery", times, BROKER + CPU, TWO + CPU),
        contest.ratio("recovery", times, BROKER + CPU, COMMAND + CPU),
        contest.ratio("recovery", times, BROKER + CPU, RECOVER + CPU),
    ]


if __name__ == "__main__":
    main()
