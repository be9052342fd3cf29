"""Queries by unique key on a full index: rmqctl's library against the broker's queryMessage, both in one warm process.

    python -m benchmarks.query_key --size 4GiB

4 GiB of small records with two keys each fill most of an index file of 20 million entries. Each round asks for the same
random keys on both sides; "raw" gives the records' bytes, as queryMessage does, "decoded" gives messages.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from statistics import quantiles

from benchmarks import broker, contest
from benchmarks.commands import stopwatch
from benchmarks.make_store import GIB, Made, Recipe, made_store
from store_core.codec.record import decode_record
from store_core.read.index import Index
from store_core.read.maps import LogMaps
from store_core.read.query import KeyQuery, records_by_index
from store_core.storage.store import Store

_QUERIES = 20_000
_LIMIT = 32
_MICROSECONDS = 1e6


def ask_library(
    made: Made, store: Store, index: Index, maps: LogMaps, seed: int, *, decode: bool
) -> tuple[float, float]:
    """p50 and p99 in microseconds. Raises RuntimeError if a key is not found."""
    chance = random.Random(seed)
    took: list[float] = []
    found = 0
    for _ in range(_QUERIES):
        number = chance.randrange(made.messages)
        query = KeyQuery(made.topic_of(number), f"U{number:015d}", limit=_LIMIT)
        started = stopwatch()
        for phy_offset, data in records_by_index(index, store.log, query, maps):
            found += 1
            if decode:
                decode_record(data, 0, phy_offset)
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
    maps = LogMaps()  # as the broker keeps its maps
    with (
        made_store(Recipe(told.size), told.work) as made,
        Store.open(made.root) as store,
        Index(store, mapped=True) as index,
        broker.Contestant(made.root) as real,
    ):
        for number in range(-2, told.rounds):  # two rounds warm up
            for decode in (False, True):
                kind = "decoded" if decode else "raw"
                turns: list[tuple[str, Callable[..., tuple[float, float]], tuple[object, ...]]] = [
                    ("rmqctl", ask_library, (made, store, index, maps)),
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
    store_said = f"{made.messages} messages of two keys, {_QUERIES} queries a round, made by {made.maker}"
    command = f"python -m benchmarks.query_key --size {told.size / GIB:g}GiB"
    contest.finish(told, "query-key on a full index", command, store_said, times, rows, "us")


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
