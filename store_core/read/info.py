"""Describe a store from folders, headers and the ends of files; only the log's tail is walked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields
from itertools import chain
from typing import Any, Final, Literal

import numpy as np

from store_core.findings import KINDS, Finding, finding
from store_core.kernel.codes import FrameCode, FrameKind
from store_core.layout import paths
from store_core.read.checkpoint import Checkpoint, read_checkpoint
from store_core.read.index import read_header
from store_core.read.index_sizes import IndexSizes, index_sizes
from store_core.read.log_files import advised, missing_log
from store_core.read.progress import Lag, lags, read_progress
from store_core.read.queue import BatchQueue, Queue
from store_core.read.records import read_message, read_store_timestamp_ms
from store_core.read.rules import ReadRules
from store_core.read.types import index_strays, queue_strays, wrong_types
from store_core.storage.databases import database_options, library_of
from store_core.storage.remote_path import is_there
from store_core.storage.sequence import SegmentSequence
from store_core.storage.store import QueueKey, Store

LastExit = Literal["clean", "crash"]


def last_exit(store: Store) -> LastExit:
    """Return how a broker would judge the last stop: only the presence of ``abort`` counts."""
    return "crash" if store.aborted else "clean"


def describe_store(store: Store, rules: ReadRules) -> dict[str, Any]:
    """Return the parts of an info document: commitlog, queues, index, groups, checkpoint, notes and findings.

    Queues and groups are None where they are in RocksDB, with a note.

    Raises FailedError where a folder cannot be listed or a file cannot be read.
    """
    findings: list[Finding] = []
    queues = list(_queues(store, rules))
    proven = index_sizes(store)
    index_rows = list(_index(store, proven.sizes))
    findings += [*proven.findings, *index_strays(store, proven.sizes)]
    progress = read_progress(store.root)
    layout_findings = list(_layout_findings(store))
    is_no_file = any(found.code == "S008" and found.file == paths.CHECKPOINT for found in layout_findings)
    checkpoint = Checkpoint() if is_no_file else read_checkpoint(store.root)
    rows = lags(store, progress, rules)
    ends = [row.pop("last_record_phy_offset") for row in queues]
    findings = advised([*layout_findings, *findings, *progress.findings, *checkpoint.findings])
    return {
        "commitlog": _commitlog(store, [end for end in ends if end is not None]),
        "queues": None if store.queues_in_rocksdb else queues,
        "index": index_rows,
        "groups": None if progress_in_rocksdb(store) else _groups(rows, is_known=not store.queues_in_rocksdb),
        "checkpoint": _checkpoint(checkpoint),
        "databases": list(_databases(store)),
        "notes": list(_notes(store)),
        "findings": findings,
    }


# Contents of a store's RocksDB databases by folder (store format 1).
_HELD: Final = {
    **dict.fromkeys(paths.QUEUE_DATABASES, "queues"),
    paths.ROCKSDBSTORE: "index, timers, half messages",
    paths.KV_STORE: "pop progress",
    **dict(zip(paths.ROCKSDB_CONFIGS, ("topics", "groups", "progress", "configuration"), strict=True)),
}


def _databases(store: Store) -> Iterator[dict[str, Any]]:
    """Yield for each RocksDB database its folder, its contents and the library that opened it last. No database is opened."""
    for folder, held in _HELD.items():
        if (store.root / folder / paths.ROCKSDB_MARK).is_file():
            library = library_of(database_options(store.root / folder))
            version = ".".join(map(str, library)) if library else None
            yield {"folder": folder, "holds": held, "rocksdb_version": version}


def databases(store: Store) -> list[str]:
    """Return the folders, relative to the root, of the RocksDB databases with queues or configuration."""
    trees = (*paths.QUEUE_DATABASES, *paths.ROCKSDB_CONFIGS)
    return [tree for tree in trees if (store.root / tree / paths.ROCKSDB_MARK).is_file()]


def progress_in_rocksdb(store: Store) -> bool:
    """Return True if the groups' progress is only in a RocksDB database."""
    is_there = not paths.ROCKSDB_PROGRESS.isdisjoint(databases(store))
    return is_there and not (store.root / paths.CONSUMER_OFFSET_JSON).is_file()


def _notes(store: Store) -> Iterator[str]:
    """Yield a note for each fact that is not known, with the reason."""
    if store.queues_in_rocksdb:
        yield "queues are not known: they are in RocksDB, which is not read"
    if progress_in_rocksdb(store):
        yield "groups are not known: their progress is in RocksDB, which is not read"
    elif store.queues_in_rocksdb:
        yield "lag of groups is not known: the queues are in RocksDB, which is not read"
    if found := databases(store):
        yield f"whether a broker would start is not known: it opens RocksDB in {', '.join(found)}, which is not read"


def _commitlog(store: Store, last_records: list[int]) -> dict[str, Any]:
    log = store.log
    end, last_ms = log_end(store, last_records)
    first_ms = next((ms for s in log.segments if (ms := read_store_timestamp_ms(log, s.phy_offset))), None)
    return {
        "paths": [str(path) for path in store.settings.commitlog_paths],
        "files": len(log.segments),
        "segment_size_bytes": log.file_size_bytes,
        "size_bytes": log.size_bytes,
        "min_phy_offset": log.min_phy_offset,
        "max_phy_offset": end,
        "first_store_timestamp_ms": first_ms,
        "last_store_timestamp_ms": last_ms,
    }


def log_end(store: Store, last_records: list[int]) -> tuple[int, int | None]:
    """Return where the log's last whole record ends, and its store time in ms.

    The walk starts at the highest of ``last_records``, the offsets in queues' last entries, at which there is a record; else at the newest segment
    that starts with a record.
    """
    log = store.log
    for start in sorted(set(last_records), reverse=True):
        if read_message(log, start) is not None:
            return _walk_to_end(store, start)
    for segment in reversed(log.segments):
        if read_message(log, segment.phy_offset) is not None:
            return _walk_to_end(store, segment.phy_offset)
    return log.min_phy_offset, None


def _walk_to_end(store: Store, phy_offset: int) -> tuple[int, int | None]:
    """Return where the consecutive records from an offset on end, across blanks, and the last store time in ms."""
    from store_core.scan.log import ScanOptions, scan_segment

    options = ScanOptions(check_crc=False, properties=False)
    last_ms = None
    end = phy_offset
    segment = store.log.find(phy_offset)
    start: int | None = phy_offset
    while segment is not None:
        is_sealed = False
        for table in scan_segment(store, segment, options, start, chained=True):
            others = np.flatnonzero(~table.messages)
            stop = int(others[0]) if len(others) else len(table)
            if stop:
                end = int(table.phy_offset[stop - 1] + table.size_bytes[stop - 1])
                last_ms = int(table.store_timestamp_ms[stop - 1])
            if stop < len(table):
                is_sealed = table.kind[stop] == FrameKind.BLANK or table.code[stop] == FrameCode.BLANK_SIZE
                break
        if not is_sealed and end < segment.end_phy_offset:
            break
        segment, start = store.log.find(segment.end_phy_offset), None
    return end, last_ms


def _queues(store: Store, rules: ReadRules) -> Iterator[dict[str, Any]]:
    for key, files in store.queues.items():
        yield _queue_row(key, "simple", Queue(files, store.log, rules=rules))
    for key, files in store.batch_queues.items():
        yield _queue_row(key, "batch", BatchQueue(files, store.log))


def _queue_row(key: QueueKey, kind: str, queue: Queue | BatchQueue) -> dict[str, Any]:
    last = queue.entry(queue.max_offset - 1) if isinstance(queue, Queue) else queue.at_slot(queue.end_slot - 1)
    return {
        "topic": key.topic,
        "queue_id": key.queue_id,
        "type": kind,
        "files": len(queue.files.segments),
        "size_bytes": queue.files.size_bytes,
        "min_offset": queue.min_offset,
        "max_offset": queue.max_offset,
        "last_record_phy_offset": last.phy_offset if last is not None and queue.max_offset else None,
    }


def _index(store: Store, sizes: IndexSizes | None) -> Iterator[dict[str, Any]]:
    for path in store.index_files:
        header = read_header(path)
        yield {
            "file": path.name,
            "size_bytes": path.stat().st_size if is_there(path) else 0,
            "slots": sizes.slots if sizes else None,
            "entries": sizes.entries if sizes else None,
            "used_slots": header.used_slots,
            "used_entries": header.index_count - 1,
            "begin_timestamp_ms": header.begin_timestamp_ms,
            "end_timestamp_ms": header.end_timestamp_ms,
            "begin_phy_offset": header.begin_phy_offset,
            "end_phy_offset": header.end_phy_offset,
        }


def _groups(rows: Iterator[Lag], *, is_known: bool) -> list[dict[str, Any]]:
    """Return lag by group and topic; None unless ``is_known``, the ends of queues. An unknown lag of one queue counts as 0."""
    found: dict[tuple[str, str], list[Lag]] = defaultdict(list)
    for row in rows:
        found[row.group, row.topic].append(row)
    return [
        {
            "group": group,
            "topic": topic,
            "queues": len(queues),
            "lag": sum(q.lag or 0 for q in queues) if is_known else None,
        }
        for (group, topic), queues in found.items()
    ]


def _checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the fields; times that were never set are None."""
    values = {f.name: getattr(checkpoint, f.name) for f in fields(Checkpoint) if f.name != "findings"}
    values["min_timestamp_ms"] = checkpoint.min_timestamp_ms
    return {name: (value or None) if name.endswith("_timestamp_ms") else value for name, value in values.items()}


def _layout_findings(store: Store) -> Iterator[Finding]:
    yield from missing_log(store)
    if store.aborted:
        yield finding("S001", "abort is there", file=paths.ABORT)
    if store.queues_in_rocksdb:
        yield finding("Q015", KINDS["Q015"].title, file=store.queue_database)
    elif store.queue_database:
        message = "queues in RocksDB, beside those in files, are not read"
        yield finding("Q015", message, file=store.queue_database, severity="info")
    yield from wrong_types(store)
    if not store.queues_in_rocksdb:
        yield from queue_strays(store)
    yield from _sequence_findings(store, store.log, ("L009", "L010", "L006"), None)
    for key, files in chain(store.queues.items(), store.batch_queues.items()):
        yield from _sequence_findings(store, files, ("Q007", "Q013", "Q012"), key)


def _sequence_findings(
    store: Store, files: SegmentSequence, codes: tuple[str, str, str], key: QueueKey | None
) -> Iterator[Finding]:
    """Yield a finding for each file of a wrong length, foreign entry and missing file of a sequence."""
    wrong_length, foreign, missing = codes
    about: dict[str, Any] = {} if key is None else {"topic": key.topic, "queue_id": key.queue_id}
    for segment in files.segments:
        if segment.size_bytes != files.file_size_bytes:
            text = f"{segment.size_bytes} bytes instead of {files.file_size_bytes}"
            yield finding(wrong_length, text, file=store.relative(segment.path), **about)
    for stray in files.strays:
        code = foreign if stray.duplicate_of is None or key is not None else "L018"
        yield finding(code, "no file of the sequence", file=store.relative(stray.path), **about)
    for gap in files.gaps():
        where: dict[str, Any] = {} if key is not None else {"phy_offset": gap.phy_offset, "size_bytes": gap.size_bytes}
        yield finding(missing, f"no file for {gap.size_bytes} bytes", **about, **where)
