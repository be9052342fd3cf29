"""Queries by unique key on a full index: rmqctl's library against the broker's queryMessage, both in one warm process.

    python -m benchmarks.query_key --size 4GiB

4 GiB of small records with two keys each fill most of an index file of 20 million entries. Each round asks for the same
random keys on both sides; "raw" gives the records' bytes, as queryMessage does, "decoded" gives messages. Both sides are warm:
the files are in the system's memory, and so many queries have gone before that most of their pages are mapped.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack, suppress
from statistics import quantiles
from typing import Any

from benchmarks import broker, contest
from benchmarks.commands import stopwatch
from benchmarks.make_store import GIB, Made, Recipe, made_store
from store_core.read.lookup import KeyLookup
from store_core.read.query import KeyQuery
from store_core.storage.store import Store

_QUERIES = 20_000
_LIMIT = 32
_WARM_UP_ROUNDS = (
    8  # until most pages have been looked at: before that, both sides mostly wait for the system to map them
)
_MICROSECONDS = 1e6


def ask_library(made: Made, lookup: KeyLookup, seed: int, *, decode: bool) -> tuple[float, float]:
    """p50 and p99 in microseconds. Raises RuntimeError if a key is not found."""
    chance = random.Random(seed)
    took: list[float] = []
    found = 0
    ask: Callable[[KeyQuery], list[Any]] = lookup.messages if decode else lookup.records
    for _ in range(_QUERIES):
        number = chance.randrange(made.messages)
        query = KeyQuery(made.topic_of(number), f"U{number:015d}", limit=_LIMIT)
        started = stopwatch()
        for _ in ask(query):
            found += 1
        took.append((stopwatch() - started) * _MICROSECONDS)
    if found < _QUERIES:
        raise RuntimeError(f"only {found} of {_QUERIES} keys found")
    return _p50_p99(took)


def _p50_p99(took: list[float]) -> tuple[float, float]:
    cuts = quantiles(took, n=100)
    return cuts[49], cuts[98]


def ask_broker(made: Made, real: broker.Contestant, seed: int, *, decode: bool) -> tuple[float, float]:
    """p50 and p99 in microseconds."""
    recipe = made.recipe
    words = (recipe.topics, recipe.queues, made.messages, _QUERIES, seed, "decoded" if decode else "raw")
    p50, p99, _ = real.ask("query", *words)
    return int(p50) / 1000, int(p99) / 1000


def main() -> None:
    told = contest.arguments("query_key", __doc__, size="4GiB", rounds=9).parse_args()
    if not broker.is_available():
        raise SystemExit("this contest needs a JDK and Maven")
    times: dict[str, list[float]] = {}
    with (
        made_store(Recipe(told.size), told.work) as made,
        broker.Contestant(made.root) as real,
        Store.open(made.root) as store,
        ExitStack() as stack,
    ):
        contest.warm_caches([*made.segments, *store.index_files])
        lookup = stack.enter_context(KeyLookup(store))  # keeps its maps, as the broker does
        for number in range(-_WARM_UP_ROUNDS, told.rounds):
            for decode in (False, True):
                kind = "decoded" if decode else "raw"
                turns: list[tuple[str, Callable[..., tuple[float, float]], tuple[object, ...]]] = [
                    ("rmqctl", ask_library, (made, lookup)),
                    ("broker", ask_broker, (made, real)),
                ]
                for name, ask, those in turns if number % 2 else turns[::-1]:
                    both = ask(*those, 2 * number + decode, decode=decode)  # other keys each time
                    if number >= 0:
                        for part, value in zip(("p50", "p99"), both, strict=True):
                            times.setdefault(f"{name} {kind} {part}", []).append(value)
    rows = []
    for kind in ("raw", "decoded"):
        for part, goal in (("p50", 2.5), ("p99", 1.0)):
            of, against = f"rmqctl {kind} {part}", f"broker {kind} {part}"
            rows.append(contest.ratio("query-key", times, of, against, ("<=", goal)))
    store_said = (
        f"{made.messages} messages of two keys, {_QUERIES} queries a round after {_WARM_UP_ROUNDS} rounds that do not count, "
        f"made by {made.maker}"
    )
    command = f"python -m benchmarks.query_key --size {told.size / GIB:g}GiB"
    contest.finish(told, "query-key on a full index", command, store_said, times, rows, "us")


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
