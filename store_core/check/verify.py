"""verify-crc: every record of the log against its checksum."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from threading import Lock

import numpy as np

from store_core.check.log import LogFindings
from store_core.findings import Finding
from store_core.kernel.codes import FrameCode
from store_core.scan.frames import FrameTable
from store_core.scan.log import ScanOptions, map_segments, nominal_end
from store_core.storage.sequence import Segment
from store_core.storage.store import Store

_BAD_CODES = (FrameCode.BAD_CRC, FrameCode.BAD_PROPERTY_CRC)


@dataclass(slots=True)
class SegmentReport:
    """One segment: how many records its walk found, and how many of them have right and wrong checksums."""

    name: str
    size_bytes: int
    records: int = 0
    bad: int = 0
    found: LogFindings = field(default_factory=LogFindings)

    def as_json(self) -> dict[str, object]:
        """A member of ``segments`` in the command line's contract."""
        return {
            "name": self.name,
            "records": self.records,
            "bytes": self.size_bytes,
            "ok": self.records - self.bad,
            "bad": self.bad,
        }


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """A whole log. ``size_bytes`` is what was walked; ``counts`` tells how many findings of each code there are, listed or not."""

    size_bytes: int
    records: int
    segments: list[SegmentReport]
    findings: list[Finding]
    seconds: float
    counts: Mapping[str, int] = field(default_factory=dict)


def verify_log(
    store: Store, *, jobs: int = 1, live: bool = False, on_progress: Callable[[int], None] | None = None
) -> VerifyReport:
    """Walk the whole log and check every body and property checksum, going on behind damage.

    ``jobs`` segments side by side; memory grows with ``jobs``, not with the store. ``live`` says that a broker may be
    writing, so that a torn tail is not a finding. Raises FailedError where a segment cannot be read.
    """
    started = time.monotonic()
    walked, lock = 0, Lock()

    def progress(size_bytes: int) -> None:
        nonlocal walked
        if on_progress is not None:
            with lock:
                walked += size_bytes
                on_progress(walked)

    def work(segment: Segment, tables: Iterator[FrameTable]) -> SegmentReport:
        return _verify_segment(store, segment, tables, progress)

    findings = LogFindings()
    reports: list[SegmentReport] = []
    end = store.log.min_phy_offset
    options = ScanOptions(properties=False, check_property_crc=True, runs=True)
    for segment, report in map_segments(store, work, options, jobs=jobs):
        if end < segment.phy_offset:
            findings.hole(end, segment.phy_offset - end)
        end = nominal_end(store.log, segment)
        findings.join(report.found)
        reports.append(report)
    size_bytes, records = sum(r.size_bytes for r in reports), sum(r.records for r in reports)
    listed = findings.end(live=live)
    return VerifyReport(size_bytes, records, reports, listed, time.monotonic() - started, findings.counts)


def _verify_segment(
    store: Store, segment: Segment, tables: Iterator[FrameTable], progress: Callable[[int], None]
) -> SegmentReport:
    report = SegmentReport(segment.name, segment.size_bytes)
    file = store.relative(segment.path)
    at = segment.phy_offset
    for table in tables:
        report.records += table.message_count
        report.bad += int(np.count_nonzero(table.messages & np.isin(table.code, _BAD_CODES)))
        report.found.add(table, file)
        progress(table.end_phy_offset - at)
        at = table.end_phy_offset
    return report
