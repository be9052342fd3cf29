"""Every combination of exit, checkpoint, queues and log, predicted and then started by real store code of several releases.

    python -m tests.broker.product                            the whole product; several minutes on two cores
    python -m tests.broker.product --releases 5.3.3 --sample 50 --seed 7
    python -m tests.broker.product --piles 200 --seed 7       several harms of all kinds at once
    python -m tests.broker.product --out docs/prediction.md   ... and write the page that tells its result

Exits with 1 where prediction and real code disagree.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

from tests import stores
from tests.broker.axes import BatchNumbers, Cell, ExtUnits, HighestBatchNumber, Planted, Properties, Surgery, product
from tests.broker.hosting import ManyStores
from tests.broker.outcomes import Differences
from tests.broker.piles import Pile
from tests.broker.product_page import page
from tests.broker.random_damage import RandomDamage
from tests.broker.verdict import STARTS, differences, ending_of

# Which store a release is given; the last one has more segments than 5.4.0 ever scans.
RUNS: Final = (
    ("4.3.0", "load-497"),
    ("4.9.7", "load-497"),
    ("5.1.4", "load-533"),
    ("5.3.3", "load-533"),
    ("5.4.0", "load-533"),
    ("5.4.0", "crash-533"),
    ("5.5.1", "load-533"),
    ("5.5.1", "load-551-aged"),
)
# Stores of other kinds, for piles of harms alone: the axes know the queues of ordinary topics only.
OTHER_RUNS: Final = (
    ("4.3.0", "clean-430"),
    ("4.9.7", "clean-497"),
    ("4.9.7", "cqext-497"),
    ("4.9.7", "lmq-497"),
    ("5.1.4", "bcq-533"),
    ("5.1.4", "lmq-533"),
    ("5.3.3", "bcq-533"),
    ("5.3.3", "clean-533"),
    ("5.3.3", "cqext-533"),
    ("5.3.3", "ipv6-533"),
    ("5.3.3", "lmq-533"),
    ("5.3.3", "propcrc-533"),
    ("5.4.0", "bcq-533"),
    ("5.4.0", "clean-540"),
    ("5.4.0", "propcrc-533"),
    ("5.5.1", "bcq-533"),
    ("5.5.1", "clean-551"),
    ("5.5.1", "lite-551"),
)
SEED: Final = 1
_AT_ONCE: Final = 12
START_MS: Final = 8000
Damage = Cell | Surgery | Properties | BatchNumbers | HighestBatchNumber | ExtUnits | Pile | RandomDamage
Draw = tuple[str, Damage, int]  # a golden store, what is done to it, and the seed
Prepare = Callable[[str, Path], Any]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A cell of the product as one release decided it.

    ``lost_messages``: of those the store once held, damaged or not. ``skipped``: of those that a pull at their own offset brings, how many a
    consumer misses that goes from min to max.
    """

    version: str
    base: str
    cell: Damage
    ending: str
    lost_messages: int
    skipped: int
    differences: Differences


class Opened(NamedTuple):
    """A cell's store at ``root``, as it was given to a release, and what that told of it. ``prepared``: what ``prepare`` gave."""

    base: str
    cell: Damage
    planted: Planted | None
    prepared: Any
    root: Path
    golden: Path
    told: dict[str, Any]


class GoldenCopies:
    """Unpacks each golden store once, below ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, name: str) -> Path:
        root = self._folder / "golden" / name
        return root if root.exists() else stores.unpack(name, root)


def opened(
    version: str, draws: Iterable[Draw], *, folder: Path, prepare: Prepare | None = None, start_ms: int = START_MS
) -> Iterator[Opened]:
    """Make each store and let one JVM of the release open a copy of it; in the order in which answers come.

    ``prepare``: what else is done to the store before. ``start_ms``: how long a start may take before it counts as one that never ends.
    """
    golden = GoldenCopies(folder)
    work = folder / version
    made: dict[str, tuple[str, Damage, Planted | None, Any]] = {}
    with ManyStores(version, "", work, threads=_AT_ONCE, start_ms=start_ms) as release:

        def answered() -> Iterator[Opened]:
            name, told = release.answer()
            root = work / "cells" / name
            base, *rest = made.pop(name)
            yield Opened(base, *rest, root, golden(base), told)
            shutil.rmtree(root)

        for number, (base, cell, seed) in enumerate(draws):
            name = f"cell-{number}"
            root = stores.copy_store(golden(base), work / "cells" / name)
            planted = cell.apply(root, stores.truth(base), seed)
            made[name] = base, cell, planted, prepare(base, root) if prepare is not None else None
            release.submit(name, root, stores.properties_text(base))
            while release.waiting >= 2 * _AT_ONCE:
                yield from answered()
        while release.waiting:
            yield from answered()
    shutil.rmtree(work)


def judge(
    version: str, base: str, draws: Iterable[tuple[Damage, int]], *, folder: Path, column: str | None = None
) -> Iterator[Verdict]:
    """As ``judge_all``, cells of one golden store."""
    yield from judge_all(version, ((base, *draw) for draw in draws), folder=folder, column=column)


def judge_all(
    version: str, draws: Iterable[Draw], *, folder: Path, column: str | None = None, start_ms: int = START_MS
) -> Iterator[Verdict]:
    """Compare what is predicted for each cell's store with what the release made of it.

    ``column``: another release to predict for, to see that it makes a difference.
    """
    for each in opened(version, draws, folder=folder, start_ms=start_ms):
        found = differences(each.root, each.golden, each.base, each.planted, each.told, column or version)
        yield _verdict(version, each.base, each.cell, each.told, found)


def _verdict(version: str, base: str, cell: Damage, told: dict[str, Any], found: Differences) -> Verdict:
    known = {(message["phyOffset"], message["storeSize"]) for message in stores.truth(base)["messages"]}
    queues = told["afterStart"].get("queues", [])
    in_turn, singly = (
        known & {(at, size) for queue in queues for at, size in queue.get(how, [])}
        for how in ("served", "servedSingly")
    )
    ending = ending_of(told)
    lost = len(known - singly) if ending == STARTS else 0
    return Verdict(version, base, cell, ending, lost, len(singly - in_turn), found)


def sample(count: int, seed: int) -> list[Cell]:
    """So many cells of the product, drawn with a seed."""
    return sorted(Random(seed).sample([*product()], count))


def runs_of(options: argparse.Namespace) -> Iterator[tuple[str, str, list[tuple[Damage, int]]]]:
    """Releases, the stores they are given, and the cells, or piles of harms, that are asked for, with their seed."""
    for version, base in (*RUNS, *OTHER_RUNS) if options.piles else RUNS:
        if version in options.releases and base in (options.stores or [base]):
            yield version, base, draws_of(options, further=(version, base) in OTHER_RUNS)


def draws_of(options: argparse.Namespace, *, further: bool = False) -> list[tuple[Damage, int]]:
    """The cells, or piles of harms, that are asked for, with their seed."""
    if options.piles:
        return [(Pile(number, further), options.seed) for number in range(options.piles)]
    cells = sample(options.sample, options.seed) if options.sample else [*product()]
    return [(cell, options.seed) for cell in cells]


def main() -> int:
    parser = parser_of("product", __doc__)
    parser.add_argument("--out", type=Path, metavar="PAGE", help="write the result's page there")
    told = parser.parse_args()
    if told.out and told.piles:
        parser.error("the page tells of the product, not of piles")
    verdicts: list[Verdict] = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="product-") as folder:
        for version, base, draws in runs_of(told):
            for verdict in judge(version, base, draws, folder=Path(folder)):
                verdicts.append(verdict)
                for what, (real, predicted) in verdict.differences.items():
                    print(f"{version} on {base}: {verdict.cell}: {what}\n  real      {real}\n  predicted {predicted}")
            wrong = sum(bool(v.differences) for v in verdicts if (v.version, v.base) == (version, base))
            print(f"{version} on {base}: {len(draws) - wrong} of {len(draws)} agree", flush=True)
    seconds = time.monotonic() - began
    disagreeing = sum(bool(verdict.differences) for verdict in verdicts)
    if told.out:
        told.out.write_text(page(verdicts, seed=told.seed, seconds=seconds, about=machine()))
    print(f"{len(verdicts) - disagreeing} of {len(verdicts)} agree, seed {told.seed}, {seconds:.0f} s")
    return 1 if disagreeing else 0


def machine() -> str:
    """What a run's result is said to come from."""
    java = subprocess.run(["java", "-version"], capture_output=True, text=True).stderr.split('"')
    return f"{os.cpu_count()} CPUs, Java {java[1] if len(java) > 1 else '?'}, Python {platform.python_version()}"


def parser_of(module: str, doc: str | None) -> argparse.ArgumentParser:
    """The command line of a run of the product."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.broker.{module}", description=(doc or "").split("\n")[0])
    releases = sorted({version for version, _ in RUNS})
    parser.add_argument("--releases", nargs="+", choices=releases, default=releases, metavar="X.Y.Z")
    parser.add_argument("--sample", type=int, metavar="N", help="only so many cells, drawn with the seed")
    parser.add_argument("--piles", type=int, metavar="N", help="instead, so many stores with several harms each")
    parser.add_argument("--stores", nargs="+", metavar="NAME", help="only on these golden stores")
    parser.add_argument("--seed", type=int, default=SEED, help="draws where a harm is done, and the sample")
    return parser


if __name__ == "__main__":
    sys.exit(main())
