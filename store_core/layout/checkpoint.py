"""Define the checkpoint file, which uses 24, 32, 40 or 48 bytes of one page (store format, section 8)."""

from __future__ import annotations

from typing import Final

from store_core.layout.schema import Field, Layout

FILE_SIZE_BYTES: Final = 4096
CHECKPOINT: Final = Layout(
    "checkpoint",
    (
        Field("physic_msg_timestamp_ms", "i8", "store time of the newest flushed log data"),
        Field("logics_msg_timestamp_ms", "i8", "store time of the newest message put in a queue"),
        Field("index_msg_timestamp_ms", "i8", "end time of the newest full and flushed index file"),
        Field("master_flushed_offset", "i8", "5.0.0 and later"),
        Field("confirm_phy_offset", "i8", "5.1.1 and later"),
        Field(
            "logics_phy_offset",
            "i8",
            "5.5.0 and later: start of the newest record put in a queue and flushed; goes with `logics_msg_timestamp_ms`",
        ),
    ),
)
SAFETY_MARGIN_MS: Final = 3000  # subtracted from the smaller of the first two
