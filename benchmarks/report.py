"""Writes docs/performance.md from the results of the contests.

python -m benchmarks.report
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks import contest, spark

PAGE: Final = Path(__file__).parents[1] / "docs" / "performance.md"
_INTRODUCTION: Final = """\
# Speed and memory

Written by `python -m benchmarks.report` from `benchmarks/results.json`. Every figure is a comparison with something in the same
run: the disk, or the real broker's own store code in a JVM that has warmed up. Contestants take turns, round by round; a ratio is the
median over the rounds, its least and greatest in brackets. The machine is a shared one, and its neighbours move seconds by a factor of
two: compare ratios, not seconds. "Load" is the number of processes that wanted to run, ours among them, in the last minute and in the last five.

Run one contest with the command under its heading (`--help` tells more; `--work FOLDER` keeps the stores for the next contest), and this
page's writer after it. A contest makes its store with the real store code where there are a JDK and Maven, else with rmqctl's own encoder,
and says which.
"""
_UNITS: Final = ("MB resident", "ms", "ratio", "GB/s", "M rows/s", "% read")  # of a number that is held against a bound
_NOTES: Final = """\
## The install

Measured on 2026-11-29 beside much other work; seconds are processor time, medians of 5 first calls and of 15 to 21 others in turn.

| What | Figure | Goal |
|---|---|---|
| base with its libraries, without pip and setuptools, as `.ci/install-checks` counts it | 126 MB (295 MB with pyarrow) | ≤ 130 MB |
| the wheel, kernel included | 1.43 MB | ≤ 2 MB |
| the zipapp; unpacked | 27 MB; 100 MB | |
| `checkpoint -o json` / `import typer`, typer 0.28.0 | 0.117 s / 0.066 s = 1.78 | ≤ 2 |
| the same, typer 0.29.2, which loads pydantic | 0.206 s / 0.068 s = 3.0 | |
| `checkpoint -o json` from the zipapp: first call; later; from a virtual environment | 2.5 s; 0.165 s; 0.141 s | |

## Rows as text

Measured on 2026-11-29 with many processes at work (load 40 to 70), each command once or twice; processor time, user and system, of the whole command with its output
thrown away. The store has 503,700 messages of 533 B with random bytes as bodies, 1,007,400 index entries, made by RocketMQ 5.3.3.
`python -m benchmarks.text` pairs all of it with MessageDecoder in one JVM.

| Command | Seconds | Rows a second | without the start | Goal |
|---|---|---|---|---|
| `log -o ndjson` | 1.57 | 321 k | 0.41 M | 0.3 M |
| `log -o csv` | 1.73 | 292 k | 0.37 M | 0.3 M |
| `dump-cq --all -o ndjson` | 0.31 to 0.33 | 1.6 M | 5 to 7 M | 3 M |
| `dump-index -o ndjson` | 0.41 | 2.5 M | 6 M | 1 M |
| `sql "select * from messages" --jobs 1 -o ndjson`, then | 8.3 | **60 k** | | 0.3 M |
| the same, now | 2.7 to 3.0 | **180 k** | 0.25 M | 0.3 M |

A start takes 0.24 s of these (`dump-cq` of one entry), and 0.35 s for `log`. In `sql`, `body` is shown as a string, in which a random body has 180 places that
are not UTF-8; in `log` such a body is base64.

Later the same day, load 20 to 30, processor time of the whole command, one or two runs each, 2,012,700 messages of 533 B with random bodies (made by RocketMQ 5.3.3), and
513,473 messages of 523 B whose bodies are JSON (made by rmqctl's own encoder):

| Command | Random bodies | JSON bodies | Goal |
|---|---|---|---|
| `log -o ndjson` | 3.8 to 4.5 s, 450 to 528 k rows a second | 1.97 s, **260 k** | 0.3 M |
| `log -o csv` | 4.6 to 5.2 s, 385 to 436 k | 1.72 s, **298 k** | 0.3 M |
| `sql "select * from messages" --jobs 1 -o ndjson` | 7.9 to 8.2 s, **246 to 255 k** | 2.86 s, **179 k** | 0.3 M |
| the same, `-o csv` | 9.3 s, **217 k** | 3.27 s, **157 k** | 0.3 M |
| `dump-cq --all -o ndjson`, 5,041,942 entries | 0.86 to 0.88 s, 5.7 to 5.8 M | | 3 M |

`sql` took 10.2 to 10.7 s (ndjson) and 10.3 to 11.1 s (csv) of the random bodies before: **better, but not at the goal.** A batch has some sixty arrays, and its rows waited for all of them
at once: now a few rows have theirs fetched column by column, short strings are copied whole, and what begins no character costs one comparison (text alone: 2.4 us a row then, 1.4 now; CSV 2.7
and 1.6). The start of a query fell from 0.75 to 0.57 s: only tables that it names are loaded, and what DuckDB loaded is not taken apart at the end. What is left of it are numpy, pyarrow and
DuckDB themselves. Rows with JSON bodies count the start against a quarter as many rows; a query gives such a body twice, as `body` and as `text`. `python -m benchmarks.text` has not been
run whole: at this load one round did not end within ten minutes.

## Many queues and many segments

`python -m benchmarks.scale` sets them against the broker. Measured on 2026-11-29 in a folder in memory, one run each, on a machine with
20 to 70 processes at work for its two processors: processor time differs by a third from run to run, and the clock counts the neighbours. The store: 128 MiB of log,
310,689 records, queue files of 6 MB as sparse as a broker's (4,000 bytes beside the broker, and where 1,000 and 5,000 queues have a row); and 60 segments without queues after a crash, 64 queues.

| What | Before | After |
|---|---|---|
| `rebuild queues --apply`, 5,000 queues, processor time | 18.9 s | 9.2 s |
| `recover --apply`, 5,000 queues, processor time | 22.1 s | 10.1 s |
| `rebuild queues --apply`, 1,000 queues, processor time | 5.5 s | 4.1 s |
| `recover --apply`, 1,000 queues, processor time | 6.2 s | 4.9 s |
| `recover --predict`, 60 segments of 256 KiB, processor time | 1.9 s | 1.05 s, of which some 0.4 s are the program's start |
| `recover --predict`, 300 segments of 1 MiB, 64 queues, processor time (`verify-crc`: 0.3 s) | 10 s | 1.0 s |
| the same after a clean stop, without queues and checkpoint | 19 s | 3.4 s |
| `recover --predict`, 3 segments of 100 MiB, 64 queues, the same bytes | 1.8 s | 0.8 s |
| `recover --predict`, 1,500 segments of 1 MiB, 64 queues, processor time (`verify-crc`: 1.0 s) | not measured | 4.2 s |

10,000 queues beside the broker, one round, load 21: `rebuild queues --apply` 15.9 s of processor time, `recover --apply` 19.1 s, 5.3.3 in its JVM 6.4 s (2.5 and 3.0 times as
much); by the clock 78 s, 99 s and 23 s, of which the broker spends most waiting. **Missed**: the goal is the broker's time.

Two attempts were made. Both reduced the processor time a queue, from 3.3 to 4.2 ms to 1.2 to 1.5 ms. First, fewer simulated starts: releases that differ in nothing a start has read share its result
(`Watched`), so that after a crash one start stands for 5.2.0 to 5.3.3 instead of three; and a start reads each queue file once. This saved a third
(22.1 s to 17 s at 5,000 queues). Second, no repeated work: sorting the rows also finds the queues with consecutive queue offsets, which were numbered seven times before,
`check` compares such a queue as bytes, and folders without links are remembered. This saved another third. Of the rest of a `rebuild`, two fifths are applying
(each file is created, gets its time and name, and an entry in the journal), a fifth is the closing check, a sixth the start afterwards.
Not tried: paths as text instead of `Path` objects, and writing files directly where their folder is new.

At 50,000 queues, one run each; the goal is 256 MB. The first seven rows ran with the lowest priority beside a test run, so their times are long:

| Command | Processor time | By the clock | Resident |
|---|---|---|---|
| `rebuild queues`, a plan, no queue files | 81 s | 289 s | 233 MB |
| `recover`, a plan, no queue files | 94 s | 268 s | 241 MB |
| `recover --predict`, no queue files | 18 s | 31 s | 161 MB |
| `recover --apply` | 121 s | 297 s | 248 MB |
| `check` after it | 16 s | 34 s | 134 MB |
| `truncate 0`, a plan | 44 s | 197 s | 191 MB |
| `undo` of the recovery | 24 s | 59 s | 139 MB |
| `info`, earlier | 18 s | 155 s | 114 MB |
| `dump-cq --all`, earlier | 18 s | 170 s | 61 MB |
| `lag`, earlier | 10 s | 110 s | 91 MB |
| `rebuild queues --apply` | stopped after 420 s by the clock | | not measured to its end |

The prediction of 300 segments reports losses in 176 of them. Each of the three starts looked by halves, queue by queue and segment by segment, for what follows a lost run; now the
runs are columns, what follows in a queue is remembered, and starts that append the same to their queues share one list. A segment costs 0.7 ms on top of its bytes, which
`benchmarks.scale` takes from 3 segments of 100 MiB: ≤ 2 ms is met.

## What is missed or close, and why

* **verify-crc.** The disk here hands over 1.4 to 2.7 GB/s, from run to run and from reader to reader. With the jobs that the command takes by
  itself, two on two processors, a cold log is verified as quickly as `cat` reads it, or more so; with one job, one thread has to take pages into the cache
  and another one walks, which was 0.76 of `cat` on one day and 0.96 on the next.
* **Pulls.** The broker's code, compiled for this very loop, decodes a message, its map of properties included, in 0.39 us of processor time.
  A loop of ours takes 0.42 us for a message whose numbers and properties are cut when they are asked for, and 2.8 us where all of them
  are: that is the price of making some thirty Python objects. In this store a hundred messages of a queue are neighbours;
  where messages of queues alternate, the loop reads each record by itself.
* **Decoding** hangs on the memory of the machine at the moment. On the AMD EPYC of the row, seven runs within an hour and a half, nothing else at work, came to 1.75, 1.87, 1.93, 1.75,
  1.73, 1.60 and 1.74 GB/s in their best rounds and 1.47 to 1.88 in their middle ones (1.85 to 2.23 M rows/s by the best round), while reading and zlib.crc32 alone took from 0.32 to 0.42 s a GiB: **the goals are met in
  all of them by the best round**, and by the middle one in all but one. Earlier that day eleven runs came to 1.39 to 1.79 GB/s. Then bodies were copied after what lies behind them, though a processor fetches best what is read in order, and a window cost Python
  more: by turns, ten rounds each, decoding took 0.70 s then and takes 0.59 s now. On an Intel Xeon seven runs of the code of then came to 0.88 to 1.50 GB/s (1.02 to 1.73 M rows/s), where
  reading and zlib.crc32 alone took from 0.45 to 0.60 s; the code of now has not been measured on one. Decoding takes 1.5 to 1.9 times as long as that.
* **Exports.** In processor time an export costs what pyarrow's writing costs and 0.2 to 0.5 times as much again, from run to run (1.28 times at 4 GiB, and
  1.45 at one; on a Xeon 1.19, 1.39 and 1.46): reading, walking, checksums and decoding. By the clock two processes are quicker than pyarrow's one thread; two that already have all rows
  in memory are quicker by 20 to 40 %, as fresh memory and the disk count too: pyarrow's files are not synced. In a log of 4,000 topics, of which a
  hundred records lie together, records are copied once more, and row groups have as many small stretches as there are topics: 1.75 times pyarrow's processor time, and
  by the clock as quick as it. With columns of its own for each topic a task had twice the memory that it may have there.
* **Spark.** Its own writer takes one row after another, each of 28 columns and a map of properties: of `spark.read`'s time three fifths are
  that writer's, as the rows without it show. The rows are of an AMD EPYC; on an Intel Xeon it took 2.9 to 3.0 times as long as the local export. Before bounds were left out where a dictionary tells more, it was 3.3 to 3.6 times
  at 1 and 2 GiB and 3.6 to 3.9 times at 4 on an EPYC, where the local export's start weighs less; in one JVM,
  sixteen rounds by turns, leaving them out took 3 to 5 % off Java's processor time, together with a schema whose maps and lists hold no nulls, which alone took none off. Against the command as a whole,
  with its start, it takes 2.1 to 2.9 times as long. That is a JVM that has read 8 GiB: in a new one
  Java compiles the writer first, the first GiB takes two to four times as long, and the next six a tenth longer. What pipeline.md advises takes a sixth off the
  processor time, and nothing in it more than some hundredths: bounds only where they pay off (3 to 5 %), pages of version 2 (3 %), no checksums of pages
  and counts of sizes (3 %), Arrow without its checks (2 %), splits of whole segments (4 %), Java 25 with compact headers and sockets that are files (2 % together, and 7 % of a read
  that writes nothing; three JVMs against three), and Python that does not look through all that is
  loaded for garbage behind each task (2 to 10 %). One JVM differs from the next by 7 %, so several were set against each other. Of 8 s of
  processor time a GiB (two cores) Java takes 6.6 and Python 1.4; without the body it would be 2.8 s less, without the nine columns whose
  values hardly change 1.7, without the map of properties 1.3. Pages of up to 200,000 rows take 3 % off, and readers
  could skip less; files without Hadoop's own checksums, which pipeline.md advises by now, 2 to 4 %. No dictionaries, no compression, values of maps and lists that are known never to be null, smaller or larger pages, smaller row groups, smaller batches,
  more memory, a larger or smaller young generation, huge pages, more inlining, Graal's
  compiler in place of Java's own, and larger buffers of files or sockets change nothing or make it worse. Spark copies each row twice, the second time in a
  `Project` without effect that it puts over every source of rows, where an eighth of the samples of a profile lie. Without it (planned by a
  strategy of the session's own) JVMs took 5 % more, 0, 2 and 3 % less processor time in four pairs, and one that did both by turns 5 % less: no more than one JVM differs from the next.
* **Two cores of Spark** were 1.72, 1.78 and 1.81 times one at 1, 2 and 4 GiB where a second core stands idle beside the one and takes over the direct writes and what Java and the driver do,
  and 1.79, 1.81 and 1.84 times where one core is one processor. At 1 GiB, which takes 1.5 s, of two runs earlier that day one had 1.698 both ways, and a noisier one 1.58 and 1.64 (zstd alone from 1.39 to 2.16).
  On the Xeon they were 1.85 times one at 1 GiB, 1.75 and 1.66 at two, 1.90 at four. Two whole exports beside each other without Spark are 1.93 times one. Both cores are busy all the time but for
  the last task's end, some 10 to 15 ms between two tasks and 0.06 s in front of the first and behind the last one; a task takes 14 ms of Java's processor time. Processes that have just started take pages that this machine has to bring first, 260 MB each, and two of them pay that twice, so that two cores
  were 1.5 and 1.66 times one then (4 GiB). Beside it stands what two processes of the local export make of the same two cores, and zstd alone, which
  writes nothing.
* **Recovery.** A third of ours is the system's: copying the log in, and fresh pages for what is written, 40 bytes a message of index,
  20 of queue files and 4 of scratch rows that sort messages by queue, which the broker does not need. Of two threads the one that builds walks,
  too, while it would wait; then both processors are busy but for half a second, in which the program starts and the queue files are written.
  Neighbours move these ratios, as our pass wants memory and the broker's the processor: two threads had 7.7 to 13 from round to round on a busy evening.
  With pieces of 16 MiB instead of 8 they were 9.3 with one thread, 12.1 with two and 4.2 without checksums on a quiet evening, and recovery did not
  stay below 128 MB.
  4.9.7's dispatch, which looks at no checksum, takes a third of what 5.3.3's load and dispatch take here; leaving out the checksum saves us
  next to nothing.
  `rebuild all --apply` also keeps what it replaces, syncs every file, plays the start of each release it may be started with, and checks its
  own result, which is a second walk. `recover` also says what the start of each release that the store may have would do, before and after; one of them
  reads the log, the others take from it what was dispatched.
* **Memory.** It depends little on the length of the log, and on the number of messages that are lost in one piece: by the rows above it grows by
  0.2 to 1.3 MB a GiB, more so at first. Longer logs than those have not been measured. Of `rebuild`, 0.3 MB a GiB are left where the C library keeps
  nothing that is free (`MALLOC_TOP_PAD_=0`). Places that are damaged each by itself take `recover` some kilobytes more each: 107 MB for a thousand
  of them in 1 GiB, 118 MB for eight thousand in 8 GiB.
* **Predictions.** Here the files come out of memory at 8 GB/s. A command's own start takes longer than reading a GiB so; from a disk the reading is
  what takes the time (`--cold`): `cat` takes 2.5 times as long as the command with what 5.2.0 scans, and 1.3 times with 5.3.3, which scans less. Each file is read once, the log in one thread and the queues in another: eight million entries in 4 GiB.
"""


_TB: Final = 10**12
_CORES: Final = (2, 16, 256)


def page(results: list[dict[str, Any]]) -> str:
    sections = (line for result in results for line in _section(result))
    return "\n".join([_INTRODUCTION, *sections, *_cost_of_a_terabyte(results), _NOTES])


def _cost_of_a_terabyte(results: list[dict[str, Any]]) -> Iterator[str]:
    """What the contest of exports on Spark with the largest store comes to for a TB; nothing where there was none."""
    found = [result for result in results if result["contest"] == spark.CONTEST]
    if not found:
        return
    largest = max(found, key=_size_bytes)
    medians, size = largest["medians"], _size_bytes(largest)
    start, local = medians[spark.START], size / medians[spark.LOCAL]
    core = size / medians[spark.SPARK_2] / 2
    yield "## An export of a TB\n"
    yield (
        "Computed from the largest contest of exports on Spark above, not measured: each core works as fast as one of these two did, the splits\n"
        "are many, and the disks and the network bring what the cores take. Spark wins from the size on at which its start is paid for,\n"
        "against the local export on two cores. On two cores that hangs on a few per cent, by which runs differ as well.\n"
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


def _section(result: dict[str, Any]) -> Iterator[str]:
    one, five = result["load"]
    yield f"## {result['contest'].capitalize()}\n"
    yield f"`{result['command']}`\n"
    yield f"{result['store']}. {result['rounds']} rounds on {result['date']}, load {one:.1f}, {five:.1f}; {result['machine']}.\n"
    yield "| Compared | Ratio | Goal | |\n|---|---|---|---|"
    for row in result["rows"]:
        verdict = {True: "met", False: "**missed**", None: ""}[row["met"]]
        low, high = row["spread"]
        if row["of"] and low == high == row["ratio"] and row["against"] in _UNITS:
            said, value = row["of"], f"{row['ratio']:.3g} {row['against'].replace('ratio', '')}".strip()
        else:
            said, value = f"{row['of']} / {row['against']}", f"{row['ratio']:.2f} [{low:.2f} … {high:.2f}]"
        if "processor time" in row["contest"]:
            said += ", processor time"
        yield f"| {said} | {value} | {row['goal'].replace('>=', '≥').replace('<=', '≤')} | {verdict} |"
    yield f"\n| | median {result['unit']} |\n|---|---|"
    yield from (f"| {name} | {value:.4g} |" for name, value in result["medians"].items())
    yield ""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("--results", type=Path, default=contest.RESULTS)
    told = parser.parse_args()
    PAGE.write_text(page(contest.load_results(told.results)))


if __name__ == "__main__":
    main()
