"""Convert JSON values to the types of a config file's members (store format, section 9.2)."""

from __future__ import annotations

import math
from typing import Any, Final

_INT_LIMIT: Final = 1 << 31
_LONG_LIMIT: Final = 1 << 63


class ConfigError(ValueError):
    """A value of a config file has a type that no broker reads, so the whole file counts as broken."""


def as_int(value: Any, what: str, default: Any = 0) -> int:
    """Return a long: of a number (its whole part), of true and false, or of a text with one; the default for null and an empty text."""
    if value is None or value == "":
        number: int = default
        return number
    try:
        if (isinstance(value, float) and not math.isfinite(value)) or (isinstance(value, str) and "_" in value):
            raise ValueError(value)
        number = int(value) if isinstance(value, int | float | str) else _LONG_LIMIT
    except ValueError:
        number = _LONG_LIMIT
    if not -_LONG_LIMIT <= number < _LONG_LIMIT:
        raise ConfigError(f"{what} is no number")
    return number


def as_int32(value: Any, what: str, default: Any = 0) -> int:
    """Return an int as ``as_int`` does; of a number with a point the lowest bits, as of Java's ``intValue``."""
    if value is None or value == "":
        number: int = default
        return number
    number = as_int(value, what)
    if isinstance(value, float):
        return (number + _INT_LIMIT) % (2 * _INT_LIMIT) - _INT_LIMIT
    if not -_INT_LIMIT <= number < _INT_LIMIT:
        raise ConfigError(f"{what} has a number that is too large")
    return number


def as_flag(value: Any, what: str, default: Any = False) -> bool:
    """Return a boolean: true, false, 1, 0 or one of these as text; the default for null and an empty text."""
    if value is None or value == "":
        return bool(default)
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if isinstance(value, bool | int | str) and str(int(value) if isinstance(value, bool) else value) in ("0", "1"):
        return value not in (0, "0")
    raise ConfigError(f"{what} is neither true nor false")


def as_text(value: Any, what: str, default: Any = "") -> str:
    """Return a text, or a number or boolean as text; the default for null."""
    if value is None:
        text: str = default
        return text
    if isinstance(value, dict | list):
        raise ConfigError(f"{what} is no text")
    return str(value).lower() if isinstance(value, bool) else str(value)
