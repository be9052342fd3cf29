"""The most memory commands have resident, and their time, as the store grows from 1 to 8 GiB.

    python -m benchmarks.memory --sizes 1GiB,4GiB,8GiB --commands 'verify-crc;log'

One process, no children. What is promised: at most 128 MB whatever the size, and time in line with it: processor time, for
neighbours move the other one.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Final

from benchmarks import contest
from benchmarks.commands import Measured, measure, rmqctl
from benchmarks.make_store import GIB, Made, Recipe, made_store
from benchmarks.recovery import only_the_log
from rmqctl.options import parse_size

_MB: Final = 1_000_000
_MIB: Final = 1 << 20
_MOST_MB: Final = 128
LOG_ALONE: Final = "from the log alone"
SEGMENT_LOST: Final = "a segment lost"
QUEUES_TOO: Final = "a segment and all queues lost"
BITS_WRONG: Final = "a bit wrong in every MiB"
COMMANDS: Final[dict[str, tuple[str, ...]]] = {
    "verify-crc": ("verify-crc", "--jobs", "1"),
    "check": ("check",),
    "recover": ("recover",),
    "recover, one thread": ("recover", "--jobs", "1"),
    f"recover, {LOG_ALONE}": ("recover",),
    f"recover, {SEGMENT_LOST}": ("recover",),
    f"recover --gaps skip, {SEGMENT_LOST}": ("recover", "--gaps", "skip"),
    f"recover, {QUEUES_TOO}": ("recover",),
    f"recover, {BITS_WRONG}": ("recover",),
    "rebuild": ("rebuild", "all"),
    "log": ("log", "--no-body"),
    "query-key": ("query-key", "bench_0", "K1", "--source", "scan"),
}


@contextmanager
def without_a_segment(made: Made, *, queues: bool) -> Iterator[Path]:
    """A store that has the same files but for a segment in the middle of its log, where that has three, and with or without its queues."""
    lost = made.segments[len(made.segments) // 2] if len(made.segments) > 2 else None
    with tempfile.TemporaryDirectory(prefix="rmqctl-memory-", dir=made.root.parent) as folder:
        root = Path(folder) / "store"
        shutil.copytree(made.root, root, copy_function=os.link)  # nobody writes to it
        if lost is not None:
            (root / lost.relative_to(made.root)).unlink()
        if not queues:
            shutil.rmtree(root / "consumequeue")
        yield root


@contextmanager
def with_bits_wrong(made: Made) -> Iterator[Path]:
    """A copy of the store with a bit of every MiB of its log turned over."""
    chance = random.Random(1)
    with tempfile.TemporaryDirectory(prefix="rmqctl-memory-", dir=made.root.parent) as folder:
        root = Path(folder) / "store"
        shutil.copytree(made.root, root)
        for segment in made.segments:
            with (root / segment.relative_to(made.root)).open("r+b") as file:
                for start in range(0, segment.stat().st_size, _MIB):
                    at = start + chance.randrange(_MIB)
                    file.seek(at)
                    byte = file.read(1)
                    file.seek(at)
                    file.write(bytes(value ^ 1 << chance.randrange(8) for value in byte))
        yield root


def harmed(made: Made, name: str) -> AbstractContextManager[Path]:
    if name.endswith(LOG_ALONE):
        return only_the_log(made)
    if name.endswith((SEGMENT_LOST, QUEUES_TOO)):
        return without_a_segment(made, queues=name.endswith(SEGMENT_LOST))
    if name.endswith(BITS_WRONG):
        return with_bits_wrong(made)
    return nullcontext(made.root)


def run(made: Made, name: str) -> Measured:
    measure(["cat", *map(str, made.segments)])  # times are those of a warm cache
    command, *options = COMMANDS[name]
    with harmed(made, name) as root:
        return measure(rmqctl(command, "-s", root, "-o", "ndjson" if name == "log" else "json", *options), (0, 3))


def main() -> None:
    parser = contest.arguments("memory", __doc__, rounds=1)
    parser.add_argument("--sizes", default="1GiB,2GiB,4GiB,8GiB", help="of the logs, with commas")
    parser.add_argument("--commands", default=";".join(COMMANDS), help="with semicolons")
    told = parser.parse_args()
    megabytes: dict[str, list[float]] = {}
    seconds: dict[str, list[float]] = {}
    sizes = [parse_size(size) for size in told.sizes.split(",")]
    names = [name.strip() for name in told.commands.split(";")]
    maker = ""
    for size in sizes:
        with made_store(Recipe(size), told.work) as made:
            maker = made.maker
            for name in names:
                found = run(made, name)
                label = f"{name}, {size / GIB:g} GiB"
                megabytes[f"{label}, MB"] = [found.resident_bytes / _MB]
                seconds[f"{label}, s"] = [found.seconds]
                seconds[f"{label}, s of processor time"] = [found.cpu_seconds]
                print(f"  {label}: {found.resident_bytes / _MB:.0f} MB, {found.seconds:.1f} s", flush=True)
    rows = []
    for name in names:
        for size in sizes:
            most = megabytes[f"{name}, {size / GIB:g} GiB, MB"][0]
            said = f"{name}, {size / GIB:g} GiB"
            rows.append(contest.limit("memory", said, "MB resident", most, _MOST_MB))
        if len(sizes) > 1:
            ends = (f"{name}, {size / GIB:g} GiB, s of processor time" for size in (sizes[0], sizes[-1]))
            first, last = (seconds[label][0] for label in ends)
            growth = (last / sizes[-1]) / (first / sizes[0])
            text = f"{name}: processor time a GiB at {sizes[-1] / GIB:g} GiB / at {sizes[0] / GIB:g} GiB"
            rows.append(contest.limit("time", text, "ratio", growth, 1.3))
    told.rounds = 1
    command = f"python -m benchmarks.memory --sizes {told.sizes} --commands '{told.commands}'"
    contest.finish(told, "memory and time by size", command, f"made by {maker}", {**megabytes, **seconds}, rows, "")


if __name__ == "__main__":
    main()
