"""Export tables of queue entries, index entries, compacted topics or statistics.

The export is published whole or not at all, with the runners and destinations of a message export.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa

from store_core.errors import UsageError
from store_core.export.dest.destination import Destination
from store_core.export.dest.folder import FolderDestination
from store_core.export.dest.parquet import WrittenFile
from store_core.export.dest.parts import file_stem
from store_core.export.dest.state import FORMAT, Commit, filter_as_json
from store_core.export.dest.tables import TableSet, WholeState
from store_core.export.dest.task_destination import Place
from store_core.export.export import refuse_inside
from store_core.export.resume import Walked, Work
from store_core.export.rows import schema
from store_core.export.rows.schema import Column
from store_core.export.runners.runner import Runner
from store_core.export.splits.count_task import SurveyPiece
from store_core.export.splits.notes import digest
from store_core.export.splits.plan import SPLIT_SIZE_BYTES
from store_core.export.statistics import StoreStats, stats_kept
from store_core.export.store_export import copies_of
from store_core.export.tables.compaction import COMPACTION_COLUMNS
from store_core.export.tables.index import INDEX_COLUMNS
from store_core.export.tables.offsets import OFFSET_COLUMNS, OffsetsTable
from store_core.export.tables.queues import QUEUE_COLUMNS
from store_core.export.tables.stats import STATS_COLUMNS, TOPIC_COLUMNS, hourly_rows, topic_rows
from store_core.export.tables.table import schema_of, write_table
from store_core.export.tables.tasks import (
    TASK_SIZE_BYTES,
    TablePiece,
    TableTask,
    compaction_tasks,
    index_tasks,
    queue_tasks,
    refuse_unseen,
    table_keys,
)
from store_core.findings import KINDS, Finding, finding, summary
from store_core.read.index_sizes import index_sizes
from store_core.read.log import LogFilter
from store_core.read.types import index_faults, queue_faults
from store_core.storage.store import Store

What = Literal["queues", "index", "compaction", "stats"]
Stores = Sequence[tuple[str, Store]]
Progress = Callable[[int], None]

# Folders below the destination, each a table.
TABLES: Final[dict[What, dict[str, Sequence[Column]]]] = {
    "queues": {"queues": QUEUE_COLUMNS},
    "index": {"index": INDEX_COLUMNS},
    "compaction": {"compaction": COMPACTION_COLUMNS},
    "stats": {"stats": STATS_COLUMNS, "topics": TOPIC_COLUMNS, "groups": OFFSET_COLUMNS},
}


@dataclass(slots=True)
class StoreTables:
    """The result of one store. ``copies``, ``healed``: as for an export of messages; derived files come from one
    copy.
    """

    store: str
    copies: tuple[str, ...] = ()
    rows: int = 0
    findings: list[Finding] = field(default_factory=list)
    healed: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TablesReport:
    """A published export of tables; sizes in bytes. ``bytes_read`` counts bytes of the stores' files.

    ``taken`` counts the tasks that an interrupted export had already done.
    """

    what: What
    dest: str
    files: tuple[WrittenFile, ...]
    bytes_read: int
    stores: tuple[StoreTables, ...]
    seconds: float
    taken: int = 0

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
    on_plan: Callable[[int], Progress] | None = None,
) -> TablesReport:
    """Write tables of some named stores to a folder, or to a destination made for ``table_set(what)``.

    Nothing appears there before all files are written. The same call resumes an interrupted export.

    Args:
        split_size_bytes: how much of the log, or of queue files, a task reads.
        overwrite: for a folder.
        on_plan: as for ``export_stores``.

    Raises:
        UsageError: the destination must not be written to, or these tables do not know the filter.
        StoreInUseError: another export writes to the destination.
        FailedError: reading or writing fails.
    """
    started = time.monotonic()
    wanted = wanted or LogFilter()
    _refuse_filter(what, wanted)
    if isinstance(dest, Path):
        dest = FolderDestination(dest, overwrite=overwrite, tables=table_set(what))
    if dest.path is not None:
        refuse_inside(dest.path, stores)
    walked = Walked(on_plan)
    with dest as destination:
        place = destination.place
        work = _Work(stores, runner, wanted, split_size_bytes, walked, destination)
        files = work.stats(place) if what == "stats" else work.derived(what, place)
        files += [
            write_table(place, name, "", "empty.parquet", columns, ())
            for name, columns in TABLES[what].items()
            if destination.never_empty and not any(file.table == name for file in files)
        ]
        report = TablesReport(
            what,
            destination.address,
            tuple(files),
            walked.size_bytes,
            work.told,
            time.monotonic() - started,
            work.taken,
        )
        destination.publish(files, Commit(1, work.plan, ()), WholeState(_told(report, wanted, work.plan)))
    return report


def table_set(what: What) -> TableSet:
    """Return names and columns of these tables for a destination."""
    columns = {name: schema_of(columns) for name, columns in TABLES[what].items()}
    return TableSet(what, {name: name for name in columns}, columns, adds=False)


class _Work:
    """Has the tasks done, and adds up the results of each store."""

    def __init__(
        self,
        stores: Stores,
        runner: Runner,
        wanted: LogFilter,
        split_size_bytes: int | None,
        walked: Walked,
        destination: Destination,
    ) -> None:
        self._stores, self._runner, self._wanted = stores, runner, wanted
        self._split_size_bytes, self._walked, self._destination = split_size_bytes, walked, destination
        self._stems = [file_stem(name) for name, _ in stores]
        self.told = tuple(StoreTables(name, copies_of(store)) for name, store in stores)
        self.plan = ""
        self.taken = 0

    def derived(self, what: What, place: Place) -> list[WrittenFile]:
        """Write queue entries, index entries or compacted topics, one file a task."""
        planned: list[list[TableTask]] = [
            self._planned(what, name, stem, store, place, store_tables.findings)
            for (name, store), stem, store_tables in zip(self._stores, self._stems, self.told, strict=True)
        ]
        keyed: list[dict[str, TableTask]] = [
            dict(zip(table_keys(tasks, store), tasks, strict=True))
            for (_, store), tasks in zip(self._stores, planned, strict=True)
        ]
        work = Work(self._destination, self._runner, self._walked, TablePiece, [what])
        answers = work.do({key: task for tasks in keyed for key, task in tasks.items()})
        self.plan, self.taken = work.plan, work.taken
        files: list[WrittenFile] = []
        for (_, store), store_tables, tasks_by_key in zip(self._stores, self.told, keyed, strict=True):
            pieces = [answers[key] for key in tasks_by_key]
            refuse_unseen(pieces, store.settings)
            store_tables.rows = sum(file.rows for piece in pieces for file in piece.files)
            store_tables.findings = list(
                dict.fromkeys([*store_tables.findings, *(f for piece in pieces for f in piece.findings)])
            )
            files += [file for piece in pieces for file in piece.files]
        return files

    def _planned(
        self, what: What, name: str, stem: str, store: Store, place: Place, findings: list[Finding]
    ) -> list[TableTask]:
        """Return the tasks of one store; faults of its files are added to ``findings``."""
        if what == "compaction":
            return compaction_tasks(name, stem, store, place, self._wanted.topics)
        if what == "index":
            findings += index_faults(store, index_sizes(store).sizes)
            return index_tasks(name, stem, store, place)
        findings += queue_faults(store)
        size_bytes = self._split_size_bytes or TASK_SIZE_BYTES
        return queue_tasks(name, stem, store, place, self._wanted.topics, size_bytes, findings=findings)

    def stats(self, place: Place) -> list[WrittenFile]:
        """Write statistics of messages and the groups' progress; tasks count the messages, this process adds up."""
        progress = [OffsetsTable([groups_of_store]) for groups_of_store in self._stores]
        groups = [
            [] if store.queues_in_rocksdb else _groups(table, self._wanted.topics)
            for table, (_, store) in zip(progress, self._stores, strict=True)
        ]
        group_digests = [digest(batch.to_pylist()) for batches in groups for batch in batches]
        work = Work(self._destination, self._runner, self._walked, SurveyPiece, ["stats", *group_digests])
        counted = stats_kept(
            self._stores, work, self._wanted, split_size_bytes=self._split_size_bytes or SPLIT_SIZE_BYTES
        )
        self.plan, self.taken = work.plan, work.taken
        files: list[WrittenFile] = []
        for (name, store), store_tables, stem, found, groups_of_store, progress_table in zip(
            self._stores, self.told, self._stems, counted, groups, progress, strict=True
        ):
            rows = {**_counted(name, found), "groups": groups_of_store}
            for table, batches in rows.items():
                if batches and any(len(batch) for batch in batches):
                    columns = TABLES["stats"][table]
                    files.append(write_table(place, table, name, f"{stem}.parquet", columns, batches))
            store_tables.rows = sum(file.rows for file in files if file.store == name)
            store_tables.findings = [*found.report.findings, *progress_table.findings]
            if store.queues_in_rocksdb:  # the groups' progress is in RocksDB too
                store_tables.findings.append(finding("Q015", KINDS["Q015"].title, file=store.queue_database))
            store_tables.healed = found.report.healed
        return files


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
        raise UsageError("index entries do not have a topic", to_do="leave out --topic")


def _told(report: TablesReport, wanted: LogFilter, plan: str) -> dict[str, Any]:
    """Return the manifest, or the properties of a table's commit; the destination adds the files."""
    return {
        "format": FORMAT,
        "what": report.what,
        "schema_version": schema.VERSION,
        "id": plan,
        "rows": report.rows,
        "filter": filter_as_json(wanted),
        "stores": [
            {"store": store_tables.store, "rows": store_tables.rows, "findings": summary(store_tables.findings)}
            for store_tables in report.stores
        ],
    }
