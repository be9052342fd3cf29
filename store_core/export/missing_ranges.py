"""What earlier commits of an export lack of a log: kept with the last one, so that each later one tells of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from store_core.check.log import MISSING, UNREADABLE
from store_core.errors import UnreadableError
from store_core.export.dest.state import HOLE, StoreState, Told
from store_core.export.splits.plan import Split, segments_of
from store_core.findings import Finding, finding
from store_core.scan.log import ScanOptions, scan_segment
from store_core.scan.tombstone_rows import filler_rows, tombstone_rows
from store_core.storage.store import Store

_KINDS: Final = {UNREADABLE: "unreadable", MISSING: HOLE}
_LOOKED_AT_BYTES: Final = 64 << 10
_LOOK: Final = ScanOptions(window_size_bytes=_LOOKED_AT_BYTES, read_ahead=False)


def lacks_of(findings: Sequence[Finding], next_phy_offset: int) -> tuple[Told, ...]:
    """What could not be read, or had no file, in front of where the next commit goes on: none will try again."""
    return tuple(
        Told(found.phy_offset, found.size_bytes or 0, _KINDS[found.code])
        for found in findings
        if found.code in _KINDS and found.phy_offset is not None and found.phy_offset < next_phy_offset
    )


def still_missing(store: Store, last: StoreState | None) -> Iterator[Finding]:
    """Of a hole only if there are messages by now: the quarantine table tells of others."""
    for told in last.lacks if last is not None else ():
        if told.kind != HOLE:
            code, what = UNREADABLE, "could not be read when they were exported, and are missing there"
        elif _has_messages(store, told):
            code = MISSING
            what = "had no file when they were exported; messages are there now, which the export lacks: make it anew, with --overwrite"
        else:
            continue
        yield finding(code, f"{told.size_bytes} bytes {what}", phy_offset=told.phy_offset, size_bytes=told.size_bytes)


def _has_messages(store: Store, told: Told) -> bool:
    """Whether the first bytes of one of a stretch's files hold a message that is no filler of ours."""
    end = told.phy_offset + told.size_bytes
    for segment, segment_end in segments_of(store.log, Split(told.phy_offset, end, exact=True)):
        at = max(told.phy_offset, segment.phy_offset)
        stop = min(at + _LOOKED_AT_BYTES, segment_end, end)
        with suppress(UnreadableError):
            for table in scan_segment(store, segment, _LOOK, at, stop):
                if int(table.messages.sum()) > len({*filler_rows(table), *tombstone_rows(table)}):
                    return True
    return False
