"""One short command on the sample store, from its start to its end, against a JVM that loads it and against Python's own starts.

    python -m benchmarks.cold_command

"Cold" is the process, not the disk. The JVM is the broker's store code: started, and the store loaded, nothing else.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks import broker, contest
from benchmarks.commands import rmqctl, stopwatch, timed
from tests import stores

_SAMPLE_IS = "load-533"  # what tests/data calls it; its file sizes are not a broker's default
SAMPLE = Path(__file__).parents[1] / "sample_store"
CHECKPOINT = "rmqctl checkpoint -o json"
VERSION = "rmqctl --version"
HELP = "rmqctl --help"
TYPER = 'python -c "import typer"'
BARE = "python -c pass"
JVM = "JVM + load"


def jvm_and_load() -> float:
    """Seconds until the broker's store code has loaded a copy of the sample store (loading may change it)."""
    with tempfile.TemporaryDirectory(prefix="rmqctl-bench-") as folder:
        copy = Path(shutil.copytree(SAMPLE, Path(folder) / "store"))
        started = stopwatch()
        with broker.Contestant(copy, serve=False, properties=stores.properties_text(_SAMPLE_IS)):
            return stopwatch() - started


def main() -> None:
    parser = contest.arguments("cold_command", __doc__, rounds=15)
    told = parser.parse_args()
    contestants: dict[str, Callable[[], float]] = {
        CHECKPOINT: lambda: timed(rmqctl("checkpoint", "-s", SAMPLE, "-o", "json"), accept=(0, 3)),
        VERSION: lambda: timed(rmqctl("--version")),
        HELP: lambda: timed(rmqctl("--help")),
        TYPER: lambda: timed([sys.executable, "-c", "import typer"]),
        BARE: lambda: timed([sys.executable, "-c", "pass"]),
    }
    if broker.is_available():
        contestants[JVM] = jvm_and_load
    times = contest.interleave(contestants, told.rounds)
    name = "one cold command"
    rows = [
        contest.ratio(name, times, CHECKPOINT, TYPER, ("<=", 2)),
        contest.ratio(name, times, VERSION, TYPER, ("<=", 1.3)),
        contest.ratio(name, times, HELP, TYPER, ("<=", 3)),
        contest.ratio(name, times, CHECKPOINT, BARE),
    ]
    if JVM in times:
        rows.insert(0, contest.ratio(name, times, CHECKPOINT, JVM, ("<=", 0.15)))
    contest.finish(told, name, "python -m benchmarks.cold_command", "sample_store", times, rows)


if __name__ == "__main__":
    main()
