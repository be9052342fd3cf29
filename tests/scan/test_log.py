"""The walk over a whole log: every byte is told of once, wherever windows are cut and however many segments are walked together."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from store_core.check.verify import verify_log
from store_core.kernel.codes import FrameCode, FrameKind
from store_core.layout import paths
from store_core.scan.frames import ROW_COLUMNS
from store_core.scan.log import ScanOptions, scan_log
from store_core.storage.overlay import Patch, overlaid
from store_core.storage.settings import load_settings
from store_core.storage.store import Store
from tests import stores
from tests.conftest import DamagedStore, GoldenStore
from tests.damage import Damageable

DamageableOf = Callable[..., Damageable]
SettingsOf = Callable[[str], Path]
SEGMENT: Final = 131072
Row = tuple[str, str, int, int]  # kind, code, offset, size
DAMAGED: Final = ("flip-body-mid", "zero-page-mid", "size-huge-mid", "blank-mid-broken", "ghost-tail", "garbage-tail",
                  "log-missing-mid", "log-mid-short", "log-last-empty", "log-full-then-old-file", "torn-tail")  # fmt: skip


def rows(tables: Any) -> list[Row]:
    """Rows that are no good message, good ones in a row joined to one."""
    found: list[Row] = []
    for table in tables:
        for kind, code, at, size in zip(table.kind, table.code, table.phy_offset, table.size_bytes, strict=True):
            row = (FrameKind(int(kind)).name, FrameCode(int(code)).name, int(at), int(size))
            last = found[-1] if found else ("", "", 0, 0)
            if row[:2] == last[:2] == ("MESSAGE", "OK") and last[2] + last[3] == row[2]:
                found[-1] = (*last[:3], last[3] + row[3])
            else:
                found.append(row)
    return found


def columns(tables: Any) -> dict[str, list[Any]]:
    """All columns but positions in windows, whose places depend on the windows."""
    names = [n for n in ROW_COLUMNS if not n.endswith("_at") and n != "topic_id"]
    found: dict[str, list[Any]] = {name: [] for name in [*names, "topic", "body", "keys"]}
    for table in tables:
        for name in names:
            found[name] += getattr(table, name).tolist()
        for row in np.flatnonzero(table.messages).tolist():
            found["topic"].append(table.topic(row))
            found["body"].append(hash(table.body(row)))
        found["keys"] += [
            (int(table.phy_offset[r]), int(h)) for r, h in zip(table.key_row, table.key_hash, strict=True)
        ]
    return found


def test_named_damages_are_told_exactly(damageable: DamageableOf, settings_of: SettingsOf) -> None:
    """A bad body, a broken head, zeros, a cut file, a torn tail: each is one row at its place."""
    store = damageable("load-533")
    bad, head = store.message(100), store.message(400)
    store.flip(100, "body")
    store.flip(400, "magic")
    zeroed = store.message(700)
    store.zero(zeroed["phyOffset"], zeroed["storeSize"])
    store.cut(5, 100_000)
    torn = store.message(-1)
    store.tear(torn["storeSize"] // 2 + 60)
    end, size = torn["phyOffset"], torn["storeSize"]
    short = next(m for m in store.truth["messages"] if m["phyOffset"] + m["storeSize"] > 5 * SEGMENT + 100_000)
    with Store.open(store.root, load_settings(settings_of("load-533"), store.root)) as opened:
        found = [row for row in rows(scan_log(opened)) if row[:2] != ("MESSAGE", "OK") and row[0] != "BLANK"]
    assert found == [
        ("MESSAGE", "BAD_CRC", bad["phyOffset"], bad["storeSize"]),
        ("DAMAGE", "MAGIC", head["phyOffset"], head["storeSize"]),
        ("ZEROS", "OK", zeroed["phyOffset"], zeroed["storeSize"]),
        ("DAMAGE", "SIZE", short["phyOffset"], 5 * SEGMENT + 100_000 - short["phyOffset"]),
        ("HOLE", "OK", 5 * SEGMENT + 100_000, SEGMENT - 100_000),
        found[-2],
        found[-1],
    ]
    tail = found[-2:]
    assert [row[0] for row in tail] == ["DAMAGE", "ZEROS"]
    assert tail[0][2] == end
    assert tail[0][2] + tail[0][3] == tail[1][2] <= end + size
    assert tail[1][2] + tail[1][3] == 8 * SEGMENT


@pytest.mark.parametrize("case", DAMAGED)
def test_every_byte_is_told_of_once(case: str, damaged: DamagedStore, settings_of: SettingsOf) -> None:
    root = damaged("load-533", case)
    with Store.open(root, load_settings(settings_of("load-533"), root)) as store:
        at = 0
        for table in scan_log(store):
            for start, size in zip(table.phy_offset.tolist(), table.size_bytes.tolist(), strict=True):
                assert start == at
                at += size
        assert at == store.log.segments[-1].phy_offset + SEGMENT


@pytest.mark.parametrize("case", DAMAGED)
def test_windows_make_no_difference(case: str, damaged: DamagedStore, settings_of: SettingsOf) -> None:
    root = damaged("load-533", case)
    with Store.open(root, load_settings(settings_of("load-533"), root)) as store:
        options = ScanOptions(index_keys=True)
        whole = columns(scan_log(store, options=options))
        for size in (5_000, 33_333):
            assert columns(scan_log(store, options=replace(options, window_size_bytes=size))) == whole


@pytest.mark.parametrize("case", DAMAGED)
def test_segments_side_by_side_make_no_difference(case: str, damaged: DamagedStore, settings_of: SettingsOf) -> None:
    root = damaged("load-533", case)
    with Store.open(root, load_settings(settings_of("load-533"), root)) as store:
        one, two = verify_log(store, jobs=1), verify_log(store, jobs=2)
        assert (one.records, one.findings, one.counts) == (two.records, two.findings, two.counts)
        assert [s.as_json() for s in one.segments] == [s.as_json() for s in two.segments]


def test_a_range_begins_and_ends_where_it_says(golden: GoldenStore, settings_of: SettingsOf) -> None:
    messages = stores.truth("load-533")["messages"]
    with Store.open(golden("load-533"), load_settings(settings_of("load-533"), golden("load-533"))) as store:

        def between(low: int | None, high: int | None) -> list[int]:
            found: list[int] = []
            for table in scan_log(store, from_phy_offset=low, to_phy_offset=high):
                found += table.phy_offset[table.messages].tolist()
            return found

        for first, last in ((0, 50), (300, 301), (500, 1700), (2000, 2182)):
            low, high = messages[first]["phyOffset"], messages[last]["phyOffset"]
            inside = [m["phyOffset"] for m in messages[first:last]]
            assert between(low, high) == inside
            assert between(low, high + 1) == [*inside, high]
            if low % SEGMENT:  # from the middle of a record the next one is found
                assert between(low + 1, high) == inside[1:]
        assert between(None, 0) == []
        assert between(messages[-1]["phyOffset"] + 1, None) == []


def test_a_segment_in_two_folders_is_walked_once(damageable: DamageableOf, settings_of: SettingsOf) -> None:
    store = damageable("load-533")
    second = store.root / "second"
    second.mkdir()
    shutil.copy2(store.segments[2], second)
    store.segments[3].rename(second / store.segments[3].name)
    config = settings_of("load-533")
    config.write_text(config.read_text() + f"storePathCommitLog={store.root / paths.COMMITLOG},{second}\n")
    with Store.open(store.root, load_settings(config, store.root)) as opened:
        found = [int(at) for table in scan_log(opened) for at in table.phy_offset[table.messages]]
        assert [stray.path.name for stray in opened.log.strays] == [f"{2 * SEGMENT:020d}"]
    assert found == [m["phyOffset"] for m in stores.truth("load-533")["messages"]]


def test_left_overs_behind_the_tail_are_stale(damageable: DamageableOf, settings_of: SettingsOf) -> None:
    """Whole records that say they lie further in front, and that no queue knows; inside the log such a record is a message."""
    store = damageable("load-533")
    first = store.copy_record(10)
    second = store.copy_record(11, to=first + store.message(10)["storeSize"])
    inside = store.set_field(300, "own_phy_offset", 5)
    size = store.message(10)["storeSize"] + store.message(11)["storeSize"]
    with Store.open(store.root, load_settings(settings_of("load-533"), store.root)) as opened:
        found = rows(scan_log(opened))
    assert second > first
    assert [row for row in found if row[0] == "STALE"] == [("STALE", "OK", first, size)]
    assert [row[2] for row in found if row[1] == "OWN_OFFSET"] == [store.message(300)["phyOffset"]]
    assert inside > store.message(300)["phyOffset"]


def test_an_overlay_is_read_like_a_file(golden: GoldenStore, settings_of: SettingsOf) -> None:
    """Patches over real bytes, a longer file and a file that is not there: as though they had been written."""
    root = golden("load-533")
    with Store.open(root, load_settings(settings_of("load-533"), root)) as store:
        log = store.log
        message = stores.truth("load-533")["messages"][700]
        holder = log.find(message["phyOffset"])
        assert holder is not None
        at = message["phyOffset"] - holder.phy_offset
        patch = Patch(at, at + message["storeSize"], ((10, b"abc"),))
        missing = replace(log.segments[-1], path=holder.path.with_name(f"{8 * SEGMENT:020d}"), phy_offset=8 * SEGMENT)
        seen = overlaid(log, {holder.path: [patch]}, [*log.segments, missing])
        data = seen.read(message["phyOffset"] - 5, message["storeSize"] + 10)
        real = log.read(message["phyOffset"] - 5, message["storeSize"] + 10)
        expected = real[:5] + bytes(10) + b"abc" + bytes(message["storeSize"] - 13) + real[-5:]
        assert data == expected
        buffer = bytearray(len(data))
        assert seen.read_into(message["phyOffset"] - 5, memoryview(buffer)) == len(data)
        assert bytes(buffer) == data
        assert seen.read(8 * SEGMENT, 100) == bytes(100)
        with Store(store.settings) as view:
            view.__dict__["log"] = seen
            found = [row for row in rows(scan_log(view)) if row[0] in ("DAMAGE", "ZEROS")]
    assert found[0][2] == message["phyOffset"]
    behind = message["phyOffset"] + message["storeSize"]
    assert sum(row[3] for row in found if row[2] < behind) == message["storeSize"]


def test_a_page_of_another_file_hides_no_record_behind_it(damageable: DamageableOf) -> None:
    """Its last record may reach into the next one with what no checksum looks at."""
    for page in (22, *range(2, 30, 3)):
        store = damageable("load-533")
        size = store.segment_size_bytes
        store.write(6 * size + page * 4096, store.read(3 * size + page * 4096, 4096))
        start, end = 6 * size + page * 4096, 6 * size + (page + 1) * 4096
        whole = [
            m["phyOffset"]
            for m in store.truth["messages"]
            if m["phyOffset"] + m["storeSize"] <= start or m["phyOffset"] >= end
        ]
        with Store.open(store.root) as opened:
            found = {
                int(at) for table in scan_log(opened) for at in table.phy_offset[table.messages & (table.code == 0)]
            }
        assert set(whole) <= found, page
