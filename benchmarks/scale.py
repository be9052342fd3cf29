"""Many queues and many segments: rmqctl against the real broker's start, and what commands have resident at 50,000 queues.

    python -m benchmarks.scale
    python -m benchmarks.scale --queues 1000 --memory ''     only one size, without the memory table

Of a log without queues and index the broker's load, recovery and dispatch, in a JVM that has just started, until all entries are
there; of rmqctl whole commands: they plan, predict, write, keep what they replace, sync and check their result, which the broker does
not. Queue files have 4,000 bytes, so that both write the same; each round has a store of its own, which all contestants begin with.
Many segments: `recover --predict` after a crash, less what it takes where the same bytes lie in 3 segments. Memory: plans and
answers over a store of 50,000 queues whose files are as long and as sparse as a broker's.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks import broker, contest
from benchmarks.commands import Measured, measure, rmqctl
from benchmarks.wide_store import WideRecipe, write_store

_MB: Final = 1_000_000
_MIB: Final = 1 << 20
_QUEUES_A_TOPIC: Final = 8
_MOST_MB: Final = 256
_MOST_MS_A_SEGMENT: Final = 2
_SEGMENTS: Final = 300
_FEW_SEGMENTS: Final = 3
_WIDE: Final = 50_000
CPU: Final = ", processor time"
REBUILD: Final = "rmqctl rebuild queues --apply"
RECOVER: Final = "rmqctl recover --apply"
BROKER: Final = "broker's load and dispatch"
PREDICT: Final = "rmqctl recover --predict"
VERIFY: Final = "rmqctl verify-crc"
MEMORY: Final[dict[str, tuple[str, ...]]] = {
    "info": ("info",),
    "lag": ("lag",),
    "dump-cq --all": ("dump-cq", "--all", "-o", "csv"),
    "check": ("check",),
    "recover --predict": ("recover", "--predict"),
    "recover": ("recover",),
    "recover, queues lost": ("recover",),
    "rebuild queues, queues lost": ("rebuild", "queues"),
    "truncate": ("truncate", "0"),
    "undo": ("undo",),
}
LOST: Final = "queues lost"


@contextmanager
def a_copy(made: Path, *, queues: bool = True) -> Iterator[Path]:
    """A store of its own with the same log, and with or without its queues."""
    with tempfile.TemporaryDirectory(prefix="rmqctl-scale-", dir=made.parent) as folder:
        root = Path(folder) / "store"
        left_out = () if queues else ("consumequeue", "index")
        shutil.copytree(made, root, ignore=shutil.ignore_patterns(*left_out), copy_function=_copy_sparse)
        yield root


def _copy_sparse(source: str, target: str) -> None:
    """Copy a file's bytes up to the zeros at its end."""
    data = Path(source).read_bytes()
    with open(target, "wb") as file:
        file.write(data.rstrip(b"\0"))
        file.truncate(len(data))


class Seconds:
    """Return the processor time of each contestant, in seconds, by name."""

    def __init__(self) -> None:
        self.cpu: dict[str, list[float]] = {}

    def __call__(self, name: str, seconds: float, cpu_seconds: float) -> float:
        self.cpu.setdefault(name + CPU, []).append(cpu_seconds)
        return seconds


def by_command(made: Path, recipe: WideRecipe, *command: str) -> tuple[float, float]:
    with a_copy(made, queues=False) as root:
        found = measure(
            rmqctl(*command, "-s", root, "-c", _settings(root, recipe), "--apply", "-q", "-o", "json"), (0, 3)
        )
        return found.seconds, found.cpu_seconds


def by_broker(made: Path, recipe: WideRecipe) -> tuple[float, float]:
    with a_copy(made, queues=False) as root:
        found = broker.recover(root, properties=broker.PROPERTIES + recipe.settings)
        return found.seconds, found.cpu_seconds


def _settings(root: Path, recipe: WideRecipe) -> Path:
    path = root.parent / "broker.conf"
    path.write_text(f"brokerName=scale\nstorePathRootDir={root}\n{recipe.settings}")
    return path


def many_queues(work: Path, queues: int, log_bytes: int, rounds: int) -> tuple[contest.Times, list[contest.Row]]:
    """Queues from the log alone, by turns."""
    recipe = WideRecipe(
        queues // _QUEUES_A_TOPIC,
        _QUEUES_A_TOPIC,
        log_bytes,
        log_bytes,
        queue_file_bytes=4000,
        with_queues=False,
        crashed=True,
    )
    made, took = work / f"{queues}-queues", Seconds()
    write_store(made, recipe)
    of = f", {queues} queues"
    contestants: dict[str, Callable[[], float]] = {
        REBUILD + of: lambda: took(REBUILD + of, *by_command(made, recipe, "rebuild", "queues")),
        RECOVER + of: lambda: took(RECOVER + of, *by_command(made, recipe, "recover")),
    }
    if broker.is_available():
        contestants[BROKER + of] = lambda: took(BROKER + of, *by_broker(made, recipe))
    walls = contest.interleave(contestants, rounds, warm_up=False)
    times = {**walls, **took.cpu}
    shutil.rmtree(made)
    if BROKER + of not in times:
        return times, []
    pairs = [(name + of + end, BROKER + of + end) for end in ("", CPU) for name in (REBUILD, RECOVER)]
    return times, [contest.ratio("scale", times, ours, theirs, ("<=", 1)) for ours, theirs in pairs]


def many_segments(work: Path, rounds: int) -> tuple[contest.Times, list[contest.Row]]:
    """Compare `recover --predict` of crashed stores with the same bytes in 300 and in 3 segments; beside it `verify-crc` of the first."""
    took, stores = Seconds(), {}
    for segments in (_SEGMENTS, _FEW_SEGMENTS):
        size_bytes = _SEGMENTS // segments * _MIB
        made = stores[f", {segments} segments of {size_bytes // _MIB} MiB"] = work / f"{segments}-segments"
        write_store(made, WideRecipe(8, 8, _SEGMENTS * _MIB, size_bytes, with_queues=False, crashed=True))
    many, few = stores

    def run(name: str, of: str, *command: str) -> float:
        found = measure(rmqctl(*command, "-s", stores[of], "-q", "-o", "json"), (0, 3))
        return took(name + of, found.seconds, found.cpu_seconds)

    contestants: dict[str, Callable[[], float]] = {
        PREDICT + of: partial(run, PREDICT, of, "recover", "--predict") for of in stores
    }
    contestants[VERIFY + many] = lambda: run(VERIFY, many, "verify-crc")
    walls = contest.interleave(contestants, rounds, warm_up=False)
    for made in stores.values():
        shutil.rmtree(made)
    more = [
        (each - together) / (_SEGMENTS - _FEW_SEGMENTS) * 1000
        for each, together in zip(took.cpu[PREDICT + many + CPU], took.cpu[PREDICT + few + CPU], strict=True)
    ]
    middle = sorted(more)[len(more) // 2]
    said = f"{PREDICT}, processor time a segment above that of the same bytes in {_FEW_SEGMENTS} segments{many}"
    return {**walls, **took.cpu}, [contest.limit("scale", said, "ms", middle, _MOST_MS_A_SEGMENT)]


def memory(work: Path, names: list[str]) -> tuple[contest.Times, list[contest.Row]]:
    """The most that commands have resident at 50,000 queues, and their time a queue; one run each."""
    made = work / "wide"
    if not made.exists():
        write_store(made, WideRecipe(_WIDE // _QUEUES_A_TOPIC))
    lost = work / "wide-without-queues"
    times: dict[str, list[float]] = {}
    rows: list[contest.Row] = []
    for name in names:
        root = made
        if name.endswith(LOST):
            root = lost
            if not lost.exists():
                shutil.copytree(made, lost, ignore=shutil.ignore_patterns("consumequeue"), copy_function=os.link)
        found = _one(name, root)
        label = f"{name}, {_WIDE} queues"
        times[f"{label}{CPU}"] = [found.cpu_seconds]
        rows.append(contest.limit("memory", label, "MB resident", found.resident_bytes / _MB, _MOST_MB))
        print(
            f"  {label}: {found.resident_bytes / _MB:.0f} MB, {found.cpu_seconds:.1f} s of processor time", flush=True
        )
    return times, rows


def _one(name: str, root: Path) -> Measured:
    """Run a command; what it has to say (nothing to undo, say) does not matter here."""
    return measure(rmqctl(*MEMORY[name], "-s", root, "-q"), (0, 1, 2, 3))


def main() -> None:
    parser = contest.arguments("scale", __doc__, size="128MiB", rounds=3)
    parser.add_argument("--queues", default="1000,10000", help="of the contests with the broker, with commas")
    parser.add_argument("--memory", default=";".join(MEMORY), help="commands of the memory table, with semicolons")
    options = parser.parse_args()
    times: dict[str, list[float]] = {}
    rows: list[contest.Row] = []
    with tempfile.TemporaryDirectory(prefix="rmqctl-scale-", dir=options.work) as folder:
        work = Path(folder)
        parts: list[Callable[[], tuple[contest.Times, list[contest.Row]]]] = [
            *(
                (lambda n=int(number): many_queues(work, n, options.size, options.rounds))
                for number in options.queues.split(",")
                if number
            ),
            lambda: many_segments(work, options.rounds),
            lambda: memory(work, [name.strip() for name in options.memory.split(";") if name.strip()]),
        ]
        for part in parts:
            found, compared = part()
            times |= found
            rows += compared
    store = "128 MiB of log, 310,689 records of 432 B (300 MiB with many segments), written by benchmarks.wide_store"
    contest.finish(options, "scale", "python -m benchmarks.scale", store, times, rows)


if __name__ == "__main__":
    main()
