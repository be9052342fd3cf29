"""The numbers of the Rust crate are those of store_core/layout and of codes.py: all of them, and no others."""

from __future__ import annotations

from typing import Any

import pytest

from store_core.codec import properties
from store_core.kernel import codes
from store_core.layout import index, marks, message_id, queue, record


def expected() -> dict[str, Any]:
    head, middle, tail = record.HEAD.offset_of, record.MIDDLE.offset_of, record.PROPERTY_CRC.offset_of
    return {
        "MAGIC_V1": record.MAGIC_V1,
        "MAGIC_V2": record.MAGIC_V2,
        "MAGIC_BLANK": record.MAGIC_BLANK,
        "SIZE_AT": head("size_bytes"),
        "MAGIC_AT": head("magic"),
        "PREFIX_SIZE": record.PREFIX.size_bytes,
        "BODY_CRC_AT": head("body_crc"),
        "QUEUE_ID_AT": head("queue_id"),
        "FLAG_AT": head("flag"),
        "QUEUE_OFFSET_AT": head("queue_offset"),
        "OWN_PHY_OFFSET_AT": head("own_phy_offset"),
        "SYS_FLAG_AT": head("sys_flag"),
        "BORN_TIMESTAMP_AT": head("born_timestamp_ms"),
        "HEAD_SIZE": record.HEAD.size_bytes,
        "STORE_TIME_SIZE": record.STORE_TIME.size_bytes,
        "RECONSUME_TIMES_IN_MIDDLE": middle("reconsume_times"),
        "PREPARED_TRANSACTION_OFFSET_IN_MIDDLE": middle("prepared_transaction_offset"),
        "BODY_LENGTH_IN_MIDDLE": middle("body_length"),
        "MIDDLE_SIZE": record.MIDDLE.size_bytes,
        "HOST_V4_SIZE": record.HOST_V4_SIZE_BYTES,
        "HOST_V6_SIZE": record.HOST_V6_SIZE_BYTES,
        "HOST_PORT_SIZE": record.HOST_PORT_SIZE_BYTES,
        "ID_OFFSET_SIZE": message_id.OFFSET.size_bytes,
        "TOPIC_LENGTH_V1_SIZE": record.TOPIC_LENGTH_V1.size_bytes,
        "TOPIC_LENGTH_V2_SIZE": record.TOPIC_LENGTH_V2.size_bytes,
        "PROPERTIES_LENGTH_SIZE": record.PROPERTIES_LENGTH.size_bytes,
        "MIN_RECORD_SIZE": record.MIN_RECORD_SIZE_BYTES,
        "MAX_RECORD_SIZE": record.MAX_RECORD_SIZE_BYTES,
        "MAX_PROPERTIES_SIZE": record.MAX_PROPERTIES_SIZE_BYTES,
        "LONGEST_V1_TOPIC": record.LONGEST_V1_TOPIC,
        "LONGEST_HEAD": codes.LONGEST_HEAD_BYTES,
        "CRC_MASK": record.CRC_MASK,
        "TRANSACTION_MASK": record.TRANSACTION_MASK,
        "TRANSACTION_NONE": record.TRANSACTION_NONE,
        "TRANSACTION_COMMIT": record.TRANSACTION_COMMIT,
        "TRANSACTION_ROLLBACK": record.TRANSACTION_ROLLBACK,
        "FLAG_BORN_HOST_V6": record.FLAG_BORN_HOST_V6,
        "FLAG_STORE_HOST_V6": record.FLAG_STORE_HOST_V6,
        "NAME_VALUE_SEPARATOR": record.NAME_VALUE_SEPARATOR,
        "PROPERTY_SEPARATOR": record.PROPERTY_SEPARATOR,
        "PROPERTY_CRC_SEPARATOR_AT": tail("separator"),
        "PROPERTY_CRC_DIGITS_AT": tail("digits"),
        "PROPERTY_CRC_END_AT": tail("end"),
        "PROPERTY_CRC_SIZE": record.PROPERTY_CRC.size_bytes,
        "INDEX_BEGIN_TIMESTAMP_AT": index.HEADER.offset_of("begin_timestamp_ms"),
        "INDEX_END_TIMESTAMP_AT": index.HEADER.offset_of("end_timestamp_ms"),
        "INDEX_COUNT_AT": index.HEADER.offset_of("index_count"),
        "INDEX_HEADER_SIZE": index.HEADER.size_bytes,
        "INDEX_SLOT_SIZE": index.SLOT.size_bytes,
        "INDEX_KEY_HASH_AT": index.ENTRY.offset_of("key_hash"),
        "INDEX_PHY_OFFSET_AT": index.ENTRY.offset_of("phy_offset"),
        "INDEX_SECONDS_AT": index.ENTRY.offset_of("seconds"),
        "INDEX_PREVIOUS_AT": index.ENTRY.offset_of("previous"),
        "FLAG_NEED_UNWRAP": record.FLAG_NEED_UNWRAP,
        "FLAG_INNER_BATCH": record.FLAG_INNER_BATCH,
        "QUEUE_ENTRY_PHY_OFFSET_AT": queue.ENTRY.offset_of("phy_offset"),
        "QUEUE_ENTRY_SIZE_BYTES_AT": queue.ENTRY.offset_of("size_bytes"),
        "QUEUE_ENTRY_TAGS_CODE_AT": queue.ENTRY.offset_of("tags_code"),
        "QUEUE_ENTRY_SIZE": queue.ENTRY.size_bytes,
        "NEIGHBOUR_GAP": codes.NEIGHBOUR_GAP_BYTES,
        "READ_AT_ONCE": codes.READ_AT_ONCE_BYTES,
        "MOST_WORDS": codes.MOST_WORDS,
        **{kind.name: kind for kind in codes.FrameKind if kind is not codes.FrameKind.HOLE},
        **{code.name: code for code in codes.FrameCode},
        **{state.name: state for state in codes.ScanState},
        **{str(flag.name): flag for flag in codes.ScanFlag},
        **{f"WANT_{part.name}": part for part in codes.ArrowPart},
        **{f"TEXT_{kind.name}": kind for kind in codes.TextKind},
        **{f"HAS_{flag.name}": flag for flag in codes.PropertyFlag},
        **{f"PROPERTY_{flag.name}": name for name, flag in codes.PROPERTY_NAMES.items()},
        **{f"REFUSED_{refusal.name}": refusal for refusal in codes.EncodeRefusal},
        "KEY_SEPARATOR": ord(codes.KEY_SEPARATOR),
        "ZERO_RUN": codes.ZERO_RUN_BYTES,
        "ZERO_FRAME": codes.ZERO_FRAME_BYTES,
        "RESYNC": codes.RESYNC_BYTES,
        "PROPERTY_INNER_BASE": properties.INNER_BASE,
        "PROPERTY_TOMBSTONE": marks.TOMBSTONE_PROPERTY.encode(),
        "SCHEDULE_TOPIC": codes.SCHEDULE_TOPIC,
        "INDEX_ENTRY_SIZE": index.ENTRY.size_bytes,
        "NO_INDEX_ENTRY": index.NO_ENTRY,
        "INDEX_KEY_JOINT": index.KEY_SEPARATOR.encode(),
        "INDEX_TAG_JOINT": index.TAG_MARK.encode(),
    }


def test_the_crate_knows_the_same_numbers() -> None:
    native = pytest.importorskip("store_core.kernel._native", reason="not built: no cargo", exc_type=ImportError)
    assert expected() == native.LAYOUT


def test_what_the_crate_takes_for_granted() -> None:
    """Both record magics begin with the same three bytes, which it searches for; the two words are the prefix."""
    v1, v2 = (record.PREFIX.field_struct("magic").pack(magic) for magic in (record.MAGIC_V1, record.MAGIC_V2))
    assert v1[:3] == v2[:3]
    assert record.PREFIX.names == record.HEAD.names[:2]
