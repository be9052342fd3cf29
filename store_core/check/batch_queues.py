"""Check batch queues against the log (store format 6.6).

Entries are found by their record, as an entry's place is not its queue offset.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from store_core.check.entries import empty_files
from store_core.check.live_check import log_reaches, look_at_queues
from store_core.check.log_map import LogMap, runs_of
from store_core.check.report import Findings
from store_core.derive.batch import batch_queue_builder, last_generation
from store_core.derive.queues import are_as_built
from store_core.derive.spool import RowsByQueue
from store_core.layout import paths
from store_core.layout.queue import BATCH_ENTRY
from store_core.read.queue import end_of_entries
from store_core.storage.sequence import SegmentSequence
from store_core.storage.store import QueueKey, Store

_CHUNK_ENTRIES: Final = 1 << 15
_FIELDS: Final = (
    ("Q003", "size_bytes", "size"),
    ("Q004", "queue_offset", "queue offset"),
    ("Q005", "tags_code", "tags code"),
    ("Q004", "batch_size", "batch size"),
    ("Q021", "store_timestamp_ms", "store time"),
)
Array = NDArray[Any]


def check_batch_queues(store: Store, rows: RowsByQueue, log: LogMap, findings: Findings, *, live: bool = False) -> None:
    """Check all batch queues, with 8 bytes an entry in memory. ``live``: a broker may be writing."""
    keys = {key for key in rows.queue_keys() if key.topic in rows.rules.batch_topics}

    def check_queue(now: Store, key: QueueKey, found: Findings) -> None:
        _BatchCheck(now, key, rows, log.from_offset(now.log.min_phy_offset), found, live=live).run()

    look_at_queues(store, sorted(keys | set(store.batch_queues)), check_queue, findings, live=live)


class _BatchCheck:
    def __init__(
        self, store: Store, key: QueueKey, rows: RowsByQueue, log: LogMap, findings: Findings, *, live: bool
    ) -> None:
        self.store, self.key, self.rows, self.log, self.findings = store, key, rows, log, findings
        self.live = live
        self.files = store.batch_queues.get(key)

    def run(self) -> None:
        if self.files is not None and self.rows.count(self.key):
            builder = batch_queue_builder(self.store, self.rows, self.log.min_phy_offset)
            if are_as_built(self.store, self.files, builder.files(self.key)):
                return
        self._explain()

    def _explain(self) -> None:
        first, phy_offsets = self._phy_offsets()
        order = np.argsort(phy_offsets, kind="stable")
        ascending = phy_offsets[order]
        explained = np.zeros(len(phy_offsets), bool)
        start = last_generation(self.rows.rows(self.key))
        missing = 0
        for rows in self.rows.rows(self.key, start):
            place = np.searchsorted(ascending, rows["phy_offset"])
            found = place < len(ascending)
            found[found] = ascending[place[found]] == rows["phy_offset"][found]
            slots = order[place[found]]
            explained[slots] = True
            absent = ~found & (rows["phy_offset"] >= self.log.min_phy_offset)
            missing += int(np.count_nonzero(absent))
            for begin, stop in runs_of(absent):
                self._report("Q006", f"{stop - begin} records without an entry", rows, begin)
            self._compare(rows[found], first + slots)
        expired = (phy_offsets >= 0) & (phy_offsets < self.log.min_phy_offset)
        beyond = phy_offsets >= self.log.end_phy_offset
        for begin, stop in runs_of(~explained & ~expired & ~beyond):
            self._report_slots(
                "Q001", first + begin, stop - begin, int(phy_offsets[begin]), "to where no record starts"
            )
        for begin, stop in runs_of(~explained & beyond):
            if self.live and stop == len(phy_offsets) and log_reaches(self.store, int(phy_offsets[begin]), live=True):
                continue  # newer than the walk over the log
            self._report_slots(
                "Q011", first + begin, stop - begin, int(phy_offsets[begin]), "beyond the end of the log"
            )
        self._report_empty_files(first + len(phy_offsets) + missing)

    def _report_empty_files(self, end: int) -> None:
        """Report empty files at or after ``end``: the place after the last entry, counting missing ones."""
        for segment in empty_files(self.files, end, BATCH_ENTRY.size_bytes) if self.files is not None else ():
            self.findings.say(
                "Q017",
                "a file of zeros after the queue's end",
                file=self.store.relative(segment.path),
                size_bytes=segment.size_bytes,
                topic=self.key.topic,
                queue_id=self.key.queue_id,
            )

    def _phy_offsets(self) -> tuple[int, Array]:
        """Return the first place, and the phy_offset of each entry from there."""
        if self.files is None:
            return 0, np.empty(0, np.int64)
        first = self.files.min_phy_offset // BATCH_ENTRY.size_bytes
        end = end_of_entries(self.files, BATCH_ENTRY) // BATCH_ENTRY.size_bytes
        parts = [
            self._read(self.files, at, min(_CHUNK_ENTRIES, end - at))["phy_offset"].astype(np.int64)
            for at in range(first, end, _CHUNK_ENTRIES)
        ]
        return first, np.concatenate(parts) if parts else np.empty(0, np.int64)

    @staticmethod
    def _read(files: SegmentSequence, first: int, count: int) -> Array:
        found = np.zeros(count, BATCH_ENTRY.dtype)
        size = BATCH_ENTRY.size_bytes
        done = 0
        while done < count:
            data = files.read((first + done) * size, (count - done) * size)
            whole = len(data) // size
            if not whole:
                break
            found[done : done + whole] = np.frombuffer(data, BATCH_ENTRY.dtype, whole)
            done += whole
        return found

    def _compare(self, rows: Any, slots: Array) -> None:
        if self.files is None or not len(rows):
            return
        low = int(slots.min())
        entries = self._read(self.files, low, int(slots.max()) + 1 - low)[slots - low]
        for code, name, words in _FIELDS:
            for begin, stop in runs_of(entries[name] != rows[name]):
                self._report(code, f"{stop - begin} entries with a {words} that is not the record's", rows, begin)

    def _report(self, code: str, message: str, rows: Any, place: int) -> None:
        self.findings.say(
            code,
            message,
            file=f"{paths.BATCHCONSUMEQUEUE}/{self.key.topic}/{self.key.queue_id}",
            phy_offset=int(rows["phy_offset"][place]),
            topic=self.key.topic,
            queue_id=self.key.queue_id,
            queue_offset=int(rows["queue_offset"][place]),
        )

    def _report_slots(self, code: str, slot: int, count: int, phy_offset: int, where: str) -> None:
        self.findings.say(
            code,
            f"{count} entries from place {slot} on pointing {where}",
            file=f"{paths.BATCHCONSUMEQUEUE}/{self.key.topic}/{self.key.queue_id}",
            phy_offset=phy_offset,
            size_bytes=count * BATCH_ENTRY.size_bytes,
            topic=self.key.topic,
            queue_id=self.key.queue_id,
        )
