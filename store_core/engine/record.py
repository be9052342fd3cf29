"""Define the input and the result of an append to the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from store_core.codec.message_id import format_offset_message_id
from store_core.layout import record


class NewRecord(NamedTuple):
    """A record that has passed a broker's checks, without its offsets and store time.

    ``properties`` are written in the release's order, or in theirs if ``is_ordered``; ``body`` unchanged. Hosts are stored bytes (``codec.hosts``).
    """

    topic: str
    queue_id: int
    body: bytes
    properties: Mapping[str, str]
    born_timestamp_ms: int
    born_host: bytes
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    is_ordered: bool = False

    @property
    def transaction(self) -> int:
        return self.sys_flag & record.TRANSACTION_MASK


class Stored(NamedTuple):
    """The place of a stored record. ``is_durable`` False: it is in the log, and no sync that covers it returned in time."""

    topic: str
    queue_id: int
    queue_offset: int
    phy_offset: int
    size_bytes: int
    store_timestamp_ms: int
    raw_store_host: bytes
    is_durable: bool = True

    @property
    def offset_msg_id(self) -> str:
        return format_offset_message_id(self.raw_store_host, self.phy_offset)
