"""A local export beside pyarrow's own writing of the same rows, and what queries for a topic, a key or a moment read of it.

    python -m benchmarks.export --size 1GiB --record 866

"pyarrow" writes the rows of the export's files, which lie in memory as plain columns, a table a row group, in their order:
zstd-1, with the same row groups, dictionaries, statistics, bloom filters and page index, to files that it opens by itself and
does not sync. "export" is the library's, from opening the store to the published manifest, its files synced and with
checksums; the log is in the page cache. Once in processor time, one job against pyarrow, and once by the clock, as many jobs
as there are processors, as the command takes by itself, against pyarrow, whose writer is one thread. Beside it, without a
goal, against a writer that nobody has: as many processes as processors, which have the export's files in memory, share them
and wait to be told. Those of the export are started first, by a process that has done nothing yet but load the library, as
a command's. Resident memory is that of a command that does its tasks one after the other. The queries are DuckDB's, for all
columns: of one topic of eight, of the message amid the export by its unique key and by a message key, and of what was stored in a
hundredth of the time; what they read is told of the export's bytes.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import contest
from benchmarks.commands import measure, rmqctl
from benchmarks.make_store import BATCH, DEFAULT, Made, Recipe, made_store
from rmqctl.options import parse_size
from store_core.export.dest.parts import message_options
from store_core.export.export import export_stores
from store_core.export.rows import schema
from store_core.export.runners.local import LocalRunner
from store_core.storage.settings import load_settings
from store_core.storage.store import Store
from tests.export.counting import duckdb_reads

_MB: Final = 1_000_000
_MOST_MB: Final = 512
_PROCESSES: Final = os.cpu_count() or 1
WRITE: Final = "pyarrow writes the same rows out of memory, processor time"
EXPORT: Final = "local export, one job, processor time"
WRITE_WALL: Final = "pyarrow writes the same rows out of memory"
WRITE_ALL: Final = "processes that have all rows and wait write them with pyarrow, all processors"
EXPORT_ALL: Final = "local export, all processors"

Groups = list[pa.Table]
Clock = Callable[[], float]


def groups_of(path: Path) -> Groups:
    """The row groups of a file of an export."""
    file = pq.ParquetFile(path)
    return [file.read_row_group(i).combine_chunks() for i in range(file.num_row_groups)]


def write(files: Sequence[tuple[Path, Groups]]) -> None:
    """As somebody would who has the rows and wants such files."""
    options = {"compression": "zstd", "compression_level": 1} | message_options(schema.MESSAGES)
    for path, groups in files:
        with pq.ParquetWriter(path, schema.MESSAGES, **options) as file:
            for group in groups:
                file.write_table(group, row_group_size=len(group))


def write_when_told(pairs: Sequence[tuple[Path, Path]], told: Connection) -> None:
    """A process that writes rows of files that were exported, whenever it gets a word."""
    files = [(plain, groups_of(path)) for path, plain in pairs]
    told.send("ready")
    while told.recv():
        write(files)
        told.send("done")


@contextmanager
def writers(pairs: Sequence[tuple[Path, Path]]) -> Iterator[list[Connection]]:
    """Processes that share files, as ``write_when_told``."""
    context = multiprocessing.get_context("spawn")
    connections = []
    for number in range(_PROCESSES):
        mine, its = context.Pipe()
        context.Process(target=write_when_told, args=(pairs[number::_PROCESSES], its), daemon=True).start()
        connections.append(mine)
    _hear(connections)
    yield connections
    for connection in connections:
        connection.send(False)


def work_in_all(connections: Sequence[Connection]) -> None:
    for connection in connections:
        connection.send(True)
    _hear(connections)


def export_when_told(made: Made, dest: Path, told: Connection) -> None:
    """A process that exports whenever it gets a word."""
    told.send("ready")
    while told.recv():
        export(made, dest, _PROCESSES)
        told.send("done")


@contextmanager
def exporter(made: Made, dest: Path) -> Iterator[Connection]:
    """A process as ``export_when_told``."""
    context = multiprocessing.get_context("spawn")
    mine, its = context.Pipe()
    process = context.Process(target=export_when_told, args=(made, dest, its))  # it has children, so it is no daemon
    process.start()
    _hear([mine])
    yield mine
    mine.send(False)
    process.join()


def _hear(connections: Sequence[Connection]) -> None:
    for connection in connections:
        connection.recv()


def export(made: Made, dest: Path, jobs: int) -> None:
    with Store.open(made.root, load_settings(None, made.root)) as store:
        export_stores([("store", store)], dest, LocalRunner(jobs))


def anew(clock: Clock, folder: Path, work: Callable[[], object], *, is_made: bool = False) -> Callable[[], float]:
    """What a clock says of some work that fills a folder, which it makes by itself if it is not made.

    What the work before has left to the system is written to the disk first.
    """

    def run() -> float:
        shutil.rmtree(folder, ignore_errors=True)
        os.sync()
        if is_made:
            folder.mkdir()
        started = clock()
        work()
        return clock() - started

    return run


def read_percent(data: Path, condition: str) -> float:
    """How much of a folder of files a query for some rows reads."""
    found, reads = duckdb_reads(data, f"select * from {{}} where {condition}")
    assert len(found), "the rows are there"
    return (
        100 * sum(size_bytes for _, size_bytes in reads) / sum(path.stat().st_size for path in data.glob("*.parquet"))
    )


def conditions(data: Path) -> dict[str, str]:
    """Queries for few messages, by what they ask for."""
    files = f"read_parquet('{data}/*.parquet')"
    with duckdb.connect() as connection:
        asked = f"select epoch_us(min(store_time)), epoch_us(max(store_time)) from {files}"
        least, greatest = connection.sql(asked).fetchall()[0]
        begin, end = (_moment(least + (greatest - least) * part) for part in (0.5, 0.51))
        asked = f"select unique_key, keys[1] from {files} where store_time >= '{begin}' order by phy_offset limit 1"
        unique_key, key = connection.sql(asked).fetchall()[0]
    return {
        "a unique key": f"unique_key = '{unique_key}'",
        "a message key": f"list_contains(keys, '{key}')",
        "1 % of the time": f"store_time between '{begin}' and '{end}'",
    }


def _moment(us: float) -> str:
    """Microseconds of the epoch in words that DuckDB compares as they are."""
    return datetime.fromtimestamp(us / 1e6, UTC).isoformat()


def main() -> None:
    parser = contest.arguments("export", __doc__, size="1GiB", rounds=5)
    parser.add_argument("--record", type=parse_size, default=866, help="bytes of a record (default 866)")
    parser.add_argument(
        "--topics", type=int, default=8, help="of eight queues each, or of one where they are many (default 8)"
    )
    told = parser.parse_args()
    recipe = Recipe(told.size, told.record, told.topics, 8 if told.topics <= 8 else 1)
    with (
        made_store(recipe, told.work) as made,
        tempfile.TemporaryDirectory(prefix="rmqctl-bench-", dir=told.work) as name,
    ):
        folder = Path(name)
        export(made, folder / "first", 1)
        paths = sorted((folder / "first" / "data").glob("*.parquet"))
        step = recipe.topics * recipe.queues * BATCH // 8
        data = folder / "first" / "data"
        percent = max(read_percent(data, f"topic = '{made.topic_of(n * step)}'") for n in range(8))
        percents = {asked: read_percent(data, condition) for asked, condition in conditions(data).items()}
        files = [(folder / "plain" / path.name, groups_of(path)) for path in paths]
        all_files = [(path, folder / "all" / path.name) for path in paths]
        with writers(all_files) as connections, exporter(made, folder / "many") as exports:
            contestants = {
                WRITE: anew(time.process_time, folder / "plain", lambda: write(files), is_made=True),
                EXPORT: anew(time.process_time, folder / "one", lambda: export(made, folder / "one", 1)),
                WRITE_WALL: anew(time.monotonic, folder / "plain", lambda: write(files), is_made=True),
                WRITE_ALL: anew(time.monotonic, folder / "all", lambda: work_in_all(connections), is_made=True),
                EXPORT_ALL: anew(time.monotonic, folder / "many", lambda: work_in_all([exports])),
            }
            times = contest.interleave(contestants, told.rounds)
        command = rmqctl("export", folder / "command", "-s", f"store={made.root}", "--jobs", 1, "-o", "json")
        resident = measure(command).resident_bytes
    rows = [
        contest.ratio("export", times, EXPORT, WRITE, ("<=", 1.3)),
        contest.ratio("export", times, EXPORT_ALL, WRITE_WALL, ("<=", 1.3)),
        contest.ratio("export", times, EXPORT_ALL, WRITE_ALL),
        contest.limit("export", "rmqctl export --jobs 1", "MB resident", resident / _MB, _MOST_MB),
        contest.limit("export", f"DuckDB, one topic of {told.topics}", "% read", percent, 15),
        *(
            contest.Row("export", f"DuckDB, {asked}", "% read", read, (read, read), "", None)
            for asked, read in percents.items()
        ),
    ]
    store = f"{made.messages} records of {told.record} B in {told.topics} topics, made by {made.maker}"
    command_line = f"python -m benchmarks.export --size {told.size >> 20}MiB --record {told.record}"
    command_line += f" --topics {told.topics}" if told.topics != DEFAULT.topics else ""
    contest.finish(told, "local export", command_line, store, times, rows)


if __name__ == "__main__":
    main()
