"""Records that we write from what a producer sent are byte for byte those that real brokers wrote from it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import pytest

from store_core.codec.record import Message, property_crc_ok
from store_core.engine.message import NewMessage
from store_core.engine.put import put
from store_core.engine.transactions import commit
from store_core.layout import paths, record
from store_core.read.records import read_message, read_record_bytes
from store_core.scan.log import scan_log
from store_core.storage.store import Store
from tests.conftest import GoldenStore
from tests.engine.writing import Writable, Written

NAMES = [
    "clean-430",
    "clean-497",
    "clean-514",
    "clean-533",
    "clean-540",
    "propcrc-533",
    "ipv6-533",
    "load-533",
    "load-497",
]
_PER_KIND = 6
TIMER = "rmq_sys_wheel_timer"
_HIDDEN = ("REAL_TOPIC", "REAL_QID", "__transactionId__", "TRAN_MSG", "TIMER_OUT_MS", "__CRC32#", "CLUSTER")
_BROKERS_OWN = ("batch", "rmq_sys_REVIVE", "%", "TRANS_CHECK", "RMQ_SYS_TRANS_OP")  # not from one producer's message
_BRANDS = ("DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "TRAN_MSG")


def messages(store: Store) -> Iterator[Message]:
    """A few of each topic."""
    seen: dict[str, int] = defaultdict(int)
    for table in scan_log(store):
        for row in range(len(table)):
            if table.kind[row]:
                continue
            message = table.message(row)
            seen[message.topic] += 1
            if seen[message.topic] <= _PER_KIND and not any(part in message.topic for part in _BROKERS_OWN):
                yield message


def as_sent(message: Message) -> NewMessage:
    """What the producer must have sent, in the order of the stored properties."""
    properties = {name: value for name, value in message.properties.items() if name not in _HIDDEN}
    moved = message.topic in (paths.SCHEDULE_TOPIC, paths.HALF_TOPIC, TIMER)
    return NewMessage(
        topic=message.properties["REAL_TOPIC"] if moved else message.topic,
        body=message.body,
        queue_id=int(message.properties["REAL_QID"]) if moved else message.queue_id,
        properties=properties,
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_timestamp_ms=message.born_timestamp_ms,
        born_host=message.born_host,
        reconsume_times=message.reconsume_times,
    )


def at_the_same_place(ours: bytes, theirs: bytes, sys_flag: int) -> bytes:
    """Our record with the places and the store time of theirs, and its tail checksum, which follows from them."""
    patched = bytearray(ours)
    fields = [(record.HEAD.offset_of(name), 8) for name in ("queue_offset", "own_phy_offset")]
    for start, size in [*fields, (record.store_time_at(sys_flag), 8)]:
        patched[start : start + size] = theirs[start : start + size]
    if (crc := property_crc_ok(ours)) is not None:
        assert crc
        start = len(ours) - record.PROPERTY_CRC.size_bytes
        patched[start:] = theirs[start:]
    return bytes(patched)


def is_resent(message: Message) -> bool:
    """A delivered copy of a delayed, timed or committed message: brokers write those, not producers."""
    plain = message.topic not in (paths.SCHEDULE_TOPIC, paths.HALF_TOPIC, TIMER)
    return plain and ("REAL_TOPIC" in message.properties or any(brand in message.properties for brand in _BRANDS))


@pytest.mark.product(4)
@pytest.mark.parametrize("name", NAMES)
def test_what_a_producer_sent_is_stored_as_a_broker_did(writable: Writable, golden: GoldenStore, name: str) -> None:
    written = writable(name, brokerClusterName="")  # the newest records tell it
    compared: dict[str, int] = defaultdict(int)
    with Store.open(golden(name)) as source:
        for message in messages(source):
            if is_resent(message) or message.sys_flag & record.FLAG_INNER_BATCH:
                continue
            if name != "clean-430" and "CLUSTER" not in message.properties:
                continue  # a broker's own, or a part of a batch that 5.4 did not mark
            theirs = read_record_bytes(source.log, message.phy_offset)
            assert theirs is not None
            ours = put_again(written, message)
            assert at_the_same_place(ours, theirs, message.sys_flag) == theirs, message.topic
            compared[message.topic] += 1
    assert len(compared) >= (5 if name.startswith("clean") else 1)
    assert {paths.SCHEDULE_TOPIC, paths.HALF_TOPIC} <= compared.keys() or not name.startswith("clean")
    assert TIMER in compared or name not in ("clean-533", "clean-540")


def put_again(written: Written, message: Message) -> bytes:
    """Our record of it; what depends on the clock is as it was."""
    with written.live(store_host=message.store_host, flush="async") as live:
        result = put(live, as_sent(message), half=message.topic == paths.HALF_TOPIC, create_topic=True)
    assert result.stored is not None, result.reason
    with written.store() as store:
        raw = read_record_bytes(store.log, result.stored.phy_offset)
        stored = read_message(store.log, result.stored.phy_offset)
    assert raw is not None
    assert stored is not None
    if message.topic == TIMER:
        raw = raw.replace(stored.properties["TIMER_OUT_MS"].encode(), message.properties["TIMER_OUT_MS"].encode())
    return raw


@pytest.mark.parametrize("name", ["clean-430", "clean-497", "clean-514", "clean-533", "clean-540"])
def test_commits_and_ops_are_those_of_a_broker(writable: Writable, golden: GoldenStore, name: str) -> None:
    written = writable(name, brokerClusterName="")
    with Store.open(golden(name)) as source:
        halves, commits, ops = {}, [], []
        for table in scan_log(source):
            for row in range(len(table)):
                if table.kind[row]:
                    continue
                message = table.message(row)
                if message.topic == paths.HALF_TOPIC:
                    halves[message.phy_offset] = message
                elif message.transaction == "commit":
                    commits.append(message)
                elif message.topic == paths.OP_TOPIC:
                    ops.append(message)
        raws = [read_record_bytes(source.log, message.phy_offset) for message in (*commits[:3], *ops)]
    for theirs, message in zip(raws[:3], commits[:3], strict=True):
        half = halves[message.prepared_transaction_offset]
        ours = put_again(written, half)
        with written.store() as store:
            half_at = max(m.phy_offset for m in _of_topic(store, paths.HALF_TOPIC))
        with written.live(store_host=message.store_host) as live:
            result = commit(live, half_at)
        assert result.stored is not None
        with written.store() as store:
            ours = read_record_bytes(store.log, result.stored.phy_offset) or b""
            op = list(_of_topic(store, paths.OP_TOPIC))[-1]
        assert theirs is not None
        place = record.middle_at(message.sys_flag) + record.MIDDLE.offset_of("prepared_transaction_offset")
        ours = ours[:place] + theirs[place : place + 8] + ours[place + 8 :]
        assert at_the_same_place(ours, theirs, message.sys_flag) == theirs
        with written.store() as store:
            stored_half = read_message(store.log, half_at)
        assert stored_half is not None
        ending = "," if ops[0].body.endswith(b",") else ""
        assert op.body == f"{stored_half.queue_offset}{ending}".encode()
        assert (op.raw_properties, op.queue_id, op.born_host) == (ops[0].raw_properties, 0, message.store_host)
        assert (op.sys_flag, op.flag, op.magic) == (ops[0].sys_flag, ops[0].flag, ops[0].magic)


def _of_topic(store: Store, topic: str) -> Iterator[Message]:
    for table in scan_log(store):
        for row in range(len(table)):
            if not table.kind[row] and table.topic(row).decode() == topic:
                yield table.message(row)
