"""One value for a person."""

from __future__ import annotations

from datetime import UTC
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqctl.output.cells import Column, Kind, cell, escape_controls, escape_json_controls, human_size
from rmqctl.output.json_stream import encode_line


@pytest.mark.parametrize(
    ("size_bytes", "shown"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1_400_000, "1.3 MiB"),
        (1024**2 - 1, "1.0 MiB"),
        (1 << 30, "1.0 GiB"),
        (5 << 60, "5.0 EiB"),
        (5000 << 60, "5000.0 EiB"),
        (-2048, "-2.0 KiB"),
    ],
)
def test_sizes(size_bytes: int, shown: str) -> None:
    assert human_size(size_bytes) == shown


@given(st.text())
def test_nothing_escaped_drives_a_terminal(text: str) -> None:
    shown = escape_controls(text)
    assert not any(
        c < " " or "\x7f" <= c <= "\x9f" or c in "\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
        for c in shown
    )
    shown.encode()  # no lone surrogate is left either: this would raise


def test_what_can_be_read_stays_as_it_is() -> None:
    assert escape_controls("grün 中文 \U0001f600 a\\b") == "grün 中文 \U0001f600 a\\b"
    assert escape_controls("\x1b[31m\x07\x9b\r\n\t\u202e") == r"\x1b[31m\x07\x9b\r\n\t\u202e"


@given(st.text())
def test_json_for_terminals_means_the_same(text: str) -> None:
    import json

    encoded = escape_json_controls(encode_line(text))
    assert json.loads(encoded) == text
    assert not any("\x7f" <= c <= "\x9f" or c < " " for c in encoded)


@pytest.mark.parametrize(
    ("value", "kind", "humanised", "shown"),
    [
        (None, "text", False, ""),
        (True, "text", False, "yes"),
        (False, "text", True, "no"),
        (7, "text", False, "7"),
        (0.1 + 0.2, "text", False, "0.3"),
        (2048, "size", False, "2048"),
        (2048, "size", True, "2.0 KiB"),
        (1_795_227_125_343, "time", False, "2026-11-21T02:12:05.343Z"),
        (2**62, "time", False, str(2**62)),
        (["a", "b\n"], "text", False, "a, b\\n"),
        ([], "text", False, ""),
        ({}, "text", False, ""),
        ({"k": "\x1b"}, "text", False, r'{"k": "\u001b"}'),
        (b"\xffa\x1b", "text", False, "\ufffda\\x1b"),
        ("a\udc80\ud800", "text", False, "a\ufffd\\ud800"),
    ],
)
def test_cells(value: Any, kind: Kind, humanised: bool, shown: str) -> None:
    assert cell(value, kind, UTC, humanised=humanised) == shown


@pytest.mark.parametrize(
    ("key", "kind", "in_table", "in_plain"),
    [
        ("store_timestamp_ms", "time", "store_timestamp", "store_timestamp"),
        ("size_bytes", "size", "size", "size_bytes"),
        ("phy_offset", "text", "phy_offset", "phy_offset"),
        ("severity", "severity", "severity", "severity"),
        ("bytes", "size", "bytes", "bytes"),
        ("seconds_ms", "text", "seconds_ms", "seconds_ms"),
    ],
)
def test_a_keys_ending_tells_its_kind(key: str, kind: Kind, in_table: str, in_plain: str) -> None:
    column = Column.of(key)
    assert (column.kind, column.title(humanised=True), column.title(humanised=False)) == (kind, in_table, in_plain)
