"""verify-crc against the broker's own scan and against plain reads of the same files, warm or cold.

    python -m benchmarks.verify_crc --size 4GiB
    python -m benchmarks.verify_crc --size 4GiB --cold

What is measured of rmqctl is the whole command, from its start to its end, and beside it the time that the command says
its walk took. Of the broker it is the scan alone, in a JVM that has scanned the log before; of the plain reads whole
commands. With one job one thread reads and walks; with two, which is what it takes by itself on two processors, two
segments are read and walked side by side. The
broker and the plain reads use one thread. Rows named "processor time" compare what busy neighbours cannot
change much. The broker takes no part in cold rounds: it keeps its files mapped.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from benchmarks import broker, contest
from benchmarks.commands import measure, rmqctl, run, timed
from benchmarks.make_store import GIB, Made, Recipe, made_store

_READ: Final = """
import sys
for name in sys.argv[1:]:
    with open(name, "rb", buffering=0) as file:
        {loop}
"""
_READ_1_MIB: Final = _READ.format(loop="while file.read(1 << 20): pass")
_READ_INTO: Final = _READ.format(
    loop="buffer = memoryview(bytearray(4 << 20))\n        while file.readinto(buffer): pass"
)
ONE: Final = "rmqctl verify-crc --jobs 1"
TWO: Final = "rmqctl verify-crc --jobs 2"
BROKER: Final = "broker's own scan"
WALK_1: Final = "walk of verify-crc --jobs 1 alone"
WALK_2: Final = "walk of verify-crc --jobs 2 alone"
CAT: Final = "cat FILES > /dev/null"


def plain_reads(files: list[Path]) -> Mapping[str, Callable[[], float]]:
    """What people may call a plain read of these files, each as a command."""
    names = [str(path) for path in files]
    each = "; ".join(f"dd if={name} of=/dev/null bs=1M status=none" for name in names)
    return {
        CAT: lambda: timed(["cat", *names]),
        "dd bs=1M of=/dev/null": lambda: timed(["sh", "-c", each]),
        "python read(1 MiB) loop": lambda: timed([sys.executable, "-S", "-c", _READ_1_MIB, *names]),
        "python readinto(4 MiB) loop": lambda: timed([sys.executable, "-S", "-c", _READ_INTO, *names]),
    }


def ours(made: Made, jobs: int) -> Callable[[], float]:
    return lambda: timed(rmqctl("verify-crc", "-s", made.root, "-o", "json", "--jobs", jobs))


def walk_alone(made: Made, jobs: int) -> float:
    told = json.loads(run(rmqctl("verify-crc", "-s", made.root, "-o", "json", "--jobs", jobs)))
    return float(told["seconds"])


def processor_time(made: Made, real: broker.Contestant, rounds: int) -> contest.Times:
    verify = rmqctl("verify-crc", "-s", made.root, "-o", "json", "--jobs", 1)
    contestants = {
        ONE: lambda: measure(verify).cpu_seconds,
        CAT: lambda: measure(["cat", *map(str, made.segments)]).cpu_seconds,
        BROKER: lambda: float(real.ask("scan")[2]),
    }
    return contest.interleave(contestants, rounds, warm_up=False)


def warm(made: Made, rounds: int) -> tuple[contest.Times, list[contest.Row]]:
    name = "verify-crc warm"
    with ExitStack() as stack:
        contestants = {ONE: ours(made, 1), TWO: ours(made, 2), **plain_reads(made.segments)}
        contestants |= {WALK_1: lambda: walk_alone(made, 1), WALK_2: lambda: walk_alone(made, 2)}
        if broker.is_available():
            real = stack.enter_context(broker.Contestant(made.root, serve=False))
            contestants[BROKER] = lambda: float(real.ask("scan")[0])
        times = contest.interleave(contestants, rounds)
        processor = processor_time(made, real, rounds) if broker.is_available() else {}
    rows = []
    if BROKER in times:
        rows += [
            contest.ratio(name, times, BROKER, WALK_1, (">=", 6)),
            contest.ratio(name, times, BROKER, WALK_2, (">=", 9)),
        ]
        rows += [contest.ratio(name, times, BROKER, ONE), contest.ratio(name, times, BROKER, TWO)]
    rows.append(contest.ratio(name, times, CAT, ONE, (">=", 0.8)))
    rows.append(contest.ratio(name, times, CAT, WALK_1))
    rows += [contest.ratio(name, times, read, ONE) for read in plain_reads([]) if read != CAT]
    if processor:
        label = f"{name}, processor time"
        rows += [contest.ratio(label, processor, BROKER, ONE), contest.ratio(label, processor, CAT, ONE)]
    return {**times, **{f"{who}, processor time": seconds for who, seconds in processor.items()}}, rows


def cold(made: Made, rounds: int) -> tuple[contest.Times, list[contest.Row]]:
    name = "verify-crc cold"

    def from_disk(run: Callable[[], float]) -> Callable[[], float]:
        def dropped() -> float:
            contest.drop_caches(made.segments)
            return run()

        return dropped

    contestants = {ONE: ours(made, 1), TWO: ours(made, 2), **plain_reads(made.segments)}
    # The first round stays: there is nothing to warm up.
    times = contest.interleave({n: from_disk(run) for n, run in contestants.items()}, rounds, warm_up=False)
    rows = [contest.ratio(name, times, CAT, ours, (">=", 0.85)) for ours in (TWO, ONE)]
    return times, rows + [contest.ratio(name, times, read, ONE) for read in plain_reads([]) if read != CAT]


def main() -> None:
    parser = contest.arguments("verify_crc", __doc__, size="4GiB")
    parser.add_argument("--record", type=int, default=533, help="bytes of a record")
    parser.add_argument("--cold", action="store_true", help="drop the files from the system's cache before each run")
    told = parser.parse_args()
    with made_store(Recipe(told.size, told.record), told.work) as made:
        times, rows = (cold if told.cold else warm)(made, told.rounds)
    state = "cold" if told.cold else "warm"
    command = f"python -m benchmarks.verify_crc --size {told.size / GIB:g}GiB --record {told.record}"
    command += " --cold" if told.cold else ""
    store = f"{made.log_bytes / GIB:g} GiB of log, {made.messages} records of {told.record} B, made by {made.maker}"
    contest.finish(told, f"verify-crc {state}", command, store, times, rows)


if __name__ == "__main__":
    main()
