from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

LAYOUT: Final[dict[str, int | bytes | dict[bytes, int]]]

class WindowScan:
    def __init__(
        self,
        window_phy_offset: int,
        at: int,
        segment_end_phy_offset: int,
        state: int,
        flags: int,
        size_bytes: int,
        to: int = ...,
        /,
    ) -> None: ...
    def go_on(self, window: npt.NDArray[np.uint8], /) -> None: ...
    def read_on(
        self, file: FileReader, window: npt.NDArray[np.uint8], have: int, position: int, /
    ) -> tuple[int, int]: ...
    def read_through(self, file: FileReader, size_bytes: int, position: int, /) -> tuple[int, int]: ...
    def take(self) -> dict[str, Any]: ...
    def rows(self) -> tuple[list[tuple[Any, ...]], int, int, int, int]: ...

class FileReader:
    def __init__(self, path: Path, open_flags: int, noatime: int, /) -> None: ...
    def close(self) -> None: ...

class Collector:
    size_bytes: int
    def __init__(self, wanted: int, expected_bytes: int, /) -> None: ...
    def add(
        self,
        window: npt.NDArray[np.uint8],
        at: npt.NDArray[np.int64],
        size_bytes: npt.NDArray[np.int64],
        group: npt.NDArray[np.uint32],
        /,
    ) -> None: ...
    def take(self, group: int, /) -> dict[str, Any]: ...

def arrow_columns(
    window: npt.NDArray[np.uint8], at: npt.NDArray[np.int64], size_bytes: npt.NDArray[np.int64], wanted: int, /
) -> dict[str, Any]: ...
def chain_entries(
    slots: npt.NDArray[np.int32], slot: npt.NDArray[np.int64], first: int, /
) -> tuple[npt.NDArray[np.int32], int]: ...
def good_run(
    entries: npt.NDArray[np.uint8], width: int, below: int, highest: int, room: int, /
) -> tuple[int, int, list[int]]: ...
def chain_sums(
    entries: npt.NDArray[np.uint8],
    width: int,
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    most_bytes: int,
    /,
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64], npt.NDArray[np.int64]]: ...
def pack_rows(
    parts: list[npt.NDArray[np.uint8]], key_ids: list[npt.NDArray[np.int32]], keys: int, /
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32]]: ...
def unpack_rows(packed: npt.NDArray[np.uint8], counts: npt.NDArray[np.int32], /) -> npt.NDArray[np.uint8]: ...
def unpack_entries(packed: npt.NDArray[np.uint8], counts: npt.NDArray[np.int32], /) -> npt.NDArray[np.uint8]: ...
def unpack_stretches(packed: npt.NDArray[np.uint8], counts: npt.NDArray[np.int32], /) -> npt.NDArray[np.int64]: ...
def index_entries(
    slots: npt.NDArray[np.int32],
    key_row: npt.NDArray[np.uint32],
    key_hash: npt.NDArray[np.int32],
    phy_offset: npt.NDArray[np.int64],
    store_timestamp_ms: npt.NDArray[np.int64],
    first: int,
    begin_timestamp_ms: int,
    /,
) -> tuple[npt.NDArray[np.uint8], int]: ...
def dispatch_rows(
    kind: npt.NDArray[np.uint8],
    code: npt.NDArray[np.uint8],
    sys_flag: npt.NDArray[np.int32],
    topic_id: npt.NDArray[np.int32],
    queue_id: npt.NDArray[np.int32],
    queue_offset: npt.NDArray[np.int64],
    phy_offset: npt.NDArray[np.int64],
    tags_code: npt.NDArray[np.int64],
    store_timestamp_ms: npt.NDArray[np.int64],
    size_bytes: npt.NDArray[np.int64],
    include_bad_crc: bool,
    /,
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int32], list[tuple[int, int]], npt.NDArray[np.uint8]]: ...
def carries_key(record: bytes, topic: str, key: str, kind: str, /) -> bool: ...
def index_key_hash(topic: str, key: str, /) -> int: ...
def add_messages(
    entries: bytes, window: bytes, window_phy_offset: int, found: list[tuple[int, bytes, bytes, str, bytes]], /
) -> tuple[int, int]: ...
def add_mapped_messages(
    entries: bytes,
    window: npt.NDArray[np.uint8],
    window_phy_offset: int,
    found: list[tuple[int, bytes, bytes, str, bytes]],
    /,
) -> tuple[int, int]: ...
def good_entries(entries: bytes, /) -> int: ...
def rows_text(
    columns: Sequence[tuple[Any, ...]], rows: int, delimiter: int, tail: bytes, /
) -> npt.NDArray[np.uint8]: ...
def are_text(bounds: npt.NDArray[np.int32], data: npt.NDArray[np.uint8], /) -> npt.NDArray[np.bool_]: ...
def encode_record(
    topic: str,
    body: bytes,
    pairs: dict[str, str],
    numbers: tuple[int, ...],
    born_host: bytes,
    store_host: bytes,
    rules: tuple[Any, ...],
    /,
) -> tuple[bytes, int, list[int]]: ...
def encode_records(
    queues: list[tuple[str, int]],
    next_queue_offset: npt.NDArray[np.int64],
    hosts: list[bytes],
    heads: tuple[npt.NDArray[Any], ...],
    bodies: tuple[Any, ...],
    pair_bounds: npt.NDArray[np.int64],
    names: tuple[Any, ...],
    values: tuple[Any, ...],
    added: list[tuple[bytes, bytes]],
    first: int,
    place: tuple[int, ...],
    store_host: bytes,
    rules: tuple[Any, ...],
    /,
) -> tuple[npt.NDArray[Any], ...]: ...
