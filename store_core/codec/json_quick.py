"""Parse the JSON that brokers write with Python's own compiled parser, if the text has nothing that only brokers read.

The parser of :mod:`store_core.codec.json_dialect` is the definition and judges odd and broken texts. This one is faster, which large files of topics
and progress need.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any, Final

from store_core.codec.json_writer import JavaList

ODD: Final = object()


class RepeatedMembers(dict[Any, Any]):
    """An object with a repeated member. The last value counts; ``earlier`` has the values before it.

    A broker uses the one or the other by its release.
    """

    def __init__(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        super().__init__()
        self.earlier: dict[Any, list[Any]] = {}
        for key, value in pairs:
            if key in self:
                self.earlier.setdefault(key, []).append(self[key])
            self[key] = value


# Escapes, the marks below, and lists in lists, whose kind could not be detected.
_UNUSUAL: Final = re.compile(r"[\\\x00-\x04]|[\[,]\s*\[")
_SEAM: Final = "\x00"  # the place of a string
_SPREAD: Final = "\x03"  # the first element of a list whose bracket ends its line
_NUMBER: Final = "\x04"  # before a key that is a bare number
_BARE_KEY: Final = re.compile(r"([{,]\s*)(-?[0-9]+)(?=\s*:)")
_SPREAD_LIST: Final = re.compile(r"\[(?=\r?\n)")
_NO_BRACKET: Final = re.compile(r'"[^"]*"|[^\[\]{}"]+|"')
_STEP: Final = {"[": 1, "{": 1, "]": -1, "}": -1}
_SPACED_COLON: Final = re.compile(r'"[ \t\r\n]+:')  # without it a text has as many colons after quotes as members
_PART_CHARACTERS: Final = 1 << 20
_NESTED: Final = (dict, list)


def loads_quickly(text: str, max_depth: int) -> Any:
    """Return the text's value, equal to that of the dialect's parser; ODD where that parser must be used."""
    if _is_plain(text) and (value := _plain(text, max_depth)) is not ODD:
        return value
    if _UNUSUAL.search(text):
        return ODD
    parts = list(_parts(text))
    if _depth(parts) > max_depth:
        return ODD
    marked = "".join(map(_marked, parts))
    try:
        value = _DECODER.decode(marked)
    except (ValueError, RecursionError):
        return ODD
    return _kind_of_list(value)


def _is_plain(text: str) -> bool:
    """Return True if a text has no escapes, no bracket of a list at a line's end, and no space before a colon."""
    return not ("\\" in text or "[\n" in text or "[\r\n" in text or _SPACED_COLON.search(text))


def _plain(text: str, max_depth: int) -> Any:
    """Return the value of strict JSON; ODD for any other text, for deep nesting and for a repeated member."""
    try:
        value = _PLAIN_DECODER.decode(text)
    except (ValueError, RecursionError):
        return ODD
    members, level = 0, [value]
    for _ in range(max_depth):
        members += sum(len(container) for container in level if container.__class__ is dict)
        level = [item for container in level for item in _items(container) if item.__class__ in _NESTED]
        if not level:
            return value if members == text.count('":') else ODD
    return ODD


def _items(value: Any) -> Iterable[Any]:
    """Return the items of a container; none for other values."""
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _parts(text: str) -> Iterator[str]:
    """Yield the text in parts that start and end outside of strings, each but the last with a string's end."""
    at = 0
    while at < len(text):
        end = at + _PART_CHARACTERS
        quotes = text.count('"', at, end)
        for _ in range(2 - quotes % 2):  # to the end of the current string, or of the next
            end = text.find('"', end) + 1 or len(text)
        yield text[at:end]
        at = end


def _depth(parts: list[str]) -> int:
    brackets = "".join(_NO_BRACKET.sub("", part) for part in parts)
    return max(accumulate(map(_STEP.__getitem__, brackets)), default=0)


def _marked(part: str) -> str:
    """Return a part with its bare keys and spread lists marked in valid JSON."""
    pieces = part.split('"')
    outside = _SEAM.join(pieces[::2])
    outside = _BARE_KEY.sub(rf'\1"{_NUMBER}\2"', outside)
    outside = _SPREAD_LIST.sub(f'["{_SPREAD}",', outside)
    pieces[::2] = outside.split(_SEAM)
    return '"'.join(pieces)


def _members(pairs: list[tuple[str, Any]]) -> dict[Any, Any]:
    named = [(int(key[1:]) if key[:1] == _NUMBER else key, _kind_of_list(value)) for key, value in pairs]
    members = dict(named)
    return members if len(members) == len(named) else RepeatedMembers(named)


def _kind_of_list(value: Any) -> Any:
    return JavaList(value[1:]) if value.__class__ is list and value and value[0] == _SPREAD else value


def _refuse(word: str) -> Any:
    raise ValueError(word)


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_members, parse_constant=_refuse, strict=False)
_PLAIN_DECODER: Final = json.JSONDecoder(parse_constant=_refuse, strict=False)
