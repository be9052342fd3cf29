"""Build the derived files of a log and compare them with the present ones: which to write, which to remove.

All files are built in scratch files and compared byte for byte; equal files stay untouched. Recover, truncate and rebuild
share this code, and an undamaged store gives no changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Final, Protocol

from store_core.closing import Closing
from store_core.derive.batch import BatchQueueBuilder, batch_queue_builder, known_batch_file_size
from store_core.derive.dispatch import LOOKED_INTO, Dispatcher, dispatch_rules
from store_core.derive.ext import can_be_walked
from store_core.derive.index import IndexBuilder, IndexFileResult, IndexStyle, has_index, index_names, index_style
from store_core.derive.queues import Content, GapEntry, QueueBuilder, queue_builder, same_content
from store_core.derive.spool import QueueSpooler
from store_core.derive.topics import expired_light_queues
from store_core.errors import FailedError
from store_core.findings import Finding, finding
from store_core.layout import paths, queue
from store_core.read.index_sizes import index_sizes
from store_core.recovery.expired_entries import existing_index, expired_queue_files, last_number, queue_end
from store_core.scan.frames import FrameTable
from store_core.scan.log import ScanOptions, scan_log
from store_core.storage.digest import Hole
from store_core.storage.sequence import Segment, SegmentSequence, proven_file_sizes
from store_core.storage.store import QueueKey, Store

_NS_PER_MS: Final = 1_000_000
_NO_SIZE_KNOWN: Final = "no queue file shows the size"

Progress = Callable[[int], None]


class Made(Content, Protocol):
    """A file from a builder. ``data_bytes``: upper bound of its bytes outside holes."""

    @property
    def name(self) -> str: ...
    @property
    def mtime_ms(self) -> int: ...
    @property
    def data_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class NewFile:
    """A derived file that differs from the present one. ``path`` is relative to the root; ``read`` yields the content.

    ``data_bytes``: upper bound of its bytes outside holes.
    """

    path: str
    size_bytes: int
    mtime_ns: int
    read: Callable[[], Iterator[bytes | Hole]]
    data_bytes: int


@dataclass(slots=True)
class DerivedChanges:
    """New files, and files and folders to remove; paths are relative to the root."""

    new: list[NewFile] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    removed_folders: list[str] = field(default_factory=list)


def contents_of(*changes: DerivedChanges) -> dict[str, Callable[[], Iterator[bytes | Hole]]]:
    """Return the reader of each new file, by its path."""
    return {file.path: file.read for change in changes for file in change.new}


class Derivation(Closing):
    """Queues and index built from a log. A context manager that removes its scratch files at exit.

    Args:
        store: the store as it is.
        log_store: the store with the edited log.
        include_bad_crc: records with a wrong body checksum count too, as dispatch takes them.
        names_all: records for which a broker cannot make a queue count too, so that the caller can look at them.
        index_wanted: build an index even if the broker is configured to keep none and the store has none.
        walks: walk the log here. If False, the caller walks it with ``options``, gives every table to ``add`` and then
            calls ``finish``.

    Raises:
        FailedError: the queues are in RocksDB.
    """

    def __init__(
        self,
        store: Store,
        log_store: Store,
        scratch: Path,
        *,
        batch_topics: Iterable[str] = (),
        include_bad_crc: bool = False,
        names_all: bool = False,
        index_wanted: bool = False,
        walks: bool = True,
        jobs: int = 1,
        on_progress: Progress | None = None,
    ) -> None:
        if store.queues_in_rocksdb:
            raise FailedError(
                "the queues are kept in a RocksDB database",
                path=str(store.root / paths.CONSUMEQUEUE),
                to_do="commands that mend need queue files; those that only read the log work",
            )
        self._store = store
        self._stack = ExitStack()
        self._assumed_sizes: dict[str, tuple[int, str]] = {}  # size of queue files and the reason, by their folder
        known_sizes = index_sizes(store)
        self.sizes = known_sizes.sizes
        self._size_findings = known_sizes.findings
        style = index_style(store, self.sizes.slots, self.sizes.entries) if self.sizes else IndexStyle()
        rules = dispatch_rules(store, batch_topics=batch_topics, include_bad_crc=include_bad_crc)
        self._dispatcher = Dispatcher(replace(rules, names_all=names_all))
        self._include_bad_crc = include_bad_crc
        self._has_index = index_wanted or has_index(store)
        self._spooler = QueueSpooler(self._dispatcher, scratch)
        self._stack.callback(self._spooler.close)
        self._log_min = log_store.log.min_phy_offset
        self.existing_index = existing_index(store, self.sizes, self._log_min)
        self._keys = 0
        self._index: IndexBuilder | None = None
        if self.sizes:
            self._index = IndexBuilder(
                scratch,
                self.sizes.slots,
                self.sizes.entries,
                index_names(store),
                counts_every_put=style.counts_every_put,
                start=self.existing_index.start,
            )
            self._stack.callback(self._index.close)
        self.options = ScanOptions(
            check_crc=not include_bad_crc and log_store is store,
            index_keys=True,
            index_tags=style.tags,
            index_tags_from_phy_offset=style.tags_from_phy_offset,
            jobs=jobs,
        )
        if walks:
            options = replace(self.options, bytes_for=LOOKED_INTO)
            for table in scan_log(log_store, options=options, on_progress=on_progress):
                self.add(table)
            self.finish()

    def add(self, table: FrameTable) -> None:
        """Add the next table of the log, in log order."""
        self._spooler.add(table)
        self._keys += len(table.key_hash)
        if self._has_index and self._index:
            self._index.add(table, self._include_bad_crc)

    @property
    def bad_lists(self) -> Sequence[int]:
        """Offsets in the log of records with a list of light queues at which dispatch fails."""
        return self._dispatcher.bad_lists

    @property
    def without_queue(self) -> Sequence[int]:
        """Offsets in the log of records for which a broker cannot make a queue."""
        return self._dispatcher.without_queue

    def finish(self) -> None:
        """Finish queues and index after the last table; all other results are valid from here."""
        self.rows = self._spooler.finish()
        self.index_files: list[IndexFileResult] = self._index.finish() if self._index else []

    def close(self) -> None:
        """Remove the scratch files."""
        self._stack.close()

    @property
    def findings(self) -> list[Finding]:
        """Findings about the records, assumed file sizes and a missing index."""
        found = [*self._dispatcher.findings(), *self._dispatcher.record_findings(), *self._size_findings]
        if not self.sizes and not self._size_findings and self._has_index and self._keys:
            text = f"no index file shows how many slots and entries a file has: {self._keys} keys are not indexed"
            found.append(finding("S005", text, file=paths.INDEX))
        found += [
            finding("S009", f"{why}: {size} bytes", file=folder) for folder, (size, why) in self._assumed_sizes.items()
        ]
        return found

    def index_timestamp_ms(self, existing_ms: int) -> int:
        """Return the right index time of a checkpoint, in ms.

        It is the end time of the newest full index file, 0 if none is full.
        ``existing_ms``, the present time, is kept if one of these holds:

        * it is the time of a file that has expired
        * the store has no index
        * the sizes of index files are unknown, so the files stay unchanged
        """
        if not self._has_index or not self.sizes:
            return max(existing_ms, 0)
        full = [file.header.end_timestamp_ms for file in self.index_files if file.is_full]
        newest = max(full, default=self.existing_index.full_end_timestamp_ms)
        begin_timestamp_ms = self.index_files[0].header.begin_timestamp_ms if self._log_min and self.index_files else 0
        return existing_ms if newest < existing_ms <= begin_timestamp_ms else newest

    @property
    def queue_keys(self) -> list[QueueKey]:
        """The ordinary queues of the log's messages."""
        return self.queues().queue_keys()

    def queues(self, gap_entry: GapEntry | None = None) -> QueueBuilder:
        """Return the builder of the ordinary queues."""
        return queue_builder(self._store, self.rows, self._log_min, gap_entry)

    def batch_queues(self) -> BatchQueueBuilder:
        """Return the builder of the batch queues."""
        return batch_queue_builder(self._store, self.rows, self._log_min)

    def queue_changes(self, gap_entry: GapEntry | None = None) -> DerivedChanges:
        """Return the changes after which every queue agrees with the log."""
        changes = DerivedChanges()
        builder, batch = self.queues(gap_entry), self.batch_queues()
        expired = expired_light_queues(self._store, self.rows)  # else consumers would get their messages again
        ordinary, batches = set(builder.queue_keys()) - expired, set(batch.queue_keys())
        if ordinary and not self._store.settings.queue_file_size_bytes:
            file_sizes = proven_file_sizes(
                (list(q.segments) for q in self._store.queues.values()), queue.ENTRY.size_bytes
            )
            if len(file_sizes) != 1:
                alike = f"queue files of {' and of '.join(map(str, sorted(file_sizes)))} bytes are equally many"
                self._assumed_sizes[paths.CONSUMEQUEUE] = (
                    builder.file_size_bytes,
                    alike if file_sizes else _NO_SIZE_KNOWN,
                )
        if batches and not known_batch_file_size(self._store):
            self._assumed_sizes[paths.BATCHCONSUMEQUEUE] = queue.DEFAULT_BATCH_FILE_SIZE_BYTES, _NO_SIZE_KNOWN
        for key in sorted(ordinary | set(self._store.queues)):
            files: list[Made] = list(builder.files(key)) if key in ordinary else self._expired_files(key)
            self._compare(paths.CONSUMEQUEUE, key, self._store.queues.get(key), files, changes)
        for key in sorted(batches | set(self._store.batch_queues)):
            files = list(batch.files(key)) if key in batches else self._expired_files(key, batch=True)
            self._compare(paths.BATCHCONSUMEQUEUE, key, self._store.batch_queues.get(key), files, changes)
        for key in sorted(ordinary | set(self._store.ext_queues)) if self._store.ext_queues else ():
            files = list(builder.ext_files(key)) if key in ordinary else []
            existing_ext = self._store.ext_queues.get(key)
            is_kept = existing_ext is not None and bool(files if key in ordinary else self._expired_files(key))
            kept = (
                _expired_ext(existing_ext, files[0].name if files else None)
                if existing_ext is not None and is_kept
                else ()
            )
            self._compare(paths.CONSUMEQUEUE_EXT, key, existing_ext, files, changes, kept=kept)
        return changes

    def index_changes(self) -> DerivedChanges:
        """Return the changes that make the index as a broker builds it from the log; none if its sizes are unknown."""
        changes = DerivedChanges()
        if not self.sizes:
            return changes
        for made in self.index_files:
            path = self._store.root / paths.INDEX / made.name
            if not same_content(self._store, path, made):
                changes.new.append(_new_file(f"{paths.INDEX}/{made.name}", made))
        names = {made.name for made in self.index_files} | self.existing_index.expired
        changes.removed += [self._store.relative(p) for p in self._store.index_files if p.name not in names]
        # Brokers do not start with a folder of such a name; one with content is left to the operator.
        folders = [p for p in self._store.index_strays if p.name.isdecimal() and p.is_dir() and not any(p.iterdir())]
        changes.removed_folders += [self._store.relative(p) for p in folders if p.name not in names]
        return changes

    def queue_ends(self) -> dict[QueueKey, int]:
        """Return the queue offset after the last entry of every queue, as built from the log.

        The end of a queue without a message in the log is taken from its entries for expired records.
        """
        builder, batch = self.queues(), self.batch_queues()
        ends = {key: queue_end(files, self._log_min) for key, files in self._store.queues.items()}
        ends |= {key: queue_end(f, self._log_min, batch=True) for key, f in self._store.batch_queues.items()}
        ends |= {key: builder.summary(key).end_queue_offset for key in self.queue_keys}
        return ends | {key: last_number(self.rows.rows(key)) for key in batch.queue_keys()}

    def _expired_files(self, key: QueueKey, *, batch: bool = False) -> list[Made]:
        """Return the files to keep of a queue without a message in the log, so that its queue offsets continue."""
        files = (self._store.batch_queues if batch else self._store.queues).get(key)
        return list(expired_queue_files(files, self._log_min, batch=batch)) if files is not None else []

    def _compare(
        self,
        tree: str,
        key: QueueKey,
        existing: SegmentSequence | None,
        made: Iterable[Made],
        changes: DerivedChanges,
        *,
        kept: Collection[str] | None = None,
    ) -> None:
        """Compare the files of a queue with the present ones and add the differences to ``changes``.

        ``kept``: names of present files to keep although none of that name is built; None: keep those before the first
        built one whose entries are for expired records.
        """
        folder = PurePosixPath(tree) / key.topic / str(key.queue_id)
        existing_files = {s.name: s for s in existing.segments} if existing is not None else {}
        wanted = {file.name: file for file in made}
        for name, file in wanted.items():
            if not same_content(self._store, self._store.root / folder / name, file):
                changes.new.append(_new_file(str(folder / name), file))
        first = min(wanted, default=None)
        for name, segment in existing_files.items():
            if kept is not None:
                is_kept = name in kept
            else:
                is_before = first is None or name < first
                is_kept = is_before and existing is not None and self._is_expired(existing, segment, tree)
            if name in wanted or is_kept:
                continue
            changes.removed.append(str(folder / name))
        if existing is not None:
            for stray in existing.strays:
                if stray.is_folder:
                    changes.removed_folders += [] if any(stray.path.iterdir()) else [self._store.relative(stray.path)]
                else:
                    changes.removed.append(self._store.relative(stray.path))

    def _is_expired(self, files: SegmentSequence, segment: Segment, tree: str) -> bool:
        """Return True if a file's last entry points before the log's first byte, so that the file can stay."""
        if segment.size_bytes != files.file_size_bytes:
            return False
        layout = queue.BATCH_ENTRY if tree == paths.BATCHCONSUMEQUEUE else queue.ENTRY
        data = files.read(segment.end_phy_offset - layout.size_bytes, layout.size_bytes)
        if len(data) < layout.size_bytes:
            return False
        last = layout.read(data)
        return bool(last["size_bytes"] > 0 and 0 <= last["phy_offset"] < self._log_min)


def _expired_ext(files: SegmentSequence, first: str | None) -> set[str]:
    """Return the names of the ConsumeQueueExt files to keep: those that end where the file named ``first`` starts.

    Without ``first``, the queue is idle and its last files are kept. A broker deletes the oldest files, and does not start if
    units do not end in their file.
    """
    kept: set[str] = set()
    end = int(first) if first is not None else None
    for segment in reversed(files.segments):
        if end is not None and segment.phy_offset >= end:
            continue
        is_whole = segment.size_bytes == files.file_size_bytes and end in (None, segment.end_phy_offset)
        if not is_whole or not can_be_walked(files, segment.phy_offset, segment.end_phy_offset):
            break
        kept.add(segment.name)
        end = segment.phy_offset
    return kept


def _new_file(path: str, made: Made) -> NewFile:
    return NewFile(path, made.size_bytes, made.mtime_ms * _NS_PER_MS, made.read, made.data_bytes)
