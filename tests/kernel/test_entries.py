"""What the kernel says of many queue entries is what its twin says."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from store_core.kernel import NOATIME, OPEN_FLAGS
from store_core.kernel.entries import chain_sums, hashes
from store_core.kernel.entry_runs import read_run
from store_core.kernel.reference import entries as twin_entries
from store_core.layout import queue
from store_core.layout.record import MAX_RECORD_SIZE_BYTES

native = pytest.importorskip("store_core.kernel._native", reason="not built: no cargo", exc_type=ImportError)
MOST_BYTES = 4 << 20
ANYWHERE = 1 << 63


def entries(layout: str, count: int, seed: int) -> np.ndarray:
    """Entries most of which point behind each other, some back, a few nowhere."""
    draw = random.Random(seed)
    made = np.zeros(count, getattr(queue, layout).dtype)
    made["phy_offset"] = np.cumsum([draw.choice((100, 700, 700, -300)) for _ in range(count)]) + 5000
    made["size_bytes"] = draw.choices((91, 533, MOST_BYTES), k=count)
    for _ in range(draw.randrange(3)):
        made["phy_offset"][draw.randrange(count)] = draw.choice((-1, -(1 << 63), (1 << 63) - 1))
        made["size_bytes"][draw.randrange(count)] = draw.choice((0, -1, MOST_BYTES + 1, (1 << 31) - 1))
    return made


@pytest.mark.parametrize("layout", ["ENTRY", "BATCH_ENTRY"])
@pytest.mark.parametrize("seed", range(8))
def test_good_runs(layout: str, seed: int) -> None:
    made = entries(layout, 400, seed)
    for below, highest, room in ((ANYWHERE, -1, 1000), (90_000, 7000, 3), (0, -1, 9)):
        asked = made.view(np.uint8), made.itemsize, below, highest, room
        assert native.good_run(*asked) == twin_entries.good_run(*asked)
    assert native.good_run(made[:0].view(np.uint8), made.itemsize, ANYWHERE, 5, 9) == (0, 5, [])


@pytest.mark.parametrize("layout", ["ENTRY", "BATCH_ENTRY"])
@pytest.mark.parametrize("seed", range(8))
def test_chain_sums(layout: str, seed: int) -> None:
    made = entries(layout, 400, seed)
    starts, ends = np.array([0, 20_000, 90_000], np.int64), np.array([19_000, 80_000, 100_000], np.int64)
    asked = made.view(np.uint8), made.itemsize, starts, ends, MOST_BYTES
    found, expected = (kernel.chain_sums(*asked) for kernel in (native, twin_entries))
    assert [column.tolist() for column in found] == [column.tolist() for column in expected]


def test_of_a_whole_chain_only_the_ends_are_left() -> None:
    draw = random.Random(4)
    edges = np.cumsum([0, *draw.choices((91, 533, 1257), k=300)])
    made = np.zeros(300, queue.ENTRY.dtype)
    made["phy_offset"], made["size_bytes"] = edges[:-1], [b - a for a, b in pairwise(edges.tolist())]
    draw.shuffle(order := list(range(300)))
    ends = edges[[0, -1]].astype(np.int64)
    whole = chain_sums(made[order], ends[:1], ends[1:])
    assert whole.sums == hashes(ends[:1]) - hashes(ends[1:])
    assert (whole.counts.tolist(), whole.last.tolist()) == ([300], [edges[-1]])
    assert chain_sums(made[order[1:]], ends[:1], ends[1:]).sums != whole.sums


def test_entries_that_are_too_short_are_refused() -> None:
    with pytest.raises(ValueError, match="that short"):
        native.good_run(np.zeros(60, np.uint8), 19, ANYWHERE, -1, 1)


SEGMENTS = [0, 20_000, 90_000, 400_000], [19_000, 80_000, 100_000, 1 << 40]


@pytest.mark.parametrize("count", [0, 1, 7, 400, 12 << 10, 30_000])
@pytest.mark.parametrize("end", ["zeros", "negative", "largest", "nothing", "part of an entry"])
def test_a_file_that_rises_is_read_in_one_go(count: int, end: str, tmp_path: Path) -> None:
    made = np.zeros(count + 5, queue.ENTRY.dtype)
    made["phy_offset"][:count] = np.cumsum(np.full(count, 91)) + 300
    made["size_bytes"][:count] = 91
    made["size_bytes"][3:count:9] = MAX_RECORD_SIZE_BYTES + 1  # no record's
    made["phy_offset"][5:count:6] += 91  # as the next one
    if end == "negative":
        made["phy_offset"][count:], made["size_bytes"][count:] = -1, 91
    elif end == "largest":  # an offset like any other
        made["phy_offset"][count:], made["size_bytes"][count:] = (1 << 63) - 1, (1 << 31) - 1
    path = tmp_path / "file"
    kept = {"nothing": count * 20, "part of an entry": count * 20 + 19}.get(end)
    path.write_bytes(made.tobytes()[:kept])
    found = native.read_run(path, OPEN_FLAGS, NOATIME, *SEGMENTS, MAX_RECORD_SIZE_BYTES)
    assert found == twin_entries.read_run(path, *SEGMENTS, MAX_RECORD_SIZE_BYTES)
    assert found[0] == count + 5 * (end == "largest")
    assert read_run(path, *SEGMENTS) == found


@pytest.mark.parametrize("seed", range(8))
def test_of_a_file_that_falls_nothing_is_told(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(entries("ENTRY", 400, seed).tobytes())
    found = native.read_run(path, OPEN_FLAGS, NOATIME, *SEGMENTS, MOST_BYTES)
    assert found == twin_entries.read_run(path, *SEGMENTS, MOST_BYTES)
    assert found is None or found[0] < 10


def test_entries_of_no_segment_count_nowhere(tmp_path: Path) -> None:
    made = entries("ENTRY", 1, 1)
    path = tmp_path / "file"
    path.write_bytes(made.tobytes())
    assert native.read_run(path, OPEN_FLAGS, NOATIME, [], [], MOST_BYTES)[4] == []


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(OSError, match=r"."):
            native.read_run(path, OPEN_FLAGS, NOATIME, [0], [1], MOST_BYTES)
