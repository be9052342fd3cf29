"""JSON values to the types of a broker's beans, as leniently as its JSON library converts them (store format, section 9.2)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

_INT_LIMIT: Final = 1 << 31
_LONG_LIMIT: Final = 1 << 63


class ConfigError(ValueError):
    """A value of a config file has a type that no broker reads: the whole file counts as broken."""


def as_object(value: Any, what: str) -> Mapping[Any, Any]:
    """An object's members; none for null."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{what} is no object")
    return value


def as_list(value: Any, what: str) -> list[Any]:
    """An array's items; none for null."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise ConfigError(f"{what} is no array")
    return value


def as_int(value: Any, what: str, default: int = 0) -> int:
    """A long: of a number (its whole part), of true and false, or of a text with one; the default for null and an empty text."""
    if value is None or value == "":
        return default
    try:
        if (isinstance(value, float) and not math.isfinite(value)) or (isinstance(value, str) and "_" in value):
            raise ValueError(value)
        number = int(value) if isinstance(value, int | float | str) else None
    except ValueError:
        number = None
    if number is None or not -_LONG_LIMIT <= number < _LONG_LIMIT:
        raise ConfigError(f"{what} is no number")
    return number


def as_int32(value: Any, what: str, default: int = 0) -> int:
    """As ``as_int``, an int; of a number with a point the lowest bits, as of Java's ``intValue``."""
    if value.__class__ is int and 0 <= value < _INT_LIMIT:  # nearly every one of 50,000 topics' numbers
        number: int = value
        return number
    number = as_int(value, what, default)
    if isinstance(value, float):
        return (number + _INT_LIMIT) % (2 * _INT_LIMIT) - _INT_LIMIT
    if not -_INT_LIMIT <= number < _INT_LIMIT:
        raise ConfigError(f"{what} has a number that is too large")
    return number


def as_flag(value: Any, what: str, default: bool = False) -> bool:
    """A boolean: true, false, 1, 0 or one of these as text; the default for null and an empty text."""
    if value is None or value == "":
        return default
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if isinstance(value, bool | int | str) and str(int(value) if isinstance(value, bool) else value) in ("0", "1"):
        return value not in (0, "0")
    raise ConfigError(f"{what} is neither true nor false")


def as_text(value: Any, what: str, default: str = "") -> str:
    """A text, or a number or boolean as text; the default for null."""
    if value is None:
        return default
    if isinstance(value, dict | list):
        raise ConfigError(f"{what} is no text")
    return str(value).lower() if isinstance(value, bool) else str(value)


def as_texts(value: Any, what: str) -> dict[str, str]:
    """An object of texts; members that are null are left out."""
    return {as_text(k, what): as_text(v, what) for k, v in as_object(value, what).items() if v is not None}


def as_ints(value: Any, what: str, key: Callable[[Any, str], int] = as_int) -> dict[int, int]:
    """An object of longs by number, quoted or not; members that are null are left out."""
    return {key(k, what): as_int(v, what) for k, v in as_object(value, what).items() if v is not None}
