"""How the JSON libraries of brokers read a plain value into a member of a type (store format, section 9.2).

They are lenient: a text may be a number, a number a flag. Where each of them gives up was asked of the libraries themselves,
with some sixty values for every member of every config file. Loading a file fails where one of its values cannot be read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class ConfigReader:
    """A JSON library as a row of answers. Those of the second generation were written anew, with rules of their own."""

    name: str
    is_second: bool = False
    cuts_ints: bool = False  # of an int too long only the lowest bits count, and it fails only where they are negative
    cuts_quoted_longs: bool = (
        False  # the same for a long in quotes; for a long without quotes every one of the first does so
    )
    flags_are_longs: bool = False  # true and false for a long; for an int they always are
    bounds_powers: bool = False  # decimals beyond 10 ** 100 are no whole numbers
    drops_zeros: bool = False  # "1.0" for an int
    first_value_counts: bool = False  # of a plain member that is there twice
    nulls_in_arrays: bool = True  # null for a 0
    passes_unknown_words: bool = True  # also where it goes its slow way
    refuses_bare_keys: bool = False  # numbers for keys in a member that it does not know
    refuses_blank: bool = False  # "" and a blank file for a bean that it does not compile


_COMMON: Final = {"cuts_quoted_longs": True, "bounds_powers": True, "first_value_counts": True}
FASTJSON_29: Final = ConfigReader("fastjson 1.2.29", cuts_ints=True, nulls_in_arrays=False, passes_unknown_words=False)
FASTJSON_51: Final = ConfigReader("fastjson 1.2.51", cuts_ints=True, **_COMMON)
FASTJSON_61: Final = ConfigReader("fastjson 1.2.61 to 1.2.69", drops_zeros=True, refuses_blank=True, **_COMMON)
FASTJSON_76: Final = ConfigReader(
    "fastjson 1.2.76 to 1.2.83", drops_zeros=True, refuses_blank=True, flags_are_longs=True, **_COMMON
)
_SECOND: Final = {"is_second": True, "flags_are_longs": True, "refuses_blank": True}
FASTJSON_2: Final = ConfigReader("fastjson2 2.0.43", refuses_bare_keys=True, **_SECOND)
FASTJSON_2_59: Final = ConfigReader("fastjson2 2.0.59 to 2.0.63", **_SECOND)

INT: Final = 32
LONG: Final = 64
_LARGEST_POWER: Final = 100
_WHOLE: Final = re.compile(r"[+-]?\d+")
_ZEROS: Final = re.compile(r"\.0*$")
_DECIMAL: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_NULL_WORDS: Final = ("", "null", "NULL")
_NULL_WORDS_OF_SECOND: Final = ("", "null")
_FLAG_LETTERS: Final = ("1", "0", "Y", "y", "N", "T", "F", "f")
_FLAG_LETTERS_OF_SECOND: Final = ("1", "0", "Y", "N")


def is_null(reader: ConfigReader, value: Any) -> bool:
    """Whether a value reads as null where a number or flag is asked for."""
    return value is None or value in (_NULL_WORDS_OF_SECOND if reader.is_second else _NULL_WORDS)


def reads_whole(reader: ConfigReader, value: Any, bits: int, *, boxed: bool = False, cuts: bool = True) -> bool:
    """Whether a value reads as a whole number, null aside.

    ``boxed``: it goes into a collection, or is an object itself; ``cuts``: the library is on its way for members that stand
    as it expects them, on which it looks at digits alone.
    """
    if reader.is_second:
        return _second_reads_whole(value, bits, boxed)
    if isinstance(value, bool):
        return bits == INT or reader.flags_are_longs
    if isinstance(value, float):
        return not value or not reader.bounds_powers or 10**-_LARGEST_POWER <= abs(value) <= 10 ** (_LARGEST_POWER + 1)
    if isinstance(value, int):
        may_cut = bits == LONG or reader.cuts_ints
        return _fits(value, bits) or (cuts and not boxed and may_cut and _fits_when_cut(reader, value, bits))
    if not isinstance(value, str):
        return False
    text = value.replace(",", "")
    text = _ZEROS.sub("", text) if reader.drops_zeros and bits == INT else text
    if not _WHOLE.fullmatch(text):
        return False
    may_cut = bits == LONG and reader.cuts_quoted_longs
    return _fits(_number(text), bits) or (
        cuts and not boxed and may_cut and _fits_when_cut(reader, _number(text), bits)
    )


def _number(text: str) -> int:
    """Of a text of digits; of very many one that is as much too large, and has the same lowest bits."""
    digits = text.lstrip("+-")
    if len(digits) <= _LARGEST_POWER:
        return int(text)
    number: int = 10**_LARGEST_POWER + int(digits[-LONG:])  # ten to the 64th has no other bits
    return -number if text.startswith("-") else number


def _second_reads_whole(value: Any, bits: int, boxed: bool) -> bool:
    if isinstance(value, bool | float):
        return True
    if isinstance(value, int):
        return _second_takes(value, bits, boxed)
    if isinstance(value, str):
        if _WHOLE.fullmatch(value) and value.isascii():
            return _second_takes(_number(value), bits, boxed)
        return value in ("true", "false") or _DECIMAL.fullmatch(value) is not None
    if isinstance(value, dict):
        if boxed and bits == LONG and "val" not in value:
            return True  # it is null then
        return bits == INT or ("val" in value and _second_reads_whole(value["val"], bits, boxed))
    if boxed and bits == LONG:
        return False
    item = value[0] if isinstance(value, list) and len(value) == 1 else None  # a list of one for what is in it
    return not isinstance(item, bool) and (
        isinstance(item, int | float) or (isinstance(item, str) and _WHOLE.fullmatch(item) is not None)
    )


def _second_takes(number: int, bits: int, boxed: bool) -> bool:
    """What has to be an object is made of any number; only an int of one that fits a long is looked at."""
    if not boxed:
        return _fits(number, bits)
    return bits == LONG or not 1 << (INT - 1) <= number < 1 << (LONG - 1)


def _fits(number: int, bits: int) -> bool:
    return -(1 << (bits - 1)) <= number < 1 << (bits - 1)


def _fits_when_cut(reader: ConfigReader, number: int, bits: int) -> bool:
    lowest = abs(number) % (1 << bits)
    least = number < 0 and lowest == 1 << (bits - 1) and reader.cuts_quoted_longs
    return lowest < 1 << (bits - 1) or least


def reads_flag(reader: ConfigReader, value: Any) -> bool:
    """Whether a value reads as true or false, null aside."""
    if isinstance(value, str):
        letters = _FLAG_LETTERS_OF_SECOND if reader.is_second else _FLAG_LETTERS
        return value in letters or value.lower() in ("true", "false") or (reader.is_second and value.lower() == "null")
    if isinstance(value, bool):
        return True
    if reader.is_second:
        return isinstance(value, int | float)
    return isinstance(value, int | float) and reads_whole(reader, value, INT, boxed=True)


def reads_word(reader: ConfigReader, value: Any, words: tuple[str, ...], *, passes: bool = True) -> bool:
    """Whether a value reads as one of some words: by its name, or by its number. An unknown one is null.

    ``passes``: the library is on its quick way, on which every one of them does that.
    """
    if isinstance(value, str):
        if reader.is_second:
            return not _WHOLE.fullmatch(value) or _fits(_number(value), INT)
        return passes or reader.passes_unknown_words or value in words
    if isinstance(value, bool) or not isinstance(value, int | float if reader.is_second else int):
        return False
    return abs(value) < len(words) and int(value) >= 0
