"""Check times of index entries and headers against the store times of the records (store format 7.1, 7.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from store_core.check.index_files import FileTimes, IndexFileView
from store_core.check.report import Findings

Array = NDArray[Any]
_MS_PER_SECOND: Final = 1000
_LARGEST_SECONDS: Final = int(np.iinfo(np.int32).max)


class IndexTimes:
    """Compares the times of entries with their records, in order, a window at a time.

    An entry's time is relative to its file's start. A broker sets that only after the first entry: the first entry is
    relative to the end of the previous file, and the very first entry of a store has no time.
    """

    def __init__(self, views: Sequence[IndexFileView]) -> None:
        self._views = views
        self._ends = np.cumsum([view.entries for view in views], dtype=np.int64)
        self.files = [FileTimes() for _ in views]

    def add(self, number: int, entries: Array, stored: Array, *, complete: bool, is_first: bool = False) -> None:
        """Compare entries index.ENTRY[n] from ``number``, counted over all files from 0, with store times i64[n], ms.

        A store time of 0 is unknown. ``complete``: no entry is missing between these; ``is_first``: the first of them
        is for the first key of the store's life.
        """
        at = 0
        while at < len(entries):
            place = int(np.searchsorted(self._ends, number + at, side="right"))
            before = int(self._ends[place - 1]) if place else 0
            stop = min(len(entries), int(self._ends[place]) - number)
            first = number + at - before
            part, times = entries[at:stop], stored[at:stop]
            if first == 0:
                self.files[place].begin_ms = max(int(times[0]), 0)
                if not self._fits_seed(place, part, times, exact=complete and at > 0, is_first=is_first and at == 0):
                    self._note_wrong(place, 0, part, np.ones(1, bool))
                part, times, first = part[1:], times[1:], 1
            self._compare(place, first, part, times)
            if stop + number == self._ends[place]:
                self.files[place].end_ms = max(int(stored[stop - 1]), 0)
            at = stop

    def end(self, findings: Findings) -> None:
        """Report the files with entries whose times differ from their records'."""
        for view, times in zip(self._views, self.files, strict=True):
            if not times.wrong:
                continue
            number = times.first_wrong + 1
            many = f"{times.wrong} entries are not dated as their records, the first of them entry {number}"
            text = f"entry {number} is not dated as its record" if times.wrong == 1 else many
            findings.say("I010", text, file=view.name, phy_offset=times.wrong_phy_offset)

    def _compare(self, place: int, first: int, entries: Array, stored: Array) -> None:
        begin_ms = self.files[place].begin_ms or self._views[place].header.begin_timestamp_ms
        rest_ms = entries["seconds"].astype(np.int64)
        rest_ms *= -_MS_PER_SECOND
        rest_ms += stored
        rest_ms -= begin_ms
        if begin_ms > 0 and (rest_ms.view(np.uint64) < _MS_PER_SECOND).all():  # nor negative
            return
        # Clocks are set back, and an entry has no time before its file's start.
        passed = (stored - begin_ms) // _MS_PER_SECOND
        expected = np.clip(passed, 0, _LARGEST_SECONDS) if begin_ms > 0 else 0
        self._note_wrong(place, first, entries, (entries["seconds"] != expected) & (stored > 0))

    def _fits_seed(self, place: int, entries: Array, stored: Array, *, exact: bool, is_first: bool) -> bool:
        """Return True if a file's first entry has a time relative to the end of the previous file.

        Where keys may be missing before it, the previous file may be another one, and less time has passed.
        """
        seed_ms = self.files[place - 1].end_ms if place else 0
        if stored[0] <= 0 or not (seed_ms or is_first):
            return True
        seconds = int(entries["seconds"][0])
        passed = min(max(int(stored[0]) - seed_ms, 0) // _MS_PER_SECOND, _LARGEST_SECONDS) if seed_ms else 0
        return seconds == passed if exact or is_first else 0 <= seconds <= passed

    def _note_wrong(self, place: int, first: int, entries: Array, wrong: NDArray[np.bool_]) -> None:
        count = int(np.count_nonzero(wrong))
        times = self.files[place]
        if count and not times.wrong:
            at = int(wrong.argmax())
            times.first_wrong, times.wrong_phy_offset = first + at, int(entries["phy_offset"][at])
        times.wrong += count
