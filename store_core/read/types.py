"""Report entries of the wrong type or name: folders where files belong, strays among queues and index files (store format 1)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Final

from store_core.findings import KINDS, Finding, finding
from store_core.layout import index, paths
from store_core.read.index_sizes import IndexSizes
from store_core.storage.remote_path import is_there
from store_core.storage.sequence import SegmentSequence
from store_core.storage.store import Store

_FOLDERS: Final = (*paths.QUEUE_TREES, paths.INDEX, paths.CONFIG, paths.TIMERLOG, paths.COMPACTION)
_LEAST_INT: Final = -(1 << 31)
_FILES: Final = (paths.CHECKPOINT, paths.LOCK, paths.TIMERWHEEL, paths.ABORT)


def wrong_types(store: Store) -> Iterator[Finding]:
    """Yield S008 for folders that are files, files that are folders, and paths that are neither."""
    wanted = [(store.root / name, True) for name in _FOLDERS] + [(store.root / name, False) for name in _FILES]
    wanted += [(folder, True) for folder in store.settings.commitlog_paths]
    for path, is_folder in wanted:
        if is_there(path) and not (path.is_dir() if is_folder else path.is_file()):
            found = "a folder" if path.is_dir() else "a file" if path.is_file() else "a pipe or a device"
            found = found if path.exists() else "a link that leads nowhere"
            what = f"{found} where a {'folder' if is_folder else 'file'} belongs"
            yield finding("S008", what, file=store.relative(path))


def queue_faults(store: Store) -> Iterator[Finding]:
    """Yield the findings about the queues' folders that make a table of queues incomplete."""
    yield from (found for found in wrong_types(store) if found.file in paths.QUEUE_TREES)
    yield from queue_strays(store)
    if not store.queues_in_rocksdb:
        for key, files in chain(store.queues.items(), store.batch_queues.items()):
            yield from missing_entries(files, key.topic, key.queue_id)


def missing_entries(
    files: SegmentSequence, topic: str, queue_id: int, start: int = 0, stop: int | None = None
) -> Iterator[Finding]:
    """Yield Q012 for each missing file between others of a queue, Q007 for each file that is too short.

    A table of the queue lacks these entries. Files missing at the start were removed by a broker's cleaning, as far as the folder shows. ``start``,
    ``stop``: the checked bytes of the queue.
    """
    for gap in files.gaps():
        at, end = gap.phy_offset, gap.phy_offset + gap.size_bytes
        if end <= start or (stop is not None and at >= stop):
            continue
        short = files.find(at - 1)
        if short is not None and files.file_size_bytes and (nominal := short.phy_offset + files.file_size_bytes) > at:
            text = f"the file has {short.size_bytes} bytes, a queue file has {files.file_size_bytes}: its last entries are missing"
            yield _of_queue("Q007", text, short.path, min(nominal, end) - at, topic, queue_id)
            at = nominal
        if at < end:
            path = files.segments[0].path.with_name(paths.segment_name(at))
            yield _of_queue(
                "Q012", f"no file for the {end - at} bytes of the queue from {at} on", path, end - at, topic, queue_id
            )


def _of_queue(code: str, text: str, path: Path, size_bytes: int, topic: str, queue_id: int) -> Finding:
    file = "/".join(path.parts[-4:])
    return finding(code, text, file=file, size_bytes=size_bytes, topic=topic, queue_id=queue_id)


def index_faults(store: Store, sizes: IndexSizes | None) -> Iterator[Finding]:
    """Yield the findings about the index's folder and files that make a table of its entries incomplete."""
    yield from (found for found in wrong_types(store) if found.file == paths.INDEX)
    yield from index_strays(store, sizes)


def index_strays(store: Store, sizes: IndexSizes | None) -> Iterator[Finding]:
    """Yield I005 for index files of another length, if sizes are known, and I006 for other paths."""
    wanted = index.file_size_bytes(sizes.slots, sizes.entries) if sizes else 0
    for path in store.index_files if sizes else ():
        with suppress(FileNotFoundError):
            size = path.stat().st_size
            if size != wanted:
                text = f"the file has {size} bytes, {sizes} have {wanted}"
                yield finding("I005", text, file=store.relative(path), size_bytes=size)
    for path in store.index_strays:
        yield finding(
            "I006",
            "no index file",
            file=store.relative(path),
            severity="error" if path.is_dir() else KINDS["I006"].severity,
        )


def _stray_folder(name: str, *, is_topic: bool) -> str:
    if not is_topic and re.fullmatch(r"-[1-9][0-9]{0,9}", name) and int(name) >= _LEAST_INT:
        return "a queue with a negative number, to which no client can send"
    what = "the name is not UTF-8" if is_topic else "the name is not how a broker writes a queue's number"
    return f"{what}: what is in it is in no queue"


def queue_strays(store: Store) -> Iterator[Finding]:
    """Yield S008 for each file where a folder of the queues belongs, Q019 for other paths that are no queue; none in a RocksDB database."""
    has_database = (store.root / paths.CONSUMEQUEUE / paths.ROCKSDB_MARK).is_file()
    for stray in store.queue_strays:
        file = store.relative(stray.path)
        is_topic = stray.path.parent.parent == store.root
        if stray.is_folder:
            yield finding("Q019", _stray_folder(stray.path.name, is_topic=is_topic), file=file)
        elif not is_topic and paths.parse_queue_id(stray.path.name) is None:
            yield finding("Q019", "no folder of a queue", file=file)
        elif not is_topic:
            yield finding("S008", "no folder, where that of a queue belongs", file=file)
        elif not (has_database and stray.path.parent.name == paths.CONSUMEQUEUE):
            what = "no folder, where those of topics belong: a topic of that name can have no queue"
            yield finding("S008", what, file=file, severity="warning")
