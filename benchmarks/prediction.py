"""What a broker's start would do, against reading what that broker would scan.

    python -m benchmarks.prediction --size 4GiB
    python -m benchmarks.prediction --size 4GiB --cold

5.3.3 scans a cleanly closed log from the segment on that its queues end in, 5.2.0 the last three segments; both scan the
newest three files of each queue. `cat` reads these files and nothing else; the prediction checks every body in them, and tells
what is lost by all queue files. Half of a command on so little
is its start, so the library's prediction is measured in this process, too.

Who asks for a prediction has a machine that has just come up again, and reads from its disk: that is what cold rounds show. Before
each run all files of the store are dropped from the system's cache; programs and libraries stay in it. In warm rounds all comes
out of memory, and processor time is compared as well.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks import contest
from benchmarks.commands import measure, rmqctl, run
from benchmarks.make_store import GIB, Made, Recipe, made_store
from store_core.broker.versions import Version
from store_core.recovery.prediction.predict import predict as predicted
from store_core.storage.store import Store

RELEASES: Final = ("5.3.3", "5.2.0")
EVERY: Final = "rmqctl recover --predict, every release it may be"
CPU: Final = ", processor time"
_QUEUE_FILES_SCANNED: Final = 3
Run = Callable[[], float]


def predict(made: Made, release: str | None) -> Sequence[str]:
    chosen = ("--broker-version", release) if release else ()
    return rmqctl("recover", "--predict", "-s", made.root, "-q", "-o", "json", *chosen)


def scanned(made: Made, release: str) -> list[Path]:
    """The segments that a release would scan, as the prediction says, and the queue files."""
    told = json.loads(run(predict(made, release)))["prediction"]
    segments = [path for path in made.segments if path.name >= told["first_file_scanned"]]
    queues = sorted((made.root / "consumequeue").glob("*/*"))
    return [*segments, *(file for queue in queues for file in sorted(queue.iterdir())[-_QUEUE_FILES_SCANNED:])]


def by_library(made: Made, release: str) -> tuple[float, float]:
    """Seconds, and seconds of processor time, of a prediction in this process."""
    wall, cpu = time.perf_counter(), time.process_time()
    with Store.open(made.root) as store:
        predicted(store, Version.parse(release))
    return time.perf_counter() - wall, time.process_time() - cpu


def contestants_on(made: Made, cpu: dict[str, list[float]]) -> tuple[dict[str, Run], list[tuple[str, str]]]:
    """Who takes part, and which are compared; what they take of the processors goes to ``cpu``."""

    def timed(name: str, command: Sequence[str]) -> Run:
        def once() -> float:
            found = measure(command)
            cpu.setdefault(name + CPU, []).append(found.cpu_seconds)
            return found.seconds

        return once

    def within(name: str, release: str) -> Run:
        def once() -> float:
            seconds, cpu_seconds = by_library(made, release)
            cpu.setdefault(name + CPU, []).append(cpu_seconds)
            return seconds

        return once

    pairs: list[tuple[str, str]] = []
    contestants: dict[str, Run] = {}
    for release in RELEASES:
        plain, ours = f"cat the files {release} scans", f"rmqctl recover --predict, {release}"
        contestants[plain] = timed(plain, ["cat", *map(str, scanned(made, release))])
        contestants[ours] = timed(ours, predict(made, release))
        library = f"the library's prediction, {release}"
        contestants[library] = within(library, release)
        pairs += [(plain, ours), (plain, library)]
    contestants[EVERY] = timed(EVERY, predict(made, None))
    return contestants, pairs


def cold(contestants: Mapping[str, Run], files: Sequence[Path], rounds: int) -> contest.Times:
    """As ``contest.interleave``, each run from the disk. The first round counts: there is nothing to warm up."""

    def from_disk(run: Run) -> Run:
        def dropped() -> float:
            contest.drop_caches(files)
            return run()

        return dropped

    return contest.interleave({name: from_disk(run) for name, run in contestants.items()}, rounds, warm_up=False)


def main() -> None:
    parser = contest.arguments("prediction", __doc__, size="4GiB", rounds=7)
    parser.add_argument("--cold", action="store_true", help="drop the files from the system's cache before each run")
    told = parser.parse_args()
    cpu: dict[str, list[float]] = {}
    name = "prediction cold" if told.cold else "prediction"
    with made_store(Recipe(told.size), told.work) as made:
        contestants, pairs = contestants_on(made, cpu)
        if told.cold:
            files = [path for path in made.root.rglob("*") if path.is_file()]
            times = cold(contestants, files, told.rounds)
        else:
            walls = contest.interleave(contestants, told.rounds)
            times = {**walls, **{who: found[-told.rounds :] for who, found in cpu.items()}}
    rows = [contest.ratio(name, times, plain, ours, (">=", 1)) for plain, ours in pairs]
    rows.append(contest.ratio(name, times, pairs[-1][0], EVERY))
    if not told.cold:
        rows += [contest.ratio(name, times, plain + CPU, ours + CPU) for plain, ours in pairs]
    command = f"python -m benchmarks.prediction --size {told.size / GIB:g}GiB" + (" --cold" if told.cold else "")
    store = f"{made.log_bytes / GIB:g} GiB of log, {made.messages} messages, closed cleanly, made by {made.maker}"
    contest.finish(told, name, command, store, times, rows)


if __name__ == "__main__":
    main()
