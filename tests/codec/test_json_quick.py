"""The quick parser against the dialect's own, which is the definition: equal values, or none of its business."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_core.codec import json_dialect, json_quick
from store_core.codec.json_dialect import MAX_DEPTH, JavaList, JsonError, Layout, dumps, loads
from store_core.codec.json_quick import ODD, RepeatedMembers, loads_quickly
from store_core.layout import paths
from tests import stores

_KEYS = st.text(max_size=4) | st.integers(-3, 3) | st.integers()
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: (
        st.dictionaries(_KEYS, inner, max_size=4)
        | st.lists(inner, max_size=3)
        | st.lists(inner, min_size=1, max_size=3).map(JavaList)
    ),
    max_leaves=12,
)


def by_definition(text: str) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_dialect, "loads_quickly", lambda *_: ODD)
        return loads(text, resolve_references=False)


def shape(value: Any) -> Any:
    """A value with all its types, which `==` does not look at, and its members in order."""
    if isinstance(value, dict):
        return "dict", [(shape(key), shape(member)) for key, member in value.items()]
    return (type(value).__name__, [*map(shape, value)] if isinstance(value, list) else repr(value))


def assert_equal_or_odd(text: str) -> None:
    quick = loads_quickly(text, MAX_DEPTH)
    if quick is not ODD:
        assert shape(quick) == shape(by_definition(text))


@pytest.mark.parametrize("name", stores.GOLDEN)
def test_the_files_of_brokers(golden: Callable[[str], Path], name: str) -> None:
    root = golden(name)
    for path in (root / paths.CONFIG).glob("*.json*"):
        text = path.read_text("utf-8")
        if text and "\\" not in text:
            assert loads_quickly(text, MAX_DEPTH) is not ODD, path
        assert_equal_or_odd(text)


@given(_VALUES, st.sampled_from(["4", "5", "5.4"]), st.integers(1, 9))
def test_any_value(value: Any, layout: Layout, part_characters: int) -> None:
    text = dumps(value, layout=layout)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_quick, "_PART_CHARACTERS", part_characters)
        assert_equal_or_odd(text)


@given(st.text(st.sampled_from('{}[]:,"\\/*0a1-.\n\r \x03\x04'), max_size=30))
def test_any_text(text: str) -> None:
    quick = loads_quickly(text, MAX_DEPTH)
    if quick is ODD:
        return
    if not text.strip(" \t\r\n"):
        raise AssertionError("a blank text is no value")
    assert shape(quick) == shape(by_definition(text))


@pytest.mark.parametrize(
    "text",
    [
        '{"a":NaN}',
        '{"a":Infinity}',
        "{1.5:1}",
        "{'a':1}",
        '{"a":1,}',
        '{"a":1}}',
        '{"a":"\\u0041"}',
        '{"a":[\n]}',
        '{"a":' + "9" * 5000 + "}",
        "{" + "9" * 5000 + ":1}",
        '{"a":' * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1),
        '{"a":' * 5000 + "1" + "}" * 5000,
        "\x00",
    ],
    ids=lambda text: text[:12],
)
def test_what_is_not_its_business(text: str) -> None:
    assert loads_quickly(text, MAX_DEPTH) is ODD


def test_what_looks_like_a_key_in_a_string() -> None:
    text = '{"a":"{0:1,2:3","b":{0:",7:",1:"[\n"},"{5:":[\n\t6\n]}'
    quick = loads_quickly(text, MAX_DEPTH)
    assert quick == {"a": "{0:1,2:3", "b": {0: ",7:", 1: "[\n"}, "{5:": [6]}
    assert isinstance(quick["{5:"], JavaList)


def test_too_many_values_are_said_to_be_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_dialect, "_MAX_VALUES", 5)
    assert loads("[1,1,1,1]") == [1, 1, 1, 1]
    with pytest.raises(json_dialect.JsonTooLargeError, match="more than the 5 values"):
        loads("[1,1,1,1,1,1]")
    assert issubclass(json_dialect.JsonTooLargeError, JsonError)


@pytest.mark.parametrize(
    "text",
    [
        '{"a":1,"b":0,"a":2}',
        '{"a" :1,"a":2}',
        '{"a"\n:1,"b":":","a":2}',
        '{"a":1,"b":":x","a":2}',
        '{"a":1,0:7,"a":2}',
        "{'a':1,'a':2}",
    ],
)
def test_a_member_that_is_there_twice_keeps_both_values(text: str) -> None:
    for value in (loads(text), loads(f'{{"in":{text}}}')["in"]):
        assert isinstance(value, RepeatedMembers)
        assert (value["a"], value.earlier) == (2, {"a": [1]})
