"""Read the JSON of brokers' config files (store format, section 9.2); ``json_writer`` writes it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from store_core.codec.json_quick import ODD, RepeatedMembers, loads_quickly
from store_core.codec.json_writer import JavaList, Layout, dumps
from store_core.codec.text import decode_text

__all__ = [
    "MAX_DEPTH",
    "MAX_SIZE_BYTES",
    "JavaList",
    "JsonError",
    "JsonTooLargeError",
    "Layout",
    "dumps",
    "loads",
    "too_large",
]

MAX_DEPTH: Final = 128
MAX_SIZE_BYTES: Final = 32 << 20
_MAX_VALUES: Final = 4_000_000
_MAX_RESOLVED_VALUES: Final = 1_000_000  # that all references together may add
_SURROGATE: Final = re.compile("[\ud800-\udfff]")

_LINE_ENDS: Final = ("\n", "\r\n")
_SPACE: Final = re.compile(r"(?:[ \t\r\n\f\b]|/\*.*?\*/|//[^\n]*)*", re.DOTALL)
_STRING: Final = re.compile(r'"([^"\\]*(?:\\.[^"\\]*)*)"' + r"|'([^'\\]*(?:\\.[^'\\]*)*)'", re.DOTALL)
_NUMBER: Final = re.compile(r"[-+]?\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_WORD: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*", re.ASCII)
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPED: Final = {
    **{character: character for character in "\"'/\\"},
    **{str(number): chr(number) for number in range(8)},
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
}
_WORDS: Final[dict[str, bool | None]] = {"true": True, "false": False, "null": None, "NaN": None, "undefined": None}
_REFERENCE: Final = "$ref"


class JsonError(ValueError):
    """The text is no JSON, not even in the broker's dialect. ``at`` is the position in characters."""

    def __init__(self, what: str, at: int = 0) -> None:
        super().__init__(f"{what} at character {at}")
        self.what = what
        self.at = at


class JsonTooLargeError(JsonError):
    """The text is too large to be read; it may be valid."""


def too_large() -> JsonTooLargeError:
    """Return the error for a text of more than ``MAX_SIZE_BYTES``, for callers that know the size without reading."""
    return JsonTooLargeError(f"larger than the {MAX_SIZE_BYTES} bytes that are read of one")


def loads(data: bytes | str, *, resolve_references: bool = True) -> Any:
    """Return a text's value: dicts (unquoted integer keys as int, booleans as bool), lists, str, int, float, bool, None.

    Accepts what brokers accept: a byte order mark, comments, unquoted keys, single quotes, surplus commas, zero bytes after the end, and a blank text
    for None. A ``$ref`` object is replaced by its target if that contains no references, else it stays. Raises JsonError for anything else, for text
    after the end, and beyond ``MAX_DEPTH`` or ``MAX_SIZE_BYTES``.
    """
    if len(data) > MAX_SIZE_BYTES:
        raise too_large()
    text = data if isinstance(data, str) else decode_text(data)
    text = text.removeprefix("\ufeff")
    if not text or text.isspace():
        return None
    if sum(map(text.count, ",[{")) > _MAX_VALUES:
        raise JsonTooLargeError(f"of more than the {_MAX_VALUES} values that are read of one")
    text = text.rstrip("\0")
    value = loads_quickly(text, MAX_DEPTH)
    if value is ODD:
        value = _Parser(text).document()
    if resolve_references and _REFERENCE in text:
        value = _Resolver(value).resolved()
    return value


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def document(self) -> Any:
        value = self.value(0)
        if self.peek():
            raise JsonError("text after the end", self.at)
        return value

    def peek(self) -> str:
        """Skip space and return the next character; empty at the end."""
        match = _SPACE.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return self.text[self.at : self.at + 1]

    def value(self, depth: int) -> Any:
        character = self.peek()
        if character == "{":
            return self.object(depth + 1)
        if character == "[":
            return self.array(depth + 1)
        if character in ('"', "'") and character:
            return self.string()
        return self.scalar()

    def object(self, depth: int) -> dict[Any, Any]:
        self.open(depth)
        pairs = []
        while self.more("}"):
            key = self.key()
            if self.peek() != ":":
                raise JsonError("no colon after a key", self.at)
            self.at += 1
            pairs.append((key, self.value(depth)))
            self.separator("}")
        members = dict(pairs)
        return members if len(members) == len(pairs) else RepeatedMembers(pairs)

    def array(self, depth: int) -> list[Any]:
        self.open(depth)
        items: list[Any] = JavaList() if self.text.startswith(_LINE_ENDS, self.at) else []
        while self.more("]"):
            items.append(self.value(depth))
            self.separator("]")
        return items

    def open(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise JsonError(f"more than {MAX_DEPTH} levels", self.at)
        self.at += 1

    def more(self, closing: str) -> bool:
        """Return True if another member follows; skip surplus commas and the closing bracket."""
        while (character := self.peek()) == ",":
            self.at += 1
        if not character:
            raise JsonError("the text ends too early", self.at)
        if character != closing:
            return True
        self.at += 1
        return False

    def separator(self, closing: str) -> None:
        if self.peek() not in (",", closing):
            raise JsonError("no comma between members", self.at)

    def key(self) -> Any:
        if self.peek() in ('"', "'"):
            return self.string()
        word = _WORD.match(self.text, self.at)
        if word:
            self.at = word.end()
            return _WORDS.get(word.group(), word.group())
        return self.number()

    def scalar(self) -> Any:
        word = _WORD.match(self.text, self.at)
        if word is None:
            return self.number()
        if word.group() not in _WORDS:
            raise JsonError("an unknown word", self.at)
        self.at = word.end()
        return _WORDS[word.group()]

    def number(self) -> int | float:
        match = _NUMBER.match(self.text, self.at)
        if match is None:
            raise JsonError("no value" if self.at < len(self.text) else "the text ends too early", self.at)
        self.at = match.end()
        try:
            return float(match.group()) if match.group(1) or match.group(2) else int(match.group())
        except ValueError as error:  # more digits than Python converts
            raise JsonError("a number too long", match.start()) from error

    def string(self) -> str:
        match = _STRING.match(self.text, self.at)
        if match is None:
            raise JsonError("a string without an end", self.at)
        self.at = match.end()
        content = match.group(1) if match.group(1) is not None else match.group(2)
        return _unescape(content) if "\\" in content else content


def _unescape(content: str) -> str:
    text = _ESCAPE.sub(_escaped, content)
    if _SURROGATE.search(text):  # pairs become one character, half ones U+FFFD
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _escaped(match: re.Match[str]) -> str:
    if digits := match.group(1) or match.group(2):
        return chr(int(digits, 16))
    if match.group(3) not in _ESCAPED:
        raise JsonError(f"an unknown escape \\{match.group(3)}")
    return _ESCAPED[match.group(3)]


class _Resolver:
    """Replaces references by their targets.

    Only targets without references are used, so that there is no cycle, and only up to a total, so that a small file cannot become an endless one.
    """

    def __init__(self, root: Any) -> None:
        self.root = root
        self.left = _MAX_RESOLVED_VALUES

    def resolved(self) -> Any:
        return self.walk(self.root)

    def walk(self, value: Any) -> Any:
        if isinstance(value, list):
            value[:] = [self.walk(item) for item in value]
        elif isinstance(value, dict):
            path = value.get(_REFERENCE)
            if len(value) == 1 and isinstance(path, str):
                return self.target(path, value)
            for key, item in value.items():
                value[key] = self.walk(item)
        return value

    def target(self, path: str, reference: dict[Any, Any]) -> Any:
        found = self.find(path)
        if found is None or self.left <= 0:
            return reference
        size = _size_without_references(found, self.left)
        self.left -= abs(size)
        return found if size >= 0 else reference

    def find(self, path: str) -> Any:
        """Return the value at ``$.a.b[0]``, None if there is none. A backslash escapes characters that do not separate steps."""
        if not path.startswith("$"):
            return None  # "@" and ".." refer to the object itself and its parents
        value = self.root
        for step in _steps(path[1:]):
            if isinstance(value, dict):
                value = value.get(step, value.get(int(step)) if _NUMBER.fullmatch(step) and "." not in step else None)
            elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
                value = value[int(step)]
            else:
                return None
        return value


_STEP: Final = re.compile(r"\.((?:[^.\[\\]|\\.)+)|\[(\d+)\]", re.DOTALL)


def _steps(path: str) -> Iterator[str]:
    at = 0
    while at < len(path):
        match = _STEP.match(path, at)
        if match is None:
            yield path[at:]  # no step of that name exists
            return
        yield match.group(2) or re.sub(r"\\(.)", r"\1", match.group(1))
        at = match.end()


def _size_without_references(value: Any, limit: int) -> int:
    """Return the number of values in a value; its negative so far if a reference or the limit is met."""
    todo, seen = [value], 0
    while todo:
        seen += 1
        item = todo.pop()
        if seen > limit or (isinstance(item, dict) and _REFERENCE in item):
            return -seen
        todo += item.values() if isinstance(item, dict) else item if isinstance(item, list) else []
    return seen
