"""Frames of the replication port (store behaviour, section 13)."""

from __future__ import annotations

from typing import Final

from store_core.layout.schema import Field, Layout

REPORT: Final = Layout("slave report", (Field("max_phy_offset", "i8", "what the slave has appended"),))
TRANSFER_HEAD: Final = Layout(
    "transfer head",
    (
        Field("phy_offset", "i8", "where the bytes belong in the log"),
        Field("size_bytes", "i4", "bytes that follow; 0: heartbeat"),
    ),
)
AUTO_SWITCH_HANDSHAKE: Final = Layout(
    "controller mode handshake of the slave",
    (Field("state", "i4", ""), Field("flags_1", "i2", ""), Field("flags_2", "i2", ""), Field("slave_id", "i8", "")),
)
AUTO_SWITCH_TRANSFER: Final = Layout(
    "controller mode transfer head",
    (
        Field("state", "i4", "0 ready, 1 handshake, 2 transfer, 3 suspend, 4 shutdown"),
        Field("size_bytes", "i4", "bytes that follow"),
        Field("phy_offset", "i8", ""),
        Field("epoch", "i4", ""),
        Field("epoch_start_offset", "i8", ""),
        Field("confirm_phy_offset", "i8", ""),
    ),
)
