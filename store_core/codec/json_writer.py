"""The JSON that brokers write (store format, section 9.2): four forms, all without spaces and without a final newline."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final, Literal

Layout = Literal["4", "5", "5.4", "5.5"]  # 4.x and 5.0 to 5.3 share one layout

_SAFE_INTEGER: Final = (1 << 53) - 1  # what is beyond it stands in quotes in the browser-compatible form
_SHORT_ESCAPES: Final = {
    '"': '\\"',
    "\\": "\\\\",
    "/": "\\/",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
}


class JavaList(list[Any]):
    """An array that is a list in Java: up to 5.3 these stand on several lines, sets and Java arrays on one."""


def dumps(value: Any, *, layout: Layout = "5", browser_compatible: bool = False) -> str:
    """A value in the broker's form: pretty with tabs, integer (and boolean) keys unquoted, None members left out.

    ``browser_compatible`` is the one-line form of the metrics files. Members stand in the dict's order.
    """
    parts: list[str] = []
    writer = _OneLine(parts) if browser_compatible else _OF_LAYOUT.get(layout, _Pretty)(parts)
    writer.write(value, 0)
    return "".join(parts)


class _Pretty:
    """4.x to 5.3: members on lines of their own, except in integer-keyed maps; Java lists too, other arrays on one line."""

    to_escape = '["\\\\\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]'
    hex_digits = "X"

    def __init__(self, parts: list[str]) -> None:
        self.parts = parts
        self._escaped = re.compile(self.to_escape)  # here, for it takes milliseconds, and most programs write nothing

    def write(self, value: Any, depth: int) -> None:
        if isinstance(value, Mapping):
            self.write_members([(key, item) for key, item in value.items() if item is not None], depth)
        elif isinstance(value, list):
            self.write_items(value, depth)
        else:
            self.parts.append(self.scalar(value))

    def write_members(self, members: list[tuple[Any, Any]], depth: int) -> None:
        self.parts.append("{")
        for number, (key, item) in enumerate(members):
            self.parts.append("," if number else "")
            if isinstance(key, str):
                self.break_line(depth + 1)
            self.parts.append(f"{self.key(key)}:")
            self.write(item, depth + 1)
        if members:
            self.break_line(depth)
        self.parts.append("}")

    def write_items(self, items: list[Any], depth: int) -> None:
        spread = bool(items) and isinstance(items, JavaList)
        self.parts.append("[")
        for number, item in enumerate(items):
            self.parts.append("," if number else "")
            if spread:
                self.break_line(depth + 1)
            self.write(item, depth + spread)
        if spread:
            self.break_line(depth)
        self.parts.append("]")

    def break_line(self, depth: int) -> None:
        self.parts.append("\n" + "\t" * depth)

    def key(self, key: Any) -> str:
        return self.scalar(key)

    def scalar(self, value: Any) -> str:
        if isinstance(value, bool):
            return "true" if value else "false"
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            return "null"
        if isinstance(value, int | float):
            return repr(value)
        return f'"{self._escaped.sub(self.escape, str(value))}"'

    def escape(self, match: re.Match[str]) -> str:
        character = match.group()
        if character in _SHORT_ESCAPES:
            return _SHORT_ESCAPES[character]
        units = memoryview(character.encode("utf-16", "surrogatepass")).cast("H")[1:]  # without the byte order mark
        return "".join(f"\\u{unit:04{self.hex_digits}}" for unit in units)


class _Spread(_Pretty):
    """5.4.0: every member and item on a line of its own, an empty map as two lines; arrays of numbers on one line."""

    to_escape = '["\\\\\x00-\x1f\ud800-\udfff]'
    hex_digits = "x"

    def write_members(self, members: list[tuple[Any, Any]], depth: int) -> None:
        self.parts.append("{")
        for number, (key, item) in enumerate(members):
            self.parts.append("," if number else "")
            self.break_line(depth + 1)
            self.parts.append(f"{self.key(key)}:")
            self.write(item, depth + 1)
        self.end_members(members, depth)
        self.parts.append("}")

    def end_members(self, members: list[tuple[Any, Any]], depth: int) -> None:
        if not members:
            self.break_line(depth + 1)
        self.break_line(depth)

    def write_items(self, items: list[Any], depth: int) -> None:
        in_lines = not all(isinstance(item, int | float) for item in items)
        super().write_items(JavaList(items) if in_lines else list(items), depth)


class _SpreadClosed(_Spread):
    """5.5: as 5.4.0, but for an empty map."""

    def end_members(self, members: list[tuple[Any, Any]], depth: int) -> None:
        if members:
            self.break_line(depth)


_OF_LAYOUT: Final[Mapping[str, type[_Pretty]]] = {"5.4": _Spread, "5.5": _SpreadClosed}


class _OneLine(_Pretty):
    """The browser-compatible form: no breaks, every key quoted, large integers too, nothing but ASCII."""

    to_escape = '["\\\\/\x00-\x1f\x7f-\U0010ffff]'

    def break_line(self, depth: int) -> None:
        pass

    def key(self, key: Any) -> str:
        return self.scalar(key if isinstance(key, str) else super().scalar(key))

    def scalar(self, value: Any) -> str:
        text = super().scalar(value)
        return f'"{text}"' if isinstance(value, int) and abs(value) > _SAFE_INTEGER else text
