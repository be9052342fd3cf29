"""The compiled finder of keys against its readable twin, whatever index and log hold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np
import pytest

from store_core.codec.record import Message, decode_record
from store_core.codec.tags import index_key_hash
from store_core.kernel.keys import KeyFinder, KeyType, PlainKeyFinder, key_finder
from store_core.layout import index
from store_core.read.query import KeyQuery
from tests import stores
from tests.conftest import GoldenStore

SLOTS: Final = 500
END_OF_TIME_MS: Final = (1 << 63) - 1
SEGMENT_SIZE_BYTES: Final = 1 << 17


def bytes_of(folder: Path) -> list[bytearray]:
    return [bytearray(path.read_bytes()) for path in sorted(folder.iterdir())]


def arrays(files: Sequence[bytearray]) -> list[Any]:
    return [np.frombuffer(file, np.uint8) if file else np.empty(0, np.uint8) for file in files]


def both(files: Sequence[bytearray], segments: Sequence[bytearray]) -> tuple[KeyFinder, KeyFinder]:
    """The finder that is compiled where it can be, and the readable one."""
    mapped = arrays(segments)
    asked = arrays(files)[::-1], SLOTS, spans(len(segments)), mapped.__getitem__
    return key_finder(*asked), PlainKeyFinder(*asked)


def spans(count: int) -> list[tuple[int, int]]:
    return [(n * SEGMENT_SIZE_BYTES, (n + 1) * SEGMENT_SIZE_BYTES) for n in range(count)]


def same(finders: tuple[KeyFinder, KeyFinder], query: KeyQuery) -> int:
    """Whether both answer alike; gives the number of records."""
    one, other = finders
    records = one.records(query)
    assert records == other.records(query), query
    messages = one.messages(query)
    assert messages == other.messages(query), query
    assert messages == [decode_record(data, 0, phy_offset) for phy_offset, data in records]
    assert {type(message) for message in messages} <= {Message}
    return len(records)


def keys() -> list[tuple[str, str]]:
    """Topic and key of every message of the store, unique keys and the users'."""
    return [
        (m["topic"], key)
        for m in stores.truth("load-533")["messages"]
        for key in (m["properties"].get("UNIQ_KEY"), *m["properties"].get("KEYS", "").split())
        if key
    ]


def test_every_key_is_found(golden: GoldenStore) -> None:
    root = golden("load-533")
    finders = both(bytes_of(root / "index"), bytes_of(root / "commitlog"))
    for topic, key in keys()[::5]:
        found = [same(finders, KeyQuery(topic, key, kind)) for kind in ("any", "key", "unique")]
        assert found[0] >= max(found) >= 1


def test_damaged_index_files(golden: GoldenStore) -> None:
    random = Random(5)
    root = golden("load-533")
    whole, segments = bytes_of(root / "index"), bytes_of(root / "commitlog")
    begin = index.HEADER.struct.unpack_from(whole[0])[0]
    end = index.HEADER.struct.unpack_from(whole[-1])[1]
    times = (0, begin, begin + 1000, (begin + end) // 2, end, END_OF_TIME_MS, -1)
    kinds: tuple[KeyType, ...] = ("any", "unique", "key")
    asked = keys()
    found = 0
    for turn in range(200):
        files = [bytearray(file) for file in whole]
        for data in files:
            for _ in range(turn and random.choice((1, 20, 3000))):
                place = random.randrange(random.choice((index.HEADER.size_bytes, len(data))))
                data[place] = random.choice((0, 1, 127, 255))
            if turn % 3 == 0:
                del data[random.choice((len(data), random.randrange(len(data)), random.randrange(60))) :]
        finders = both(files, segments)
        for topic, key in random.sample(asked, 5):
            of_time = random.choice(times[:4]), random.choice(times[2:])
            query = KeyQuery(topic, key, random.choice(kinds), *of_time, random.choice((0, 1, 64)))
            found += same(finders, query)
    assert found


def test_damaged_records(golden: GoldenStore) -> None:
    random = Random(6)
    root = golden("load-533")
    files, whole = bytes_of(root / "index"), bytes_of(root / "commitlog")
    asked = keys()
    found = 0
    for turn in range(60):
        segments = [bytearray(segment) for segment in whole]
        for segment in segments:
            for _ in range(turn * 20):
                segment[random.randrange(len(segment))] ^= 1 << random.randrange(8)
        del segments[turn % len(segments)][random.randrange(SEGMENT_SIZE_BYTES) :]
        del segments[len(segments) - turn % 3 :]
        finders = both(files, segments)
        found += sum(same(finders, KeyQuery(*pair)) for pair in random.sample(asked, 40))
    assert found


def test_entries_that_point_anywhere(golden: GoldenStore) -> None:
    root = golden("load-533")
    files, segments = bytes_of(root / "index"), bytes_of(root / "commitlog")
    field, at = index.ENTRY.field_struct("phy_offset"), index.ENTRY.offset_of("phy_offset")
    end = len(segments) * SEGMENT_SIZE_BYTES
    places = (-1, -(1 << 63), (1 << 63) - 1, 17, end - 1, end, SEGMENT_SIZE_BYTES - 3)
    for number in range(1, 1990, 3):
        for file in files:
            field.pack_into(file, index.entry_at(SLOTS, number) + at, places[number % len(places)])
    finders = both(files, segments)
    assert sum(same(finders, KeyQuery(*pair)) for pair in keys()[::3])


def test_one_record_is_told_once_and_the_log_gives_the_order(golden: GoldenStore) -> None:
    """A chain that goes up and down the log and names one record twice."""
    root = golden("load-533")
    files, segments = bytes_of(root / "index"), bytes_of(root / "commitlog")
    topic, key = keys()[0]
    key_hash = index_key_hash(topic, key)
    carriers = [m["phyOffset"] for m in stores.truth("load-533")["messages"] if m["topic"] == topic][:3]
    for number, place in enumerate((2, 0, 2, 1), 1):
        entry = key_hash, carriers[place], 0, number - 1
        index.ENTRY.struct.pack_into(files[0], index.entry_at(SLOTS, number), *entry)
    index.SLOT.struct.pack_into(files[0], index.slot_at(key_hash % SLOTS), 4)
    for finder in both(files[:1], segments):
        assert [
            offset for offset, _ in finder.records(Everything((topic, key, "any", 0, END_OF_TIME_MS, 64)))
        ] == carriers


class Everything(tuple[Any, ...]):
    """A query that every record of the hash answers."""

    def carried_by(self, _: Message) -> bool:
        return True


def test_what_bytes_do_not_tell_the_query_is_asked(golden: GoldenStore) -> None:
    root = golden("load-533")
    asked: list[Message] = []

    class Asking(tuple[Any, ...]):
        def carried_by(self, message: Message) -> bool:
            asked.append(message)
            raise LookupError("not to be told")

    topic, key = keys()[0]
    for finder in both(bytes_of(root / "index"), bytes_of(root / "commitlog")):
        with pytest.raises(LookupError, match="not to be told"):
            finder.records(Asking((topic, key, "key", 0, END_OF_TIME_MS, 64)))
        assert asked.pop().unique_key == key
        if not isinstance(finder, PlainKeyFinder):
            assert len(finder.messages(Asking((topic, key, "unique", 0, END_OF_TIME_MS, 64)))) == 1
            assert asked == []


def test_a_segment_is_mapped_when_it_is_first_needed_and_once(golden: GoldenStore) -> None:
    root = golden("load-533")
    files, segments = arrays(bytes_of(root / "index"))[::-1], arrays(bytes_of(root / "commitlog"))
    for make in (key_finder, PlainKeyFinder):
        mapped: list[int] = []

        def map_segment(number: int, mapped: list[int] = mapped) -> Any:
            mapped.append(number)
            return segments[number]

        finder = make(files, SLOTS, spans(len(segments)), map_segment)
        assert mapped == []
        for pair in keys()[::50]:
            finder.records(KeyQuery(*pair))
        assert sorted(mapped) == list(range(len(segments)))


def test_what_goes_wrong_while_a_segment_is_mapped_is_told(golden: GoldenStore) -> None:
    def fail(_: int) -> Any:
        raise OSError("the disk fails")

    files = arrays(bytes_of(golden("load-533") / "index"))
    for make in (key_finder, PlainKeyFinder):
        finder = make(files, SLOTS, spans(1), fail)
        with pytest.raises(OSError, match="the disk fails"):
            finder.messages(KeyQuery(*keys()[0]))


def test_without_files() -> None:
    assert same(both([], []), KeyQuery("t", "k")) == 0
    assert same(both([bytearray()], []), KeyQuery("t", "k")) == 0
