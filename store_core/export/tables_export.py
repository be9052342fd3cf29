"""An export of what is not messages: queue entries, index entries, statistics. Whole or not at all, by the same runners, to the
same destinations."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa

from store_core.errors import UsageError
from store_core.export.dest.destination import Destination
from store_core.export.dest.folder import FolderDestination
from store_core.export.dest.parquet import WrittenFile
from store_core.export.dest.place import Place, StagingFolder
from store_core.export.dest.state import FORMAT, Commit, filter_as_json
from store_core.export.dest.tables import TableSet, WholeState
from store_core.export.export import refuse_inside, stems_of
from store_core.export.rows import schema
from store_core.export.rows.schema import Column
from store_core.export.runners.runner import Runner
from store_core.export.splits.plan import SPLIT_SIZE_BYTES
from store_core.export.store_export import copies_of
from store_core.export.survey import StoreStats, stats_of_stores
from store_core.export.tables.index import INDEX_COLUMNS
from store_core.export.tables.offsets import OFFSET_COLUMNS, OffsetsTable
from store_core.export.tables.queues import QUEUE_COLUMNS
from store_core.export.tables.stats import STATS_COLUMNS, TOPIC_COLUMNS, hourly_rows, topic_rows
from store_core.export.tables.table import schema_of
from store_core.export.tables.tasks import TASK_SIZE_BYTES, TableTask, index_tasks, queue_tasks
from store_core.export.tables.writing import write_table
from store_core.findings import Finding, summary
from store_core.read.log import LogFilter
from store_core.storage.store import Store

What = Literal["queues", "index", "stats"]
Stores = Sequence[tuple[str, Store]]
Progress = Callable[[int], None]

# Folders below the destination, each a table.
TABLES: Final[dict[What, dict[str, Sequence[Column]]]] = {
    "queues": {"queues": QUEUE_COLUMNS},
    "index": {"index": INDEX_COLUMNS},
    "stats": {"stats": STATS_COLUMNS, "topics": TOPIC_COLUMNS, "groups": OFFSET_COLUMNS},
}


@dataclass(slots=True)
class StoreTables:
    """What one store gave. ``copies``, ``healed``: as for an export of messages; derived files are one copy's own."""

    store: str
    copies: tuple[str, ...] = ()
    rows: int = 0
    findings: list[Finding] = field(default_factory=list)
    healed: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TablesReport:
    """A published export of tables; sizes in bytes. ``bytes_read`` is what was read of the stores' files."""

    what: What
    dest: str
    files: tuple[WrittenFile, ...]
    bytes_read: int
    stores: tuple[StoreTables, ...]
    seconds: float

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def bytes_written(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def findings(self) -> list[Finding]:
        return [found for store in self.stores for found in store.findings]


def export_tables(
    stores: Stores,
    dest: Path | Destination,
    what: What,
    runner: Runner,
    wanted: LogFilter | None = None,
    *,
    split_size_bytes: int | None = None,
    overwrite: bool = False,
    on_progress: Progress | None = None,
) -> TablesReport:
    """Write tables of some stores, each with its name, to a destination that was made for ``table_set(what)``, or to a folder.

    ``split_size_bytes`` is how much of the log, or of queue files, a task reads. Nothing appears before all is written.
    ``overwrite`` is for a folder. Raises UsageError for a place that must not be written to, or a filter that this does not know,
    StoreInUseError where another export writes there, FailedError where reading or writing fails.
    """
    started = time.monotonic()
    wanted = wanted or LogFilter()
    _refuse_filter(what, wanted)
    if isinstance(dest, Path):
        dest = FolderDestination(dest, overwrite=overwrite, tables=table_set(what))
    if dest.path is not None:
        refuse_inside(dest.path, stores)
    work = _Work(stores, runner, wanted, split_size_bytes, on_progress)
    with dest as destination:
        plan = uuid.uuid4().hex  # nothing is taken over from an export that broke off
        destination.begin(plan)
        place = destination.place
        files = work.stats(place) if what == "stats" else work.derived(what, place)
        files += [
            write_table(place, name, "", "empty.parquet", columns, ())
            for name, columns in TABLES[what].items()
            if destination.never_empty and not any(file.table == name for file in files)
        ]
        report = TablesReport(
            what, destination.address, tuple(files), work.read_bytes, work.told, time.monotonic() - started
        )
        destination.publish(files, Commit(1, plan, ()), WholeState(_told(report, wanted)))
    return report


def table_set(what: What) -> TableSet:
    """What a destination needs to know of these tables."""
    columns = {name: schema_of(columns) for name, columns in TABLES[what].items()}
    return TableSet(what, {name: name for name in columns}, columns, adds=False)


def size_of(stores: Stores, what: What, topics: frozenset[str] = frozenset()) -> int:
    """How many bytes will be read, for who shows progress."""
    if what == "stats":
        return sum(store.log.size_bytes for _, store in stores)
    if what == "index":
        return sum(path.stat().st_size for _, store in stores for path in store.index_files)
    nowhere = StagingFolder(Path())
    tasks = (task for name, store in stores for task in queue_tasks(name, "", store, nowhere, topics))
    return sum(queue.size_bytes for task in tasks for queue in task.queues)


class _Work:
    """Has the tasks done, and adds up what is told of each store."""

    def __init__(
        self,
        stores: Stores,
        runner: Runner,
        wanted: LogFilter,
        split_size_bytes: int | None,
        on_progress: Progress | None,
    ) -> None:
        self._stores, self._runner, self._wanted = stores, runner, wanted
        self._split_size_bytes, self._on_progress = split_size_bytes, on_progress
        self._stems = stems_of([name for name, _ in stores])
        self.told = tuple(StoreTables(name, copies_of(store)) for name, store in stores)
        self.read_bytes = 0

    def derived(self, what: What, place: Place) -> list[WrittenFile]:
        """Queue or index entries: a file a task."""
        planned: list[list[TableTask]] = [
            queue_tasks(
                name,
                stem,
                store,
                place,
                self._wanted.topics,
                self._split_size_bytes or TASK_SIZE_BYTES,
                findings=told.findings,
            )
            if what == "queues"
            else index_tasks(name, stem, store, place)
            for (name, store), stem, told in zip(self._stores, self._stems, self.told, strict=True)
        ]
        tasks = [task for each in planned for task in each]
        answers = iter(self._runner.run(tasks, self._add_read))
        files: list[WrittenFile] = []
        for told, each in zip(self.told, planned, strict=True):
            pieces = [next(answers) for _ in each]
            told.rows = sum(file.rows for piece in pieces for file in piece.files)
            told.findings = list(dict.fromkeys([*told.findings, *(f for piece in pieces for f in piece.findings)]))
            files += [file for piece in pieces for file in piece.files]
        return files

    def stats(self, place: Place) -> list[WrittenFile]:
        """Statistics of messages, and groups' progress: counted by tasks, added up and written here."""
        counted = stats_of_stores(
            self._stores,
            self._runner,
            self._wanted,
            split_size_bytes=self._split_size_bytes or SPLIT_SIZE_BYTES,
            on_progress=self._set_read,
        )
        files: list[WrittenFile] = []
        for (name, store), stem, told, found in zip(self._stores, self._stems, self.told, counted, strict=True):
            progress = OffsetsTable([(name, store)])
            rows = {**_counted(name, found), "groups": _groups(progress, self._wanted.topics)}
            for table, batches in rows.items():
                if batches and any(len(batch) for batch in batches):
                    columns = TABLES["stats"][table]
                    files.append(write_table(place, table, name, f"{stem}.parquet", columns, batches))
            told.rows = sum(file.rows for file in files if file.store == name)
            told.findings = [*found.report.findings, *progress.findings]
            told.healed = found.report.healed
        return files

    def _add_read(self, size_bytes: int) -> None:
        self._set_read(self.read_bytes + size_bytes)

    def _set_read(self, size_bytes: int) -> None:
        self.read_bytes = size_bytes
        if self._on_progress is not None:
            self._on_progress(size_bytes)


def _counted(store: str, found: StoreStats) -> dict[str, list[pa.RecordBatch]]:
    if found.stats is None:
        return {}
    return {"stats": [hourly_rows(store, found.stats)], "topics": [topic_rows(store, found.stats)]}


def _groups(table: OffsetsTable, topics: frozenset[str]) -> list[pa.RecordBatch]:
    batches = list(table.batches(schema_of(OFFSET_COLUMNS).names))
    if not topics:
        return batches
    wanted = pa.array(sorted(topics), pa.string())
    return [batch.filter(pa.compute.is_in(batch.column("topic"), wanted)) for batch in batches]


def _refuse_filter(what: What, wanted: LogFilter) -> None:
    has_range = any(
        value is not None for value in (wanted.from_phy_offset, wanted.to_phy_offset, wanted.begin_ms, wanted.end_ms)
    )
    if what != "stats" and has_range:
        raise UsageError(f"{what} have no range of offsets or times", to_do="leave out --from, --to, --begin and --end")
    if what == "index" and wanted.topics:
        raise UsageError("index entries do not tell their topics", to_do="leave out --topic")


def _told(report: TablesReport, wanted: LogFilter) -> dict[str, Any]:
    """What the manifest says, or the commit of a table; of the files, the one that holds it adds them."""
    return {
        "format": FORMAT,
        "what": report.what,
        "schema_version": schema.VERSION,
        "rows": report.rows,
        "filter": filter_as_json(wanted),
        "stores": [
            {"store": told.store, "rows": told.rows, "findings": summary(told.findings)} for told in report.stores
        ],
    }
