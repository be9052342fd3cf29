"""Messages of queue entries: compiled and in Python alike, and what the decoder of single records says."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from store_core.codec.record import Message, RecordError, decode_record
from store_core.kernel import messages as messages
from store_core.kernel.codes import NEIGHBOUR_GAP_BYTES, READ_AT_ONCE_BYTES
from store_core.layout import record
from store_core.layout.queue import ENTRY
from store_core.read.records import needs_unwrap
from store_core.storage.store import Store
from tests import stores
from tests.conftest import GoldenStore

native = pytest.importorskip("store_core.kernel._native", reason="not built: no cargo", exc_type=ImportError)


def both(
    entries: bytes, window: bytes, window_phy_offset: int, known: int = 0
) -> tuple[list[messages.Parts], int, int]:
    """What both give: the messages added behind ``known`` ones, and what to read next."""
    one: list[messages.Parts] = [(0, b"", b"", "", b"")] * known
    two = list(one)
    told = messages.add_messages(entries, window, window_phy_offset, one)
    assert native.add_messages(entries, window, window_phy_offset, two) == told
    assert two == one
    return one[known:], *told


def queues(golden: GoldenStore, name: str) -> Iterator[tuple[Store, bytes]]:
    with Store.open(golden(name)) as store:
        for files in store.queues.values():
            yield store, b"".join(files.read(s.phy_offset, s.size_bytes) for s in files.segments)


@pytest.mark.parametrize("name", stores.GOLDEN)
def test_every_queue_of_real_brokers(golden: GoldenStore, name: str) -> None:
    """Read after read, as ``messages_of`` does; entries that are not plain are passed over one by one."""
    for store, entries in queues(golden, name):
        while entries:
            found: list[messages.Parts] = []
            window, start = b"", 0
            while True:
                more, start, size_bytes = both(entries, window, start, len(found))
                found += more
                if not size_bytes or (window and not more):
                    break
                window = store.log.read(start, size_bytes)
            assert messages.messages_of(store.log, entries) == found
            places = [entry[:2] for entry in ENTRY.struct.iter_unpack(entries)]
            for (phy_offset, size_bytes), parts in zip(places, found, strict=False):
                decoded = decode_record(store.log.read(phy_offset, size_bytes), 0, phy_offset)
                assert (decoded, decoded.size_bytes) == (parts, size_bytes)
                assert not needs_unwrap(decoded)
            if len(found) < len(places):
                assert _is_not_plain(store, *places[len(found)])
            entries = entries[(len(found) + 1) * ENTRY.size_bytes :]


def _is_not_plain(store: Store, phy_offset: int, size_bytes: int) -> bool:
    data = store.log.read(phy_offset, size_bytes)
    try:
        message = decode_record(data, 0, phy_offset)
    except RecordError:
        return True
    return len(data) < size_bytes or message.size_bytes != size_bytes or needs_unwrap(message)


def test_damaged_records_and_entries(golden: GoldenStore) -> None:
    random = Random(3)
    stopped = 0
    for name in ("load-533", "ipv6-533", "clean-540"):
        entries = next(e for _, e in queues(golden, name) if len(e) > 30 * ENTRY.size_bytes)
        places = [entry[:2] for entry in ENTRY.struct.iter_unpack(entries)][:30]
        start, end = min(place[0] for place in places), max(sum(place) for place in places)
        with Store.open(golden(name)) as store:
            whole = store.log.read(start, end - start)
        for _ in range(400):
            window = bytearray(whole)
            for phy_offset, _ in random.sample(places, 3):
                at = (
                    phy_offset
                    - start
                    + random.choice((random.randrange(4), random.randrange(100), random.randrange(500)))
                )
                if at < len(window):
                    window[at] = random.choice((0, 1, 127, 128, 255, window[at] ^ 1 << random.randrange(8)))
            damaged = bytearray(entries[: 30 * ENTRY.size_bytes])
            if random.random() < 0.3:
                damaged[random.randrange(len(damaged))] ^= 1 << random.randrange(8)
            found, _, _ = both(bytes(damaged), bytes(window), start + random.choice((0, 0, 0, 1, -1)))
            stopped += len(found) < 30
            for phy_offset, *_ in found:
                message = decode_record(window, phy_offset - start, phy_offset)
                assert isinstance(message, Message)
    assert stopped > 300


def test_what_is_read_next() -> None:
    def entries(*places: tuple[int, int]) -> bytes:
        return b"".join(ENTRY.struct.pack(*place, 0) for place in places)

    least, gap = record.MIN_RECORD_SIZE_BYTES, NEIGHBOUR_GAP_BYTES
    assert both(entries(), b"", 0) == ([], 0, 0)
    assert both(entries((5, least)), b"", 0) == ([], 5, least)
    assert both(entries((5, least))[:-1], b"", 0) == ([], 0, 0)
    assert both(entries((0, least), (least, 200)), b"", 0) == ([], 0, least + 200)
    assert both(entries((0, least), (least + gap, 200)), b"", 0) == ([], 0, least + gap + 200)
    assert both(entries((0, least), (least + gap + 1, 200)), b"", 0) == ([], 0, least)
    assert both(entries((500, least), (0, least)), b"", 0) == ([], 500, least)
    assert both(entries((0, least), (least, -1)), b"", 0) == ([], 0, least)
    assert both(entries((0, least), (least, READ_AT_ONCE_BYTES - least)), b"", 0) == ([], 0, READ_AT_ONCE_BYTES)
    assert both(entries((0, least), (least, READ_AT_ONCE_BYTES - least + 1)), b"", 0) == ([], 0, least)
    assert both(entries((0, READ_AT_ONCE_BYTES + 1)), b"", 0) == ([], 0, READ_AT_ONCE_BYTES + 1)
    assert both(entries((0, record.MAX_RECORD_SIZE_BYTES + 1)), b"", 0) == ([], 0, 0)
    assert both(entries((-1, least)), b"", 0) == ([], 0, 0)
    assert both(entries((0, least - 1)), b"", 0) == ([], 0, 0)
    assert both(entries(((1 << 63) - 1, least)), b"", 0)[0] == []
