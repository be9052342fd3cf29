"""The checkpoint against the log (store format 8; store behaviour 15, rule 6)."""

from __future__ import annotations

from typing import Final

from store_core.check.log_map import LogMap
from store_core.check.report import Findings
from store_core.codec.times import format_time
from store_core.findings import Severity
from store_core.layout import paths
from store_core.layout.checkpoint import SAFETY_MARGIN_MS
from store_core.read.checkpoint import read_checkpoint
from store_core.storage.databases import runs_under_55
from store_core.storage.store import Store

_QUEUES: Final = ["logics_msg_timestamp_ms"]
_FLUSHED: Final = ("physic_msg_timestamp_ms", *_QUEUES)


def check_checkpoint(
    store: Store, log: LogMap, findings: Findings, *, live: bool = False, starting: bool = False
) -> None:
    """Report times that are not set, times behind the newest record, and offsets behind the log's end.

    A broker takes three seconds off, so less than that does no harm; after a crash (``starting``) the log's torn tail
    explains it, and a broker killed before its first flush that a time is not set. A broker of 5.5 sets the queues' time and offset with
    a flush of all queues, once a minute, so that none of them is old. On a live store the file may be newer than the walk.
    """
    path = store.root / paths.CHECKPOINT
    if path.exists() and not path.is_file():  # said by the layout
        return
    checkpoint = read_checkpoint(store.root)
    for found in checkpoint.findings:
        findings.add(found)
    if any(found.code == "C001" for found in checkpoint.findings) or live:
        return
    newest = format_time(log.largest_store_timestamp_ms)
    for name in ("physic_msg_timestamp_ms", "logics_msg_timestamp_ms", "index_msg_timestamp_ms"):
        value = getattr(checkpoint, name)
        if log.messages and value > log.largest_store_timestamp_ms:
            message = f"{name} is {format_time(value)}, the newest record's store time {newest}"
            harmless = value - SAFETY_MARGIN_MS <= log.largest_store_timestamp_ms
            mild: Severity = "info" if starting else "warning"
            findings.say("C003", message, file=paths.CHECKPOINT, severity=mild if harmless else None)
    if checkpoint.logics_phy_offset and checkpoint.logics_phy_offset >= log.end_phy_offset:
        message = f"logics_phy_offset is {checkpoint.logics_phy_offset}, the log ends at {log.end_phy_offset}"
        findings.say("C003", message, file=paths.CHECKPOINT, severity="warning" if starting else None)
    unset = [n for n in _FLUSHED if not getattr(checkpoint, n)]
    if unset == _QUEUES and not checkpoint.logics_phy_offset and runs_under_55(store):
        unset = []
    if log.largest_store_timestamp_ms and unset and not (checkpoint.findings or store.queues_in_rocksdb):
        text = f"{' and '.join(unset)} not set, the newest record's store time is {newest}"
        findings.say("C005", text, file=paths.CHECKPOINT, severity="info" if starting else None)
    if checkpoint.confirm_phy_offset > store.log.max_phy_offset:
        message = f"confirm_phy_offset is {checkpoint.confirm_phy_offset}, the log ends at {log.end_phy_offset}"
        findings.say("C004", message, file=paths.CHECKPOINT)
