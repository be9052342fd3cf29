"""Format values for people: columns, sizes, times, and text that cannot drive a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any, Final, Literal

from rmqctl.output.json_stream import encode_line
from rmqctl.output.streams import RAW_BYTES
from rmqctl.times import format_time

Kind = Literal["text", "number", "size", "time", "severity"]

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
# C0, DEL and C1 drive terminals; the bidirectional and separator characters make text lie about its order and lines.
_CONTROLS: Final = {
    **{c: f"\\x{c:02x}" for c in (*range(0x20), *range(0x7F, 0xA0))},
    **{c: f"\\u{c:04x}" for c in (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A), 0xFEFF)},
    **{c: f"\\u{c:04x}" for c in range(0xD800, 0xE000)},
    **dict.fromkeys(RAW_BYTES, "\N{REPLACEMENT CHARACTER}"),
    0x09: "\\t",
    0x0A: "\\n",
    0x0D: "\\r",
}
_JSON_CONTROLS: Final = {c: f"\\u{c:04x}" for c in _CONTROLS if c >= 0x7F and c not in RAW_BYTES}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: the row's key, the kind of its values, and its heading if that is not the key.

    On a narrow terminal:

    * columns with the highest ``drop`` are left out first, those with 0 never
    * a ``cut`` column shows the start of its text, others fold it
    * a column that ``folds_words`` folds also within a word (names, keys)
    """

    key: str
    kind: Kind = "text"
    heading: str = ""
    drop: int = 0
    cut: bool = False
    folds_words: bool = False

    @classmethod
    def of(cls, column: str | Column) -> Column:
        """Make a column from a key. The key's last word gives the kind, because units are part of names."""
        return column if isinstance(column, Column) else cls(column, kind_of(column))

    def title(self, *, humanised: bool) -> str:
        """Return the heading, without the unit in its name if the value shows its own."""
        title = self.heading or self.key
        if not self.heading and self.kind == "time":
            title = self.key.removesuffix("_ms")
        elif not self.heading and humanised and self.kind == "size":
            title = self.key.removesuffix("_bytes")
        return escape_controls(title)  # a query may make column names of a store's data


def kind_of(key: str) -> Kind:
    """Return the kind of value that a key of this name holds."""
    if key.endswith("timestamp_ms"):
        return "time"
    if key.endswith("_bytes") or key == "bytes":
        return "size"
    return "severity" if key == "severity" else "text"


def escape_controls(text: str) -> str:
    """Escape characters that move a cursor, change a colour, start a line or turn the writing direction."""
    return text if text.isascii() and text.isprintable() else text.translate(_CONTROLS)


def escape_json_controls(text: str) -> str:
    """Escape the control characters of JSON text that JSON itself allows."""
    return text if text.isascii() and "\x7f" not in text else text.translate(_JSON_CONTROLS)


def human_size(size_bytes: float) -> str:
    """Return ``1.3 MiB``, or whole bytes below 1 KiB."""
    size, unit = float(size_bytes), 0
    while abs(size) >= 1023.95 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.0f} B" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"


def cell(value: Any, kind: Kind, zone: tzinfo, *, humanised: bool = False) -> str:
    """Return a value as the text of one table cell, escaped. ``humanised`` is for tables that only people read."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if kind == "time" and isinstance(value, int):
        return format_time(value, zone)
    if kind == "size" and humanised and isinstance(value, int | float):
        return human_size(value)
    if isinstance(value, str):
        return escape_controls(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, bytes | bytearray | memoryview):
        return escape_controls(bytes(value).decode("utf-8", "replace"))
    if isinstance(value, Mapping):
        return escape_controls(encode_line(value)) if value else ""
    if isinstance(value, Iterable):
        return ", ".join(cell(v, kind, zone, humanised=humanised) for v in value)
    return escape_controls(str(value))


def is_numeric(rows: Sequence[Mapping[str, Any]], column: Column) -> bool:
    """Return True if a column holds only numbers in these rows, and is therefore set flush right."""
    if column.kind in ("number", "size"):
        return True
    values = [row.get(column.key) for row in rows]
    return (
        any(v is not None for v in values)
        and all(v is None or (isinstance(v, int | float) and not isinstance(v, bool)) for v in values)
        and column.kind == "text"
    )
