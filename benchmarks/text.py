"""Rows as text: what a row costs each command, beside the real MessageDecoder in one JVM.

    python -m benchmarks.text --size 1GiB --record 533

Everything is processor time, the system's included: of ours of the whole command, from its start to its end, with the
output thrown away; of the broker's code of decoding every record of the log to a MessageExt, properties and body
included, in a JVM that has done so before.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from statistics import median
from typing import Final

from benchmarks import broker, contest
from benchmarks.commands import measure, rmqctl, run
from benchmarks.make_store import Made, Recipe, made_store
from rmqctl.options import parse_size

_SQL: Final = ("sql", "select * from messages", "--jobs", "1")
_COMMANDS: Final = {
    "log -o ndjson": (("log", "-o", "ndjson"), 0.3),
    "log -o csv": (("log", "-o", "csv"), 0.3),
    "log -o json": (("log", "-o", "json"), 0.3),
    "sql -o ndjson": ((*_SQL, "-o", "ndjson"), 0.3),
    "sql -o csv": ((*_SQL, "-o", "csv"), 0.3),
    "sql -o json": ((*_SQL, "-o", "json"), 0.3),
    "dump-cq --all -o ndjson": (("dump-cq", "--all", "-o", "ndjson"), 3.0),
    "dump-index -o ndjson": (("dump-index", "-o", "ndjson"), 1.0),
}
DECODER: Final = "MessageDecoder in a JVM"


def ours(made: Made, words: tuple[str, ...]) -> Callable[[], float]:
    return lambda: measure(rmqctl(*words, "-s", made.root)).cpu_seconds


def main() -> None:
    parser = contest.arguments("text", __doc__, size="1GiB", rounds=5)
    parser.add_argument("--record", type=parse_size, default=533, help="bytes of a record (default 533)")
    told = parser.parse_args()
    with made_store(Recipe(told.size, told.record), told.work) as made, ExitStack() as opened:
        contest.warm_caches(made.segments)
        index_rows = run(rmqctl("dump-index", "-s", made.root, "-o", "ndjson")).count("\n")
        contestants = {name: ours(made, words) for name, (words, _) in _COMMANDS.items()}
        if broker.is_available():
            jvm = opened.enter_context(broker.Contestant(made.root, serve=False))
            contestants[DECODER] = lambda: float(jvm.ask("decode")[2])
        times = contest.interleave(contestants, told.rounds)
        rows = []
        for name, (_, least) in _COMMANDS.items():
            count = index_rows if name.startswith("dump-index") else made.messages
            speed = count / median(times[name]) / 1e6
            rows.append(contest.Row("text", name, "M rows/s", speed, (speed, speed), f">= {least:g}", speed >= least))
        if DECODER in times:
            rows += [contest.ratio("text, processor time", times, name, DECODER) for name in _COMMANDS]
    store = f"{made.messages} messages of {told.record} B (most), {index_rows} index entries, made by {made.maker}"
    command_line = f"python -m benchmarks.text --size {told.size >> 20}MiB --record {told.record}"
    contest.finish(told, "rows as text, processor time", command_line, store, times, rows)


if __name__ == "__main__":
    main()
