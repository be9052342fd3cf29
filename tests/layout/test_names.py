"""Names, sizes and places that follow from layouts, held against what real brokers wrote."""

from __future__ import annotations

import pytest

from store_core.layout import index, paths, queue, record
from tests import stores
from tests.conftest import GoldenStore


@pytest.mark.parametrize(
    ("name", "offset"),
    [
        ("0" * 20, 0),
        ("00000000000000131072", 131072),
        (f"{(1 << 63) - 1:020d}", (1 << 63) - 1),
        (f"{1 << 63:020d}", None),  # no Java long
        ("٠" * 17 + "١٢٣", 123),  # Java reads digits of any script
        ("0" * 19, None),
        ("0" * 21, None),
        ("-" + "0" * 19, None),
        ("+" + "0" * 19, None),
        ("0000000000000013107 ", None),
        ("0000_0000_0000_0000_", None),
        ("²" * 20, None),  # a digit, and no decimal one
        ("0000000000000000000a", None),
        ("", None),
    ],
)
def test_segment_names(name: str, offset: int | None) -> None:
    assert paths.parse_segment_name(name) == offset
    if offset is not None and name.isascii():
        assert paths.segment_name(offset) == name


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("-5", -5),
        ("+5", 5),
        ("-0", 0),
        (str(-1 << 63), -1 << 63),
        (str((-1 << 63) - 1), None),
        (str(1 << 63), None),
        ("-+5", None),
        ("--5", None),
        ("-", None),
        ("7", 7),
        ("+007", 7),
        ("0" * 30, 0),
        ("+", None),
        ("7a", None),
        ("", None),
    ],
)
def test_numbers_with_a_sign(name: str, number: int | None) -> None:
    assert paths.parse_long(name) == number


@pytest.mark.parametrize(
    ("name", "queue_id"),
    [
        ("0", 0),
        ("7", 7),
        ("2147483647", 2147483647),
        ("2147483648", None),  # no Java int
        ("007", None),  # Java reads 7 off it, and looks for that queue's files in the folder 7
        ("٣", None),
        ("-1", None),
        ("+1", None),
        ("9" * 5000, None),
        ("", None),
    ],
)
def test_queue_folders(name: str, queue_id: int | None) -> None:
    assert paths.parse_queue_id(name) == queue_id


@pytest.mark.parametrize("name", ["clean-430", "clean-533", "load-533"])
def test_files_of_real_brokers_have_these_lengths(name: str, golden: GoldenStore) -> None:
    root, properties = golden(name), stores.truth(name)["properties"]
    lengths = {
        folder: {p.stat().st_size for p in (root / folder).rglob("*") if p.is_file()}
        for folder in ("index", "consumequeue")
    }
    assert lengths["index"] == {
        index.file_size_bytes(int(properties["maxHashSlotNum"]), int(properties["maxIndexNum"]))
    }
    assert lengths["consumequeue"] == {queue.rounded_file_size_bytes(int(properties["mappedFileSizeConsumeQueue"]))}


def test_a_queue_file_holds_whole_entries() -> None:
    assert [queue.rounded_file_size_bytes(size) for size in (1, 20, 21, 6_000_000)] == [20, 20, 40, 6_000_000]


def test_ext_addresses() -> None:
    lowest = -(1 << 63)
    assert (queue.is_ext_address(lowest), queue.ext_offset(lowest)) == (True, 0)
    assert queue.ext_offset(lowest + 48) == 48
    assert (queue.is_ext_address(-2147483649), queue.is_ext_address(-2147483648)) == (True, False)  # a hash is an int


@pytest.mark.parametrize(
    ("sys_flag", "body_at"),
    [(0, 88), (record.FLAG_BORN_HOST_V6, 100), (record.FLAG_STORE_HOST_V6, 100), (record.FLAG_BORN_HOST_V6 | record.FLAG_STORE_HOST_V6, 112)],
)  # fmt: skip
def test_hosts_move_what_stands_behind_them(sys_flag: int, body_at: int) -> None:
    assert record.body_at(sys_flag) == body_at
