"""Messages by key and by id, against the truth about every golden store."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from store_core.codec.record import decode_record
from store_core.read.index import MAX_ANSWER, Index
from store_core.read.query import KeyQuery, KeyType, find_message, query_key, records_by_index
from store_core.storage.store import Store
from tests import stores
from tests.conftest import GoldenStore, StoreCopy
from tests.damage import Damageable


def carries(message: dict[str, Any], key: str, type: KeyType = "any") -> bool:
    properties = message["properties"]
    is_unique = properties.get("UNIQ_KEY") == key
    is_key = key in properties.get("KEYS", "").split(" ")
    by_type: dict[KeyType, bool] = {"any": is_unique or is_key, "key": is_key, "unique": is_unique}
    return by_type[type]


def exact(name: str, asked: dict[str, Any], type: KeyType = "any") -> list[int]:
    found = [
        m["phyOffset"]
        for m in stores.truth(name)["messages"]
        if m["topic"] == asked["topic"]
        and carries(m, asked["key"], type)
        and asked["begin"] <= m["storeTimestamp"] <= asked["end"]
    ]
    return found[-asked["max"] :]


def query_of(asked: dict[str, Any], type: KeyType = "any") -> KeyQuery:
    return KeyQuery(asked["topic"], asked["key"], type, asked["begin"], asked["end"], asked["max"])


def offsets(store: Store, query: KeyQuery, source: Any = "auto") -> list[int]:
    return [m.phy_offset for m in query_key(store, query, source).messages]


# The broker was asked after its recovery, which puts records into the index that a killed 5.5 had not.
ASKED = [name for name in stores.GOLDEN if name not in ("crash-551", "crash-551-aged")]


@pytest.mark.parametrize("name", ASKED)
def test_index_gives_the_brokers_answer_without_collisions(golden: GoldenStore, name: str) -> None:
    by_offset = {m["phyOffset"]: m for m in stores.truth(name)["messages"]}
    with Store.open(golden(name)) as store:
        for asked in stores.truth(name)["keyQueries"]:
            told = {o for o in asked["phyOffsets"] or () if carries(by_offset[o], asked["key"])}
            told = {o for o in told if by_offset[o]["topic"] == asked["topic"]}
            assert offsets(store, query_of(asked), "index") == sorted(told), asked


def test_a_damaged_index_gives_only_what_carries_the_key(store_copy: StoreCopy) -> None:
    random = Random(4)
    store = Damageable(store_copy("load-533"), stores.truth("load-533"))
    for _ in range(3000):
        store.flip_at(random.randrange(store.end_phy_offset), 1 << random.randrange(8))
    store.cut(3, 70_000)
    store.lose(1)
    queries = [query_of(asked) for asked in stores.truth("load-533")["keyQueries"]]
    for path in ((), *(store.root / "index").iterdir()):
        if path:
            data = bytearray(path.read_bytes())
            for _ in range(100):
                data[random.randrange(len(data))] ^= 1 << random.randrange(8)
            path.write_bytes(data)
        with Store.open(store.root) as opened, Index(opened) as index:
            found = [(q, at, data) for q in queries for at, data in records_by_index(index, opened.log, q)]
            assert found
            assert all(q.carried_by(decode_record(data, 0, at)) for q, at, data in found)


@pytest.mark.product(7)
@pytest.mark.parametrize("name", stores.GOLDEN)
def test_auto_is_exact(golden: GoldenStore, name: str) -> None:
    with Store.open(golden(name)) as store:
        for asked in stores.truth(name)["keyQueries"]:
            answer = query_key(store, query_of(asked))
            assert [m.phy_offset for m in answer.messages] == exact(name, asked), asked
            assert answer.source == "index"


@pytest.mark.parametrize("name", ["load-533", "load-497", "clean-540", "rocks-533", "ipv6-533"])
def test_scan_and_types(golden: GoldenStore, name: str) -> None:
    with Store.open(golden(name)) as store:
        for asked in stores.truth(name)["keyQueries"][::9]:
            for type in ("any", "key", "unique"):
                told = exact(name, asked, type)
                assert offsets(store, query_of(asked, type), "scan") == told, asked
                assert offsets(store, query_of(asked, type), "auto") == told, asked


@pytest.mark.parametrize("lost", [0, 1, 2, None])
def test_auto_is_exact_without_index_files(store_copy: StoreCopy, lost: int | None) -> None:
    root = store_copy("load-533")
    for number, path in enumerate(sorted((root / "index").iterdir())):
        if lost in (None, number):
            path.unlink()
    with Store.open(root) as store:
        sources = set()
        for asked in stores.truth("load-533")["keyQueries"][::5]:
            answer = query_key(store, query_of(asked))
            assert [m.phy_offset for m in answer.messages] == exact("load-533", asked), asked
            sources.add(answer.source)
    assert ("scan" if lost is None else "index+scan") in sources


def test_auto_is_exact_with_a_broken_chain(store_copy: StoreCopy) -> None:
    from store_core.layout import index as layout

    root = store_copy("load-533")
    path = sorted((root / "index").iterdir())[1]
    with path.open("r+b") as file:
        for number in range(1, 1990, 7):
            file.seek(layout.entry_at(500, number) + layout.ENTRY.offset_of("previous"))
            file.write(layout.ENTRY.field_struct("previous").pack(number))
    with Store.open(root) as store:
        for asked in stores.truth("load-533")["keyQueries"]:
            assert offsets(store, query_of(asked)) == exact("load-533", asked), asked


def test_an_index_that_outlived_a_cut_of_the_log_is_not_trusted(store_copy: StoreCopy) -> None:
    """Records written over a cut log are not indexed; the index still names what was there (behaviour 9.5)."""
    store = Damageable(store_copy("load-533"), stores.truth("load-533"))
    last = store.message(-1)
    store.zero(last["phyOffset"], last["storeSize"])
    key = last["properties"]["UNIQ_KEY"]
    before = store.message(-2)
    with Store.open(store.root) as opened:
        assert offsets(opened, KeyQuery(last["topic"], key)) == []
        answer = query_key(opened, KeyQuery(before["topic"], before["properties"]["UNIQ_KEY"]))
    assert [m.phy_offset for m in answer.messages] == [before["phyOffset"]]
    assert answer.index_last_phy_offset == last["phyOffset"]


def test_an_index_entry_may_point_anywhere(store_copy: StoreCopy) -> None:
    from store_core.layout import index as layout

    root = store_copy("load-533")
    for path in (root / "index").iterdir():
        with path.open("r+b") as file:
            for number in range(1, 1990, 3):
                file.seek(layout.entry_at(500, number) + layout.ENTRY.offset_of("phy_offset"))
                file.write(layout.ENTRY.field_struct("phy_offset").pack((-1, 1 << 62, 17)[number % 3]))
    with Store.open(root) as store:
        for asked in stores.truth("load-533")["keyQueries"][::3]:
            assert set(offsets(store, query_of(asked), "index")) <= set(asked["phyOffsets"] or ())


def test_the_limit_takes_the_newest(golden: GoldenStore) -> None:
    name = "load-533"
    many = max(stores.truth(name)["keyQueries"], key=lambda asked: len(exact(name, asked)))
    whole = exact(name, many)
    with Store.open(golden(name)) as store:
        for limit in (1, 2, 5, MAX_ANSWER, 1000):
            query = KeyQuery(many["topic"], many["key"], limit=limit)
            for source in ("auto", "scan"):
                assert offsets(store, query, source) == exact(name, {**many, "max": limit})
    assert len(whole) > 5


@pytest.mark.parametrize("name", stores.GOLDEN)
def test_every_message_by_offset_and_by_id(golden: GoldenStore, name: str) -> None:
    with Store.open(golden(name)) as store:
        for told in stores.truth(name)["messages"]:
            found = find_message(store, str(told["phyOffset"]))
            assert found is not None
            assert find_message(store, told["msgId"]) == found
            assert find_message(store, told["msgId"].lower()) == found
            assert found.offset_msg_id == told["msgId"]
            assert (found.topic, found.queue_id, found.queue_offset) == (
                told["topic"],
                told["queueId"],
                told["queueOffset"],
            )
            assert (found.size_bytes, found.store_timestamp_ms) == (told["storeSize"], told["storeTimestamp"])
            # Up to 4.9.0 the decoder dropped values that hold the separator of names (store format 4).
            dropped = {k for k, v in found.properties.items() if name == "clean-430" and "\x01" in v}
            assert {k: v for k, v in found.properties.items() if k not in dropped} == told["properties"]


@pytest.mark.parametrize("name", ["load-533", "clean-497", "ipv6-533"])
def test_unique_keys_give_the_newest(golden: GoldenStore, name: str) -> None:
    messages = stores.truth(name)["messages"]
    newest = {(m["topic"], m["properties"].get("UNIQ_KEY")): m["phyOffset"] for m in messages}
    with Store.open(golden(name)) as store:
        for (topic, key), phy_offset in list(newest.items())[::17]:
            if key is not None:
                found = find_message(store, key, topic)
                assert found is not None
                assert found.phy_offset == phy_offset


@pytest.mark.parametrize("identifier", ["99999", "975542", "9" * 19, "9" * 40, "", "-5", "FF" * 16, "zz", "7F" * 28])
def test_nothing_is_found(golden: GoldenStore, identifier: str) -> None:
    with Store.open(golden("load-533")) as store:
        assert find_message(store, identifier) is None
        assert find_message(store, identifier, "Calm_audit") is None
