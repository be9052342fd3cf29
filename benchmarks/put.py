"""Messages put one at a time: the running store against the broker's own, each with dispatch and index running.

    python -m benchmarks.put [--flush sync] [--threads 8] [--count 20000]

Both sides put the same messages into a new store of their own, in turn, in one run. Beside messages a second it reports the processor time of a
message, that of all threads of the process, and under synchronous flush how many messages one sync served.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

from benchmarks import broker
from store_core.engine.live_store import WriteOptions
from store_core.engine.message import NewMessage
from store_core.engine.store import MessageStore

TOPIC = "bench_0"
QUEUES = 8


@dataclass(frozen=True, slots=True)
class Load:
    """Number, size and threads of the messages of each round."""

    flush: Literal["sync", "async"]
    count: int
    threads: int
    body_bytes: int


@dataclass(frozen=True, slots=True)
class Round:
    """Rate, processor time and syncs of one round of one side."""

    seconds: float
    cpu_seconds: float
    syncs: int = 0


@contextmanager
def ours(root: Path, load: Load) -> Iterator[MessageStore]:
    (root / "commitlog").mkdir(parents=True)
    with MessageStore.open(root, broker.RELEASE, options=WriteOptions(flush=load.flush)) as store:
        for queue_id in reversed(range(QUEUES)):
            assert store.put(NewMessage(TOPIC, b"", queue_id), create_topic=True).stored is not None
        yield store


def put_ours(store: MessageStore, load: Load, first: int) -> Round:
    body, each = bytes(load.body_bytes), load.count // load.threads

    def work(writer: int) -> None:
        for number in range(first + writer * each, first + (writer + 1) * each):
            properties = {"UNIQ_KEY": f"U{number:015d}", "KEYS": f"K{number}", "TAGS": f"tag{number % 10}"}
            if store.put(NewMessage(TOPIC, body, number % QUEUES, properties)).stored is None:
                raise RuntimeError("a message is not stored")

    threads = [threading.Thread(target=work, args=(writer,)) for writer in range(load.threads)]
    seconds, cpu_seconds, syncs = time.perf_counter(), time.process_time(), store.syncs
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Round(time.perf_counter() - seconds, time.process_time() - cpu_seconds, store.syncs - syncs)


def put_theirs(real: broker.Contestant, load: Load, first: int) -> Round:
    seconds, stored, cpu_seconds = map(float, real.ask("put", first, load.count, load.threads, load.body_bytes))
    if stored != load.count:
        raise RuntimeError(f"the broker stored {stored:.0f} of {load.count} messages")
    return Round(seconds, cpu_seconds)


def report(load: Load, mine: list[Round], theirs: list[Round]) -> None:
    for name, rounds in (("rmqctl", mine), ("broker", theirs)):
        rate = median(load.count / r.seconds for r in rounds)
        cpu_us = median(r.cpu_seconds / load.count * 1e6 for r in rounds)
        syncs = [load.count / r.syncs for r in rounds if r.syncs]
        served = f", {median(syncs):.1f} messages a sync" if syncs and load.flush == "sync" else ""
        print(f"{name}: {rate:,.0f} messages/s, {cpu_us:.1f} µs of processor time a message{served}")
    print(f"rate, rmqctl by broker: {median(b.seconds / a.seconds for a, b in zip(mine, theirs, strict=True)):.2f}")
    print(f"processor time: {median(a.cpu_seconds / b.cpu_seconds for a, b in zip(mine, theirs, strict=True)):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.put", description=__doc__)
    parser.add_argument("--flush", choices=["sync", "async"], default="async")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--body", type=int, default=200, metavar="BYTES")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=2, metavar="ROUNDS")
    options = parser.parse_args()
    load = Load(options.flush, options.count, options.threads, options.body)
    properties = broker.PROPERTIES + f"flushDiskType={options.flush.upper()}_FLUSH\n"
    with tempfile.TemporaryDirectory(prefix="rmqctl-put-") as folder:
        theirs_root = Path(folder) / "theirs"
        theirs_root.mkdir()
        with (
            ours(Path(folder) / "ours", load) as store,
            broker.Contestant(theirs_root, properties=properties) as real,
        ):
            mine, theirs = [], []
            for number in range(options.warm_up + options.rounds):
                mine.append(put_ours(store, load, number * load.count))
                theirs.append(put_theirs(real, load, number * load.count))
        report(load, mine[options.warm_up :], theirs[options.warm_up :])


if __name__ == "__main__":
    main()
