"""Numbers that go back, repeat, jump or lie: who stands where in a queue (store behaviour 7 and 15)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from store_core.derive.numbering import Misnumbered, Numbering, RowAt, Stretch, number_rows
from store_core.derive.spool import Stretches
from store_core.kernel.derive import ROW, pack_rows, unpack_stretches

RECORD_SIZE_BYTES = 200


def stretches(numbers: Sequence[int], chunk: int) -> Iterator[Stretches]:
    table = np.zeros(len(numbers), ROW)
    table["queue_offset"] = numbers
    table["phy_offset"] = np.arange(len(numbers)) * RECORD_SIZE_BYTES
    for at in range(0, len(table), chunk):
        part = table[at : at + chunk]
        packed, _, counts, _ = pack_rows([part.view(np.uint8)], [np.zeros(len(part), np.int32)], 1)
        yield unpack_stretches(packed.tobytes(), counts)


def numbered(numbers: Sequence[int], chunk: int = 1000) -> Numbering:
    return number_rows(stretches(numbers, chunk))


@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
def test_consecutive_numbers_are_one_stretch_however_they_are_cut(chunk: int) -> None:
    assert numbered(range(5, 25), chunk).stretches == [Stretch(5, 0, 20)]


@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_a_topic_created_again_counts_alone(chunk: int) -> None:
    found = numbered([*range(10), *range(5)], chunk)
    assert (found.stretches, found.superseded, found.repeated, found.generations) == ([Stretch(0, 10, 5)], 10, 0, 2)


def test_a_lost_tail_whose_numbers_were_given_again() -> None:
    found = numbered([*range(10), *range(7, 12)])
    assert found.stretches == [Stretch(0, 0, 7), Stretch(7, 10, 5)]
    assert (found.superseded, found.repeated, found.gaps) == (3, 3, [])


def test_a_gap_is_told() -> None:
    found = numbered([0, 1, 2, 6, 7])
    assert (found.stretches, found.gaps) == ([Stretch(0, 0, 3), Stretch(6, 3, 2)], [(3, 3)])


@pytest.mark.parametrize("wrong", [1, 0, -4, 90, 1 << 40, (1 << 63) - 1])
def test_one_damaged_number_is_set_right_by_its_neighbours(wrong: int) -> None:
    found = numbered([*range(10), wrong, *range(11, 20)])
    assert found.stretches == [Stretch(0, 0, 20)]
    assert found.misnumbered == [Misnumbered(10, 10 * RECORD_SIZE_BYTES, wrong, 10)]


def test_a_damaged_number_for_which_there_is_no_place_is_left_out() -> None:
    found = numbered([0, 1, 2, 77, 3, 4])
    assert found.stretches == [Stretch(0, 0, 3), Stretch(3, 4, 2)]
    assert found.misnumbered == [Misnumbered(3, 3 * RECORD_SIZE_BYTES, 77, None)]


def test_a_jump_that_lost_bytes_cannot_explain_builds_no_files() -> None:
    found = numbered([0, 1, 2, 1 << 40])
    assert found.end_queue_offset == 4
    assert found.misnumbered == [Misnumbered(3, 3 * RECORD_SIZE_BYTES, 1 << 40, 3)]


def test_the_last_message_may_begin_a_new_generation() -> None:
    assert numbered([*range(10), 0]).stretches == [Stretch(0, 10, 1)]


def test_no_rows_are_no_stretches() -> None:
    found = numbered([])
    assert (found.stretches, found.first_queue_offset, found.end_queue_offset) == ([], 0, 0)


def rows_at(times_ms: Sequence[int]) -> RowAt:
    return lambda row: {"phy_offset": row * RECORD_SIZE_BYTES, "store_timestamp_ms": times_ms[row]}


def test_what_is_older_is_no_new_begin() -> None:
    """A page of an older life of the log behind which the queue has no message."""

    def numbered_at(times_ms: Sequence[int]) -> Numbering:
        return number_rows(stretches([*range(10), *range(4)], 1000), rows_at(times_ms))

    assert numbered_at(range(14)).stretches == [Stretch(0, 10, 4)]
    standing = {0: 10 * RECORD_SIZE_BYTES}  # the clock went back, and the queue has been made anew all the same
    known = number_rows(stretches([*range(10), *range(4)], 1000), rows_at([*range(50, 60), *range(4)]), standing.get)
    assert known.stretches == [Stretch(0, 10, 4)]
    standing = {3: 3 * RECORD_SIZE_BYTES}  # younger, of another store, and the queue still has the first
    known = number_rows(stretches([*range(10), *range(4)], 1000), rows_at(range(14)), standing.get)
    assert (known.stretches, known.superseded) == ([Stretch(0, 0, 10)], 4)
    old = numbered_at([*range(50, 60), *range(4)])
    assert (old.stretches, old.superseded, old.generations) == ([Stretch(0, 0, 10)], 4, 1)
    assert numbered_at([*range(9), 1 << 50, *range(10, 14)]).stretches == [Stretch(0, 10, 4)]
    assert numbered_at([*range(50, 60), *range(4, 7), 70]).stretches == [
        Stretch(0, 10, 4)
    ]  # one damaged time is nothing


def placed(*parts: tuple[int, range]) -> Numbering:
    """Numbers in parts, each from a place in the log on."""
    table = np.zeros(sum(len(numbers) for _, numbers in parts), ROW)
    table["queue_offset"] = [number for _, numbers in parts for number in numbers]
    table["phy_offset"] = [at + n * RECORD_SIZE_BYTES for at, numbers in parts for n in range(len(numbers))]
    packed, _, counts, _ = pack_rows([table.view(np.uint8)], [np.zeros(len(table), np.int32)], 1)
    return number_rows([unpack_stretches(packed.tobytes(), counts)])


@pytest.mark.parametrize("lives", [[range(6)], [range(40, 46)], [range(3), range(40, 43)], [range(40, 43), range(3)]])
def test_a_page_of_an_older_life_of_the_log_is_no_new_begin(lives: list[range]) -> None:
    """Behind it the numbers go on as if it were not there, without those that it was written over."""
    page = sum(map(len, lives))
    at = 100 * RECORD_SIZE_BYTES
    parts = []
    for life in lives:
        parts.append((at, life))
        at += len(life) * RECORD_SIZE_BYTES
    found = placed((0, range(100)), *parts, (at, range(100 + page, 200)))
    assert found.stretches == [Stretch(0, 0, 100), Stretch(100 + page, 100 + page, 100 - page)]
    assert found.gaps == [(100, page)]
    assert (found.generations, found.superseded) == (1, page)


def test_a_topic_created_again_whose_messages_were_lost_in_part_is_a_new_begin() -> None:
    """Its numbers are missing where bytes are, though the queue before had come no further."""
    size = RECORD_SIZE_BYTES
    found = placed((0, range(100)), (100 * size, range(50)), ((150 + 70) * size, range(120, 200)))
    assert found.stretches == [Stretch(0, 100, 50), Stretch(120, 150, 80)]
    assert found.generations == 2
    again = placed((0, range(100)), (100 * size, range(50)), (170 * size, range(60, 90)))
    assert (again.first_queue_offset, again.generations, again.gaps) == (0, 2, [(50, 10)])
