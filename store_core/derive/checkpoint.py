"""The right checkpoint for a log whose queues and index are complete (store format 8; store behaviour 15, rule 6)."""

from __future__ import annotations

from store_core.layout.checkpoint import CHECKPOINT, FILE_SIZE_BYTES


def rebuilt_checkpoint(
    existing: bytes,
    *,
    last_store_timestamp_ms: int,
    last_phy_offset: int,
    index_end_timestamp_ms: int = 0,
    with_queue_offset: bool = False,
) -> bytes:
    """The whole file. ``existing`` is what stood there, or nothing.

    ``last_*`` are the last record's store time and start (0 without records); ``index_end_timestamp_ms`` is the end time
    of the newest full index file, 0 if none is full. What only later generations write is kept as it stood (0 where it
    was not written), the confirmed offset not beyond the last record. The queues' offset goes with their time, where ``with_queue_offset``
    (the store is 5.5's) or one stands: a broker of 5.5 goes by it, all others leave it alone.
    """
    fields = CHECKPOINT.read(existing[: CHECKPOINT.size_bytes].ljust(CHECKPOINT.size_bytes, b"\0"))
    fields["physic_msg_timestamp_ms"] = fields["logics_msg_timestamp_ms"] = last_store_timestamp_ms
    fields["index_msg_timestamp_ms"] = index_end_timestamp_ms
    fields["master_flushed_offset"] = max(fields["master_flushed_offset"], 0)
    fields["confirm_phy_offset"] = min(max(fields["confirm_phy_offset"], 0), last_phy_offset)
    if with_queue_offset or fields["logics_phy_offset"]:
        fields["logics_phy_offset"] = last_phy_offset
    return CHECKPOINT.struct.pack(*fields.values()).ljust(FILE_SIZE_BYTES, b"\0")
