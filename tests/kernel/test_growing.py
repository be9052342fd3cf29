"""A window that is walked while it is read gives what it gives when it is there as a whole."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store_core.kernel.codes import ScanFlag, ScanState
from store_core.kernel.columns import WindowColumns
from store_core.kernel.file import NOATIME, OPEN_FLAGS, FileReader
from store_core.kernel.reference import scan as twin
from tests.kernel.driver import ALL, Segment, assert_same, both, segments
from tests.kernel.test_windows import HARMS, harm, with_parts

KERNELS: Final[dict[str, ModuleType]] = {"twin": twin}
READERS: Final[dict[str, Callable[[Path], FileReader]]] = {
    "twin": lambda path: twin.FileReader(path, OPEN_FLAGS, NOATIME)
}
try:
    from store_core.kernel import _native, native
except ImportError:
    pass
else:
    KERNELS["native"] = native
    READERS["native"] = lambda path: _native.FileReader(path, OPEN_FLAGS, NOATIME)
PART: Final = 128 << 10  # what the compiled kernel reads at once
STATES: Final = [int(state) for state in ScanState]
quick = settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
by_kernel = pytest.mark.parametrize("kernel", KERNELS)


@pytest.fixture(scope="module")
def segment(golden: Callable[[str], Path]) -> Segment:
    whole = segments(golden("load-533"))[2]
    return Segment(whole.phy_offset, whole.data[: 60 << 10] + bytes(5000))


@quick
@given(
    harms=HARMS,
    ends=st.lists(st.integers(0, 66_000), max_size=30),
    begin=st.integers(0, 9000),
    beyond=st.sampled_from([0, 1, 5000]),
    state=st.sampled_from(STATES),
    flags=st.sampled_from([int(ALL), int(ALL | ScanFlag.RUNS), 0]),
)
def test_as_if_it_were_there_at_once(
    segment: Segment, harms: list[Any], ends: list[int], begin: int, beyond: int, state: int, flags: int
) -> None:
    for one in harms:
        segment = harm(segment, *one)
    place = segment.phy_offset + begin, 0, segment.end_phy_offset + beyond, state, flags
    window = segment.data[begin:]
    whole = both(window, *place)
    for kernel in KERNELS.values():
        scan = kernel.WindowScan(*place, len(window))
        for end in sorted(ends):
            scan.go_on(window[:end])
        scan.go_on(window)
        assert_same(scan.columns(), whole)


@by_kernel
@pytest.mark.parametrize("have", [0, 1, 5000])
@pytest.mark.parametrize("missing", [0, 1, 70_000])
def test_it_reads_what_the_file_has(
    golden: Callable[[str], Path], tmp_path: Path, kernel: str, have: int, missing: int
) -> None:
    """Longer than what is read at once, with records of other places, blanks in the middle and damage."""
    data = b"".join(segment.data for segment in segments(golden("load-533"))[:6])
    whole = harm(harm(Segment(0, data), "zeros", 300_000, 9000, 1), "noise", 500_000, 700, 2)
    path, start = tmp_path / "segment", 777
    path.write_bytes(bytes(start) + whole.data[: len(data) - missing])
    window = bytearray(whole.data[:have] + b"x" * (len(data) - have))
    reader = READERS[kernel](path)
    scan = KERNELS[kernel].WindowScan(0, 0, len(data), ScanState.CHAINED, ALL, len(data))
    assert scan.read_on(reader, memoryview(window), have, start) == (len(data) - missing, 0)
    assert window[: len(data) - missing] == whole.data[: len(data) - missing]
    assert_same(scan.columns(), both(whole.data[: len(data) - missing], 0, 0, len(data), ScanState.CHAINED, ALL))
    reader.close()
    with pytest.raises(ValueError, match="closed"):
        KERNELS[kernel].WindowScan(0, 0, len(data), 0, 0, 0).read_on(reader, memoryview(window), 0, 0)


@pytest.mark.product
@by_kernel
@pytest.mark.parametrize("missing", [0, 1, 70_000])
@pytest.mark.parametrize("body_length", [0, 70_000, 200_000, 700_000])
def test_nothing_of_a_window_need_be_kept(
    golden: Callable[[str], Path], tmp_path: Path, kernel: str, body_length: int, missing: int
) -> None:
    """With records longer than what is read at once, and than all that is held of most windows."""
    first, *others = segments(golden("load-533"))[:5]
    large = with_parts(first, body=bytes(body_length)) if body_length else b""
    data = b"".join([first.data, large, *(segment.data for segment in others[:2]), large, others[2].data])
    whole = harm(harm(Segment(0, data), "zeros", 200_000, 9000, 1), "noise", 310_000, 700, 2)
    path, start = tmp_path / "segment", 777
    path.write_bytes(bytes(start) + whole.data[: len(data) - missing])
    for state in STATES:
        reader = READERS[kernel](path)
        scan = KERNELS[kernel].WindowScan(0, 0, len(data) + 9, state, ALL, len(data))
        assert scan.read_through(reader, len(data), start) == (len(data) - missing, 0)
        assert_same(scan.columns(), both(whole.data[: len(data) - missing], 0, 0, len(data) + 9, state, ALL))
        reader.close()


@quick
@given(harms=HARMS, begin=st.integers(0, 9000), beyond=st.sampled_from([0, 5000]), state=st.sampled_from(STATES))
def test_nothing_is_kept_of_damage(
    golden: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
    harms: list[Any],
    begin: int,
    beyond: int,
    state: int,
) -> None:
    """Long enough for several parts, whose borders lie in what was harmed."""
    whole = Segment(0, b"".join(segment.data for segment in segments(golden("load-533"))[1:4]))
    for kind, at, length, seed in harms:
        whole = harm(whole, kind, PART * (1 + seed % 2) - at % 9000 + 4500, length, seed)
    path = tmp_path_factory.mktemp("through") / "segment"
    path.write_bytes(whole.data)
    place = begin, 0, len(whole.data) + beyond, state, int(ALL)
    expected = both(whole.data[begin:], *place)
    for name, kernel in KERNELS.items():
        reader = READERS[name](path)
        scan = kernel.WindowScan(*place, len(whole.data))
        assert scan.read_through(reader, len(whole.data) - begin, begin) == (len(whole.data) - begin, 0)
        assert_same(scan.columns(), expected)
        reader.close()


@by_kernel
def test_what_cannot_be_read_is_told(kernel: str) -> None:
    """/proc/self/mem is a regular file whose first page nobody can read."""
    reader = READERS[kernel](Path("/proc/self/mem"))
    scan = KERNELS[kernel].WindowScan(0, 0, 9000, ScanState.CHAINED, 0, 9000)
    assert scan.read_through(reader, 9000, 0) == (0, errno.EIO)
    scan = KERNELS[kernel].WindowScan(0, 0, 9000, ScanState.CHAINED, 0, 9000)
    assert scan.read_on(reader, memoryview(bytearray(9000)), 100, 0) == (100, errno.EIO)
    reader.close()


@by_kernel
def test_files_that_are_none(kernel: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        READERS[kernel](tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(OSError, match=r"regular file|a pipe|[Ii]s a directory"):
            READERS[kernel](path)


@by_kernel
def test_numbers_that_do_not_fit(kernel: str) -> None:
    for numbers in ((-1, 0, 10, 0), (0, -1, 10, 0), (10, 0, 9, 0), (0, 0, 10, max(STATES) + 1), (0, 0, 10, -1)):
        with pytest.raises(ValueError, match="makes no sense"):
            _columns(KERNELS[kernel], *numbers)


def _columns(kernel: ModuleType, *numbers: int) -> WindowColumns:
    scan = kernel.WindowScan(*numbers, 0, 10)
    scan.go_on(np.zeros(10, np.uint8))
    found: WindowColumns = scan.columns()
    return found


def test_the_states_have_no_gaps() -> None:
    assert all(b == a + 1 for a, b in pairwise(sorted(STATES)))
