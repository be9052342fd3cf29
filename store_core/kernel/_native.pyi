from typing import Any, Final

import numpy as np
import numpy.typing as npt

LAYOUT: Final[dict[str, int | bytes | dict[bytes, int]]]

def scan_window(
    window: npt.NDArray[np.uint8],
    window_phy_offset: int,
    at: int,
    segment_end_phy_offset: int,
    state: int,
    flags: int,
    /,
) -> dict[str, Any]: ...
def arrow_columns(
    window: npt.NDArray[np.uint8], at: npt.NDArray[np.int64], size_bytes: npt.NDArray[np.int64], wanted: int, /
) -> dict[str, Any]: ...
def cut_records(
    window: npt.NDArray[np.uint8],
    at: npt.NDArray[np.int64],
    phy_offset: npt.NDArray[np.int64],
    size_bytes: npt.NDArray[np.int64],
    flags: int,
    /,
) -> dict[str, Any]: ...
def has_unique_key(record: bytes, topic: str, key: str, /) -> bool: ...
def index_key_hash(topic: str, key: str, /) -> int: ...
