"""Open a store as a read-only view of its root folder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from sys import intern
from typing import Final, NamedTuple, Self

from store_core.closing import Closing
from store_core.errors import NotAStoreError
from store_core.layout import paths
from store_core.layout.paths import parse_segment_name
from store_core.layout.queue import ENTRY
from store_core.storage.files import FileCache, file_cache, unreadable
from store_core.storage.remote_path import RemotePath, is_remote, names_of, path_of, scan_folder
from store_core.storage.sequence import Segment, SegmentSequence, Stray, derive_file_size_bytes, list_folder
from store_core.storage.settings import Settings, load_settings

_MOST_MADE: Final = 1024


class QueueKey(NamedTuple):
    """The topic and number of a queue."""

    topic: str
    queue_id: int


class _Listed(NamedTuple):
    """The listing of a queue's folder: names, lengths and modification times of its files, and its other entries."""

    files: tuple[tuple[str, int, int], ...]
    strays: tuple[Stray, ...]

    def segments(self, folder: Path) -> list[Segment]:
        found = ((name, parse_segment_name(name), size, mtime_ns) for name, size, mtime_ns in self.files)
        return [Segment(folder / name, at, size, mtime_ns) for name, at, size, mtime_ns in found if at is not None]


class QueueFolders(Mapping[QueueKey, SegmentSequence]):
    """Every queue of a tree, in order. A queue's sequence is made when the caller asks for it, and only some are kept.

    Raises FailedError if a folder cannot be listed.
    """

    def __init__(
        self,
        top: Path,
        folders: Iterable[tuple[QueueKey, Path]],
        cache: FileCache,
        file_size_bytes: int | None,
        unit_bytes: int,
    ) -> None:
        self._top, self._cache = top, cache
        listed: dict[QueueKey, _Listed] = {}
        for key, folder in folders:
            segments, strays = list_folder(folder)
            files = tuple((intern(s.name), s.size_bytes, s.mtime_ns) for s in segments)
            listed[key] = _Listed(files, tuple(strays))
        self._listed = dict(sorted(listed.items()))
        # The file size is one setting for all queues, so it is derived from all of them.
        self._file_size_bytes = file_size_bytes or derive_file_size_bytes(
            (queue.segments(top) for queue in self._listed.values()), unit_bytes
        )
        self._made = lru_cache(maxsize=_MOST_MADE)(self._make)

    def _make(self, key: QueueKey) -> SegmentSequence:
        folder, listed = self._top.joinpath(key.topic, str(key.queue_id)), self._listed[key]
        contents = listed.segments(folder), list(listed.strays)
        return SegmentSequence([folder], self._cache, self._file_size_bytes, listed=contents)

    def __getitem__(self, key: QueueKey) -> SegmentSequence:
        if key not in self._listed:  # callers also ask for lost queues
            raise KeyError(key)
        return self._made(key)

    def __iter__(self) -> Iterator[QueueKey]:
        return iter(self._listed)

    def __len__(self) -> int:
        return len(self._listed)

    def __contains__(self, key: object) -> bool:
        return key in self._listed


_PROOFS = (paths.COMMITLOG, paths.CONSUMEQUEUE, paths.CHECKPOINT)
_NAME_IT = "name the folder that holds commitlog/"


class Store(Closing):
    """The parts of a store. Opening lists only the root; each part is listed on first use.

    All reads are read-only; nothing is locked, created or touched.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.root = settings.root
        self.cache = file_cache((settings.root, *settings.commitlog_paths))

    @classmethod
    def open(cls, path: Path | str, settings: Settings | None = None) -> Self:
        """Open a store root. Raises NotAStoreError if the path is missing, no folder, or holds no store."""
        root = path_of(path)
        settings = settings or load_settings(root=root)
        if isinstance(settings.root, RemotePath):
            settings.root.forget()
            if not settings.root.listed():
                to_do = f"{_NAME_IT}, in a bucket that is there"
                raise NotAStoreError("no such bucket, or nothing in that folder", path=str(root), to_do=to_do)
        elif not settings.root.exists():
            raise NotAStoreError("no such folder", path=str(root), to_do=_NAME_IT)
        elif not settings.root.is_dir():
            raise NotAStoreError("not a folder", path=str(root), to_do=_NAME_IT)
        try:
            entries = set(names_of(settings.root))
        except OSError as error:
            raise unreadable(settings.root, error) from error
        if not entries.intersection(_PROOFS) and not any(p.is_dir() for p in settings.commitlog_paths):
            raise NotAStoreError(
                "not a RocketMQ store: no commitlog, consumequeue or checkpoint in it",
                path=str(root),
                to_do="name the folder above it" if _looks_like_a_store(settings.root.parent) else _NAME_IT,
            )
        return cls(settings)

    def close(self) -> None:
        self.cache.close()

    def with_log(self, log: SegmentSequence) -> Store:
        """Return another view of the store that reads ``log`` instead. Close it as any other."""
        view = Store(self.settings)
        view.__dict__["log"] = log
        return view

    def relative(self, path: Path) -> str:
        """Return a path as findings and plans name it: relative if it lies under the root, else in full."""
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)

    @property
    def aborted(self) -> bool:
        """True if ``abort`` exists: a broker runs, or the last one did not stop cleanly. For brokers a dangling link does not exist."""
        return (self.root / paths.ABORT).exists()

    @cached_property
    def log(self) -> SegmentSequence:
        """The commit log as one sequence over all of its folders."""
        settings = self.settings
        return SegmentSequence(
            settings.commitlog_paths, self.cache, settings.segment_size_bytes, choices=settings.choices
        )

    @cached_property
    def queues_in_rocksdb(self) -> bool:
        """True if a RocksDB database holds the queues instead of files."""
        return bool(self.queue_database) and not any(True for _ in self._queue_folders(paths.CONSUMEQUEUE))

    @cached_property
    def queue_database(self) -> str:
        """The folder of the RocksDB database that holds queues, instead of files or in addition; "" if there is none."""
        folders = (name for name in paths.QUEUE_DATABASES if (self.root / name / paths.ROCKSDB_MARK).is_file())
        return next(folders, "")

    @cached_property
    def queues(self) -> Mapping[QueueKey, SegmentSequence]:
        """Every ordinary queue, by topic and queue id, sorted."""
        return self._load_tree(paths.CONSUMEQUEUE, self.settings.queue_file_size_bytes)

    def negative_queues(self, tree: str) -> Mapping[QueueKey, SegmentSequence]:
        """Return the queues of a tree with a negative number, which get no record but are loaded by a broker."""
        usual = self.queues if tree == paths.CONSUMEQUEUE else self.batch_queues
        size = next((queue.file_size_bytes for queue in usual.values()), 0)
        found = {}
        for stray in self.queue_strays:
            number = paths.parse_negative_queue_id(stray.path.name) if stray.is_folder else None
            if number is not None and stray.path.parent.parent == self.root / tree:
                key = QueueKey(stray.path.parent.name, number)
                found[key] = SegmentSequence([stray.path], self.cache, size or None)
        return found

    @cached_property
    def batch_queues(self) -> Mapping[QueueKey, SegmentSequence]:
        """Every batch queue (46-byte entries)."""
        return self._load_tree(paths.BATCHCONSUMEQUEUE, self.settings.batch_queue_file_size_bytes)

    @cached_property
    def ext_queues(self) -> Mapping[QueueKey, SegmentSequence]:
        """ConsumeQueueExt files by queue."""
        return self._load_tree(paths.CONSUMEQUEUE_EXT, self.settings.ext_file_size_bytes)

    @cached_property
    def compaction_files(self) -> Mapping[QueueKey, Sequence[Segment]]:
        """The files of each compacted queue's log, in order. They are no sequence, for each compaction starts at 0 again."""
        return {key: list_folder(folder)[0] for key, folder in sorted(self._queue_folders(paths.COMPACTION_LOG))}

    def queue(self, topic: str, queue_id: int) -> SegmentSequence | None:
        """Return one queue without listing all of them; None if its folder is missing."""
        found = self.queue_alone(topic, queue_id)
        # A single file may be cut, so the size is derived from all queues.
        if found is not None and self.settings.queue_file_size_bytes is None and len(found.segments) < 2:
            return self.queues.get(QueueKey(topic, queue_id))
        return found

    def queue_alone(self, topic: str, queue_id: int) -> SegmentSequence | None:
        """Return one queue as ``queue``, for callers that only read its files. The file size is wrong if its only file was cut."""
        if "queues" in self.__dict__:
            return self.queues.get(QueueKey(topic, queue_id))
        if (
            "\0" in topic
            or "/" in topic
            or topic in ("", ".", "..")
            or len(os.fsencode(topic)) > paths.LONGEST_NAME_BYTES
        ):
            return None
        folder = self.root / paths.CONSUMEQUEUE / topic / str(queue_id)
        return SegmentSequence([folder], self.cache, self.settings.queue_file_size_bytes) if folder.is_dir() else None

    @cached_property
    def index_files(self) -> tuple[Path, ...]:
        """The index files in order of their names; ``index_strays`` has the other entries."""
        try:
            return tuple(p for p in self._index_entries if p.name.isdecimal() and p.is_file())
        except OSError as error:
            raise unreadable(self.root / paths.INDEX, error) from error

    @cached_property
    def index_strays(self) -> tuple[Path, ...]:
        """The entries of the index folder that are no index files."""
        return tuple(p for p in self._index_entries if p not in self.index_files)

    @cached_property
    def _index_entries(self) -> list[Path]:
        folder = self.root / paths.INDEX
        try:
            return sorted(folder / name for name in names_of(folder))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise unreadable(folder, error) from error

    @cached_property
    def queue_strays(self) -> tuple[Stray, ...]:
        """The entries in the trees of queues that are no queue: files there, and folders that brokers ignore."""
        strays = [
            Stray(path, is_folder, 0)
            for tree in paths.QUEUE_TREES
            for key, path, is_folder in self._tree_entries(tree)
            if key is None
        ]
        return tuple(strays)

    def _queue_folders(self, tree: str) -> Iterator[tuple[QueueKey, Path]]:
        for key, path, _ in self._tree_entries(tree):
            if key is not None:
                yield key, path

    def _tree_entries(self, tree: str) -> Iterator[tuple[QueueKey | None, Path, bool]]:
        """Yield the entries in a tree's topics and next to the topics: queue, path, is a folder. The queue may be None.

        A broker parses the queue's number from the folder's name, then looks for the files in the folder that it would have
        made for it: `007` is no folder of queue 7, and a topic whose name is not UTF-8 has no folder for Java.
        """
        top = self.root / tree
        if isinstance(top, RemotePath):
            top.list_below()
        for topic, is_folder in _entries(top):
            if not is_folder or not _is_utf8(topic.name):
                yield None, topic, is_folder
                continue
            for queue, is_queue_folder in _entries(topic):
                queue_id = paths.parse_queue_id(queue.name) if is_queue_folder else None
                yield None if queue_id is None else QueueKey(topic.name, queue_id), queue, is_queue_folder

    def _load_tree(self, tree: str, configured: int | None) -> QueueFolders:
        unit_bytes = ENTRY.size_bytes if tree == paths.CONSUMEQUEUE else 1  # the others' sizes are not rounded
        return QueueFolders(self.root / tree, self._queue_folders(tree), self.cache, configured, unit_bytes)


def _looks_like_a_store(folder: Path) -> bool:
    """Return True if a folder looks like a store, so that its subfolder was named by mistake. A checkpoint alone proves nothing."""
    if is_remote(folder):
        return False
    with_queues = (folder / paths.CHECKPOINT).is_file() and (folder / paths.CONSUMEQUEUE).is_dir()
    return with_queues or (folder / paths.COMMITLOG).is_dir()


def _entries(top: Path) -> list[tuple[Path, bool]]:
    """Return the paths in a folder, sorted, and whether each is a folder; none if the folder is missing."""
    try:
        with scan_folder(top) as entries:
            return sorted((top / e.name, e.is_dir()) for e in entries)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise unreadable(top, error) from error


def _is_utf8(name: str) -> bool:
    """Return True if a file name is UTF-8; Java decodes other bytes to U+FFFD and then finds no such file."""
    try:
        return os.fsencode(name) == name.encode()
    except UnicodeEncodeError:
        return False
