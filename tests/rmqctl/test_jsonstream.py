"""The JSON document: always one, always closed, never collected."""

from __future__ import annotations

import io
import json
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqctl.output.json_stream import JsonStream, encode_line, encode_pieces
from rmqctl.signals import signals_raise
from store_core.findings import finding

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=30,
)
ERROR = {"code": "failed", "message": "m", "path": None, "phy_offset": 3}


class Boom(Exception):
    pass


def write(document: dict[str, Any], error: dict[str, Any] | None = ERROR, out: io.StringIO | None = None) -> str:
    out = out or io.StringIO()
    with JsonStream(out.write, lambda _: error) as stream:
        for key, value in document.items():
            stream.member(key, value)
    return out.getvalue()


def write_failing(document: dict[str, Any], error: dict[str, Any] | None = ERROR) -> str:
    """What is left behind by a document whose writing raises Boom."""
    out = io.StringIO()
    with pytest.raises(Boom):
        write(document, error, out)
    return out.getvalue()


class Pieces:
    """A text that comes in pieces."""

    def __init__(self, *pieces: str) -> None:
        self._pieces = pieces

    def pieces(self) -> Iterator[str]:
        yield from self._pieces


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=4))
def test_a_text_in_pieces_is_written_as_the_text(pieces: list[str]) -> None:
    text, parts = "".join(pieces), Pieces(*pieces)
    assert "".join(encode_pieces({"a": 1, "b": parts, "c": [text]})) == encode_line({"a": 1, "b": text, "c": [text]})
    assert write({"a": parts, "b": [{"c": parts}] * 2}) == write({"a": text, "b": [{"c": text}] * 2})
    assert write({"a": iter([{"c": parts}, {}])}) == write({"a": iter([{"c": text}, {}])})


def boom() -> int:
    raise Boom


def streamed(value: Any) -> Any:
    """The same value with every list as an iterator."""
    if isinstance(value, list):
        return iter([streamed(v) if isinstance(v, dict) and not v else v for v in value])
    if isinstance(value, dict):
        return {k: streamed(v) for k, v in value.items()}
    return value


@given(st.dictionaries(st.text(), VALUES, max_size=6))
def test_any_document_comes_out_as_it_went_in(document: dict[str, Any]) -> None:
    assert json.loads(write(document)) == document
    assert json.loads(write({key: streamed(value) for key, value in document.items()})) == document


def test_members_keep_their_order_and_later_ones_are_called_when_reached() -> None:
    seen = []

    def rows() -> Iterator[int]:
        for number in range(3):
            seen.append(number)
            yield number

    text = write({"z": 1, "rows": rows(), "a": lambda: list(seen)})
    assert list(json.loads(text)) == ["z", "rows", "a"]
    assert json.loads(text)["a"] == [0, 1, 2]


def test_elements_are_written_as_they_come() -> None:
    out = io.StringIO()

    def rows() -> Iterator[dict[str, int]]:
        for number in range(3):
            yield {"n": number}
            assert f'{{"n": {number}}}' in out.getvalue()

    with JsonStream(out.write, lambda _: ERROR) as stream:
        stream.member("rows", rows())
    assert json.loads(out.getvalue()) == {"rows": [{"n": 0}, {"n": 1}, {"n": 2}]}


@pytest.mark.parametrize("after", range(4))
def test_a_failure_anywhere_closes_everything_and_comes_last(after: int) -> None:
    def failing() -> Iterator[dict[str, int]]:
        for number in range(after):
            yield {"n": number}
        raise Boom

    stores = [{"name": "s", "deep": {"rows": failing()}}]
    document = json.loads(write_failing({"first": [{"a": {"b": [1]}}], "stores": stores, "never": 1}))
    assert list(document) == ["first", "stores", "error"]
    assert document["stores"] == [{"name": "s", "deep": {"rows": [{"n": n} for n in range(after)]}}]
    assert document["error"] == ERROR


@pytest.mark.parametrize("before", [{}, {"x": 1}])
def test_a_failing_call_leaves_no_half_member(before: dict[str, Any]) -> None:
    assert json.loads(write_failing({**before, "called": boom})) == {**before, "error": ERROR}


def test_nothing_more_is_written_when_nobody_listens() -> None:
    assert write_failing({"x": 1, "called": boom}, error=None) == '{\n  "x": 1'


def test_what_json_has_no_form_for() -> None:
    found = finding("L001", "m", phy_offset=5)
    value = {"f": [found], "b": b"a\xff", "p": Path("/x"), "n": np.int64(7), "r": range(2), "s": (1, 2), "e": ()}
    expected = {"f": [found.as_json()], "b": "a\ufffd", "p": "/x", "n": 7, "r": [0, 1], "s": [1, 2], "e": []}
    assert json.loads(write(value)) == expected
    assert json.loads(encode_line(value)) == expected


def test_one_finding_a_line() -> None:
    found = [finding("L001", "m", phy_offset=n) for n in range(3)]
    assert len(write({"findings": found}).splitlines()) == 3 + 4


@pytest.mark.parametrize("at", range(40))
def test_a_request_to_end_amid_a_write_leaves_a_whole_document(at: int) -> None:
    """Wherever it comes, the document is closed, and what stands in it is what was to be."""
    document = {
        "a": 1,
        "list": [{"k": [1, {"x": []}]}, {"k": {}}],
        "rows": iter([{"r": 1}, {"r": 2}, 3]),
        "z": {"y": 2},
    }
    written: list[str] = []

    def put(text: str) -> None:
        if len(written) == at:
            signal.raise_signal(signal.SIGINT)
        written.append(text)
        time.sleep(0.001)

    ended = False
    with signals_raise() as asked:
        try:
            with JsonStream(put, lambda _: {"code": "interrupted"}) as stream:
                for key, value in document.items():
                    stream.member(key, value)
            time.sleep(0.05)
        except KeyboardInterrupt:
            asked.reached()
            ended = True
    found = json.loads("".join(written))
    assert ended == (at < len(written))
    assert found.pop("error", {"code": "interrupted"}) == {"code": "interrupted"}
    assert list(found) == ["a", "list", "rows", "z"][: len(found)]


def test_a_request_to_end_as_the_end_begins_leaves_a_whole_document() -> None:
    """Before the first line of what ends it."""
    written: list[str] = []

    def look(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is JsonStream.__exit__.__code__:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGINT)

    def write() -> None:
        with JsonStream(written.append, lambda _: {"code": "interrupted"}) as stream:
            stream.member("a", 1)
            sys.setprofile(look)
        time.sleep(0.05)

    with signals_raise(), pytest.raises(KeyboardInterrupt):
        write()
    assert json.loads("".join(written)) == {"a": 1}
