"""Parse and format offset message ids and unique keys (store format, section 12). Both are hex of 16 or 28 bytes, so the length does not distinguish
them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from store_core.codec.hosts import host_text
from store_core.layout import message_id, record

_LONGEST_MONTH_MS: Final = 32 * 86_400_000  # 31 days, and room for a clock change within the month
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class OffsetMessageId:
    """The content of an offset message id: the broker's host (``a.b.c.d:port`` or ``[v6]:port``) and the record's offset."""

    store_host: str
    phy_offset: int


@dataclass(frozen=True, slots=True)
class UniqueKey:
    """A Java client's ``UNIQ_KEY``. ``timestamp_ms`` assumes that the client's clock is UTC, so it may be some hours off."""

    address: str
    process_id: int
    class_loader_hash: int
    timestamp_ms: int
    counter: int


def format_offset_message_id(store_host: bytes, phy_offset: int) -> str:
    """Return upper-case hex of the store host as stored (8 or 20 bytes) and the offset."""
    return (store_host + message_id.OFFSET.struct.pack(phy_offset)).hex().upper()


def parse_offset_message_id(text: str) -> OffsetMessageId | None:
    """Return the content of an id of 32 or 56 hex digits, read as an offset message id; None for any other text."""
    raw = _hex_bytes(text)
    if raw is None:
        return None
    host = raw[: -message_id.OFFSET.size_bytes]
    (phy_offset,) = message_id.OFFSET.struct.unpack(raw[len(host) :])
    return OffsetMessageId(host_text(host), phy_offset) if phy_offset >= 0 else None


def parse_unique_key(text: str, reference_timestamp_ms: int) -> UniqueKey | None:
    """Return the content of a unique key of the Java client's form; None where it cannot have that form.

    The key only has the time since the start of its month. The month is chosen that brings it nearest to the reference (the record's born or store
    time, milliseconds).
    """
    raw = _hex_bytes(text)
    if raw is None:
        return None
    address = raw[: -message_id.UNIQUE_KEY_TAIL.size_bytes]
    tail = message_id.UNIQUE_KEY_TAIL.read(raw, len(address))
    if tail["month_ms"] >= _LONGEST_MONTH_MS:
        return None
    host = host_text(address + bytes(record.HOST_PORT_SIZE_BYTES)).rpartition(":")[0].strip("[]")
    timestamp_ms = _nearest_month_ms(tail["month_ms"], reference_timestamp_ms)
    return UniqueKey(host, tail["process_id"], tail["class_loader_hash"], timestamp_ms, tail["counter"])


def _hex_bytes(text: str) -> bytes | None:
    """Return the bytes of an id of one of the two lengths; None for any other text."""
    sizes = (message_id.OFFSET_ID_V4_SIZE_BYTES, message_id.OFFSET_ID_V6_SIZE_BYTES)
    if len(text) not in [2 * size for size in sizes] or not text.isalnum():
        return None
    try:
        return bytes.fromhex(text)
    except ValueError:
        return None


def _nearest_month_ms(month_ms: int, reference_timestamp_ms: int) -> int:
    try:
        reference = _EPOCH + timedelta(milliseconds=reference_timestamp_ms)
        this_month = datetime(reference.year, reference.month, 1, tzinfo=UTC)
        months = [this_month, _next_month(this_month), (this_month - timedelta(days=1)).replace(day=1)]
    except (OverflowError, ValueError):  # a damaged time, beyond the calendar
        return month_ms
    times = [(month - _EPOCH) // timedelta(milliseconds=1) + month_ms for month in months]
    return min(times, key=lambda time_ms: abs(time_ms - reference_timestamp_ms))


def _next_month(month: datetime) -> datetime:
    return (month + timedelta(days=32)).replace(day=1)
