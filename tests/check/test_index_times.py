"""What an index says of times, and its headers, against the records that it speaks of."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from store_core.check.store import check_store
from store_core.derive.index import index_file_name
from store_core.findings import Finding
from store_core.layout import index
from store_core.layout.schema import Layout
from store_core.read.index import Index
from store_core.storage.store import Store
from tests import stores
from tests.conftest import DamagedStore, StoreCopy
from tests.damage import Damageable

SLOTS = 500  # of the stores whose bases are loaded


def check(root: Path) -> list[Finding]:
    with Store.open(root) as store:
        return check_store(store).findings


def index_files(root: Path) -> list[Path]:
    return sorted((root / "index").iterdir())


def put(file: Path, at: int, layout: Layout, field: str, value: int) -> None:
    """Write one field of a header or an entry that begins at ``at``."""
    data = bytearray(file.read_bytes())
    values = layout.read(bytes(data[at : at + layout.size_bytes]))
    data[at : at + layout.size_bytes] = layout.struct.pack(*{**values, field: value}.values())
    file.write_bytes(data)


def date(file: Path, entry: int, seconds: int) -> None:
    put(file, index.entry_at(SLOTS, entry), index.ENTRY, "seconds", seconds)


def dated(root: Path, number: int) -> list[int]:
    """The seconds of every entry of an index file."""
    with Store.open(root) as store, Index(store) as opened:
        assert opened.sizes.slots == SLOTS
        file = opened.files[number]
        return [file.entry(n)[2] for n in range(1, file.last_entry + 1)]


@pytest.mark.parametrize("number", [0, 1, -1])
@pytest.mark.parametrize("field", [name for name in index.HEADER.names if name != "index_count"])
def test_every_field_of_a_header_is_compared(store_copy: StoreCopy, number: int, field: str) -> None:
    root = store_copy("load-533")
    file = index_files(root)[number]
    for value in (5, 1 << 30):
        put(file, 0, index.HEADER, field, value)
        [found] = check(root)
        assert (found.code, found.severity, found.file) == ("I007", "warning", f"index/{file.name}")
        is_time = field.endswith("timestamp_ms")  # people read those as dates
        told = (datetime(1970, 1, 1) + timedelta(milliseconds=value)).isoformat(timespec="milliseconds")
        assert (f"{told}Z" if is_time else str(value)) in found.message


@pytest.mark.parametrize("number", [0, 1])
def test_entries_that_are_all_dated_wrong_are_one_finding(store_copy: StoreCopy, number: int) -> None:
    root = store_copy("load-533")
    file, count = index_files(root)[number], len(dated(root, number))
    for entry in range(1, count + 1):
        date(file, entry, 99_999)
    [found] = check(root)
    assert (found.code, found.severity, found.file) == ("I010", "warning", f"index/{file.name}")
    assert found.message == f"{count} entries are not dated as their records, the first of them entry 1"


@pytest.mark.parametrize("number", [0, 1, -1])
@pytest.mark.parametrize("entry", [1, 2, 700, -1])
def test_a_single_entry_dated_wrong_is_found(store_copy: StoreCopy, number: int, entry: int) -> None:
    root = store_copy("load-533")
    seconds = dated(root, number)
    entry %= len(seconds) + 1
    date(index_files(root)[number], entry, seconds[entry - 1] + 1)
    [found] = check(root)
    assert (found.code, found.message) == ("I010", f"entry {entry} is not dated as its record")


def test_a_time_is_compared_beside_damage_too(damaged: DamagedStore) -> None:
    root = damaged("load-533", "zero-page-mid")
    before = check(root)
    seconds = dated(root, 0)
    date(index_files(root)[0], 700, seconds[699] + 1)
    assert [f.code for f in check(root) if f not in before] == ["I010"]
    assert not [f for f in before if f.code in ("I007", "I010")]


def test_what_has_expired_cannot_be_asked(store_copy: StoreCopy) -> None:
    root = store_copy("load-533")
    for segment in sorted((root / "commitlog").iterdir())[:2]:
        segment.unlink()
    assert not [f for f in check(root) if f.code[0] == "I"]
    put(index_files(root)[0], 0, index.HEADER, "begin_timestamp_ms", 5)
    [found] = [f for f in check(root) if f.code[0] == "I"]
    with Store.open(root) as store, Index(store) as opened:
        file = opened.files[0]
        alive = [n for n in range(1, file.last_entry + 1) if file.entry(n)[1] >= store.log.min_phy_offset]
    assert (found.code, found.message) == (
        "I010",
        f"{len(alive)} entries are not dated as their records, the first of them entry {alive[0]}",
    )


def test_a_missing_file_makes_the_next_one_no_liar(store_copy: StoreCopy) -> None:
    root = store_copy("load-533")
    index_files(root)[1].unlink()
    assert {f.code for f in check(root)} == {"I004"}


def test_a_file_without_entries_repeats_the_end_of_the_one_in_front(store_copy: StoreCopy) -> None:
    root = store_copy("load-533")
    full = index_files(root)[0]
    for other in index_files(root)[1:]:
        other.unlink()
    header = index.HEADER.read(full.read_bytes()[: index.HEADER.size_bytes])
    time, offset = header["end_timestamp_ms"], header["end_phy_offset"]
    empty = full.with_name(index_file_name(time))
    empty.write_bytes(index.HEADER.struct.pack(time, time, offset, offset, 0, 0).ljust(full.stat().st_size, b"\0"))
    assert {f.code for f in check(root)} == {"I008"}
    put(empty, 0, index.HEADER, "begin_timestamp_ms", time - 1)
    assert {f.code for f in check(root)} == {"I007", "I008"}


def test_a_record_without_a_time_says_nothing_of_its_entries(damageable: Callable[..., Damageable]) -> None:
    store = damageable("load-533")
    store.set_field(0, "store_timestamp_ms", 0)
    store.set_field(700, "store_timestamp_ms", 0)
    found = {f.code for f in check(store.root)}
    assert "L019" in found
    assert not [code for code in found if code[0] == "I"]


def test_the_stores_have_what_these_tests_ask_for() -> None:
    properties = stores.truth("load-533")["properties"]
    assert int(properties["maxHashSlotNum"]) == SLOTS
