"""Convert times of tables other than the messages' own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_core.export.rows.schema import LARGEST_TIME_MS, LEAST_TIME_MS, TIME

_MICROSECONDS = 1000


def times(timestamp_ms: NDArray[Any], missing: NDArray[np.bool_] | None = None) -> pa.TimestampArray:
    """Convert milliseconds to a column of times; null for missing values and numbers that are no time."""
    values = timestamp_ms.astype(np.int64)
    beyond = (values > LARGEST_TIME_MS) | (values < LEAST_TIME_MS)
    if missing is not None:
        beyond |= missing
    return pa.array(np.where(beyond, 0, values) * _MICROSECONDS, mask=beyond).cast(TIME)


def microseconds(timestamp_ms: int | None) -> int | None:
    """Convert milliseconds to one value of a column of times; None for a number that is no time."""
    if timestamp_ms is None or not LEAST_TIME_MS <= timestamp_ms <= LARGEST_TIME_MS:
        return None
    return timestamp_ms * _MICROSECONDS
