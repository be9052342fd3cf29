"""The compiled kernel against its readable twin, and both against the checksum alone, over one warm window.

python -m benchmarks.kernel
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

from benchmarks import contest
from benchmarks.commands import stopwatch
from benchmarks.make_store import GIB, Recipe, made_store
from store_core.kernel import native
from store_core.kernel.codes import ScanFlag
from store_core.kernel.reference import scan as twin

_WINDOW_BYTES = 4 << 20
_VERIFY = ScanFlag.CHECK_CRC | ScanFlag.CHECK_PROPERTY_CRC | ScanFlag.NO_PROPERTIES | ScanFlag.RUNS
_INDEX = ScanFlag.CHECK_CRC | ScanFlag.INDEX_KEYS


def main() -> None:
    told = contest.arguments("kernel", __doc__, rounds=9).parse_args()
    with made_store(Recipe(told.size), told.work) as made:
        with made.segments[0].open("rb") as file:
            window = file.read(_WINDOW_BYTES)

        def scan(kernel: Callable[..., object], flags: int, times: int) -> Callable[[], float]:
            def run() -> float:
                started = stopwatch()
                for _ in range(times):
                    kernel(window, 0, 0, GIB, 0, flags)
                return (stopwatch() - started) / times

            return run

        def checksum() -> float:
            started = stopwatch()
            zlib.crc32(window)
            return stopwatch() - started

        contestants = {
            "kernel, in runs with checksums": scan(native.scan_window, _VERIFY, 20),
            "kernel, all columns and keys": scan(native.scan_window, _INDEX, 20),
            "twin, in runs with checksums": scan(twin.scan_window, _VERIFY, 1),
            "twin, all columns and keys": scan(twin.scan_window, _INDEX, 1),
            "zlib.crc32 of the window": checksum,
        }
        times = contest.interleave(contestants, told.rounds)
    names = list(contestants)
    rows = [
        contest.ratio("kernel", times, names[2], names[0]),
        contest.ratio("kernel", times, names[3], names[1]),
        contest.ratio("kernel", times, names[4], names[0]),
    ]
    store = f"{_WINDOW_BYTES >> 20} MiB of {made.recipe.record_bytes} B records, made by {made.maker}"
    contest.finish(told, "kernel and twin", "python -m benchmarks.kernel", store, times, rows)


if __name__ == "__main__":
    main()
