"""CSV and TSV: whatever a value holds, the csv module reads back what was there."""

from __future__ import annotations

import csv
import io
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqctl.options import Format
from tests.conftest import StoreCopy
from tests.rmqctl.calls import call
from tests.rmqctl.test_output import emitted

DELIMITERS: Final[dict[Format, str]] = {"csv": ",", "tsv": "\t"}
AWKWARD: Final = [
    "\r",
    "a\rb",
    "\ra",
    "a\r",
    "\r\n",
    "a\nb",
    '"',
    'a"b"',
    '"\r"',
    ",",
    "a\tb",
    " a ",
    "",
    "'",
    "\\",
    "\x85\u2028",
]


def read_back(text: str, output: Format) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline=""), delimiter=DELIMITERS[output]))


@pytest.mark.parametrize("output", DELIMITERS)
def test_awkward_values(output: Format) -> None:
    rows = [{"first": value, "second": value} for value in AWKWARD]
    assert read_back(emitted(output, rows=rows), output) == rows


@pytest.mark.parametrize("output", DELIMITERS)
@given(values=st.lists(st.text("\r\n\",\t x'\\;é", max_size=6), min_size=1, max_size=4))
def test_any_values(output: Format, values: list[str]) -> None:
    rows = [{"first": value, "second": "x"} for value in values]
    assert read_back(emitted(output, rows=rows), output) == rows


@pytest.mark.parametrize("output", DELIMITERS)
def test_a_message_with_awkward_bytes(output: Format, store_copy: StoreCopy) -> None:
    root, body, tag = store_copy("load-533"), 'one\rtwo\r\n"three",\t4', 'a\r"b'
    assert call("put", "Calm_orders", body, "--tags", tag, "--queue-id", "0", "-s", root).code == 0
    found = read_back(call("tail", "-n", "2", "-s", root, "-o", output).out, output)[-1]
    assert (found["body"], found["tags"]) == (body, tag)
