"""List a live store again, for checks while a broker writes, rolls over and deletes files.

A broker writes records first and their entries later; it removes the oldest files of the log first, and then the
files that point there. So queue files are listed before the log: the listed log has the records that they point to,
and lacks those to which no queue file points any more. An error may still come from a read in the middle of a change,
so each one is checked again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Set
from typing import Final

from store_core.check.report import Findings
from store_core.derive.dispatch import Dispatcher, DispatchRules
from store_core.scan.log import ScanOptions, scan_log
from store_core.storage.live_start import Begin
from store_core.storage.store import QueueKey, Store

_LOOKS: Final = 3
_MOST_DOUBTFUL: Final = 64  # queues: a broker is not changing more than these at the same moment
_PAUSE_SECONDS: Final = 0.2  # longer than one change by a broker takes


def store_now(store: Store) -> Store:
    """List the store again. The caller closes the result."""
    now = Store(store.settings)
    _ = now.queues, now.batch_queues, now.ext_queues, now.index_files, now.log
    return now


def first_phy_offset_now(store: Store) -> int:
    """Return the present start of the log; everything before it has expired."""
    return Begin(store.log).phy_offset


def log_reaches(store: Store, phy_offset: int, *, live: bool) -> bool:
    """Return True if the log's files continue after an offset; the files of a live store are listed again."""
    return phy_offset < store.log.max_phy_offset or (live and phy_offset < store.log.relisted().max_phy_offset)


def tags_code_now(store: Store, rules: DispatchRules, phy_offset: int) -> int | None:
    """Return the tags code that the entry of a record needs; None without a record.

    The walk may have read the record before the broker wrote its properties.
    """
    options = ScanOptions(check_crc=False)
    for table in scan_log(store, from_phy_offset=phy_offset, to_phy_offset=phy_offset + 1, options=options):
        rows = Dispatcher(rules).columns(table).rows
        for tags_code in rows["tags_code"][rows["phy_offset"] == phy_offset].tolist():
            return int(tags_code)
    return None


def look_at_queues(
    store: Store,
    keys: Iterable[QueueKey],
    look: Callable[[Store, QueueKey, Findings], None],
    findings: Findings,
    *,
    live: bool,
) -> None:
    """Check queues one by one. Those of a live store are listed again, and only errors that repeat are reported."""
    if not live:
        for key in keys:
            look(store, key, findings)
        return
    codes: dict[QueueKey, Set[str]] = {}  # of the errors in queues that are checked once more
    doubtful = list(keys)
    for number in range(_LOOKS):
        if number:
            time.sleep(_PAUSE_SECONDS)
        is_last = number + 1 == _LOOKS or (number > 0 and len(doubtful) > _MOST_DOUBTFUL)
        still_doubtful: list[QueueKey] = []
        with store_now(store) as now:
            for key in doubtful:
                found = Findings()
                look(now, key, found)
                found = found.also_in(codes[key]) if number else found
                if found.is_serious and not is_last:
                    codes[key] = found.serious_codes
                    still_doubtful.append(key)
                else:
                    findings.join(found)
        doubtful = still_doubtful
        if not doubtful:
            break


def look_at_files(store: Store, look: Callable[[Store], Findings]) -> Findings:
    """Check names and lengths of a live store's files; only errors that repeat are reported."""
    with store_now(store) as now:
        found = look(now)
    for _ in range(_LOOKS - 1):
        if not found.is_serious:
            break
        time.sleep(_PAUSE_SECONDS)
        with store_now(store) as now:
            found = look(now).also_in(found.serious_codes)
    return found
