"""Writes docs/performance.md from the results of the contests.

python -m benchmarks.report
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks import contest, spark

PAGE: Final = Path(__file__).parents[1] / "docs" / "performance.md"
_INTRODUCTION: Final = """\
# Speed and memory

`python -m benchmarks.report` writes this page: one table a topic, with the newest run of each contest in `benchmarks/results.json`. To
renew a row, run the command of its run, then the writer ([benchmarks/README.md](../benchmarks/README.md)).

* A ratio is the first contestant's time divided by the second's: the median over the rounds, in brackets the least and the greatest.
  Contestants take turns round by round. *Seconds* are the medians of both.
* The machine is shared: compare ratios, not seconds. *Load* is the number of processes that wanted to run in the last 1 and 5 minutes.
* "The broker" is RocketMQ's own store code in a warmed-up JVM. Stores are made by that code where a JDK and Maven exist, else by rmqctl.
"""
_UNITS: Final = ("MB resident", "ms", "ratio", "GB/s", "M rows/s", "% read")  # of a number that is held against a bound
_TOPICS: Final = {  # the contests of a topic; a contest without a topic is one
    "Start of a command": ("one cold command",),
    "Checksums": ("verify-crc cold", "verify-crc warm"),
    "Reading": ("pull of whole queues", "decoding to Arrow, processor time", "kernel and twin"),
    "Rows as text": (),
    "Prediction": ("prediction", "prediction cold"),
    "Recovery": ("recovery, 533 B", "recovery, without checksums, 533 B", "recovery, 1257 B"),
    "Memory by size of the log": ("memory and time by size",),
    "Many queues and segments": ("scale",),
    "Exports": ("local export",),
    "Exports on Spark": (spark.CONTEST,),
}
_REMARKS: Final = {
    "Start of a command": """\
Measured by hand on 2026-11-29; seconds are processor time, medians of 5 first calls and of 15 to 21 later ones:

| | Figure | Goal |
|---|---|---|
| base install with its libraries, as `.ci/install-checks` counts it (with pyarrow) | 126 MB (295 MB) | ≤ 130 MB |
| wheel with the kernel | 1.43 MB | ≤ 2 MB |
| zipapp; unpacked | 27 MB; 100 MB | |
| `checkpoint -o json` / `import typer` | 0.117 s / 0.066 s = 1.78 | ≤ 2 |
| `checkpoint -o json` from the zipapp: first call; later; from a virtual environment | 2.5 s; 0.165 s; 0.141 s | |
""",
    "Checksums": """\
The disk delivers 1.4 to 2.7 GB/s from run to run. With one job a single thread fills the page cache while another walks; by default there are two.
""",
    "Reading": """\
* Pull, missed: a record's numbers and properties are cut when they are asked for. Where all of them are, a message costs 2.8 µs, the price of about
  thirty Python objects; the broker's compiled loop takes 0.39 µs.
* Decoding depends on the machine's memory: seven runs on one evening came to 1.60 to 1.93 GB/s in their best rounds.
""",
    "Rows as text": """\
Measured by hand on 2026-11-29, load 20 to 30: processor time of the whole command, output thrown away. 2,012,700 messages of 533 B with random bodies,
made by RocketMQ 5.3.3; 513,473 messages of 523 B with JSON bodies, made by rmqctl. `dump-index`: 1,007,400 entries. Contest: `python -m benchmarks.text`.

| Command | Random bodies | JSON bodies | Goal, rows a second | |
|---|---|---|---|---|
| `log -o ndjson` | 450 to 528 k rows a second | 260 k | 300 k | **missed** with JSON bodies |
| `log -o csv` | 385 to 436 k | 298 k | 300 k | **missed** with JSON bodies |
| `sql "select * from messages" --jobs 1 -o ndjson` | 246 to 255 k | 179 k | 300 k | **missed** |
| the same, `-o csv` | 217 k | 157 k | 300 k | **missed** |
| `dump-cq --all -o ndjson`, 5,041,942 entries | 5.7 to 5.8 M | | 3 M | met |
| `dump-index -o ndjson` | 2.5 M | | 1 M | met |

The start counts: 0.35 s for `log`, 0.57 s for `sql` (numpy, pyarrow and DuckDB themselves). `sql` gives a body twice, as `body` and as `text`.
""",
    "Prediction": """\
Missed on warm files: the files come out of memory at 8 GB/s, and the start of the command takes longer than reading a GiB at that rate.
""",
    "Recovery": """\
* `rebuild all --apply` and `recover --apply` also keep what they replace, sync every file, play the start of each possible release and check the result.
* A third of our time is the system's: the page cache, and fresh pages for 40 bytes of index and 20 of queue files a message.
* 4.9.7's dispatch verifies no checksum and takes a third of the time of 5.3.3's load and dispatch; leaving out the checksum saves us next to nothing.
""",
    "Memory by size of the log": """\
Memory grows by 0.2 to 1.3 MB a GiB of log. `recover` needs some kilobytes more for each separate damage. Longer logs have not been measured.
""",
    "Many queues and segments": """\
Missed: of the rest of a `rebuild`, two fifths create files and journal entries, a fifth is the closing check, a sixth the start afterwards.

Measured by hand on 2026-11-29, one run each in a folder in memory, 20 to 70 processes at work; stores of `benchmarks.wide_store`:

| Command | Processor time | By the clock | Resident (goal ≤ 256 MB) |
|---|---|---|---|
| `rebuild queues --apply`, 1,000 queues; 5,000 | 4.1 s; 9.2 s | | |
| `recover --apply`, 1,000 queues; 5,000 | 4.9 s; 10.1 s | | |
| `recover --predict`, 60 segments of 256 KiB | 1.05 s | | |
| `recover --predict`, 300 segments of 1 MiB after a clean stop, without queues and checkpoint | 3.4 s | | |
| `recover --predict`, 1,500 segments of 1 MiB (`verify-crc`: 1.0 s) | 4.2 s | | |
| `rebuild queues`, 50,000 queues, a plan, no queue files | 81 s | 289 s | 233 MB |
| `rebuild queues --apply`, 50,000 queues | stopped | after 420 s | |
| `recover`, 50,000 queues, a plan, no queue files | 94 s | 268 s | 241 MB |
| `recover --predict`, 50,000 queues, no queue files | 18 s | 31 s | 161 MB |
| `recover --apply`, 50,000 queues | 121 s | 297 s | 248 MB |
| `check`, 50,000 queues | 16 s | 34 s | 134 MB |
| `truncate 0`, 50,000 queues, a plan | 44 s | 197 s | 191 MB |
| `undo` of the recovery, 50,000 queues | 24 s | 59 s | 139 MB |
| `info`, 50,000 queues | 18 s | 155 s | 114 MB |
| `dump-cq --all`, 50,000 queues | 18 s | 170 s | 61 MB |
| `lag`, 50,000 queues | 10 s | 110 s | 91 MB |
""",
    "Exports": """\
* Missed with 4,000 topics: records of a topic lie a hundred at a time, so they are copied once more, and row groups have as many stretches as topics.
* Missed at 1 GiB of log with 8 topics: 1.45 times pyarrow's processor time, as what an export does once weighs more.
""",
    "Exports on Spark": """\
* Three fifths of the time of `spark.read` into Parquet are Spark's own writer, row by row. A JVM that has just started takes two to four times as long for the
  first GiB. What [pipeline.md](pipeline.md#what-spark-writes) advises saves a sixth of the processor time.
* Tried without effect: no dictionaries, no compression, other sizes of pages, row groups and batches, more memory, huge pages, Graal's compiler, larger
  buffers.
""",
}
_TB: Final = 10**12
_CORES: Final = (2, 16, 256)


def page(results: list[dict[str, Any]]) -> str:
    """Return the page: one section a topic."""
    newest = _newest(results)
    lines = [_INTRODUCTION]
    placed = {name for names in _TOPICS.values() for name in names}
    others = {r["contest"].capitalize(): (r["contest"],) for r in newest if r["contest"] not in placed}
    for topic, names in {**_TOPICS, **others}.items():
        lines.append(f"## {topic}\n")
        lines += _table([r for name in names for r in newest if r["contest"] == name])
        if spark.CONTEST in names:
            lines += _cost_of_a_terabyte(newest)
        if topic in _REMARKS:
            lines.append(_REMARKS[topic])
    return "\n".join(lines).rstrip() + "\n"


def _newest(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the newest run of each contest and command, whatever the size of its store."""
    newest: dict[tuple[str, str], dict[str, Any]] = {}
    for result in sorted(results, key=lambda r: str(r["date"])):
        command = re.sub(r" --sizes? \S+", "", result["command"])
        newest[result["contest"], command] = result
    return list(newest.values())


def _table(runs: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a table of all rows of some runs, and a line about each run."""
    if not runs:
        return
    yield "| Run | Compared | Ratio | Seconds | Goal | |\n|---|---|---|---|---|---|"
    for number, run in enumerate(runs, 1):
        for row in run["rows"]:
            compared, ratio, seconds = _cells(row, run["medians"])
            goal = row["goal"].replace(">=", "≥").replace("<=", "≤")
            verdict = {True: "met", False: "**missed**", None: ""}[row["met"]]
            yield f"| {number} | {compared} | {ratio} | {seconds} | {goal} | {verdict} |"
    yield ""
    for number, run in enumerate(runs, 1):
        load = ", ".join(f"{value:.1f}" for value in run["load"])
        rounds = f"{run['rounds']} round{'s' if run['rounds'] > 1 else ''}"
        yield f"{number}. `{run['command']}`: {run['store']}; {rounds}, {run['date'][:10]}, load {load}; {run['machine']}."
    yield ""


def _cells(row: dict[str, Any], medians: dict[str, float]) -> tuple[str, str, str]:
    """Return what was compared, the ratio or the figure, and the seconds of both."""
    low, high = row["spread"]
    suffix = ", processor time" if "processor time" in row["contest"] else ""
    if row["of"] and low == high == row["ratio"] and row["against"] in _UNITS:
        return row["of"] + suffix, f"{row['ratio']:.3g} {row['against'].replace('ratio', '')}".strip(), ""
    if row["against"] == "s":
        return row["of"], f"{row['ratio']:.2f} s", ""
    names = (name + suffix if name + suffix in medians else name for name in (row["of"], row["against"]))
    seconds = " / ".join(f"{medians[name]:.3g}" for name in names if name in medians)
    return f"{row['of']} / {row['against']}{suffix}", f"{row['ratio']:.2f} [{low:.2f} … {high:.2f}]", seconds


def _cost_of_a_terabyte(results: list[dict[str, Any]]) -> Iterator[str]:
    """Yield what the newest contest of exports on Spark comes to for a TB."""
    for result in results:
        if result["contest"] != spark.CONTEST:
            continue
        medians, size = result["medians"], _size_bytes(result)
        start, local = medians[spark.START], size / medians[spark.LOCAL]
        core = size / medians[spark.SPARK_2] / 2
        yield "### An export of a TB\n"
        yield (
            "Computed from the run above, not measured: each core works as fast as one of these two, the splits are many, and disks and network\n"
            "deliver what the cores take. Spark wins against the local export on two cores from the size at which its start is paid for.\n"
        )
        yield "| | hours for a TB of log | core hours for a TB | GB/s to be read | wins from |\n|---|---|---|---|---|"
        hours = _TB / local / 3600
        yield f"| local, 2 cores | {hours:.2g} | {2 * hours:.2g} | {local / 1e9:.2g} | |"
        for cores in _CORES:
            rate = core * cores
            hours = (start + _TB / rate) / 3600
            won_bytes = start / (1 / local - 1 / rate) if rate > local else None
            wins = "never" if won_bytes is None else f"{won_bytes / 1e9:.{0 if won_bytes >= 1e10 else 1}f} GB"
            yield f"| Spark, {cores} cores | {hours:.2g} | {cores * hours:.2g} | {rate / 1e9:.2g} | {wins} |"
        yield ""


def _size_bytes(result: dict[str, Any]) -> float:
    return float(result["store"].split(" GiB")[0]) * 2**30


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("--results", type=Path, default=contest.RESULTS)
    arguments = parser.parse_args()
    PAGE.write_text(page(contest.load_results(arguments.results)))


if __name__ == "__main__":
    main()
