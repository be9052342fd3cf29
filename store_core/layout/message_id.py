"""Define the two kinds of message id, before they are written as hex (store format, section 12)."""

from __future__ import annotations

from typing import Final

from store_core.layout.record import HOST_V4_SIZE_BYTES, HOST_V6_SIZE_BYTES
from store_core.layout.schema import Field, Layout

# An offset message id is the store host as stored, followed by this.
OFFSET: Final = Layout("offset of a message id", (Field("phy_offset", "i8", "record's start in the log"),))
OFFSET_ID_V4_SIZE_BYTES: Final = HOST_V4_SIZE_BYTES + OFFSET.size_bytes
OFFSET_ID_V6_SIZE_BYTES: Final = HOST_V6_SIZE_BYTES + OFFSET.size_bytes

# A unique key is the client's address (4 or 16 bytes), followed by this.
UNIQUE_KEY_TAIL: Final = Layout(
    "unique key after the address",
    (
        Field("process_id", "u2", "low 16 bits"),
        Field("class_loader_hash", "u4", "identity hash"),
        Field("month_ms", "u4", "since 00:00 on the 1st of the month in the client's time zone"),
        Field("counter", "u2", "wraps"),
    ),
)
