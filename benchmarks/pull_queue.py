"""Whole queues, pulled and decoded: rmqctl's library against the broker's getMessage in a loop of 32 with its decoder.

    python -m benchmarks.pull_queue --size 1GiB

Eight queues of a topic in each round. The broker's decoder makes an object of every message, with all its fields and a map
of its properties. rmqctl's loop makes an object, too: checked, with topic, body and property string; the numbers in front of
the body and the properties are cut when they are asked for, and a second loop asks for them. In bulk rmqctl makes columns:
all fixed fields, and where topic, properties and body lie.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks import broker, contest
from benchmarks.commands import stopwatch
from benchmarks.make_store import GIB, Made, Recipe, made_store
from store_core.read.bulk import read_queue
from store_core.read.maps import LogMaps
from store_core.read.pull import open_queue, pull
from store_core.read.queue import Queue
from store_core.storage.store import Store

TOPIC = "bench_0"
LOOP = "rmqctl, loop of 32, messages"
MAPPED_LOOP = "rmqctl, loop of 32, messages, log mapped"
ALL = "rmqctl, loop of 32, properties and numbers taken"
BULK = "rmqctl, whole queue, columns"
MAPPED = "rmqctl, whole queue, columns, log mapped"
BROKER = "broker, loop of 32, decoded"


def queues_of(store: Store, made: Made) -> list[Queue]:
    found = [open_queue(store, TOPIC, number) for number in range(made.recipe.queues)]
    return [queue for queue in found if isinstance(queue, Queue)]


def in_a_loop(made: Made, maps: LogMaps | None = None, *, all_parts: bool = False) -> float:
    """Seconds; raises RuntimeError if a message has no body."""
    started = stopwatch()
    with Store.open(made.root) as store:
        for number, queue in enumerate(queues_of(store, made)):
            at = queue.min_offset
            bodies = 0
            while at < queue.max_offset:
                result = pull(queue, TOPIC, number, at, maps=maps)
                at = result.next_begin_offset
                for message in result.messages:
                    bodies += message.body != b""  # as the broker's loop does
                    if all_parts:
                        _ = message.properties, message.queue_offset, message.born_timestamp_ms
            if bodies != queue.max_offset - queue.min_offset:
                raise RuntimeError("a message has no body")
    return stopwatch() - started


def in_bulk(made: Made, maps: LogMaps | None = None) -> float:
    """Seconds; raises RuntimeError if a row is no message."""
    started = stopwatch()
    with Store.open(made.root) as store:
        for queue in queues_of(store, made):
            for table in read_queue(queue, maps=maps):
                if not table.good.all():
                    raise RuntimeError("an entry points to no record")
    return stopwatch() - started


def main() -> None:
    told = contest.arguments("pull_queue", __doc__, rounds=7).parse_args()
    if not broker.is_available():
        raise SystemExit("this contest needs a JDK and Maven")
    with made_store(Recipe(told.size), told.work) as made, broker.Contestant(made.root) as real:

        def by_broker() -> float:
            return sum(float(real.ask("pull", TOPIC, number)[0]) for number in range(made.recipe.queues))

        kept = LogMaps()  # as the broker keeps its maps
        contestants: dict[str, Callable[[], float]] = {
            BROKER: by_broker,
            LOOP: lambda: in_a_loop(made),
            MAPPED_LOOP: lambda: in_a_loop(made, kept),
            ALL: lambda: in_a_loop(made, all_parts=True),
            BULK: lambda: in_bulk(made),
            MAPPED: lambda: in_bulk(made, kept),
        }
        times = contest.interleave(contestants, told.rounds)
    name = "pull"
    rows = [
        contest.ratio(name, times, BROKER, LOOP, (">=", 1)),
        contest.ratio(name, times, BROKER, MAPPED_LOOP, (">=", 1)),
        contest.ratio(name, times, BROKER, ALL),
        contest.ratio(name, times, BROKER, BULK, (">=", 4)),
        contest.ratio(name, times, BROKER, MAPPED, (">=", 4)),
    ]
    store = f"{made.messages} messages of {made.recipe.record_bytes} B in 64 queues, made by {made.maker}"
    command = f"python -m benchmarks.pull_queue --size {told.size / GIB:g}GiB"
    contest.finish(told, "pull of whole queues", command, store, times, rows)


if __name__ == "__main__":
    main()
