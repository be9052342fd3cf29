"""Write JSON as brokers do (store format, section 9.2): four forms, all without spaces and without a final newline."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final, Literal

Layout = Literal["4", "5", "5.4", "5.5"]  # 4.x and 5.0 to 5.3 share one layout

_SAFE_INTEGER: Final = (1 << 53) - 1  # the browser-compatible form quotes larger integers
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
    """An array that is a list in Java: up to 5.3 it is written on several lines, a set or Java array on one."""


def dumps(value: Any, *, layout: Layout = "5", browser_compatible: bool = False) -> str:
    """Return a value in the broker's form: pretty with tabs, integer (and boolean) keys unquoted, None members left out.

    ``browser_compatible`` is the one-line form of the metrics files. Members keep the dict's order.
    """
    parts: list[str] = []
    writer = _OneLine(parts) if browser_compatible else _OF_LAYOUT.get(layout, _Pretty)(parts)
    writer.write(value, 0)
    return "".join(parts)


class _Pretty:
    """The form of 4.x to 5.3: each member on its own line, except in integer-keyed maps; Java lists too, other arrays on one line."""

    to_escape = '["\\\\\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]'
    hex_digits = "X"
    spreads_all = False  # also members of integer-keyed maps, and arrays of anything but numbers
    spreads_empty = False  # an empty map's end, too
    is_one_line = False

    def __init__(self, parts: list[str]) -> None:
        self.parts = parts
        self._escaped = re.compile(self.to_escape)  # here, because it is slow and most programs write nothing

    def write(self, value: Any, depth: int) -> None:
        if isinstance(value, dict):
            self.write_members(value, depth)
        elif isinstance(value, list):
            self.write_items(value, depth)
        else:
            self.parts.append(self.scalar(value))

    def write_members(self, members: dict[Any, Any], depth: int) -> None:
        parts, line, lead = self.parts, self.break_line(depth + 1), "{"
        for key, item in members.items():
            if item is None:
                continue
            at = line if self.spreads_all or key.__class__ is str else ""
            if isinstance(item, dict | list):
                parts.append(f"{lead}{at}{self.key(key)}:")
                self.write(item, depth + 1)
            else:
                parts.append(f"{lead}{at}{self.key(key)}:{self.scalar(item)}")
            lead = ","
        if lead == "{":
            parts.append("{" + line if self.spreads_empty else "{")
        parts.append(self.break_line(depth) + "}" if lead == "," or self.spreads_empty else "}")

    def write_items(self, items: list[Any], depth: int) -> None:
        spread = bool(items) and isinstance(items, JavaList)
        if self.spreads_all:
            spread = not all(isinstance(item, int | float) for item in items)
        line = self.break_line(depth + 1) if spread else ""
        for number, item in enumerate(items):
            self.parts.append(("," if number else "[") + line)
            self.write(item, depth + spread)
        self.parts.append(("" if items else "[") + (self.break_line(depth) if spread else "") + "]")

    def break_line(self, depth: int) -> str:
        return "" if self.is_one_line else "\n" + "\t" * depth

    def key(self, key: Any) -> str:
        return self.scalar(key)

    def scalar(self, value: Any) -> str:
        if value.__class__ is str:
            return f'"{self._escaped.sub(self.escape, value)}"'
        if isinstance(value, bool):
            return "true" if value else "false"
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            return "null"
        return repr(value)

    def escape(self, match: re.Match[str]) -> str:
        character = match.group()
        if character in _SHORT_ESCAPES:
            return _SHORT_ESCAPES[character]
        units = memoryview(character.encode("utf-16", "surrogatepass")).cast("H")[1:]  # without the byte order mark
        return "".join(f"\\u{unit:04{self.hex_digits}}" for unit in units)


class _SpreadClosed(_Pretty):
    """The form of 5.5: every member and item on its own line; arrays of numbers on one line."""

    to_escape = '["\\\\\x00-\x1f\ud800-\udfff]'
    hex_digits = "x"
    spreads_all = True


class _Spread(_SpreadClosed):
    """The form of 5.4.0: as 5.5, but an empty map takes two lines."""

    spreads_empty = True


_OF_LAYOUT: Final[Mapping[str, type[_Pretty]]] = {"5.4": _Spread, "5.5": _SpreadClosed}


class _OneLine(_Pretty):
    """The browser-compatible form: no line breaks, every key quoted, large integers too, only ASCII."""

    to_escape = '["\\\\/\x00-\x1f\x7f-\U0010ffff]'
    is_one_line = True

    def key(self, key: Any) -> str:
        return self.scalar(key if isinstance(key, str) else super().scalar(key))

    def scalar(self, value: Any) -> str:
        text = super().scalar(value)
        return f'"{text}"' if isinstance(value, int) and abs(value) > _SAFE_INTEGER else text
