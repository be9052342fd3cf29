"""Every golden store through both kernels, against what the real store code says about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from store_core.kernel.codes import FrameCode, FrameKind, PropertyFlag, ScanFlag, ScanState
from store_core.kernel.columns import Row
from store_core.layout import index
from tests import stores
from tests.kernel.driver import ALL, KERNELS, Segment, both, scan, segments

FIELDS = {
    "storeSize": "size_bytes",
    "magic": "magic",
    "bodyCRC": "body_crc",
    "queueId": "queue_id",
    "flag": "flag",
    "queueOffset": "queue_offset",
    "phyOffset": "own_phy_offset",
    "sysFlag": "sys_flag",
    "bornTimestamp": "born_timestamp_ms",
    "storeTimestamp": "store_timestamp_ms",
    "reconsumeTimes": "reconsume_times",
    "preparedTransactionOffset": "prepared_transaction_offset",
    "bodyLength": "body_length",
}
PROPERTY_FLAGS = {"__CRC32#" if flag is PropertyFlag.CRC32 else str(flag.name): flag for flag in PropertyFlag}


@pytest.mark.parametrize("name", stores.GOLDEN)
def test_every_record_is_what_the_broker_says(golden: Callable[[str], Path], name: str) -> None:
    truth = stores.truth(name)
    messages = {message["phyOffset"]: message for message in truth["messages"]}
    found = [frame for segment in segments(golden(name)) for frame in scan(segment).frames]
    rows = {frame.phy_offset: frame for frame in found if frame.kind == FrameKind.MESSAGE}
    assert rows.keys() == messages.keys()
    for phy_offset, message in messages.items():
        row = rows[phy_offset].row
        assert row.code == FrameCode.OK
        assert {field: getattr(row, column) for field, column in FIELDS.items()} == {f: message[f] for f in FIELDS}
        assert rows[phy_offset].topic == message["topic"].encode()
        properties = message["properties"]
        assert row.property_flags == sum(flag for key, flag in PROPERTY_FLAGS.items() if key in properties)
        is_delayed = message["topic"] == "SCHEDULE_TOPIC_XXXX" and "DELAY" in properties
        assert row.delay_level == (int(properties["DELAY"]) if is_delayed else 0)
        if not is_delayed:  # the broker says the delivery time there, which derive works out
            assert row.tags_code == message["tagsCode"]


@pytest.mark.parametrize("name", stores.GOLDEN)
def test_blanks_and_tails_are_where_the_broker_finds_them(golden: Callable[[str], Path], name: str) -> None:
    walk = {}
    for file in stores.truth(name)["log"]["files"]:
        if "blank" in file:
            walk[file["blank"]["at"]] = FrameKind.BLANK
        else:
            assert (file["stop"]["word0"], file["stop"]["word1"]) == (0, 0)
            walk[file["stop"]["at"]] = FrameKind.ZEROS
    others = [f for s in segments(golden(name)) for f in scan(s).frames if f.kind != FrameKind.MESSAGE]
    assert {frame.phy_offset: frame.kind for frame in others} == walk


CLEAN_WITH_INDEX = [n for n in stores.GOLDEN if stores.truth(n)["exit"] == "clean"]


@pytest.mark.parametrize("name", CLEAN_WITH_INDEX)
def test_key_hashes_are_those_of_the_index_files(golden: Callable[[str], Path], name: str) -> None:
    is_tagged = stores.truth(name)["written_by"] >= "5.4"
    hashes: Counter[tuple[int, int]] = Counter()
    flags = ScanFlag.INDEX_KEYS | (ScanFlag.INDEX_TAGS if is_tagged else 0)
    for segment in segments(golden(name)):
        scanned = scan(segment, flags=flags)
        hashes.update((scanned.frames[row].phy_offset, key) for row, key in scanned.keys)
    assert hashes == Counter(
        entry for path in sorted((golden(name) / "index").iterdir()) for entry in _entries(path, name)
    )


def _entries(path: Path, name: str) -> list[tuple[int, int]]:
    """(phy offset, key hash) of every entry of an index file."""
    data = path.read_bytes()
    slots = int(stores.truth(name)["properties"]["maxHashSlotNum"])
    count = index.HEADER.read(data)["index_count"]
    entries = (index.ENTRY.read(data, index.entry_at(slots, entry)) for entry in range(1, count))
    return [(entry["phy_offset"], entry["key_hash"]) for entry in entries]


@pytest.mark.parametrize("flags", [0, ScanFlag.CHECK_CRC, ScanFlag.NO_PROPERTIES, ALL | ScanFlag.NO_PROPERTIES])
def test_flags_change_nothing_but_what_they_say(golden: Callable[[str], Path], flags: int) -> None:
    for segment in segments(golden("clean-533")):
        full, less = scan(segment), scan(segment, flags=flags)
        assert [f.topic for f in less.frames] == [f.topic for f in full.frames]
        assert not less.keys
        empty = {"tags_code": 0, "delay_level": 0, "property_flags": 0} if flags & ScanFlag.NO_PROPERTIES else {}
        assert [f.row for f in less.frames] == [f.row._replace(**empty) for f in full.frames]


@pytest.mark.parametrize("window_bytes", [1 << 40, 5000])
@pytest.mark.parametrize("name", ["clean-533", "crash-533", "load-497"])
def test_runs_hide_nothing_but_good_messages(golden: Callable[[str], Path], name: str, window_bytes: int) -> None:
    for segment in segments(golden(name)):
        every = scan(segment).frames
        damaged = segment.changed(every[len(every) // 2].phy_offset - segment.phy_offset + 100, b"????")
        full = scan(damaged).frames
        rows, count = scan_in_runs(damaged, window_bytes)
        assert count == sum(frame.kind == FrameKind.MESSAGE for frame in full)
        assert joined(rows) == joined(frame.row for frame in full)
        assert all(row == Row(*row[:4]) for row in rows if (row.kind, row.code) == (FrameKind.MESSAGE, FrameCode.OK))


def scan_in_runs(segment: Segment, window_bytes: int) -> tuple[list[Row], int]:
    """All rows of a scan in runs, and how many messages they tell of."""
    found: list[Row] = []
    at, state, need_bytes, count = 0, int(ScanState.CHAINED), 0, 0
    while at < len(segment.data):
        window = segment.data[at : at + max(window_bytes, need_bytes)]
        columns = both(window, segment.phy_offset + at, 0, segment.end_phy_offset, state, ALL | ScanFlag.RUNS)
        found += [Row(*values) for values in zip(*(getattr(columns, f).tolist() for f in Row._fields), strict=True)]
        count += columns.message_count
        at, state, need_bytes = at + columns.next_at, columns.next_state, columns.need_bytes
    return found, count


def joined(rows: Iterable[Row]) -> list[tuple[int, int, int, int]]:
    """Kind, code, start and end of rows; good messages, and rows of one kind and code, that touch are one."""
    found: list[tuple[int, int, int, int]] = []
    for row in rows:
        end = row.phy_offset + row.size_bytes
        if found and found[-1][:2] == (row.kind, row.code) and found[-1][3] == row.phy_offset:
            found[-1] = (*found[-1][:3], end)
        else:
            found.append((row.kind, row.code, row.phy_offset, end))
    return found


@pytest.mark.parametrize("kernel", KERNELS)
def test_bodies_that_do_not_match_are_told_one_by_one(golden: Callable[[str], Path], kernel: str) -> None:
    segment = segments(golden("load-497"))[1]
    whole = scan(segment, KERNELS[kernel])
    data = bytearray(segment.data)
    for row in whole.messages().values():
        if row.body_length:
            data[row.body_at + row.body_length // 2 - segment.phy_offset] ^= 1
    bad = scan(Segment(segment.phy_offset, bytes(data)), KERNELS[kernel])
    assert bad.messages().keys() == whole.messages().keys()
    assert all(r.code == (FrameCode.BAD_CRC if r.body_length else FrameCode.OK) for r in bad.messages().values())
    unchecked = scan(Segment(segment.phy_offset, bytes(data)), KERNELS[kernel], flags=0)
    assert all(r.code == FrameCode.OK for r in unchecked.messages().values())


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("column", ["topic_at", "properties_at"])
def test_the_property_crc_covers_what_the_body_crc_does_not(
    golden: Callable[[str], Path], kernel: str, column: str
) -> None:
    segment = segments(golden("propcrc-533"))[0]
    victim = list(scan(segment, KERNELS[kernel]).messages().values())[20]
    at = getattr(victim, column) - segment.phy_offset
    damaged = segment.changed(at, bytes([segment.data[at] ^ 1]))
    codes = {row.phy_offset: row.code for row in scan(damaged, KERNELS[kernel]).messages().values() if row.code}
    assert codes == {victim.phy_offset: FrameCode.BAD_PROPERTY_CRC}
    assert not any(r.code for r in scan(damaged, KERNELS[kernel], flags=ScanFlag.CHECK_CRC).messages().values())
