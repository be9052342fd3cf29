"""Queries by key over an index and a log that are in memory; compiled where it could be, and without numpy."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, Protocol

from store_core.codec.record import Message, RecordError, decode_record
from store_core.kernel.compiled import compiled as _compiled
from store_core.kernel.point import Sliceable, index_key_hash, index_offsets

KeyType = Literal["any", "key", "unique"]
MapSegment = Callable[[int], Any]


class Query(Protocol):
    """A tuple of topic, key, what kind of key, begin and end of the time range, ms, and how many entries count at most."""

    def __iter__(self) -> Iterator[Any]: ...

    def carried_by(self, message: Message, /) -> bool:
        """Whether a record really has the key. The compiled finder asks only where ``point.carries_key`` cannot tell it."""


class KeyFinder(Protocol):
    """What an index gives for a key, without what only shares its hash: well-formed records, in log order."""

    def records(self, query: Any, /) -> list[tuple[int, bytes]]:
        """Offset and bytes of each that answers a ``Query``."""

    def messages(self, query: Any, /) -> list[Message]:
        """As ``records``, decoded."""


def key_finder(
    files: Sequence[Any], slots: int, segments: Sequence[tuple[int, int]], map_segment: MapSegment
) -> KeyFinder:
    """``files``: of the index, the newest first, of so many slots each, numpy arrays. ``segments``: start and end of each in
    the log, in order; ``map_segment`` gives one's bytes by its number, a numpy array, and is asked once for each.

    What the compiled one cannot take, it refuses with UnicodeEncodeError (a word that is no text) or OverflowError (a time
    that no file can have): ``PlainKeyFinder`` takes all.
    """
    if _compiled is None:
        return PlainKeyFinder(files, slots, segments, map_segment)
    return _compiled.KeyFinder(files, slots, segments, map_segment, Message)


class PlainKeyFinder:
    """The readable KeyFinder."""

    def __init__(
        self, files: Sequence[Any], slots: int, segments: Sequence[tuple[int, int]], map_segment: MapSegment
    ) -> None:
        self._files: list[Sliceable] = [memoryview(file) for file in files]
        self._slots = slots
        self._starts = [start for start, _ in segments]
        self._ends = [end for _, end in segments]
        self._map_segment = map_segment
        self._mapped: dict[int, memoryview] = {}

    def records(self, query: Query, /) -> list[tuple[int, bytes]]:
        return [(message.phy_offset, data) for message, data in self._found(query)]

    def messages(self, query: Query, /) -> list[Message]:
        return [message for message, _ in self._found(query)]

    def _found(self, query: Query) -> Iterator[tuple[Message, bytes]]:
        topic, key, _, begin_ms, end_ms, limit = query
        offsets = self._offsets(index_key_hash(topic, key), begin_ms, end_ms, limit)
        for message, data in self._well_formed(sorted(set(offsets))):
            if query.carried_by(message):
                yield message, data

    def _offsets(self, key_hash: int, begin_ms: int, end_ms: int, limit: int) -> list[int]:
        """Of all files as many as are asked for; a file that begins before the range is the last (store behaviour 9.2)."""
        found: list[int] = []
        for file in self._files:
            begin, offsets = index_offsets(file, self._slots, key_hash, begin_ms, end_ms, limit - len(found))
            found += offsets
            if begin < begin_ms or len(found) >= limit:
                break
        return found

    def _well_formed(self, offsets: list[int]) -> Iterator[tuple[Message, bytes]]:
        for phy_offset in offsets:
            number = bisect_right(self._starts, phy_offset) - 1
            if number < 0 or phy_offset >= self._ends[number]:
                continue
            if number not in self._mapped:
                self._mapped[number] = memoryview(self._map_segment(number))
            at = phy_offset - self._starts[number]
            try:
                message = decode_record(self._mapped[number], at, phy_offset)
            except RecordError:
                continue
            yield message, bytes(self._mapped[number][at : at + message.size_bytes])
