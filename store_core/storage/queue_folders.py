"""Map the queues of a tree to their files, with little memory for each. A broker may have tens of thousands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from sys import intern
from typing import Final, NamedTuple

from store_core.layout.paths import parse_segment_name
from store_core.storage.files import FileCache
from store_core.storage.sequence import Segment, SegmentSequence, Stray, derive_file_size_bytes, list_folder

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
