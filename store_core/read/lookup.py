"""Queries by key, for who asks a store much: index and log stay mapped, and the kernel goes through both in one call."""

from __future__ import annotations

from typing import Final

from store_core.closing import Closing
from store_core.codec.record import Message
from store_core.findings import Finding
from store_core.kernel.keys import KeyFinder, PlainKeyFinder, key_finder
from store_core.read.index import MAX_ANSWER
from store_core.read.index_sizes import index_sizes
from store_core.read.maps import LogMaps, map_file
from store_core.read.query import KeyQuery
from store_core.storage.store import Store

_NOT_FOR_THE_KERNEL: Final = (UnicodeEncodeError, OverflowError)


class KeyLookup(Closing):
    """What a broker's index answers, without what only shares the hash: as ``records_by_index``, over maps.

    Opening has the system map what it holds of the files in its memory; mapped pages count as resident. A disk that fails
    under a map, or a file that is cut, ends the process, so commands do not use this. Raises FailedError where a file
    cannot be read. Not for use by several threads at once.
    """

    def __init__(self, store: Store) -> None:
        told = index_sizes(store)
        self.findings: tuple[Finding, ...] = told.findings
        self._maps = LogMaps(at_once=True)
        self._segments = store.log.segments
        paths = reversed(store.index_files) if told.sizes else ()
        files = [map_file(path, at_random=True, at_once=True) for path in paths]
        spans = [(segment.phy_offset, segment.end_phy_offset) for segment in self._segments]
        slots = told.sizes.slots if told.sizes else 1  # which no file is asked for
        self._parts = files, slots, spans, lambda number: self._maps.of(self._segments[number])
        self._finder: KeyFinder = key_finder(*self._parts)

    def close(self) -> None:
        """Let go of the files: from now on nothing is found."""
        self._parts = [], self._parts[1], [], self._parts[3]
        self._finder = PlainKeyFinder(*self._parts)
        self._maps.close()

    def records(self, query: KeyQuery) -> list[tuple[int, bytes]]:
        """(offset, record) of each, in log order."""
        if query.limit > MAX_ANSWER:
            query = query._replace(limit=MAX_ANSWER)
        try:
            return self._finder.records(query)
        except _NOT_FOR_THE_KERNEL:
            return PlainKeyFinder(*self._parts).records(query)

    def messages(self, query: KeyQuery) -> list[Message]:
        """The messages, in log order."""
        if query.limit > MAX_ANSWER:
            query = query._replace(limit=MAX_ANSWER)
        try:
            return self._finder.messages(query)
        except _NOT_FOR_THE_KERNEL:
            return PlainKeyFinder(*self._parts).messages(query)
