"""Build the checkpoint of a log whose queues and index are complete (store format 8; store behaviour 15, rule 6)."""

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
    """Return the whole file.

    Fields that only later releases write keep their values (0 if not written), the confirmed offset at most the last record.
    The queues' offset is set with their time if ``with_queue_offset`` (a store of 5.5) or if the file has one: a broker of 5.5
    uses it, all others ignore it.

    Args:
        existing: the present file's bytes, or none.
        last_store_timestamp_ms: store time of the last record, 0 without records.
        last_phy_offset: start of the last record, 0 without records.
        index_end_timestamp_ms: end time of the newest full index file, 0 if none is full.
    """
    fields = CHECKPOINT.read(existing[: CHECKPOINT.size_bytes].ljust(CHECKPOINT.size_bytes, b"\0"))
    fields["physic_msg_timestamp_ms"] = fields["logics_msg_timestamp_ms"] = last_store_timestamp_ms
    fields["index_msg_timestamp_ms"] = index_end_timestamp_ms
    fields["master_flushed_offset"] = max(fields["master_flushed_offset"], 0)
    fields["confirm_phy_offset"] = min(max(fields["confirm_phy_offset"], 0), last_phy_offset)
    if with_queue_offset or fields["logics_phy_offset"]:
        fields["logics_phy_offset"] = last_phy_offset
    return CHECKPOINT.struct.pack(*fields.values()).ljust(FILE_SIZE_BYTES, b"\0")
