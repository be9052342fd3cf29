"""How a contest runs: contestants take turns, round by round, so that a busy neighbour slows all of them; ratios are what counts."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal

from rmqctl.options import parse_size

RESULTS: Final = Path(__file__).parent / "results.json"
_BLOCK_BYTES: Final = 1 << 20
Goal = tuple[Literal[">=", "<="], float]
Times = Mapping[str, list[float]]


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison. ``ratio`` is ``of`` divided by ``against``, the median over the rounds; ``spread`` its least and greatest."""

    contest: str
    of: str
    against: str
    ratio: float
    spread: tuple[float, float]
    goal: str
    met: bool | None  # None: there is no goal, the row is for comparison


@dataclass(frozen=True, slots=True)
class Result:
    """All that one run of a contest tells."""

    contest: str
    command: str
    store: str
    machine: str
    date: str
    load: tuple[float, float]
    rounds: int
    medians: dict[str, float]
    unit: str
    rows: list[Row] = field(default_factory=list)


def interleave(contestants: Mapping[str, Callable[[], float]], rounds: int, *, warm_up: bool = True) -> Times:
    """What each contestant measured in each round. The order turns with the rounds; the warm-up round does not count."""
    names = list(contestants)
    if warm_up:
        for name in names:
            contestants[name]()
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            times[name].append(contestants[name]())
    return times


def ratio(contest: str, times: Times, of: str, against: str, goal: Goal | None = None) -> Row:
    """``of`` by ``against``, round by round."""
    each = [a / b for a, b in zip(times[of], times[against], strict=True)]
    middle = median(each)
    met = None if goal is None else (middle >= goal[1] if goal[0] == ">=" else middle <= goal[1])
    said = "" if goal is None else f"{goal[0]} {goal[1]:g}"
    return Row(contest, of, against, middle, (min(each), max(each)), said, met)


def limit(contest: str, of: str, unit: str, value: float, most: float) -> Row:
    """A number that must not be larger than another, as a row."""
    return Row(contest, of, unit, value, (value, value), f"<= {most:g}", value <= most)


def drop_caches(paths: Iterable[Path]) -> None:
    """Have the system forget what it keeps of these files, so that the next read goes to the disk.

    By file and not for the whole machine: no root is needed, and the neighbours keep theirs.
    """
    for path in paths:
        with path.open("rb") as file:
            os.fdatasync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def warm_caches(paths: Iterable[Path]) -> None:
    """Have the system hold these files in its memory, and the machine below it every page of them.

    A virtual machine may wait for its host when it first looks at a page that a disk has filled.
    """
    buffer = bytearray(_BLOCK_BYTES)
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def machine() -> str:
    """What this was measured on, in a line."""
    model = next((at.split(":")[1].strip() for at in _lines("/proc/cpuinfo") if at.startswith("model name")), "")
    memory = next((int(at.split()[1]) for at in _lines("/proc/meminfo") if at.startswith("MemTotal")), 0)
    parts = [f"{os.cpu_count()} x {model or platform.machine()}", f"{memory / (1 << 20):.0f} GiB"]
    return ", ".join([*parts, f"Linux {platform.release()}", f"Python {platform.python_version()}", _java()])


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def _java() -> str:
    try:
        said = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    except FileNotFoundError:
        return "no Java"
    return f"Java {said.split(chr(34))[1]}" if '"' in said else "Java"


def arguments(name: str, about: str | None, *, size: str = "1GiB", rounds: int = 5) -> argparse.ArgumentParser:
    """The options that every contest has."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=about)
    parser.add_argument("--size", type=parse_size, default=parse_size(size), help=f"of the log (default {size})")
    parser.add_argument("--rounds", type=int, default=rounds, help=f"that count (default {rounds})")
    parser.add_argument("--work", type=Path, help="a folder where stores are made and kept (default: a temporary one)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="a JSON file to which the result is added")
    return parser


def finish(
    told: argparse.Namespace, contest: str, command: str, store: str, times: Times, rows: list[Row], unit: str = "s"
) -> Result:
    """Print the rows and add the result to the results file, in place of an earlier one of the same contest and command."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes")
    load = os.getloadavg()[:2]
    medians = {name: round(median(values), 6) for name, values in times.items()}
    result = Result(contest, command, store, machine(), now, load, told.rounds, medians, unit, rows)
    for name, value in medians.items():
        print(f"  {name:<44} {value:>12.4g} {unit}")
    for row in rows:
        verdict = {True: "met", False: "MISSED", None: ""}[row.met]
        print(
            f"  {row.of} / {row.against}: {row.ratio:.2f} [{row.spread[0]:.2f} .. {row.spread[1]:.2f}] {row.goal} {verdict}"
        )
    kept = [r for r in load_results(told.results) if (r["contest"], r["command"]) != (contest, command)]
    told.results.write_text(json.dumps([*kept, asdict(result)], indent=1) + "\n")
    return result


def load_results(path: Path = RESULTS) -> list[dict[str, Any]]:
    """All results so far, oldest first."""
    found: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    return found
