"""Columns mean what ``codec.record.Message`` means, also for records no broker would write."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from store_core.codec.compression import BodyError, compress, decompress
from store_core.codec.hosts import host_bytes
from store_core.codec.record import Message, encode_record
from store_core.export.rows import bodies, schema
from store_core.export.rows.batches import message_batches
from store_core.export.rows.kinds import topic_kind
from store_core.kernel import arrow, scan_window
from store_core.layout import record
from store_core.scan.frames import ROW_COLUMNS, FrameTable

HOSTS = ("10.1.2.3:10911", "[2001:db8::7]:1", "0.0.0.0:0", "[::]:65535")


def table_of(records: list[bytes]) -> FrameTable:
    window = memoryview(bytearray(b"".join(records)))
    cut = scan_window(window, 0, 0, len(window), 0, 1)
    assert (cut.kind == 0).all()
    assert len(cut.kind) == len(records)
    columns: dict[str, Any] = {name: getattr(cut, name) for name in ROW_COLUMNS}
    return FrameTable(window, 0, cut.topics, **columns, key_row=cut.key_row, key_hash=cut.key_hash)


def written(count: int, **changes: Any) -> list[bytes]:
    records: list[bytes] = []
    at = 0
    for i in range(count):
        values: dict[str, Any] = {
            "topic": f"topic{i % 3}",
            "body": b"body %d" % i,
            "properties": {"TAGS": "t", "n": str(i)},
            "queue_id": i,
            "queue_offset": i * 10,
            "phy_offset": at,
            "born_timestamp_ms": 1_700_000_000_000 + i,
            "born_host": host_bytes(HOSTS[i % 4]),
            "store_timestamp_ms": 1_700_000_000_500 + i,
            "store_host": host_bytes(HOSTS[i // 4 % 4]),
            "final_separator": i % 2 == 0,
        } | {name: value(i) for name, value in changes.items()}
        records.append(encode_record(**values))
        at += len(records[-1])
    return records


def plain(message: Message) -> bytes:
    try:
        return decompress(message.body, message.sys_flag)
    except BodyError:
        return message.body


def assert_as_messages(table: FrameTable, rows: np.ndarray[Any, Any]) -> list[dict[str, Any]]:
    batches = list(message_batches(table, rows, "s"))
    found = [row for batch in batches for row in batch.rows.to_pylist()]
    for batch in batches:
        assert batch.rows.schema == schema.MESSAGES
        batch.rows.validate(full=True)
    messages = [table.message(int(row)) for row in rows]
    same = (
        "phy_offset", "size_bytes", "topic", "queue_id", "queue_offset", "offset_msg_id", "unique_key", "tags", "keys",
        "flag", "sys_flag", "transaction", "compression", "born_host", "store_host", "reconsume_times",
        "prepared_transaction_offset", "body_crc",
    )  # fmt: skip
    for row, message in zip(found, messages, strict=True):
        assert {name: row[name] for name in same} == {name: getattr(message, name) for name in same}
        assert dict(row["properties"]) == message.properties
        assert row["body"] == plain(message)
        assert row["body_size_bytes"] == len(message.body)
        assert row["stored_body"] == (message.body if message.compression != "none" else None)
    return found


def test_hosts_of_all_four_combinations_in_one_window() -> None:
    table = table_of(written(40))
    assert len(set(table.sys_flag.tolist())) == 4
    assert_as_messages(table, np.arange(40))
    assert_as_messages(table, np.arange(3, 40, 5))


def test_bodies_of_every_compression_and_broken_ones() -> None:
    packed = [compress(b"x" * 1000 + bytes([i]), kind) for i, kind in enumerate(("zlib", "lz4", "zstd"))]
    stored = [
        *packed,
        (b"not compressed", 0),
        (b"no zlib", packed[0][1]),
        (b"", packed[1][1]),
        (b"?", record.FLAG_COMPRESSED | record.COMPRESSION_MASK),
    ]
    table = table_of(written(14, body=lambda i: stored[i % 7][0], sys_flag=lambda i: stored[i % 7][1]))
    found = assert_as_messages(table, np.arange(14))
    assert [row["body_decoded"] for row in found] == [True] * 4 + [False] * 3 + [True] * 4 + [False] * 3
    [batch] = message_batches(table, np.arange(14), "s")
    assert [(f.code, f.phy_offset) for f in batch.findings] == [
        ("L012", int(table.phy_offset[i])) for i in (4, 5, 6, 11, 12, 13)
    ]


def test_bodies_that_inflate_far_come_in_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "DECODED_LIMIT_BYTES", 5000)
    body, flags = compress(bytes(3000))
    table = table_of(written(10, body=lambda i: body if i % 2 else b"plain", sys_flag=lambda i: flags if i % 2 else 0))
    assert [len(batch.rows) for batch in message_batches(table, np.arange(10), "s")] == [4, 4, 2]
    assert_as_messages(table, np.arange(10))


def test_the_twin_makes_the_same_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = [compress(b"x" * 1000), (b"plain", 0), (b"no zlib", record.FLAG_COMPRESSED)]
    table = table_of(written(20, body=lambda i: packed[i % 3][0], sys_flag=lambda i: packed[i % 3][1]))
    found = list(message_batches(table, np.arange(20), "s"))
    monkeypatch.setattr(arrow, "is_native", lambda: False)
    assert list(message_batches(table, np.arange(20), "s")) == found


def test_numbers_that_are_no_times_are_null() -> None:
    least, largest = -62_135_596_800_000, 253_402_300_799_999  # the years 1 to 9999
    times = [0, -1, 2**63 - 1, -(2**63), least, least - 1, largest, largest + 1]
    table = table_of(written(8, born_timestamp_ms=lambda i: times[i]))
    [batch] = message_batches(table, np.arange(8), "s")
    times_of = batch.rows.column("born_time")
    assert times_of.cast(pa.int64()).to_pylist() == [0, -1000, None, None, least * 1000, None, largest * 1000, None]
    assert [times_of[row].as_py().year for row in (4, 6)] == [1, 9999]


def test_rows_outlive_the_window() -> None:
    table = table_of(written(5))
    [batch] = message_batches(table, np.arange(5), "s")
    before = batch.rows.to_pylist()
    table.window[:] = bytes(len(table.window))
    assert batch.rows.to_pylist() == before


@pytest.mark.parametrize(
    "columns",
    [
        ("topic",),
        ("keys", "body_size_bytes", "store"),
        ("stored_body",),
        ("body", "phy_offset"),
        ("properties", "tags"),
        tuple(reversed(schema.MESSAGES.names)),
    ],
)
def test_only_the_columns_asked_for(columns: tuple[str, ...]) -> None:
    packed = [compress(b"x" * 1000), (b"plain", 0), (b"no zlib", record.FLAG_COMPRESSED)]
    table = table_of(written(9, body=lambda i: packed[i % 3][0], sys_flag=lambda i: packed[i % 3][1]))
    [whole] = message_batches(table, np.arange(9), "s")
    [part] = message_batches(table, np.arange(9), "s", columns)
    assert part.rows == whole.rows.select(columns)
    assert part.rows.schema == pa.schema([schema.MESSAGES.field(name) for name in columns])
    assert part.findings == (whole.findings if "body" in columns else ())


def test_a_column_that_is_none() -> None:
    with pytest.raises(KeyError, match="no_column"):
        list(message_batches(table_of(written(2)), np.arange(2), "s", ["no_column"]))


def test_no_rows_no_batch() -> None:
    assert list(message_batches(table_of(written(2)), np.arange(0), "s")) == []


@pytest.mark.parametrize(
    ("topic", "kind"),
    [
        ("orders", "user"),
        ("RMQ_SYS_TRANS_HALF_TOPIC", "half"),
        ("RMQ_SYS_TRANS_OP_HALF_TOPIC", "op"),
        ("SCHEDULE_TOPIC_XXXX", "delayed"),
        ("rmq_sys_wheel_timer", "delayed"),
        ("%RETRY%group", "retry"),
        ("%DLQ%group", "dlq"),
        ("rmq_sys_REVIVE_LOG_c", "system"),
        ("TRANS_CHECK_MAX_TIME_TOPIC", "system"),
        # What 4.3.0 and 5.4.0 themselves call a topic of the system (MixAll and TopicValidator, isSystemTopic).
        ("RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", "half"),
        ("RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC", "op"),
        ("RMQ_SYS_TRACE_TOPIC", "system"),
        ("SELF_TEST_TOPIC", "system"),
        ("OFFSET_MOVED_EVENT", "system"),
        ("TBW102", "system"),
        ("AUTO_CREATE_TOPIC_KEY", "system"),
        ("BenchmarkTest", "system"),
        ("CHECKPOINT_TOPIC", "system"),
        ("DefaultCluster_REPLY_TOPIC", "system"),
    ],
)
def test_what_a_topic_makes_of_its_messages(topic: str, kind: str) -> None:
    assert topic_kind(topic) == kind
