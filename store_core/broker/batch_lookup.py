"""Which entries of a batch queue a broker finds that is asked for a message by its number: it looks for it by halves (6.6).

Where the numbers rise all are found. An entry whose number is damaged hides others: the search turns to the wrong side of it.
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
    """The files of a queue, from which one is chosen by its first number. ``numbers_of``: the first message's number of each entry
    of the file that starts at a position. ``firsts``: the first of these, for each file that holds entries, in order;
    ``newest`` of all files is looked at before the others. ``asked``: the numbers that consumers ask for.
    """

    def __init__(self, numbers_of: Callable[[int], Ints], firsts: Mapping[int, int], newest: int, asked: range) -> None:
        self._numbers_of = numbers_of
        self._asked = asked
        self._ranges: dict[int, range] = {}
        self._found: dict[int, Mask | None] = {}
        by_first = {first: start for start, first in firsts.items()}  # of two with one number the later counts
        rising = [*sorted(by_first), _HIGHEST]
        for first, end in pairwise(rising):
            start = by_first[first]
            if start == newest:
                self._ranges[start] = range(first, _HIGHEST)
            else:
                self._ranges[start] = range(first, min(end, firsts.get(newest, _HIGHEST)))

    def found(self, start: int) -> Mask | None:
        """Mask of the entries of the file at ``start`` that are found; None where all are."""
        if start not in self._found:
            told = self._ranges.get(start, range(0))
            asked = range(max(told.start, self._asked.start), min(told.stop, self._asked.stop))
            mask = found_by_halves(self._numbers_of(start), asked)
            self._found[start] = None if mask.all() else mask
        return self._found[start]


def found_by_halves(numbers: Ints, asked: range) -> Mask:
    """Mask[n] of the entries, with these first numbers[n], that a search for one of the numbers ``asked`` ends at."""
    if len(numbers) and bool((numbers[1:] > numbers[:-1]).all()):
        ends = np.minimum(np.append(numbers[1:], _HIGHEST), asked.stop)
        rising: Mask = np.maximum(numbers, asked.start) < ends
        return rising
    found = np.zeros(len(numbers), np.bool_)
    last = len(numbers) - 1
    # All searches at once, step by step: those for numbers of [low, high) look at the entries from left to right.
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
