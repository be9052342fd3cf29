"""What a broker's start would do, against reading what that broker would scan.

    python -m benchmarks.prediction --size 4GiB

5.3.3 scans a cleanly closed log from the segment on that its queues end in, 5.2.0 the last three segments; both scan the
newest three files of each queue. `cat` reads these files and nothing else; the prediction checks every body in them, and tells
what is lost by all queue files. With two releases that scan differently the log is walked once. Half of a command on so little
is its start, so the library's prediction is measured in this process, too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from benchmarks import contest
from benchmarks.commands import measure, rmqctl, run
from benchmarks.make_store import GIB, Made, Recipe, made_store
from store_core.broker.versions import Version
from store_core.mend.prediction.predict import predict as predicted
from store_core.storage.store import Store

RELEASES: Final = ("5.3.3", "5.2.0")
EVERY: Final = "rmqctl recover --predict, every release it may be"
CPU: Final = ", processor time"
_QUEUE_FILES_SCANNED: Final = 3


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


def main() -> None:
    parser = contest.arguments("prediction", __doc__, size="4GiB", rounds=7)
    told = parser.parse_args()
    cpu: dict[str, list[float]] = {}

    def timed(name: str, command: Sequence[str]) -> Callable[[], float]:
        def once() -> float:
            found = measure(command)
            cpu.setdefault(name + CPU, []).append(found.cpu_seconds)
            return found.seconds

        return once

    def within(name: str, made: Made, release: str) -> Callable[[], float]:
        def once() -> float:
            seconds, cpu_seconds = by_library(made, release)
            cpu.setdefault(name + CPU, []).append(cpu_seconds)
            return seconds

        return once

    with made_store(Recipe(told.size), told.work) as made:
        pairs: list[tuple[str, str]] = []
        contestants: dict[str, Callable[[], float]] = {}
        for release in RELEASES:
            plain, ours = f"cat the files {release} scans", f"rmqctl recover --predict, {release}"
            contestants[plain] = timed(plain, ["cat", *map(str, scanned(made, release))])
            contestants[ours] = timed(ours, predict(made, release))
            library = f"the library's prediction, {release}"
            contestants[library] = within(library, made, release)
            pairs += [(plain, ours), (plain, library)]
        contestants[EVERY] = timed(EVERY, predict(made, None))
        walls = contest.interleave(contestants, told.rounds)
    times = {**walls, **{name: found[-told.rounds :] for name, found in cpu.items()}}
    rows = [contest.ratio("prediction", times, plain, ours, (">=", 1)) for plain, ours in pairs]
    rows.append(contest.ratio("prediction", times, pairs[-1][0], EVERY))
    rows += [contest.ratio("prediction", times, plain + CPU, ours + CPU) for plain, ours in pairs]
    store = f"{made.log_bytes / GIB:g} GiB of log, {made.messages} messages, closed cleanly, made by {made.maker}"
    contest.finish(
        told, "prediction", f"python -m benchmarks.prediction --size {told.size / GIB:g}GiB", store, times, rows
    )


if __name__ == "__main__":
    main()
