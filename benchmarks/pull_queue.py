"""Whole queues, pulled and decoded: rmqctl's library against the broker's getMessage in a loop of 32 with its decoder.

    python -m benchmarks.pull_queue --size 1GiB

Eight queues of a topic in each round, of a store that both have opened before. The broker's decoder makes an object of every message, with all its fields and a map
of its properties. rmqctl's loop makes an object, too: checked, with topic, body and property string; the numbers in front of
the body and the properties are cut when they are asked for, and a second loop asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import process_time

from benchmarks import broker, contest
from benchmarks.commands import stopwatch
from benchmarks.make_store import GIB, Made, Recipe, made_store
from store_core.read.pull import open_queue, pull
from store_core.read.queue import Queue
from store_core.storage.store import Store

TOPIC = "bench_0"
LOOP = "rmqctl, loop of 32, messages"
ALL = "rmqctl, loop of 32, properties and numbers taken"
BROKER = "broker, loop of 32, decoded"


def queues_of(store: Store, made: Made) -> list[Queue]:
    found = [open_queue(store, TOPIC, number) for number in range(made.recipe.queues)]
    return [queue for queue in found if isinstance(queue, Queue)]


def in_a_loop(queues: Sequence[Queue], *, all_parts: bool = False) -> float:
    """Seconds; raises RuntimeError if a message has no body."""
    started = stopwatch()
    for number, queue in enumerate(queues):
        at = queue.min_offset
        bodies = 0
        while at < queue.max_offset:
            result = pull(queue, TOPIC, number, at)
            at = result.next_begin_offset
            for message in result.messages:
                bodies += message.body != b""  # as the broker's loop does
                if all_parts:
                    _ = message.properties, message.queue_offset, message.born_timestamp_ms
        if bodies != queue.max_offset - queue.min_offset:
            raise RuntimeError("a message has no body")
    return stopwatch() - started


def main() -> None:
    told = contest.arguments("pull_queue", __doc__, rounds=7).parse_args()
    if not broker.is_available():
        raise SystemExit("this contest needs a JDK and Maven")
    with (
        made_store(Recipe(told.size), told.work) as made,
        broker.Contestant(made.root) as real,
        Store.open(made.root) as store,
    ):
        queues = queues_of(store, made)
        processor: dict[str, list[float]] = {}  # of the thread that pulls, without the broker's collector of garbage

        def by_broker() -> float:
            answers = [real.ask("pull", TOPIC, number) for number in range(made.recipe.queues)]
            processor.setdefault(BROKER, []).append(sum(float(answer[2]) for answer in answers))
            return sum(float(answer[0]) for answer in answers)

        def by_us(name: str, pulled: Callable[[], float]) -> float:
            started = process_time()
            seconds = pulled()
            processor.setdefault(name, []).append(process_time() - started)
            return seconds

        ours: dict[str, Callable[[], float]] = {
            LOOP: lambda: in_a_loop(queues),
            ALL: lambda: in_a_loop(queues, all_parts=True),
        }
        contestants = {name: partial(by_us, name, pulled) for name, pulled in ours.items()}
        times = contest.interleave({BROKER: by_broker, **contestants}, told.rounds)
    rows = [contest.ratio("pull", times, BROKER, name, (">=", 1) if name == LOOP else None) for name in ours]
    counted = {f"{name}, processor time": seconds[1:] for name, seconds in processor.items()}  # without the warm-up
    rows += [contest.ratio("pull", counted, f"{BROKER}, processor time", f"{name}, processor time") for name in ours]
    times = {**times, **counted}
    told_store = f"{made.messages} messages of {made.recipe.record_bytes} B in 64 queues, made by {made.maker}"
    command = f"python -m benchmarks.pull_queue --size {told.size / GIB:g}GiB"
    contest.finish(told, "pull of whole queues", command, told_store, times, rows)


if __name__ == "__main__":
    main()
