"""Find the entries of a batch queue that a broker's binary search for a message number can reach (6.6).

Where the numbers rise, the search reaches all. An entry whose number is damaged hides others: the search turns to its wrong side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

_HIGHEST: Final = (1 << 63) - 1


class BatchLookup:
    """The files of a queue, from which the broker chooses one by its first number.

    Args:
        numbers_of: returns the number of the first message of each entry of the file that starts at a position.
        firsts: the first of these numbers for each file that holds entries, in order.
        newest: the start of the newest file, which the broker looks at before the others.
        asked: the numbers that consumers ask for.
    """

    def __init__(self, numbers_of: Callable[[int], Ints], firsts: Mapping[int, int], newest: int, asked: range) -> None:
        self._numbers_of = numbers_of
        self._asked = asked
        self._ranges: dict[int, range] = {}
        self._found: dict[int, Mask | None] = {}
        by_first = {first: start for start, first in firsts.items()}  # of equal numbers the later file counts
        rising = [*sorted(by_first), _HIGHEST]
        for first, end in pairwise(rising):
            start = by_first[first]
            if start == newest:
                self._ranges[start] = range(first, _HIGHEST)
            else:
                self._ranges[start] = range(first, min(end, firsts.get(newest, _HIGHEST)))

    def found(self, start: int) -> Mask | None:
        """Return the mask of the entries of the file at ``start`` that are found, or None if all are."""
        if start not in self._found:
            searched = self._ranges.get(start, range(0))
            asked = range(max(searched.start, self._asked.start), min(searched.stop, self._asked.stop))
            mask = found_by_halves(self._numbers_of(start), asked)
            self._found[start] = None if mask.all() else mask
        return self._found[start]


def found_by_halves(numbers: Ints, asked: range) -> Mask:
    """Return mask[n] of the entries, with first ``numbers``[n], at which a search for a number of ``asked`` ends."""
    if len(numbers) and bool((numbers[1:] > numbers[:-1]).all()):
        ends = np.minimum(np.append(numbers[1:], _HIGHEST), asked.stop)
        rising: Mask = np.maximum(numbers, asked.start) < ends
        return rising
    found = np.zeros(len(numbers), np.bool_)
    last = len(numbers) - 1
    # All searches run at once: a column of ``steps`` is the searches for [low, high) among the entries left to right.
    steps = np.array([[0], [last], [asked.start], [asked.stop]], np.int64)
    while steps.size:
        left, right, low, high = steps = steps[:, (steps[0] <= steps[1]) & (steps[2] < steps[3])]
        middle = (left + right) // 2
        number = numbers[middle]
        found[middle[(low <= number) & (number < high)]] = True
        below = np.stack((left, middle - 1, low, np.minimum(high, number)))
        above = np.stack((middle, right, np.maximum(low, number + (number < _HIGHEST)), high))
        is_end = middle == left
        at, _, low, high = above[:, is_end & (above[2] < above[3])]
        following = np.where(at < last, numbers[np.minimum(at + 1, last)], _HIGHEST)
        found[at[low < np.minimum(high, following)]] = True
        found[at[np.maximum(low, following) < high] + 1] = True
        steps = np.concatenate((below, above[:, ~is_end]), axis=1)
    return found
