"""Tables on terminals of any width: no number is ever cut or folded, and what is left out is named."""

from __future__ import annotations

import io
from datetime import UTC
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from rmqctl.output.cells import Column
from rmqctl.output.document import PAGE_ROWS, Facts, Findings, Table
from rmqctl.output.rich_view import RichView, cut, fold
from store_core.findings import finding
from tests.rmqctl.calls import ROOT, on_terminal

COLUMNS = (
    "topic",
    Column("files", "number", drop=2),
    Column("size_bytes", "size", drop=1),
    "queue_offset",
    "phy_offset",
    Column("body", drop=3, cut=True),
)


def shown(block: Facts | Table | Findings, width: int) -> str:
    file = io.StringIO()
    RichView(file, UTC, color=False, width=width).show([block])
    return file.getvalue()


def row(number: int) -> dict[str, Any]:
    return {
        "topic": f"SomeTopic{number}",
        "files": 3 + number,
        "size_bytes": 512,
        "queue_offset": 7_000_000_000_000_000_000 + number,
        "phy_offset": 5_000_000_000_000 + number,
        "body": "some words that go on and on " * 3,
    }


@given(st.integers(24, 200), st.integers(1, 5))
def test_no_number_is_cut_at_any_width(width: int, count: int) -> None:
    rows = [row(n) for n in range(count)]
    text = shown(Table(rows, COLUMNS), width)
    assert max(map(cell_len, text.splitlines())) <= width
    words = text.split()
    for one in rows:
        assert str(one["queue_offset"]) in words
        assert str(one["phy_offset"]) in words
        assert str(one["files"]) in words or "files" in text.partition("left out for want of room: ")[2]


def test_columns_go_in_the_order_of_their_weight() -> None:
    left_out = {
        width: shown(Table([row(0)], COLUMNS), width).partition("left out for want of room: ")[2].partition(" (")[0]
        for width in (200, 72, 56, 52)
    }
    assert left_out == {200: "", 72: "body", 56: "files, body", 52: "files, size, body"}


def test_where_nothing_may_be_left_out_rows_stand_one_below_the_other() -> None:
    assert shown(Table([row(0), row(1)], ("topic", "queue_offset", "phy_offset")), 32).splitlines() == [
        "topic         SomeTopic0",
        "queue_offset",
        "  7000000000000000000",
        "phy_offset    5000000000000",
        "",
        "topic         SomeTopic1",
        "queue_offset",
        "  7000000000000000001",
        "phy_offset    5000000000001",
    ]


def test_a_longer_number_on_a_later_page_gets_new_columns() -> None:
    rows = [{"n": 1, "word": "w"}] * PAGE_ROWS + [{"n": 10**9, "word": "vw " * 10}]
    lines = shown(Table(rows), 24).splitlines()
    assert lines[:3] == ["n  word", "───────", "1  w"]
    assert lines[-5:] == [
        "         n  word",
        "─" * 24,
        "1000000000  vw vw vw vw",
        "            vw vw vw vw",
        "            vw vw",
    ]


def test_headings_fold_and_stand_on_their_rule() -> None:
    assert shown(Table([{"first_queue_offset": 1, "text": "x" * 12}]), 26).splitlines() == [
        "first_queue_",
        "      offset  text",
        "─" * 26,
        "           1  xxxxxxxxxxxx",
    ]


def test_findings_fold_between_words() -> None:
    found = finding(
        "L001",
        "the body does not match",
        file="commitlog/00000000000000524288",
        phy_offset=567104,
        topic="T",
        queue_id=2,
    )
    for width in range(50, 140, 7):
        words = shown(Findings([found]), width).split()
        assert {"commitlog/00000000000000524288,", "567104"} <= set(words) or "00000000000000524288," in words


@given(st.text(max_size=80), st.integers(2, 40))
def test_folding_keeps_every_character_but_spaces(text: str, width: int) -> None:
    text = " ".join(text.split())
    lines = fold(text, width)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert all(cell_len(line) <= width for line in lines)


@pytest.mark.parametrize(("width", "is_cut"), [(4, "a 1…"), (8, "a 123 b"), (5, "a 12…")])
def test_what_is_cut_says_so(width: int, is_cut: str) -> None:
    assert cut("a 123 b", width) == is_cut


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_info_shows_the_ends_of_every_queue(width: int) -> None:
    text = on_terminal("info", "-s", ROOT / "sample_store", COLUMNS=str(width)).text
    assert max(map(len, text.splitlines())) <= width
    assert text.count("517") == 1
    assert {"285", "292", "128", "142", "143", "197", "176", "169", "384803", "780388", "975238"} <= set(text.split())
