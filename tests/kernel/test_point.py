"""Key hashes and unique keys: compiled and in Python alike, and true to what brokers stored."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import numpy as np
import pytest

from store_core.codec import tags
from store_core.codec.record import RecordError, decode_record
from store_core.kernel import point
from store_core.layout import index, record
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
        seen += point.has_unique_key(data, message.topic, key)
        assert not point.has_unique_key(data, message.topic, key[:-1])
        assert not point.has_unique_key(data, message.topic, "")
        assert not point.has_unique_key(data, message.topic + "x", key)
    assert seen


def test_rolled_back_records_have_none(golden: GoldenStore) -> None:
    data = bytearray(next(records(golden, "load-533")))
    message = decode_record(bytes(data), 0, 0)
    assert message.unique_key is not None
    record.HEAD.field_struct("sys_flag").pack_into(
        data, record.HEAD.offset_of("sys_flag"), message.sys_flag | record.TRANSACTION_ROLLBACK
    )
    assert not point.has_unique_key(bytes(data), message.topic, message.unique_key)


def test_damaged_records_never_carry_what_they_do_not_decode_to(golden: GoldenStore) -> None:
    random = Random(11)
    for data in list(records(golden, "load-533"))[:50]:
        message = decode_record(data, 0, 0)
        key = message.unique_key or "none"
        for _ in range(40):
            damaged = bytearray(data)
            damaged[random.randrange(len(data))] ^= 1 << random.randrange(8)
            if not point.has_unique_key(bytes(damaged), message.topic, key):
                continue
            try:
                found = decode_record(bytes(damaged), 0, 0)
            except RecordError:
                pytest.fail("a unique key in what is no record")
            assert (found.topic, found.unique_key) == (message.topic, key)


@pytest.mark.parametrize("topic", ["Calm_audit", "%RETRY%g", "Größe", "\U0001f600", "a\udc80b", ""])
@pytest.mark.parametrize("key", ["K1", "7F000001", "ключ", "\U0001f600x", "polygenelubricants", "\udcff", ""])
def test_hashes(topic: str, key: str) -> None:
    assert point.index_key_hash(topic, key) == tags.index_key_hash(topic, key)


def test_damaged_index_files_give_what_the_definition_gives(golden: GoldenStore) -> None:
    """The compiled walk over a chain against its readable twin, whatever the file holds."""
    random = Random(5)
    name = sorted((golden("load-533") / "index").iterdir())[0]
    whole = bytearray(name.read_bytes())
    slots = 500
    hashes = {index.ENTRY.struct.unpack_from(whole, index.entry_at(slots, n))[0] for n in range(1, 2000, 7)}
    begin, end = index.HEADER.struct.unpack_from(whole)[:2]
    times = (0, begin, begin + 1000, (begin + end) // 2, end, (1 << 63) - 1, 1 << 64, -1)
    found = 0
    for turn in range(300):
        data = bytearray(whole)
        for _ in range(turn and random.choice((1, 20, 3000))):
            place = random.randrange(random.choice((index.HEADER.size_bytes, len(data))))
            data[place] = random.choice((0, 1, 127, 255))
        if turn % 3:
            del data[random.choice((len(data), random.randrange(len(data)), random.randrange(60))) :]
        array = np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8)
        for key_hash in random.sample(sorted(hashes), 5):
            asked = (slots, key_hash, random.choice(times[:4]), random.choice(times[2:]), random.choice((0, 1, 64)))
            expected = point.index_offsets(data, *asked)
            assert point.mapped_index_offsets(array, *asked) == expected, asked
            found += len(expected[1])
    assert found


def test_records_of_a_mapped_segment(golden: GoldenStore) -> None:
    """At every place of a segment's start: the bytes that a read gives, and whether they carry a key."""
    path = sorted((golden("load-533") / "commitlog").iterdir())[0]
    segment = np.frombuffer(path.read_bytes()[:4000], np.uint8)
    first = stores.truth("load-533")["messages"][0]
    key = first["properties"]["UNIQ_KEY"]
    found = {at: point.mapped_record(segment, at, first["topic"], key) for at in range(4010)}
    starts = {m["phyOffset"]: m["storeSize"] for m in stores.truth("load-533")["messages"]}
    whole = {at: (segment[at : at + size].tobytes(), at == 0) for at, size in starts.items() if at + size <= 4000}
    assert {at: record for at, record in found.items() if record is not None} == whole
    assert point.mapped_record(segment, 0, first["topic"], "\udcff") == (whole[0][0], False)
