"""Check the files of a store by name, length and type, without reading them (store format 1; store behaviour 1.4)."""

from __future__ import annotations

from store_core.check.report import Findings
from store_core.errors import FailedError
from store_core.layout import paths
from store_core.read.index_sizes import IndexSizes
from store_core.read.log_files import describe_stray, missing_log
from store_core.read.types import index_strays, queue_strays, wrong_types
from store_core.storage.journal import UNDO_FOLDER, list_ids, read_head
from store_core.storage.live import is_locked
from store_core.storage.sequence import SegmentSequence, Stray
from store_core.storage.store import QueueKey, Store


def check_layout(store: Store, findings: Findings) -> None:
    """Check all files but the index folder, where the sizes depend on the files' content."""
    for found in wrong_types(store):
        findings.add(found)
    if store.aborted:
        findings.say("S001", "abort is there: a broker runs, or the last one did not stop cleanly", file=paths.ABORT)
    _check_changes(store, findings)
    _check_log(store, findings)
    if not store.queues_in_rocksdb:
        for found in queue_strays(store):
            findings.add(found)
        for tree in (store.queues, store.batch_queues, store.ext_queues):
            for key, files in tree.items():
                _check_queue(store, key, files, findings)


def _check_changes(store: Store, findings: Findings) -> None:
    """Report rmqctl's own changes that are unfinished, or whose state is unreadable."""
    try:
        for id in list_ids(store.root):
            _check_change(store, id, findings)
    except FailedError as error:
        findings.say("S004", f"it is not known whether a change was interrupted: {error.what}", file=UNDO_FOLDER)


def _check_change(store: Store, id: str, findings: Findings) -> None:
    folder = f"{UNDO_FOLDER}/{id}"
    try:
        head = read_head(store.root, id)
    except FailedError as error:
        findings.say("S004", f"it is not known whether the change {id} was interrupted: {error.what}", file=folder)
        return
    if not head.state.finished:
        at_work = is_locked(store.root)
        state = "is unfinished, and another process is at work on this store" if at_work else "was interrupted"
        findings.say("S004", f"the change {id} {state}", file=folder)


def _check_log(store: Store, findings: Findings) -> None:
    log = store.log
    for found in missing_log(store):
        findings.add(found)
    size = log.file_size_bytes
    for segment in log.segments:
        file = store.relative(segment.path)
        if segment.size_bytes != size:
            findings.say(
                "L009",
                f"the file has {segment.size_bytes} bytes, a segment has {size}",
                file=file,
                phy_offset=segment.phy_offset,
                size_bytes=segment.size_bytes,
            )
        if size and segment.phy_offset % size:
            findings.say("L010", f"the name is no multiple of the segment size {size}", file=file, severity="warning")
    lengths = {s.size_bytes for s in log.segments}
    if log.configured_file_size_bytes is None and len(lengths) == len(log.segments) > 1:
        findings.say("S003", "no two log files have the same length")
    for stray in log.strays:
        _report_stray(store, stray, findings, "L010", "L018")


def _check_queue(store: Store, key: QueueKey, files: SegmentSequence, findings: Findings) -> None:
    size = files.file_size_bytes
    for segment in files.segments:
        if segment.size_bytes != size:
            findings.say(
                "Q007",
                f"the file has {segment.size_bytes} bytes, a queue file has {size}",
                file=store.relative(segment.path),
                size_bytes=segment.size_bytes,
                topic=key.topic,
                queue_id=key.queue_id,
            )
        if size and segment.phy_offset % size:
            findings.say(
                "Q013",
                f"the name is no multiple of the file size {size}",
                file=store.relative(segment.path),
                topic=key.topic,
                queue_id=key.queue_id,
                severity="warning",
            )
    for gap in _missing_files(files):
        findings.say(
            "Q012",
            f"no file for the {gap[1]} bytes of the queue from {gap[0]} on",
            file=store.relative(files.folders[0] / paths.segment_name(gap[0])),
            size_bytes=gap[1],
            topic=key.topic,
            queue_id=key.queue_id,
        )
    for stray in files.strays:
        _report_stray(store, stray, findings, "Q013", "Q013", key)


def _missing_files(files: SegmentSequence) -> list[tuple[int, int]]:
    """Return ranges (start, bytes) without a file; the missing end of a short file is not one."""
    size = files.file_size_bytes
    found = []
    for segment, following in zip(files.segments, files.segments[1:], strict=False):
        end = segment.phy_offset + max(size, segment.size_bytes)
        if end < following.phy_offset:
            found.append((end, following.phy_offset - end))
    return found


def _report_stray(
    store: Store, stray: Stray, findings: Findings, code: str, duplicate_code: str, key: QueueKey | None = None
) -> None:
    findings.say(
        code if stray.duplicate_of is None else duplicate_code,
        describe_stray(store, stray),
        file=store.relative(stray.path),
        size_bytes=stray.size_bytes,
        topic=key.topic if key else None,
        queue_id=key.queue_id if key else None,
    )


def check_index_layout(store: Store, sizes: IndexSizes | None, findings: Findings) -> None:
    """Check the lengths of index files, and report foreign files next to them."""
    for found in index_strays(store, sizes):
        findings.add(found)
