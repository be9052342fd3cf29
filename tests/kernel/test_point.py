"""Key hashes and unique keys: compiled and in Python alike, and true to what brokers stored."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from store_core.codec import tags
from store_core.codec.record import RecordError, decode_record
from store_core.kernel import point
from store_core.layout import record
from store_core.read.records import read_record_bytes
from store_core.storage.store import Store
from tests import stores
from tests.conftest import GoldenStore


@pytest.fixture(params=["compiled", "python"], autouse=True)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "python":
        monkeypatch.setattr(point, "_compiled", None)


def records(golden: GoldenStore, name: str) -> Iterator[bytes]:
    with Store.open(golden(name)) as store:
        for message in stores.truth(name)["messages"]:
            data = read_record_bytes(store.log, message["phyOffset"])
            assert data is not None
            yield data


@pytest.mark.parametrize("name", ["clean-430", "clean-540", "load-533"])
def test_every_unique_key_is_seen(golden: GoldenStore, name: str) -> None:
    seen = 0
    for data in records(golden, name):
        message = decode_record(data, 0, 0)
        key = message.unique_key
        if key is None or message.transaction == "rollback":
            continue
        for kind in ("any", "unique"):
            seen += point.carries_key(data, message.topic, key, kind)
            assert not point.carries_key(data, message.topic, key[:-1], kind)
            assert not point.carries_key(data, message.topic, "", kind)
            assert not point.carries_key(data, message.topic + "x", key, kind)
        assert not point.carries_key(data, message.topic, key, "key")
    assert seen


@pytest.mark.parametrize("name", ["clean-430", "clean-540", "load-533"])
def test_every_key_of_a_user_is_seen(golden: GoldenStore, name: str) -> None:
    seen = 0
    for data in records(golden, name):
        message = decode_record(data, 0, 0)
        if message.transaction == "rollback":
            continue
        for key in message.keys:
            seen += point.carries_key(data, message.topic, key, "any")
            assert point.carries_key(data, message.topic, key, "key") or not key.isascii()
            assert not point.carries_key(data, message.topic, key, "unique") or key == message.unique_key
            assert not point.carries_key(data, message.topic, f"{key} ", "key")
            assert not point.carries_key(data, message.topic, f"{key}x", "key")
        assert not point.carries_key(data, message.topic, "", "key")
    assert seen


def test_rolled_back_records_have_none(golden: GoldenStore) -> None:
    data = bytearray(next(records(golden, "load-533")))
    message = decode_record(bytes(data), 0, 0)
    assert message.unique_key is not None
    record.HEAD.field_struct("sys_flag").pack_into(
        data, record.HEAD.offset_of("sys_flag"), message.sys_flag | record.TRANSACTION_ROLLBACK
    )
    assert not point.carries_key(bytes(data), message.topic, message.unique_key, "any")


def test_damaged_records_never_carry_what_they_do_not_decode_to(golden: GoldenStore) -> None:
    random = Random(11)
    for data in list(records(golden, "load-533"))[:50]:
        message = decode_record(data, 0, 0)
        key = random.choice([message.unique_key or "none", *message.keys])
        for _ in range(40):
            damaged = bytearray(data)
            damaged[random.randrange(len(data))] ^= 1 << random.randrange(8)
            if not point.carries_key(bytes(damaged), message.topic, key, "any"):
                continue
            try:
                found = decode_record(bytes(damaged), 0, 0)
            except RecordError:
                pytest.fail("a unique key in what is no record")
            assert found.topic == message.topic
            assert key in (found.unique_key, *found.keys)


@pytest.mark.parametrize("topic", ["Calm_audit", "%RETRY%g", "Größe", "\U0001f600", "a\udc80b", ""])
@pytest.mark.parametrize("key", ["K1", "7F000001", "ключ", "\U0001f600x", "polygenelubricants", "\udcff", ""])
def test_hashes(topic: str, key: str) -> None:
    assert point.index_key_hash(topic, key) == tags.index_key_hash(topic, key)
