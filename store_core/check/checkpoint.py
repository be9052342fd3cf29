"""The checkpoint against the log (store format 8; store behaviour 15, rule 6)."""

from __future__ import annotations

from store_core.check.log_map import LogMap
from store_core.check.report import Findings
from store_core.layout import paths
from store_core.read.checkpoint import read_checkpoint
from store_core.storage.store import Store


def check_checkpoint(store: Store, log: LogMap, findings: Findings, *, live: bool = False) -> None:
    """Times behind the newest record, and offsets behind the log's end. On a live store the file may be newer than the walk."""
    checkpoint = read_checkpoint(store.root)
    for found in checkpoint.findings:
        findings.add(found)
    if any(found.code == "C001" for found in checkpoint.findings) or live:
        return
    for name in ("physic_msg_timestamp_ms", "logics_msg_timestamp_ms", "index_msg_timestamp_ms"):
        value = getattr(checkpoint, name)
        if log.messages and value > log.largest_store_timestamp_ms:
            message = f"{name} is {value}, the newest record's store time {log.largest_store_timestamp_ms}"
            findings.say("C003", message, file=paths.CHECKPOINT)
    if checkpoint.confirm_phy_offset > store.log.max_phy_offset:
        message = f"confirm_phy_offset is {checkpoint.confirm_phy_offset}, the log ends at {log.end_phy_offset}"
        findings.say("C004", message, file=paths.CHECKPOINT)
