"""Messages to Arrow columns: how fast one core decodes.

    python -m benchmarks.decode --size 1GiB --record 866

Everything is processor time of one process, the log in the page cache. "walk" reads the log, walks it and checks the
bodies' and the properties' checksums; "decode" does the same and makes record batches of all columns. So the goals in
GB/s (of the log) and rows/s cover reading, walking, checksums and decoding.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks import contest
from benchmarks.make_store import Made, Recipe, made_store
from rmqctl.options import parse_size
from store_core.export.rows.batches import message_batches
from store_core.kernel import arrow, native
from store_core.kernel.codes import ArrowPart, FrameKind
from store_core.kernel.reference import arrow as twin_arrow
from store_core.scan.log import ScanOptions, scan_log
from store_core.storage.settings import load_settings
from store_core.storage.store import Store

_WINDOW_BYTES: Final = 4 << 20
_OPTIONS: Final = ScanOptions(check_crc=True, check_property_crc=True, properties=False)
_NARROW: Final = ("topic", "queue_id", "store_time", "body_size_bytes")
CRC: Final = "read and zlib.crc32 alone"
WALK: Final = "walk with checksums"
DECODE: Final = "decode, all columns"
NARROW: Final = "decode, four narrow columns"
KERNEL: Final = "kernel, Arrow columns of a window"
TWIN: Final = "twin, Arrow columns of a window"


def processor(work: Callable[[], object]) -> Callable[[], float]:
    """Seconds of processor time, the system's among them."""

    def run() -> float:
        started = time.process_time()
        work()
        return time.process_time() - started

    return run


def batches(made: Made, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    with Store.open(made.root, load_settings(None, made.root)) as store:
        for table in scan_log(store, options=_OPTIONS):
            for batch in message_batches(table, np.flatnonzero(table.messages), "store", columns):
                yield batch.rows


def walk(made: Made) -> None:
    with Store.open(made.root, load_settings(None, made.root)) as store:
        for table in scan_log(store, options=_OPTIONS):
            table.messages.any()


def checksum(made: Made, log_bytes: int) -> None:
    """Of so many bytes of the log."""
    buffer = memoryview(bytearray(_WINDOW_BYTES))
    for path in made.segments:
        with path.open("rb", buffering=0) as file:
            while log_bytes > 0 and (count := file.readinto(buffer)):
                zlib.crc32(buffer[: min(count, log_bytes)])
                log_bytes -= count


def decode(made: Made, columns: Sequence[str] | None = None) -> None:
    for _ in batches(made, columns):
        pass


def of_a_window(made: Made, decoder: Callable[..., arrow.ArrowColumns]) -> Callable[[], object]:
    with made.segments[0].open("rb") as file:
        window = file.read(_WINDOW_BYTES)
    found = native.scan_window(window, 0, 0, made.segments[0].stat().st_size, 0, 0)
    rows = found.kind == FrameKind.MESSAGE
    return lambda: decoder(window, found.phy_offset[rows], found.size_bytes[rows], sum(ArrowPart))


def speed(of: str, unit: str, value: float, least: float) -> contest.Row:
    """A number that must not be smaller than another, as a row."""
    return contest.Row("decode", of, unit, value, (value, value), f">= {least:g}", value >= least)


def main() -> None:
    parser = contest.arguments("decode", __doc__, size="1GiB", rounds=5)
    parser.add_argument("--record", type=parse_size, default=866, help="bytes of a record (default 866)")
    told = parser.parse_args()
    with made_store(Recipe(told.size, told.record), told.work) as made:
        sizes = [batch["size_bytes"] for batch in batches(made, ("size_bytes",))]
        count, log_bytes = sum(map(len, sizes)), sum(pc.sum(column).as_py() for column in sizes)
        contestants = {
            CRC: processor(lambda: checksum(made, log_bytes)),
            WALK: processor(lambda: walk(made)),
            DECODE: processor(lambda: decode(made)),
            NARROW: processor(lambda: decode(made, _NARROW)),
            KERNEL: processor(of_a_window(made, native.arrow_columns)),
            TWIN: processor(of_a_window(made, twin_arrow.arrow_columns)),
        }
        times = contest.interleave(contestants, told.rounds)
    seconds = min(times[DECODE])
    rows = [
        speed("decode on one core, best round", "GB/s", log_bytes / seconds / 1e9, 1.5),
        speed("decode on one core, best round", "M rows/s", count / seconds / 1e6, 1.5),
        contest.ratio("decode", times, DECODE, CRC),
        contest.ratio("decode", times, DECODE, WALK),
        contest.ratio("decode", times, NARROW, WALK),
        contest.ratio("decode", times, TWIN, KERNEL),
    ]
    store = f"{count} records of {log_bytes / count:.0f} B (mean), made by {made.maker}"
    command_line = f"python -m benchmarks.decode --size {told.size >> 20}MiB --record {told.record}"
    contest.finish(told, "decoding to Arrow, processor time", command_line, store, times, rows)


if __name__ == "__main__":
    main()
