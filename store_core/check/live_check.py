"""What a store looks like by now, for a check beside a broker that writes, rolls over and deletes files meanwhile.

A broker writes records first and entries behind them, and removes the oldest files of the log first and then those that lead there.
So queue files are listed in front of the log: what they lead to is in it, and what they no longer lead to is not. What seems wrong all
the same may have been read in the midst of a change, so it is looked at again.
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
_MOST_DOUBTFUL: Final = 64  # queues: where more seem wrong twice, nobody is in the midst of them all
_PAUSE_SECONDS: Final = 0.2  # longer than a broker takes to go on with what it is in the midst of


def store_now(store: Store) -> Store:
    """The store listed anew. Close it as any other."""
    now = Store(store.settings)
    _ = now.queues, now.batch_queues, now.ext_queues, now.index_files, now.log
    return now


def first_phy_offset_now(store: Store) -> int:
    """Where the log begins by now; what lies in front has expired."""
    return Begin(store.log).phy_offset


def log_reaches(store: Store, phy_offset: int, *, live: bool) -> bool:
    """Whether the log's files go on behind an offset: of a live store, by now."""
    return phy_offset < store.log.max_phy_offset or (live and phy_offset < store.log.relisted().max_phy_offset)


def tags_code_now(store: Store, rules: DispatchRules, phy_offset: int) -> int | None:
    """The tags code that a record's entry is to have; None where there is none. A record may be walked over before its properties
    have been written."""
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
    """Look at queues, one by one. Of a live store they are listed anew, and what seems wrong with one has to seem so each time."""
    if not live:
        for key in keys:
            look(store, key, findings)
        return
    codes: dict[QueueKey, Set[str]] = {}  # of what seems wrong with those that are to be looked at once more
    doubtful = list(keys)
    for number in range(_LOOKS):
        if number:
            time.sleep(_PAUSE_SECONDS)
        is_last = number + 1 == _LOOKS or (number > 0 and len(doubtful) > _MOST_DOUBTFUL)
        left: list[QueueKey] = []
        with store_now(store) as now:
            for key in doubtful:
                found = Findings()
                look(now, key, found)
                found = found.also_in(codes[key]) if number else found
                if found.is_serious and not is_last:
                    codes[key] = found.serious_codes
                    left.append(key)
                else:
                    findings.join(found)
        doubtful = left
        if not doubtful:
            break


def look_at_files(store: Store, look: Callable[[Store], Findings]) -> Findings:
    """What the files of a live store tell by their names and lengths: what seems wrong has to seem so each time."""
    with store_now(store) as now:
        told = look(now)
    for _ in range(_LOOKS - 1):
        if not told.is_serious:
            break
        time.sleep(_PAUSE_SECONDS)
        with store_now(store) as now:
            told = look(now).also_in(told.serious_codes)
    return told
