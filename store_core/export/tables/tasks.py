"""Write tables of derived files in tasks: some queues, or one index file each, on the runners of an export."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Literal, NamedTuple

import pyarrow as pa

from store_core.errors import FailedError, UnreadableError
from store_core.export.dest.parquet import WrittenFile
from store_core.export.dest.task_destination import Place
from store_core.export.rows import schema
from store_core.export.splits.notes import digest, file_identity, identity_of
from store_core.export.tables.compaction import COMPACTION_COLUMNS, CompactionTable
from store_core.export.tables.index import INDEX_COLUMNS, IndexTable
from store_core.export.tables.queues import QUEUE_COLUMNS, QueuesTable, readable_places_of
from store_core.export.tables.table import schema_of, write_table
from store_core.findings import Finding, finding
from store_core.read.dump import QueueDump, all_queues
from store_core.read.index import IndexFile
from store_core.read.index_sizes import index_sizes
from store_core.read.queue import Queue, layout_of
from store_core.storage.sequence import Segment
from store_core.storage.settings import Settings
from store_core.storage.store import QueueKey, Store

Derived = Literal["queues", "index", "compaction"]
_UNREADABLE: Final = ("Q018", "I009", "L021")
TASK_SIZE_BYTES: Final = 64 << 20  # of queue files: about three million entries


QueueName = tuple[str, int, bool]  # topic, number, and whether it is a batch queue


class QueuePlaces(NamedTuple):
    """Some places of a queue, or all of them."""

    topic: str
    queue_id: int
    is_batch: bool
    first: int
    end: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TableTask:
    """The data that a worker needs to write one file of a table.

    It reads ``queues`` or one ``file``: the name of an index file, or the path of a file of a compacted log from the
    store's root.
    """

    store: str
    settings: Settings
    place: Place
    name: str
    queues: tuple[QueuePlaces, ...] = ()
    file: str = ""
    file_size_bytes: int = 0
    table: Derived = "queues"

    @property
    def size_bytes(self) -> int:
        return sum(queue.size_bytes for queue in self.queues) + self.file_size_bytes

    def run(self) -> TablePiece:
        """Write the file. Raises StoreError."""
        with Store.open(self.settings.root, self.settings) as store:
            match self.table:
                case "queues":
                    return self._queues(store)
                case "index":
                    return self._index(store)
                case "compaction":
                    return self._compaction(store)

    def _queues(self, store: Store) -> TablePiece:
        table = QueuesTable([(self.store, store)])
        known = {_name_of(queue): queue for queue in all_queues(store)}
        names = schema_of(QUEUE_COLUMNS).names
        missing: list[QueueName | str] = []

        def batches() -> Iterator[pa.RecordBatch]:
            for wanted in self.queues:
                queue = known.get(wanted[:3])
                if queue is None:
                    missing.append(wanted[:3])
                else:
                    yield from table.of_queue(
                        self.store, queue, names, places=range(wanted.first, wanted.end), passes_over=True
                    )

        written = write_table(self.place, "queues", self.store, self.name, QUEUE_COLUMNS, batches())
        return TablePiece(sum(queue.size_bytes for queue in self.queues), [written], table.findings, missing)

    def _index(self, store: Store) -> TablePiece:
        table = IndexTable([(self.store, store)])
        names = schema_of(INDEX_COLUMNS).names
        proven = index_sizes(store)
        findings = list(proven.findings)
        walked_bytes = 0

        def batches() -> Iterator[pa.RecordBatch]:
            nonlocal walked_bytes
            for path in store.index_files:
                if path.name == self.file and proven.sizes:
                    try:
                        with closing(IndexFile(path, proven.sizes)) as file:
                            walked_bytes = file.size_bytes
                            yield from table.of_file(self.store, file, names)
                    except UnreadableError as error:
                        why = os.strerror(error.number).lower()
                        findings.append(finding("I009", f"the file cannot be read: {why}", file=store.relative(path)))

        written = write_table(self.place, "index", self.store, self.name, INDEX_COLUMNS, batches())
        is_there = any(path.name == self.file for path in store.index_files)
        return TablePiece(walked_bytes, [written], findings, [] if is_there else [self.file])

    def _compaction(self, store: Store) -> TablePiece:
        table = CompactionTable([(self.store, store)])
        names = schema_of(COMPACTION_COLUMNS).names
        found = compaction_files(store).get(self.file)

        def batches() -> Iterator[pa.RecordBatch]:
            if found is not None:
                yield from table.of_file(self.store, store, *found, names)

        written = write_table(self.place, "compaction", self.store, self.name, COMPACTION_COLUMNS, batches())
        missing: list[QueueName | str] = [] if found is not None else [self.file]
        return TablePiece(self.file_size_bytes if found else 0, [written], table.findings, missing)


@dataclass(slots=True)
class TablePiece:
    """The outcome of a task. ``missing``: queues by their names, and files, that were planned and that the task did
    not see.
    """

    walked_bytes: int
    files: list[WrittenFile]
    findings: list[Finding] = field(default_factory=list)
    missing: list[QueueName | str] = field(default_factory=list)

    @property
    def parts(self) -> list[WrittenFile]:
        return self.files

    @property
    def is_final(self) -> bool:
        """True if a repeated task would give the same result: unreadable data may be readable the next time."""
        return not (self.missing or any(found.code in _UNREADABLE for found in self.findings))


def refuse_unseen(pieces: Sequence[TablePiece], settings: Settings) -> None:
    """Raise FailedError where a task did not see a file that this machine still has."""
    missing = {name for piece in pieces for name in piece.missing}
    if not missing:
        return
    with Store.open(settings.root, settings) as store:
        queues = () if store.queues_in_rocksdb else all_queues(store)
        present = {path.name for path in store.index_files} | {_name_of(queue) for queue in queues}
        present |= compaction_files(store).keys()
        unseen = sorted(str(name) for name in missing & present)
    if unseen:
        raise FailedError(
            f"a task did not see a queue or an index file that is here: {unseen[0]}",
            path=str(settings.root),
            to_do="see that every machine that does tasks has the whole store at this path, and run the command again",
        )


def queue_tasks(
    name: str,
    stem: str,
    store: Store,
    place: Place,
    topics: frozenset[str],
    size_bytes: int = TASK_SIZE_BYTES,
    *,
    findings: list[Finding] | None = None,
) -> list[TableTask]:
    """Return tasks of about ``size_bytes`` of queue files for all queues, or those of some topics.

    Unreadable files are added to ``findings``. Raises FailedError where the queues are in RocksDB.
    """
    groups: list[list[QueuePlaces]] = []
    room = 0
    for queue in all_queues(store):
        if topics and queue.topic not in topics:
            continue
        places, refused = readable_places_of(queue)
        if findings is not None:
            findings += refused
        for part in _parts(queue, places, size_bytes):
            if part.size_bytes > room:
                groups.append([])
                room = size_bytes
            groups[-1].append(part)
            room -= part.size_bytes
    return [
        TableTask(name, store.settings, place, f"{stem}-{number:06d}.parquet", tuple(group))
        for number, group in enumerate(groups)
    ]


def index_tasks(name: str, stem: str, store: Store, place: Place) -> list[TableTask]:
    """Return a task for each index file."""
    return [
        TableTask(
            name,
            store.settings,
            place,
            f"{stem}-{path.name}.parquet",
            file=path.name,
            file_size_bytes=_size_of(path),
            table="index",
        )
        for path in store.index_files
    ]


def compaction_files(store: Store) -> dict[str, tuple[QueueKey, Segment]]:
    """Return the files of compacted logs, by their paths from the store's root."""
    return {
        store.relative(segment.path): (key, segment)
        for key, segments in store.compaction_files.items()
        for segment in segments
    }


def compaction_tasks(name: str, stem: str, store: Store, place: Place, topics: frozenset[str]) -> list[TableTask]:
    """Return a task for each file of a compacted log, of all topics or some."""
    files = [
        (path, segment) for path, (key, segment) in compaction_files(store).items() if not topics or key.topic in topics
    ]
    return [
        TableTask(
            name,
            store.settings,
            place,
            f"{stem}-{number:06d}.parquet",
            file=path,
            file_size_bytes=segment.size_bytes,
            table="compaction",
        )
        for number, (path, segment) in enumerate(files)
    ]


def table_keys(tasks: Sequence[TableTask], store: Store) -> list[str]:
    """Return for each task of one store a fingerprint of all that its outcome depends on, as
    ``splits.notes.task_keys`` does.
    """
    common = digest(
        {
            "schema": schema.VERSION,
            "settings": asdict(store.settings),
            "log": [store.log.min_phy_offset, store.log.file_size_bytes],
        }
    )
    has_queues = any(task.queues for task in tasks)  # a store with queues in RocksDB may still have an index
    files = {_name_of(queue): queue for queue in all_queues(store)} if has_queues else {}
    compacted = compaction_files(store) if any(task.table == "compaction" for task in tasks) else {}
    keys: list[str] = []
    for task in tasks:
        if task.table == "compaction":
            read = [identity_of(segment) for path, (_, segment) in compacted.items() if path == task.file]
        else:
            read = [file_identity(path) for path in store.index_files if path.name == task.file]
        for wanted in task.queues:
            queue = files.get(wanted[:3])
            if queue is not None:
                read += [identity_of(segment) for segment in queue.queue.files.segments]
                read += [identity_of(segment) for segment in _ext_files(queue)]
        keys.append(digest([common, task.store, task.name, task.queues, task.file, read]))
    return keys


def _name_of(queue: QueueDump) -> QueueName:
    return queue.topic, queue.queue_id, not isinstance(queue.queue, Queue)


def _ext_files(dumped: QueueDump) -> Sequence[Segment]:
    ext = dumped.queue.ext if isinstance(dumped.queue, Queue) else None
    return ext.segments if ext is not None else ()


def _size_of(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0


def _parts(queue: QueueDump, places: range, size_bytes: int) -> Sequence[QueuePlaces]:
    entry = layout_of(queue.queue).size_bytes
    step = max(size_bytes // entry, 1)
    starts = range(places.start, places.stop, step)
    ends = [min(start + step, places.stop) for start in starts]
    is_batch = not isinstance(queue.queue, Queue)
    return [
        QueuePlaces(queue.topic, queue.queue_id, is_batch, first, end, (end - first) * entry)
        for first, end in zip(starts, ends, strict=True)
    ]
