"""Parse Java's ``.properties`` form, in which brokers are configured."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_BLANKS: Final = " \t\f"
_COMMENT: Final = ("#", "!")
_SEPARATORS: Final = "=:"
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_UNICODE: Final = re.compile(r"u([0-9a-fA-F]{4})")


def parse_java_properties(data: bytes) -> dict[str, str]:
    """Return a dict of keys and values; the last of equal keys wins. Raises nothing.

    Bytes that are valid UTF-8 (with or without a byte order mark) are read so, others as Latin-1, as brokers of different ages and systems read them.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    return dict(_split(line) for line in _logical_lines(text))


def _logical_lines(text: str) -> Iterator[str]:
    """Yield lines without comments, blank lines and leading blanks; continued lines are joined."""
    joined = ""
    continues = False
    for natural in _LINE_END.split(text):
        line = natural.lstrip(_BLANKS)
        if not continues and (not line or line.startswith(_COMMENT)):
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        continues = backslashes % 2 == 1
        joined += line[:-1] if continues else line
        if not continues:
            yield joined
            joined = ""
    if joined:
        yield joined


def _split(line: str) -> tuple[str, str]:
    """Return key and value. A key ends at the first unescaped blank, ``=`` or ``:``; the blanks may contain one ``=`` or ``:``."""
    end = 0
    while end < len(line) and line[end] not in _BLANKS + _SEPARATORS:
        end += 2 if line[end] == "\\" else 1
    key, rest = line[:end], line[end:].lstrip(_BLANKS)
    if rest[:1] and rest[0] in _SEPARATORS:
        rest = rest[1:].lstrip(_BLANKS)
    return _unescape(key), _unescape(rest)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    parts, at = [], 0
    while at < len(text):
        character = text[at]
        at += 1
        if character == "\\" and at < len(text):
            if match := _UNICODE.match(text, at):
                character = chr(int(match.group(1), 16))
                at = match.end()
            else:
                character = _ESCAPES.get(text[at], text[at])
                at += 1
        parts.append(character)
    return "".join(parts).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
