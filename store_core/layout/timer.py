"""Define timer wheel, timer log and timer checkpoint (store format, sections 10.1 to 10.3)."""

from __future__ import annotations

from typing import Final

from store_core.layout.schema import Field, Layout

WHEEL_SLOT: Final = Layout(
    "timer wheel slot",
    (
        Field("time_units", "i8", "time / precision"),
        Field("first_position", "i8", "first timer log position"),
        Field("last_position", "i8", "head of the chain"),
        Field("count", "i4", "messages; cancel requests decrement"),
        Field("magic", "i4", "unused"),
    ),
)
WHEEL_SLOTS: Final = 604_800 * 2
WHEEL_FILE_SIZE_BYTES: Final = WHEEL_SLOTS * WHEEL_SLOT.size_bytes
LOG_UNIT: Final = Layout(
    "timer log unit",
    (
        Field("size_bytes", "i4", "always 52"),
        Field("previous_position", "i8", "previous unit of the slot; -1: none"),
        Field("magic", "i4", "bit 0 default, bit 1 roll, bit 2 delete"),
        Field("write_timestamp_ms", "i8", "when it was enqueued"),
        Field("delay_ms", "i4", "delivery = write time + delay"),
        Field("phy_offset", "i8", "record's start in the log"),
        Field("record_size_bytes", "i4", "whole record"),
        Field("topic_hash", "i4", "hash of the real topic"),
        Field("reserved", "i8", "0"),
    ),
)
MAGIC_DEFAULT: Final = 1
MAGIC_ROLL: Final = 2
MAGIC_DELETE: Final = 4
LOG_BLANK: Final = Layout(
    "timer log blank",
    (Field("size_bytes", "i4", "bytes left"), Field("zero", "i8", "0"), Field("magic", "i4", "the log's BLANK magic")),
)
CHECK: Final = Layout(
    "timer checkpoint",
    (
        Field("last_read_timestamp_ms", "i8", ""),
        Field("last_timer_log_flush_position", "i8", ""),
        Field("last_timer_queue_offset", "i8", "in the timer topic's queue"),
        Field("master_timer_queue_offset", "i8", ""),
        Field("data_version_state", "i8", ""),
        Field("data_version_timestamp_ms", "i8", ""),
        Field("data_version_counter", "i8", ""),
    ),
)
CHECK_FILE_SIZE_BYTES: Final = 4096
DEFAULT_LOG_FILE_SIZE_BYTES: Final = 100 << 20
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
DEFAULT_PRECISION_MS: Final = 1000
DEFAULT_LONGEST_DELAY_SECONDS: Final = 3 * 86_400
