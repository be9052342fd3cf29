"""Load a store as a broker does before any scan: refusals, dropped files, the checkpoint's times (behaviour 1.1 to 1.6)."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from store_core.broker.config_load import (
    CONFIG_FILES,
    CONFIG_FILES_OF_5,
    DELAY_PROGRESS,
    is_full_folder,
    read_config,
)
from store_core.broker.consume_queue_ext import ExtFiles
from store_core.layout import checkpoint as checkpoint_layout
from store_core.layout import index as index_layout
from store_core.layout import paths, queue, timer
from store_core.read.index_sizes import index_sizes
from store_core.storage.sequence import Segment, SegmentSequence
from store_core.storage.store import QueueKey, Store

if TYPE_CHECKING:
    from store_core.broker.versions import Behaviour
    from store_core.scan.frames import FrameTable

BATCH_TYPE: Final = "BatchCQ"
FIRST_ENTRY: Final = 1
_TYPE_ATTRIBUTE: Final = "queue.type"
_TOPICS: Final = "topics.json"


@dataclass(frozen=True, slots=True)
class CheckpointTimes:
    """The checkpoint as a broker opens it: the first bytes of the file, zeros where it is too short or missing."""

    physic_msg_timestamp_ms: int
    logics_msg_timestamp_ms: int
    index_msg_timestamp_ms: int
    logics_phy_offset: int = 0

    @property
    def min_timestamp_ms(self) -> int:
        """The store time up to which all data is safe."""
        oldest = min(self.physic_msg_timestamp_ms, self.logics_msg_timestamp_ms)
        return max(oldest - checkpoint_layout.SAFETY_MARGIN_MS, 0)


@dataclass(slots=True)
class Loaded:
    """The result of loading, for recovery. ``refusal``: why the broker does not start, "" if it continues.

    ``recovers``: True if the log is recovered and cut; a broker does so before an index file's refusal fails the load.
    """

    refusal: str = ""
    recovers: bool = False
    segments: list[Segment] = field(default_factory=list)
    deleted_segments: list[str] = field(default_factory=list)
    # None means the files of the queue's own sequence, the usual case: a list each costs memory with tens of thousands of queues.
    queue_files: dict[QueueKey, list[Segment] | None] = field(default_factory=dict)
    batch_queue_files: dict[QueueKey, list[Segment] | None] = field(default_factory=dict)
    ext_files: dict[QueueKey, ExtFiles] = field(default_factory=dict)
    deleted_queue_files: list[str] = field(default_factory=list)
    checkpoint: CheckpointTimes = CheckpointTimes(0, 0, 0)
    index: IndexState = field(default_factory=lambda: IndexState(0))
    topics: Mapping[Any, Any] | None = None  # topicConfigTable as it was read; None: no topic configuration can be read
    deleted_config_files: list[str] = field(default_factory=list)


def load(store: Store, behaviour: Behaviour) -> Loaded:
    """Follow the load order up to the first refusal.

    Raises:
        FailedError: a folder cannot be listed.
    """
    loaded = Loaded()
    loaded.refusal = (
        _load_config(store, behaviour, loaded)
        or opening_fails(store, paths.LOCK)
        or _load_timer(store, behaviour)
        or _load_log(store, behaviour, loaded)
        or _load_queues(store, behaviour, loaded)
        or opening_fails(store, paths.CHECKPOINT)
    )
    if not loaded.refusal:
        loaded.checkpoint = read_checkpoint(store)
        loaded.recovers = True
        loaded.refusal = _load_index(store, behaviour, loaded)
    return loaded


def opening_fails(store: Store, name: str) -> str:
    """Return why a broker fails to open one of the store's own files for writing, present or not; else ""."""
    path = store.root / name
    if path.is_dir():
        return f"{name} is a folder"
    if path.is_symlink() and not path.exists() and not _is_made(path):
        return f"{name} is a link into a folder that is not there"
    return ""


# -- config files (1.1) ---------------------------------------------------------------------------------------------


def _config_names(behaviour: Behaviour) -> tuple[str, ...]:
    return (*(CONFIG_FILES_OF_5 if behaviour.timer_wheel else CONFIG_FILES), DELAY_PROGRESS)


def reads_config_alike(store: Store, behaviour: Behaviour, other: Behaviour) -> bool:
    """Return True if two releases read the same contents of all config files, with the same reasons for errors."""
    if behaviour.timer_wheel != other.timer_wheel:
        return False
    found = ([read_config(store, name, release) for release in (behaviour, other)] for name in _config_names(behaviour))
    return all(first == second and first.why == second.why for first, second in found)


def _load_config(store: Store, behaviour: Behaviour, loaded: Loaded) -> str:
    for name in _config_names(behaviour):
        found = read_config(store, name, behaviour)
        if found.damaged_main and behaviour.deletes_damaged_config and not is_full_folder(store, name):
            loaded.deleted_config_files.append(f"{paths.CONFIG}/{name}")
        if found.unusable:
            both = f"{paths.CONFIG}/{name} and its {paths.BAK_SUFFIX} copy"
            return f"{both} cannot be loaded: {found.why}" if found.why else f"{both} are both damaged"
        if name == _TOPICS and isinstance(found.value, dict):
            loaded.topics = _topic_table(found.value)
    return ""


def _topic_table(value: dict[Any, Any]) -> dict[Any, Any]:
    table = value.get("topicConfigTable")
    return table if isinstance(table, dict) else {}


# -- file sequences (1.4) -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Listed:
    """The files of a sequence that a broker maps or deletes, and why it refuses the rest."""

    segments: list[Segment]
    deleted: list[Path]
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    path: Path
    size_bytes: int
    segment: Segment | None
    is_folder: bool = False


def _entries(sequence: SegmentSequence) -> list[_Entry]:
    """Return the entries of the sequence's folders, in the order in which a broker sorts them."""
    entries = [_Entry(s.name, s.path, s.size_bytes, s) for s in sequence.segments]
    for stray in sequence.strays:
        if stray.duplicate_of is None and stray.path not in sequence.folders:
            # A broker takes any number for an offset, wherever a file of that name would lie.
            offset = None if stray.is_folder else paths.parse_long(stray.path.name)
            segment = None if offset is None else _within_offsets(stray.path, offset, stray.size_bytes)
            entries.append(_Entry(stray.path.name, stray.path, stray.size_bytes, segment, stray.is_folder))
    return sorted(entries, key=lambda e: e.name)


def _within_offsets(path: Path, phy_offset: int, size_bytes: int) -> Segment:
    """Return a file at any offset, without its bytes beyond the largest offset."""
    return Segment(path, phy_offset, min(size_bytes, paths.LARGEST_OFFSET - phy_offset))


def _list_sequence(store: Store, sequence: SegmentSequence, file_size_bytes: int, behaviour: Behaviour) -> _Listed:
    segments: list[Segment] = []
    deleted: list[Path] = []
    entries = _entries(sequence)
    for place, entry in enumerate(entries):
        name = store.relative(entry.path)
        if entry.is_folder and behaviour.folders_ignored:
            continue
        if not entry.size_bytes and place + 1 == len(entries) and behaviour.empty_last_deleted:  # whatever its name
            deleted.append(entry.path)
            continue
        if entry.is_folder or entry.size_bytes != file_size_bytes:
            if behaviour.odd_size_ends_list:
                break
            what = "a folder" if entry.is_folder else f"{entry.size_bytes} bytes long instead of {file_size_bytes}"
            return _Listed(segments, deleted, f"{name} is {what}")
        if entry.segment is None:
            return _Listed(segments, deleted, f"{name} has the length of a segment and a name that is no offset")
        segments.append(entry.segment)
    return _Listed(segments, deleted)


def _load_log(store: Store, behaviour: Behaviour, loaded: Loaded) -> str:
    size = store.log.file_size_bytes or paths.DEFAULT_SEGMENT_SIZE_BYTES
    listed = _list_sequence(store, store.log, size, behaviour)
    loaded.segments = listed.segments
    loaded.deleted_segments = [path.name for path in listed.deleted]
    return listed.refusal


def loaded_queues(store: Store, tree: str = paths.CONSUMEQUEUE) -> Mapping[QueueKey, SegmentSequence]:
    """Return every queue of a tree that a broker loads, including queue ids with a minus sign."""
    usual, odd = (store.queues if tree == paths.CONSUMEQUEUE else store.batch_queues), store.negative_queues(tree)
    return dict(sorted([*usual.items(), *odd.items()])) if odd else usual


def _load_queues(store: Store, behaviour: Behaviour, loaded: Loaded) -> str:
    trees: list[tuple[Mapping[QueueKey, SegmentSequence], dict[QueueKey, list[Segment] | None], int, bool]] = [
        (loaded_queues(store), loaded.queue_files, queue.DEFAULT_FILE_SIZE_BYTES, False)
    ]
    if behaviour.batch_queues:
        trees.append(
            (
                loaded_queues(store, paths.BATCHCONSUMEQUEUE),
                loaded.batch_queue_files,
                queue.DEFAULT_BATCH_FILE_SIZE_BYTES,
                True,
            )
        )
    for found, target, default, is_batch in trees:
        for key, sequence in found.items():
            if behaviour.batch_queues and _is_batch_topic(loaded, key.topic) != is_batch:
                tree = paths.BATCHCONSUMEQUEUE if is_batch else paths.CONSUMEQUEUE
                return f"the configured queue type of topic {key.topic} is not that of {tree}/{key.topic}"
            listed = _list_sequence(store, sequence, sequence.file_size_bytes or default, behaviour)
            if listed.refusal:
                return listed.refusal
            has_ext = not is_batch and key in store.ext_queues and store.settings.flag("enableConsumeQueueExt")
            if has_ext and (refusal := _load_ext(store, key, behaviour, loaded)):
                return refusal
            target[key] = None if listed.segments == list(sequence.segments) else listed.segments
            loaded.deleted_queue_files += [store.relative(path) for path in listed.deleted]
    return ""


def _load_ext(store: Store, key: QueueKey, behaviour: Behaviour, loaded: Loaded) -> str:
    """Load the ext files of a queue, which are recovered with it; return the refusal, or ""."""
    files = store.ext_queues[key]
    size = store.settings.ext_file_size_bytes or queue.DEFAULT_EXT_FILE_SIZE_BYTES
    listed = _list_sequence(store, files, size, behaviour)
    name = f"{paths.CONSUMEQUEUE_EXT}/{key.topic}/{key.queue_id}"
    loaded.ext_files[key] = ExtFiles(name, files, listed.segments, size)
    return listed.refusal


def _is_batch_topic(loaded: Loaded, topic: str) -> bool:
    return _has_batch_queues((loaded.topics or {}).get(topic))


def _has_batch_queues(config: Any) -> bool:
    attributes = config.get("attributes") if isinstance(config, dict) else None
    return isinstance(attributes, dict) and attributes.get(_TYPE_ATTRIBUTE) == BATCH_TYPE


def batch_topics(loaded: Loaded) -> frozenset[str]:
    """Return the topics whose attributes choose batch queues (store format 9.3)."""
    with_attributes = ((t, c) for t, c in (loaded.topics or {}).items() if isinstance(c, dict) and c.get("attributes"))
    return frozenset(str(topic) for topic, config in with_attributes if _has_batch_queues(config))


def batch_topics_of(store: Store) -> frozenset[str]:
    """Return the batch topics of a store's topics.json."""
    loaded = Loaded()
    found = read_config(store, _TOPICS)
    if isinstance(found.value, dict):
        loaded.topics = _topic_table(found.value)
    return batch_topics(loaded)


# -- checkpoint, index, timer (1.3, 1.6) ----------------------------------------------------------------------------


def read_checkpoint(store: Store) -> CheckpointTimes:
    """Read the times in the checkpoint; zeros if there is no checkpoint."""
    layout = checkpoint_layout.CHECKPOINT
    data = store.cache.read(store.root / paths.CHECKPOINT, 0, layout.size_bytes)
    values = layout.read(data.ljust(layout.size_bytes, b"\0"))
    return CheckpointTimes(
        values["physic_msg_timestamp_ms"],
        values["logics_msg_timestamp_ms"],
        values["index_msg_timestamp_ms"],
        values["logics_phy_offset"],
    )


def _load_index(store: Store, behaviour: Behaviour, loaded: Loaded) -> str:
    """Load the index files; after a crash a broker deletes each that ends after the checkpoint's index time."""
    loaded.index = IndexState(entries_per_file(store))
    for path in sorted((*store.index_files, *store.index_strays), key=lambda p: p.name):
        if paths.parse_long(path.name) is None:
            continue
        if not path.is_file() and not _is_made(path):
            if behaviour.index_failure_stops:
                return f"{paths.INDEX}/{path.name} is {'a folder' if path.is_dir() else 'no regular file'}"
            break
        header = read_header(store, path)
        if store.aborted and header.end_timestamp_ms > loaded.checkpoint.index_msg_timestamp_ms:
            loaded.index.deleted.append(path.name)
        else:
            loaded.index.files.append(header)
    return ""


def _is_made(path: Path) -> bool:
    """Return True if opening the path creates a file: it is a link to a missing name in an existing folder."""
    return path.is_symlink() and not path.exists() and Path(os.path.realpath(path)).parent.is_dir()


def _load_timer(store: Store, behaviour: Behaviour) -> str:
    if not behaviour.timer_wheel or not store.settings.flag("timerWheelEnable", True):
        return ""
    try:
        info = (store.root / paths.TIMERWHEEL).stat()
    except OSError:
        return ""
    if stat.S_ISREG(info.st_mode) and info.st_size not in (0, timer.WHEEL_FILE_SIZE_BYTES):
        return f"{paths.TIMERWHEEL} is {info.st_size} bytes long instead of {timer.WHEEL_FILE_SIZE_BYTES}"
    return ""


# -- counting index entries (1.3, 9.1) --------------------------------------------------------------------------------


@dataclass(slots=True)
class IndexFileState:
    """One index file in memory. ``name`` is None for a file that the start would make; ``next_entry`` is its index count."""

    name: str | None
    end_timestamp_ms: int = 0
    end_phy_offset: int = 0
    next_entry: int = FIRST_ENTRY


@dataclass(slots=True)
class IndexState:
    """All index files in order, and how many entries a start would add."""

    entries_per_file: int
    files: list[IndexFileState] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    entries_added: int = 0

    def dispatch(self, table: FrameTable) -> None:
        """Add the keys of accepted records, in order. A record before the newest file's end counts as indexed."""
        if not len(table) or self._takes_all(table):
            return
        keys = np.bincount(table.key_row, minlength=len(table)) if len(table.key_row) else np.zeros(len(table), int)
        offsets = table.own_phy_offset
        row = 0
        while row < len(table):
            current = self.make_room()
            unindexed = np.flatnonzero(offsets[row:] >= current.end_phy_offset)
            if not len(unindexed):
                return
            row += int(unindexed[0])
            row = self._fill(current, table, keys, row)

    def _takes_all(self, table: FrameTable) -> bool:
        """Add the keys of a whole table; return False if the caller must add them record by record.

        That is so if records are odd or to be skipped, or if the newest file has no room for more than these keys.
        """
        current, count = self.make_room(), len(table.key_row)
        has_room = count < self.entries_per_file - current.next_entry
        if not has_room or not table.is_good or int(table.own_phy_offset[0]) < current.end_phy_offset:
            return False
        if count:
            last = int(table.key_row[-1])
            current.end_phy_offset = int(table.own_phy_offset[last])
            current.end_timestamp_ms = int(table.store_timestamp_ms[last])
            current.next_entry += count
            self.entries_added += count
        return True

    def make_room(self) -> IndexFileState:
        """Return the newest file, or a new one if it is full; a broker makes it before it reads the record's keys."""
        if self.files and self.files[-1].next_entry < self.entries_per_file:
            return self.files[-1]
        return self._new_file()

    def _fill(self, current: IndexFileState, table: FrameTable, keys: np.ndarray, row: int) -> int:
        """Put records from ``row`` on into the file until it is full or a record is to be skipped; return the next row."""
        offsets = table.own_phy_offset[row:]
        # The file's end is the newest record that added a key, so a later record at a lower offset is skipped.
        reached = np.maximum.accumulate(np.where(keys[row:] > 0, offsets, current.end_phy_offset))
        skipped = offsets < np.maximum(np.r_[current.end_phy_offset, reached[:-1]], current.end_phy_offset)
        stop = int(np.argmax(skipped)) if skipped.any() else len(offsets)
        sums = np.cumsum(keys[row : row + stop])
        room = self.entries_per_file - current.next_entry
        fitting = int(np.searchsorted(sums, room, side="left")) + 1  # with the record that fills or overflows it
        count = min(fitting, stop)
        added = int(sums[count - 1]) if count else 0
        self.entries_added += added
        with_keys = np.flatnonzero(keys[row : row + count])
        if len(with_keys):
            last = row + int(with_keys[-1])
            end, time = int(table.own_phy_offset[last]), int(table.store_timestamp_ms[last])
            overflow = max(added - room, 0)
            if added - overflow:
                current.next_entry += added - overflow
                current.end_phy_offset, current.end_timestamp_ms = end, time
            while overflow:  # one record's keys may end in two files
                current = self._new_file()
                part = min(overflow, self.entries_per_file - current.next_entry)
                current.next_entry += part
                overflow -= part
                current.end_phy_offset, current.end_timestamp_ms = end, time
        return row + count

    def _new_file(self) -> IndexFileState:
        """Make a new file, which starts with the end of the file before it if that is positive."""
        before = self.files[-1] if self.files else IndexFileState(None)
        self.files.append(IndexFileState(None, max(before.end_timestamp_ms, 0), max(before.end_phy_offset, 0)))
        return self.files[-1]


def read_header(store: Store, path: Path) -> IndexFileState:
    """Return the header of an index file; the broker's mapping extends a shorter file with zeros."""
    data = store.cache.read(path, 0, index_layout.HEADER.size_bytes).ljust(index_layout.HEADER.size_bytes, b"\0")
    header = index_layout.HEADER.read(data)
    return IndexFileState(
        path.name, header["end_timestamp_ms"], header["end_phy_offset"], max(header["index_count"], FIRST_ENTRY)
    )


def entries_per_file(store: Store) -> int:
    """Return the configured or proven number of places of an index file, else a broker's default.

    It decides only when a start makes a new file.
    """
    sizes = index_sizes(store).sizes
    return sizes.entries if sizes else store.settings.index_entries or index_layout.DEFAULT_ENTRIES
