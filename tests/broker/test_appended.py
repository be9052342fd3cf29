"""Appended entries are the same whether they fit in memory or not."""

from __future__ import annotations

import random

import numpy as np
import pytest

from store_core.broker.pending_entries import AppendedEntries, EntrySpool
from store_core.layout import queue

DTYPE = queue.ENTRY.dtype


@pytest.mark.parametrize("most_held_bytes", [0, 3000, 1 << 20])
def test_entries_in_memory_and_on_disk(most_held_bytes: int) -> None:
    draw = random.Random(most_held_bytes)
    with EntrySpool(most_held_bytes) as spool:
        queues = [AppendedEntries(DTYPE, spool) for _ in range(3)]
        expected = [np.empty(0, DTYPE) for _ in queues]
        for _ in range(200):
            number = draw.randrange(3)
            entries = np.frombuffer(draw.randbytes(DTYPE.itemsize * draw.randint(1, 40)), DTYPE)
            queues[number].add(entries)
            expected[number] = np.concatenate([expected[number], entries])
            if not draw.randrange(10):
                keep = draw.randint(0, len(expected[number]))
                queues[number].cut(keep)
                expected[number] = expected[number][:keep]
            first, count = draw.randint(-20, len(expected[number])), draw.randint(0, 300)
            out, wanted = np.zeros(count, DTYPE), np.zeros(count, DTYPE)
            queues[number].overlay(out, first)
            there = expected[number][max(first, 0) : max(first + count, 0)]
            wanted[max(-first, 0) :][: len(there)] = there
            assert out.tobytes() == wanted.tobytes()
            assert len(queues[number]) == len(expected[number])
