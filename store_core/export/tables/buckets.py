"""Numbers in buckets of nearly equal relative width, so that counts of them, added up in any order, give the same quantiles.

Below 128 a bucket is one number; above, 64 buckets a doubling, so that a bucket's upper end is at most 1/64 above its
numbers. Negative numbers mirror them.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[Any]

LARGEST: Final = 1 << 37  # of either sign: in milliseconds more than four years
_HALF_BITS: Final = 6


def buckets_of(values: Ints) -> Ints:
    """The bucket of each number, which is at most ``LARGEST`` on either side of 0; buckets are in the numbers' order."""
    magnitude = np.where(values < 0, -values - 1, values)
    exponent = np.maximum(np.frexp(magnitude.astype(np.float64))[1] - _HALF_BITS - 1, 0).astype(np.int64)
    bucket = (exponent << _HALF_BITS) + (magnitude >> exponent)
    found: Ints = np.where(values < 0, -bucket - 1, bucket)
    return found


def upper_ends(buckets: Ints) -> Ints:
    """The largest number of each bucket."""
    magnitude = np.where(buckets < 0, -buckets - 1, buckets)
    exponent = np.maximum((magnitude >> _HALF_BITS) - 1, 0)
    mantissa = magnitude - (exponent << _HALF_BITS)
    ends: Ints = np.where(buckets < 0, -(mantissa << exponent) - 1, ((mantissa + 1) << exponent) - 1)
    return ends


def quantiles(group: Ints, buckets: Ints, counts: Ints, groups: int, share: float) -> NDArray[Any]:
    """For each of ``groups``, the upper end of the bucket in which the ``share`` of its numbers is reached.

    The three arrays have a row for each bucket of each group, sorted by group and bucket; a group without rows gives 0.
    """
    if not len(group):
        return np.zeros(groups, np.int64)
    running = np.r_[0, np.cumsum(counts)]
    ends = np.searchsorted(group, np.arange(groups), side="right")
    starts = np.r_[0, ends[:-1]]
    total = running[ends] - running[starts]
    rank = np.maximum(np.ceil(total * share), 1).astype(np.int64)
    found = np.searchsorted(running[1:], running[starts] + rank, side="left")
    return np.where(total > 0, upper_ends(buckets[np.minimum(found, len(buckets) - 1)]), 0)
