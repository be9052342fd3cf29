"""Define the input and the result of an append to the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from store_core.layout import record


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record that has passed a broker's checks, without its offsets and store time.

    ``properties`` are written in their order, ``body`` unchanged. Hosts are stored bytes (``codec.hosts``).
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

    @property
    def transaction(self) -> int:
        return self.sys_flag & record.TRANSACTION_MASK


@dataclass(frozen=True, slots=True)
class Stored:
    """The place of a stored record."""

    topic: str
    queue_id: int
    queue_offset: int
    phy_offset: int
    size_bytes: int
    store_timestamp_ms: int
    offset_msg_id: str
