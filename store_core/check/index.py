"""Check every index entry, its time and every key against the records (store format 7; store behaviour 9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from store_core.check.index_files import CHUNK_ENTRIES, FileTimes, IndexFileView, check_index_file, open_view
from store_core.check.live_check import first_phy_offset_now, log_reaches
from store_core.check.log_map import Intervals, LogMap, runs_of
from store_core.check.report import Findings
from store_core.codec.tags import index_text_hash, index_texts
from store_core.derive.index import IndexStyle, has_index
from store_core.findings import Severity
from store_core.layout import index, paths, record
from store_core.read.index_sizes import IndexSizes
from store_core.read.records import read_message
from store_core.scan.frames import FrameTable
from store_core.storage.remote_path import is_there
from store_core.storage.store import Store

Array = NDArray[Any]
_MS_PER_SECOND: Final = 1000
_LARGEST_SECONDS: Final = int(np.iinfo(np.int32).max)
_SLACK_ENTRIES: Final = 4096  # up to so many surplus entries of a window are found without a search
_HASH_BITS: Final = 31


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


class IndexCheck:
    """The sink of a scan with ``index_keys`` (and ``index_tags`` for an index that has tags). Call ``end`` after the
    scan.

    Without ``sizes`` the files cannot be read, and their content is not checked. Entries are stored in the order of
    their records, so both are walked side by side. Where they differ, the keys of a window's records are searched
    among the entries nearby.
    """

    def __init__(self, store: Store, sizes: IndexSizes | None, style: IndexStyle, findings: Findings) -> None:
        self._store, self._findings = store, findings
        self._style = style
        self.views = [open_view(store, path, sizes) for path in store.index_files] if sizes else []
        self._times = IndexTimes(self.views)
        self._ends = np.cumsum([view.entries for view in self.views], dtype=np.int64)
        self._total = int(self._ends[-1]) if self.views else 0
        self._cursor = self._first_not_expired()
        self._unexplained = Intervals()  # entries, counted over all files, without a record in the scan
        self._missing = Intervals()  # by number among the keys of the whole log
        self._missing_at: dict[int, tuple[int, int]] = {}  # start of a missing run -> its first record and key hash
        self._keys = 0
        self._starting, self._live = False, False

    def add(self, table: FrameTable) -> None:
        """Compare a window's keys with their entries."""
        indexed = table.messages & ((table.sys_flag & record.TRANSACTION_MASK) != record.TRANSACTION_ROLLBACK)
        key_row, key_hash = table.key_row, table.key_hash
        if not indexed.all():
            keep = indexed[key_row]
            key_row, key_hash = key_row[keep], key_hash[keep]
        phy_offset = table.phy_offset[key_row]
        if self.views and len(key_hash):
            present = self._present(table, phy_offset, key_hash, table.store_timestamp_ms[key_row])
            for begin, stop in runs_of(~present):
                self._missing.add(self._keys + begin, self._keys + stop)
                self._missing_at.setdefault(self._keys + begin, (int(phy_offset[begin]), int(key_hash[begin])))
        self._keys += len(key_hash)

    def end(self, log: LogMap, *, starting: bool = False, live: bool = False) -> None:
        """Report entries without a record and keys without an entry; ``log`` is the whole log.

        ``starting``: the store is live, or crashed so that the log's tail may be torn.
        """
        self._starting, self._live = starting, live
        for number, view in enumerate(self.views):
            found = Findings()
            check_index_file(
                self._store,
                view,
                found,
                counts_every_put=self._style.counts_every_put,
                times=self._times.files[number],
                before=self.views[number - 1] if number else None,
                live=live,
            )
            if not live or is_there(view.path):  # else the file has expired meanwhile
                self._findings.join(found)
        self._times.end(self._findings)
        self._unexplained.add(self._cursor, self._total) if self._cursor < self._total else None
        for begin, stop in self._unexplained.sorted():
            for at in range(begin, stop, CHUNK_ENTRIES):
                self._report_unexplained(at, self._read(at, min(CHUNK_ENTRIES, stop - at)), log)
        self._report_missing()
        self._report_absence(log)

    # The walk over records and entries side by side

    def _read(self, first: int, count: int) -> Array:
        """Return entries from number ``first``, counted over all files."""
        parts = []
        while count > 0 and first < self._total:
            place = int(np.searchsorted(self._ends, first, side="right"))
            before = int(self._ends[place - 1]) if place else 0
            size = min(count, int(self._ends[place]) - first)
            parts.append(self.views[place].read(self._store, first - before + 1, size))
            first, count = first + size, count - size
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.zeros(0, index.ENTRY.dtype)

    def _first_not_expired(self) -> int:
        minimum = self._store.log.min_phy_offset
        for at in range(0, self._total, CHUNK_ENTRIES):
            alive = np.flatnonzero(self._read(at, CHUNK_ENTRIES)["phy_offset"] >= minimum)
            if len(alive):
                return at + int(alive[0])
        return self._total

    def _present(self, table: FrameTable, phy_offset: Array, key_hash: Array, stored: Array) -> NDArray[np.bool_]:
        """Return a mask of the keys that have an entry, and move the cursor after this window's entries.

        ``phy_offset``, ``key_hash`` and ``stored``, the store time in ms, have a row for each key.
        """
        entries = self._read(self._cursor, len(key_hash))
        if self._equal(entries, phy_offset, key_hash):
            is_first = not (self._cursor or self._keys or self._store.log.min_phy_offset)
            self._times.add(self._cursor, entries, stored, complete=True, is_first=is_first)
            self._cursor += len(entries)
            return np.ones(len(key_hash), bool)
        start, stop = int(table.phy_offset[0]), table.end_phy_offset
        entries = self._read(self._cursor, len(key_hash) + _SLACK_ENTRIES)
        inside = self._inside(entries, start, stop)
        if not inside.any():
            resumed = self._resume(start)
            if resumed is None:
                return np.zeros(len(key_hash), bool)
            if resumed > self._cursor:
                self._unexplained.add(self._cursor, resumed)
                self._cursor = resumed
            entries = self._read(self._cursor, len(key_hash) + _SLACK_ENTRIES)
            inside = self._inside(entries, start, stop)
            if not inside.any():
                return np.zeros(len(key_hash), bool)
        used = int(np.flatnonzero(inside)[-1]) + 1
        entries, inside = entries[:used], inside[:used]
        wanted = self._joint(phy_offset, key_hash, start)
        given = np.where(inside, self._joint(entries["phy_offset"], entries["key_hash"], start), -1)
        explained = np.isin(given, wanted)
        for begin, end in runs_of(~explained, self._cursor):
            self._unexplained.add(begin, end)
        place = np.minimum(np.searchsorted(phy_offset, entries["phy_offset"]), len(stored) - 1)
        self._times.add(self._cursor, entries, np.where(explained, stored[place], 0), complete=False)
        self._cursor += used
        present: NDArray[np.bool_] = np.isin(wanted, given)
        return present

    @staticmethod
    def _equal(entries: Array, phy_offset: Array, key_hash: Array) -> bool:
        return (
            len(entries) == len(key_hash)
            and bool((entries["phy_offset"] == phy_offset).all())
            and bool((entries["key_hash"] == key_hash).all())
        )

    @staticmethod
    def _inside(entries: Array, start: int, stop: int) -> NDArray[np.bool_]:
        mask: NDArray[np.bool_] = (
            (entries["phy_offset"] >= start) & (entries["phy_offset"] < stop) & (entries["key_hash"] >= 0)
        )
        return mask

    @staticmethod
    def _joint(phy_offset: Array, key_hash: Array, start: int) -> Array:
        """Return offset and hash as one number; the caller leaves out offsets outside the window, which wrap."""
        joint: Array = (phy_offset.astype(np.int64) - start) << _HASH_BITS | key_hash.astype(np.int64)
        return joint

    def _resume(self, start: int) -> int | None:
        """Return the first entry for a record at or after an offset, None without one. The entries must be in order."""
        low, high = self._cursor, self._total
        while low < high:
            middle = (low + high) // 2
            if int(self._read(middle, 1)["phy_offset"][0]) < start:
                low = middle + 1
            else:
                high = middle
        return low if low < self._total else None

    # The findings

    def _report_unexplained(self, at: int, entries: Array, log: LogMap) -> None:
        phy_offset = entries["phy_offset"].astype(np.int64)
        expired = phy_offset < log.min_phy_offset
        expired &= phy_offset >= 0
        lost = ~expired & ((phy_offset < 0) | (phy_offset >= log.end_phy_offset) | log.not_records.contain(phy_offset))
        wrong_key = np.zeros(len(entries), bool)
        places = np.flatnonzero(~expired & ~lost)
        records, of_record = np.unique(phy_offset[places], return_inverse=True)
        keys = [self._hashes(record) for record in records.tolist()]  # each record is read once
        for place, which, key_hash in zip(
            places.tolist(), of_record.tolist(), entries["key_hash"][places].tolist(), strict=True
        ):
            if (hashes := keys[which]) is None:
                lost[place] = True
            elif key_hash not in hashes:
                wrong_key[place] = True
        if self._live and lost.any():
            lost &= (phy_offset < 0) | (phy_offset >= first_phy_offset_now(self._store))
        for code, mask, text in (
            ("I001", lost, "pointing to where no record starts"),
            ("I002", wrong_key, "with a hash that is no key of the record it points to"),
        ):
            for begin, stop in runs_of(mask, at):
                first = int(phy_offset[begin - at])
                is_torn = self._starting and code == "I001" and log.end_phy_offset <= first and stop == self._total
                is_torn = is_torn and log_reaches(self._store, first, live=self._live)
                self._report_entries(code, begin, stop, text, first, "info" if is_torn else None)

    def _hashes(self, phy_offset: int) -> set[int] | None:
        """Return hashes of the keys of the record at an offset; None if no record starts there."""
        message = read_message(self._store.log, phy_offset)
        if message is None:
            return None
        texts = index_texts(message.topic, message.properties, with_tags=self._style.tags)
        return {index_text_hash(text) for text in texts}

    def _has_key(self, phy_offset: int, key_hash: int) -> bool:
        hashes = self._hashes(phy_offset)
        return hashes is None or key_hash in hashes

    def _report_missing(self) -> None:
        """Report keys without an entry, after the index or inside it."""
        covered = max((view.header.end_phy_offset for view in self.views if view.entries), default=-1)
        expired = first_phy_offset_now(self._store) if self._live else 0
        for begin, stop in self._missing.sorted():
            phy_offset, key_hash = self._missing_at[begin]
            if self._live and (phy_offset < expired or not self._has_key(phy_offset, key_hash)):
                continue  # expired, or walked before its properties were written
            count = stop - begin
            keys = "1 key" if count == 1 else f"{count} keys"
            if phy_offset >= covered:
                self._findings.say("I008", f"{keys} of records after the index", phy_offset=phy_offset)
            else:
                view = self._covering(phy_offset)
                where = "although this file covers the record" if view else "and no file covers the record"
                name = view.name if view else None
                self._findings.say("I004", f"{keys} not indexed, {where}", file=name, phy_offset=phy_offset)

    def _report_absence(self, log: LogMap) -> None:
        """Report that there is no index file.

        A broker makes one with the first message that it dispatches, unless its index is disabled.
        """
        if self._store.index_files or not log.messages or not has_index(self._store):
            return
        mild: Severity | None = "info" if self._starting or not self._keys else None
        text = f"there is no index file, while the log holds {log.messages} messages with {self._keys} keys"
        self._findings.say("I011", text, file=paths.INDEX, severity=mild)

    def _covering(self, phy_offset: int) -> IndexFileView | None:
        fits = (
            view_of_file
            for view_of_file in self.views
            if view_of_file.header.begin_phy_offset <= phy_offset <= view_of_file.header.end_phy_offset
        )
        return next((view for view in fits if view.entries), None)

    def _report_entries(
        self, code: str, begin: int, stop: int, text: str, phy_offset: int, severity: Severity | None
    ) -> None:
        place = int(np.searchsorted(self._ends, begin, side="right"))
        number = begin - (int(self._ends[place - 1]) if place else 0) + 1
        entries = f"entry {number}" if stop - begin == 1 else f"{stop - begin} entries from {number} on"
        self._findings.say(
            code, f"{entries} {text}", file=self.views[place].name, phy_offset=phy_offset, severity=severity
        )
