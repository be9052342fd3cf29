"""Records collected by group are the columns of each group's records, whatever windows they came in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from store_core.kernel.arrow import ArrowColumns, Collector, Texts, Words
from store_core.kernel.codes import MOST_WORDS, ArrowPart
from store_core.kernel.reference import arrow as twin_arrow
from tests.kernel.driver import segments
from tests.kernel.test_arrow import EVERY, assert_same, both, listed, messages_of, record_of, with_properties

COLLECTORS: dict[str, Callable[[int, int], Collector]] = {"twin": twin_arrow.Collector}
try:
    from store_core.kernel import native
except ImportError:
    pass
else:
    COLLECTORS["native"] = native.Collector
IN_WORDS = {"born_host", "store_host", "tags", "names"}
NONE = np.zeros(0, np.int64)


def assert_equal(mine: ArrowColumns, other: ArrowColumns) -> None:
    """The same columns; what recurs comes as words, each once, as they appear."""
    for field in fields(ArrowColumns):
        found, expected = getattr(mine, field.name), getattr(other, field.name)
        if isinstance(found, Words):
            texts = listed(expected)
            words = list(dict.fromkeys(text for text in texts if text is not None))
            assert listed(found.texts) == words
            numbers = [0 if text is None else words.index(text) for text in texts]
            found = Texts(found.numbers, np.zeros(0, np.uint8), found.valid)
            expected = Texts(np.array(numbers, np.int32), np.zeros(0, np.uint8), expected.valid)
        assert_same(found, expected, field.name)
    assert {field.name for field in fields(mine) if isinstance(getattr(mine, field.name), Words)} == IN_WORDS


@pytest.mark.parametrize("kind", COLLECTORS)
@pytest.mark.parametrize("expected_bytes", [0, 1_000_000])
@pytest.mark.parametrize("name", ["load-533", "clean-533"])
def test_groups_of_a_log(golden: Callable[[str], Path], name: str, expected_bytes: int, kind: str) -> None:
    random = np.random.default_rng(5)
    collected = COLLECTORS[kind](EVERY, expected_bytes)
    for segment in segments(golden(name))[:2]:
        data, at, size = messages_of(segment)
        group = random.integers(0, 5, len(at)) ** 2  # some numbers have no rows
        for rows in np.array_split(np.arange(len(at)), 7):
            first = int(at[rows[0]])
            collected.add(data[first:], at[rows] - first, size[rows], group[rows])
        for number in range(18):
            assert_equal(collected.take(number), both(data, at[group == number], size[group == number]))
        assert_equal(collected.take(1), both(b"", NONE, NONE))  # it has been taken


@pytest.mark.parametrize("kind", COLLECTORS)
def test_words_that_are_easily_mixed_up(kind: str) -> None:
    """Of one length, with the same first and last letters, more of them than are looked at first."""
    random = np.random.default_rng(7)
    names = [b"a%03dz" % number for number in range(400)]
    strings = [b"".join(b"%s\x01v\x02" % names[i] for i in random.integers(0, 400, 30)) for _ in range(300)]
    strings += [b"TAGS\x01%s\x02" % names[i] for i in random.integers(0, 400, 300)]
    data, at, size = with_properties(strings)
    collected = COLLECTORS[kind](EVERY, 0)
    collected.add(data, at, size, np.zeros(len(at), np.int64))
    assert_equal(collected.take(0), both(data, at, size))


def test_too_many_words() -> None:
    """Then the column is what it would be without words."""
    strings = [b"", *(b"TAGS\x01%d\x02" % number for number in range(MOST_WORDS + 1)), b"", b"TAGS\x017\x02"]
    data, at, size = with_properties(strings)
    plain = twin_arrow.arrow_columns(data, at, size, ArrowPart.KEYS)
    for collector in COLLECTORS.values():
        collected = collector(ArrowPart.KEYS, 0)
        few = np.delete(np.arange(len(at)), 5)
        for group, rows in enumerate((np.arange(len(at)), few)):
            collected.add(data, at[rows], size[rows], np.full(len(rows), group))
        assert_same(collected.take(0).tags, plain.tags, "tags")
        tags = collected.take(1).tags
        assert isinstance(tags, Words)
        assert tags.numbers[[0, 1, 5, -3, -2, -1]].tolist() == [0, 0, 4, MOST_WORDS - 1, 0, 6]
        assert len(tags.texts.offsets) == MOST_WORDS + 1


@pytest.mark.parametrize("kind", COLLECTORS)
class TestRefused:
    def test_places(self, kind: str) -> None:
        record = record_of(body=b"123456")
        with pytest.raises(ValueError, match=r"record|place"):
            COLLECTORS[kind](EVERY, 0).add(record, np.array([1]), np.array([len(record) - 1]), np.array([0]))

    def test_lengths(self, kind: str) -> None:
        for lengths in ((1, 2, 1), (1, 1, 2), (2, 1, 1)):
            columns: list[Any] = [np.zeros(length, np.int64) for length in lengths]
            with pytest.raises(ValueError, match="length"):
                COLLECTORS[kind](EVERY, 0).add(b"", *columns)

    def test_a_group_that_nobody_needs(self, kind: str) -> None:
        record = record_of()
        with pytest.raises(ValueError, match="group"):
            COLLECTORS[kind](EVERY, 0).add(record, np.array([0]), np.array([len(record)]), np.array([1 << 31]))
