"""Decide which values of a wrong type stop a broker's load of a config file (store format, section 9.2).

Valid JSON still fails to load if a value does not fit its member: null in a table that takes none, a text for a number, a list for an object. The
table agrees with every recorded load by the releases' own JSON libraries (tests/broker/test_config_load.py).
"""

from __future__ import annotations

import re
from enum import Enum
from functools import cache
from typing import Any, Final

from store_core.codec.coerce import ConfigError
from store_core.codec.config_fields import FILES, Bean, ConfigMembers, Field, ListOf, Plain, Table, Type
from store_core.codec.json_quick import RepeatedMembers


class ConfigReader(Enum):
    """A JSON library of brokers. The second generation is a rewrite with rules of its own."""

    FASTJSON_29 = "fastjson 1.2.29"
    FASTJSON_51 = "fastjson 1.2.51"
    FASTJSON_61 = "fastjson 1.2.61 to 1.2.69"
    FASTJSON_76 = "fastjson 1.2.76 to 1.2.83"
    FASTJSON_2 = "fastjson2 2.0.43"
    FASTJSON_2_59 = "fastjson2 2.0.59 to 2.0.63"


# A cell lists the libraries that refuse, one letter each, in the order of ConfigReader.
_1, _2, _ALL = "abcd", "ef", "abcdef"
_COLUMNS: Final = ("int", "long", "Integer", "Long", "counter", "int[]", "long[]", "flag", "word")
_TABLE: Final = (
    ("fits",         "",     "",     "",     "",     "",     "",     "",     "",     ""),
    ("cut",          "cdef", "ef",   "abcdf", "abcdf", "e",   "ef",   _ALL,   _1,     _ALL),  # too large, but its lowest bits would fit
    ("over",         _ALL,   _ALL,   _ALL,   "abcdf", _ALL,   "ef",   _ALL,   _1,     _ALL),  # too large, and the sign bit of the lowest bits is set
    ("decimal",      "",     "",     "",     "",     "",     "",     "",     "",     _1),
    ("power",        "bcd",  "bcd",  "bcd",  "bcd",  "bcd",  "bcd",  "bcd",  "bcd",  _ALL),  # from 10 ** 101 on
    ("bool",         "",     "abc",  "",     "abc",  "abc",  "",     "abc",  "",     _ALL),
    ("NULL",         "ef",   "ef",   "ef",   "ef",   "ef",   "ef",   "ef",   "",     ""),
    ("Null",         _ALL,   _ALL,   _ALL,   _ALL,   _ALL,   _ALL,   _ALL,   _1,     ""),
    ("'cut'",        _ALL,   "aef",  "abcdf", "abcdf", "e",   _ALL,   _ALL,   _ALL,   "ef"),  # numbers in quotes
    ("'over'",       _ALL,   _ALL,   _ALL,   "abcdf", _ALL,   _ALL,   _ALL,   _ALL,   "ef"),
    ("'7.0'",        "ab",   _1,     "ab",   _1,     _1,     "ab",   _1,     _ALL,   ""),
    ("'1,0.0'",      "abef", _ALL,   "abef", _ALL,   _ALL,   "abef", _ALL,   _ALL,   ""),
    ("'7.5'",        _1,     _1,     _1,     _1,     _1,     _1,     _1,     _ALL,   ""),
    ("'1,000'",      "e",    "e",    "e",    "e",    "e",    "e",    "e",    _ALL,   ""),
    ("'true'",       _1,     _1,     _1,     _1,     _1,     _1,     _1,     "",     ""),
    ("flag letter",  _ALL,   _ALL,   _ALL,   _ALL,   _ALL,   _ALL,   _ALL,   "ef",   ""),  # y, T, F or f
    ("flag word",    _ALL,   _ALL,   _ALL,   _ALL,   _ALL,   _ALL,   _ALL,   "",     ""),  # Y, N, True or FALSE
    ("other text",   _ALL,   _ALL,   _ALL,   _ALL,   _ALL,   _ALL,   _ALL,   _ALL,   ""),
    ("list of one",  _1,     _1,     _1,     "abcde", _1,     _1,     _1,     "abcde", _ALL),
    ("list",         _ALL,   _ALL,   _ALL,   _ALL,   _ALL,   _ALL,   _ALL,   _ALL,   _ALL),
    ("val",          _1,     _1,     _1,     _1,     _1,     _1,     _1,     _ALL,   _ALL),  # {"val": 1}
    ("object",       _1,     _ALL,   _1,     _1,     "abcdf", _1,     _ALL,   _ALL,   _ALL),  # fastjson 2 reads null for a Long
)  # fmt: skip

_LOADERS: Final = (  # the pairs of members and library; each is a bit of a mask
    *((ConfigMembers.V4, reader) for reader in list(ConfigReader)[:4]),
    *((ConfigMembers.V5, reader) for reader in list(ConfigReader)[2:4]),
    *((ConfigMembers.V5_GROUPS, reader) for reader in list(ConfigReader)[3:]),
)
_RMQCTL: Final = 1 << len(_LOADERS)  # the bit of rmqctl itself
_LETTERS: Final = dict(zip(ConfigReader, _ALL, strict=True))
_VERSIONS: Final = list(ConfigMembers)


@cache
def _mask(letters: str = _ALL, since: ConfigMembers | None = ConfigMembers.V4) -> int:
    """Return the bits of the loaders with one of these libraries that know the members of a release."""
    if since is None:
        return 0
    known = _VERSIONS[_VERSIONS.index(since) :]
    return sum(1 << i for i, (members, lib) in enumerate(_LOADERS) if members in known and _LETTERS[lib] in letters)


_REFUSED_BY: Final = {(c, row[0]): _mask(cell) for row in _TABLE for c, cell in zip(_COLUMNS, row[1:], strict=True)}
_FIRST, _SECOND, _BROKERS, _NEWEST = _mask(_1), _mask(_2), _mask(), _mask("f")
_OF_GENERATIONS: Final = {"": 0, "1": _FIRST, "12": _BROKERS}
_REFUSE_BLANK_REFLECTED: Final = _mask("cdef")
_REFUSE_BARE_UNKNOWN: Final = _mask("e")  # numeric keys in an unknown member
_REFUSE_NULL_IN_ARRAYS: Final = _mask("a")
_FIRST_VALUE_COUNTS: Final = _mask("bcd")  # of a repeated member

_UNKNOWN: Final = object()
_INT_END: Final = 1 << 31
_LONG_COLUMNS: Final = ("long", "Long", "long[]")
_LARGEST_POWER: Final = 100
_WHOLE: Final = re.compile(r"[+-]?\d[\d,]*")
_PLAIN_WHOLE: Final = re.compile(r"[+-]?\d+", re.ASCII)
_WITH_COMMAS_AND_ZEROS: Final = re.compile(r"[+-]?\d[\d,]*\.0+", re.ASCII)
_WITH_ZEROS: Final = re.compile(r"[+-]?\d+\.0*", re.ASCII)
_DECIMAL: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def _kind(column: str, value: Any) -> str:
    """Return the table row of a value other than null."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return _size(column, value)
    if isinstance(value, float):
        if column == "word":
            return "decimal" if -1 < value < 2 else "over"
        near = not value or 10**-_LARGEST_POWER <= abs(value) < 10.0 ** (_LARGEST_POWER + 1)
        return "decimal" if near else "power"
    if isinstance(value, list):
        return "list of one" if len(value) == 1 and _counts_alone(column, value[0]) else "list"
    if isinstance(value, str):
        return _kind_of_text(column, value)
    if "val" in value and column in ("counter", *_LONG_COLUMNS):
        is_number = isinstance(value["val"], int | float)
        return "val" if is_number else "object" if column == "counter" else "list"
    return "object"


def _counts_alone(column: str, item: Any) -> bool:
    """Return True if the only item of a list is read in the list's place by the libraries that do so."""
    if column == "flag":
        while isinstance(item, list) and len(item) == 1:
            item = item[0]
        is_null = item in (None, "", "null")
        return is_null or not (isinstance(item, list | dict) or _REFUSED_BY[column, _kind(column, item)] & _NEWEST)
    if isinstance(item, str):
        return _PLAIN_WHOLE.fullmatch(item) is not None and _fits(_number(item), 64)
    return isinstance(item, int | float) and not isinstance(item, bool)


def _size(column: str, number: int) -> str:
    if column == "word":
        return "fits" if 0 <= number <= 1 else "over"
    bits = 64 if column in _LONG_COLUMNS else 32
    if _fits(number, bits):
        return "fits"
    if column == "counter":
        return "cut" if _fits(number, 64) else "over"
    if column == "Integer":  # a number is checked if it fits into a long, but not into an unsigned int
        return "over" if number == 1 << 31 or (_fits(number, 64) and abs(number) >= 1 << 32) else "cut"
    return "cut" if column in ("int", "long") and abs(number) % (1 << bits) < 1 << (bits - 1) else "over"


def _fits(number: int, bits: int) -> bool:
    return -(1 << (bits - 1)) <= number < 1 << (bits - 1)


def _number(text: str) -> int:
    """Return the number in a text of digits; for very many digits a number that is also too large and has the same lowest bits."""
    digits = text.lstrip("+-")
    number = int(digits) if len(digits) <= _LARGEST_POWER else 10**_LARGEST_POWER + int(digits[-64:])
    return -number if text.startswith("-") else number


def _kind_of_text(column: str, text: str) -> str:
    if text.lower() == "null":
        return "NULL" if text == "NULL" else "Null"
    if column == "flag" and text in ("0", "1"):
        return "fits"
    if _WHOLE.fullmatch(text):
        size = _size("flag" if column == "word" else column, _number(text.replace(",", "")))
        odd = "'1,000'" if "," in text or not text.isascii() else "fits"
        return (odd if column != "flag" else "other text") if size == "fits" else f"'{size}'"
    if _DECIMAL.fullmatch(text):
        return "'7.0'" if _WITH_ZEROS.fullmatch(text) and _is_whole(column, text) else "'7.5'"
    if _WITH_COMMAS_AND_ZEROS.fullmatch(text):
        return "'1,0.0'" if _is_whole(column, text) else "other text"
    if text in ("true", "false"):
        return "'true'"
    if text in ("Y", "N") or text.lower() in ("true", "false"):
        return "flag word"
    return "flag letter" if text in ("y", "T", "F", "f") else "other text"


def _is_whole(column: str, text: str) -> bool:
    """Return True if the digits before a text's decimal point fit into the column's type."""
    return _fits(_number(text.partition(".")[0].replace(",", "")), 64 if column in _LONG_COLUMNS else 32)


class Refusals:
    """The loaders that refuse the parsed file ``name``, with reasons; one walk checks it for all loaders."""

    def __init__(self, name: str, value: Any) -> None:
        file = FILES[name]
        self._reasons: list[tuple[int, str]] = []
        self._refused = 0
        self._loaders = _mask(since=file.since)
        self._blank = _SECOND | (_mask("cd") & _reflected(file.bean))
        self._take(file.bean, value, "", (), self._loaders | _RMQCTL)

    def by(self, members: ConfigMembers, reader: ConfigReader, *, is_blank: bool = False) -> str:
        """Return why a release fails to load it, "" where it loads it; ``is_blank``: its text is only space."""
        bit = 1 << _LOADERS.index((members, reader)) & self._loaders
        return "it is blank" if is_blank and bit & self._blank else self._why(bit)

    def by_all(self) -> str:
        """Return why no release loads it, in the words for the newest; "" where a release does, or that is not known."""
        newest = 1 << (len(_LOADERS) - 1) & self._loaders
        return self._why(newest) if not self._loaders & ~self._refused else ""

    def by_us(self) -> str:
        """Return why rmqctl cannot show it, "" where it can."""
        return self._why(_RMQCTL)

    def _why(self, bit: int) -> str:
        return next((why for mask, why in self._reasons if mask & bit), "")

    def _refuse(self, mask: int, why: str) -> None:
        if new := mask & ~self._refused:
            self._refused |= new
            self._reasons.append((new, why))

    def _refuse_value(
        self, mask: int, value: Any, member: str, keys: tuple[str, ...], *, as_number: bool = False
    ) -> None:
        if mask & ~self._refused:
            self._refuse(mask, f"{_place(member, keys)} is {_type_in_words(value, as_number=as_number)}")

    def _take(self, type_: Type, value: Any, member: str, keys: tuple[str, ...], on: int) -> int:
        """Check a value for the loaders in the mask ``on``; return the mask of those that read it as null."""
        if value is None:
            return on
        if isinstance(type_, Plain):
            return self._plain(type_, value, member, keys, on)
        if isinstance(type_, Bean):
            return self._bean(type_, value, member, keys, on)
        if isinstance(type_, Table):
            return self._table(type_, value, member, keys, on)
        return self._list(type_, value, member, keys, on)

    def _plain(self, type_: Plain, value: Any, member: str, keys: tuple[str, ...], on: int) -> int:
        refused, null = _refusing(type_, value)
        self._refuse_value(on & refused, value, member, keys, as_number=type_.is_number)
        return on & null

    def _list(self, type_: ListOf, value: Any, member: str, keys: tuple[str, ...], on: int) -> int:
        nulls, items = 0, value
        is_number = isinstance(type_.item, Plain) and type_.item.is_number
        if not isinstance(value, list):
            takes = 0
            if value == "" and type_.item is not Plain.TEXT:
                nulls = on & _SECOND
            elif not type_.is_array:  # other values count as a list of one item
                takes = _FIRST if type_.takes_one and isinstance(value, dict) else 0
                takes |= _SECOND if isinstance(value, dict | str) or is_number else 0
            self._refuse_value(on & ~takes & ~nulls, value, member, keys)
            on, items = on & takes, [value]
        if not on:
            return nulls
        for item in items:
            null = self._take(type_.item, item, member, keys, on)
            if null and is_number and (type_.is_array or len(items) > 1):  # in a list each item is added to the first
                refused = null & (_REFUSE_NULL_IN_ARRAYS if type_.is_array else _BROKERS)
                self._refuse(refused, f"{_place(member, keys)} has null in it")
        return nulls

    def _table(self, type_: Table, value: Any, member: str, keys: tuple[str, ...], on: int) -> int:
        if not isinstance(value, dict):
            null = on & _SECOND if value == "" else 0
            self._refuse_value(on & ~null, value, member, keys)
            return null
        item_type, takes_null = type_.value, -1 if type_.nulls else _RMQCTL
        beans = item_type if isinstance(item_type, Bean) else None
        for key, last in value.items():
            if not _is_usual(type_.key, key):
                self._key(type_, key, member, keys, on)
            if beans and last.__class__ is dict and value.__class__ is dict and not _odd_members(beans, last):
                continue
            for item in _values_of(value, key, last):
                if not _is_usual(item_type, item):
                    inner = (*keys, str(key))
                    null = self._take(item_type, item, member, inner, on) & ~takes_null
                    self._refuse_value(null, None, member, inner)
        return 0

    def _key(self, type_: Table, key: Any, member: str, keys: tuple[str, ...], on: int) -> None:
        if type_.key is not Plain.TEXT:
            bad, null = _refusing(type_.key, key)
            bad |= 0 if type_.nulls else null
        elif key is None:
            bad = _SECOND if type_.nulls else _BROKERS
        else:
            bad = (_SECOND if type_.texts else 0) | (0 if isinstance(key, bool) else _FIRST)
        self._refuse_key(on & bad, key, member, keys)

    def _refuse_key(self, mask: int, key: Any, member: str, keys: tuple[str, ...]) -> None:
        if mask & ~self._refused:
            self._refuse(mask, f"{_place(member, keys)} has the key {'null' if key is None else key}")

    def _bean(self, bean: Bean, value: Any, member: str, keys: tuple[str, ...], on: int) -> int:
        if not isinstance(value, dict):
            null = 0
            if value == "":
                null = on & _BROKERS & ~(_REFUSE_BLANK_REFLECTED & _reflected(bean))
            elif value == []:
                null = on & _FIRST
            self._refuse_value(on & ~null, value, member, keys)
            return null
        if bean.is_raw and on & _RMQCTL and any(isinstance(item, dict | list) for item in value.values()):
            self._refuse(_RMQCTL, f"{_place(member, keys)} has something in it that is no text")
        for key, item in _odd_members(bean, value):
            items = _values_of(value, key, item)
            if (field := bean.fields.get(key)) is None:
                self._unknown(key, items, member, keys, on)
            elif len(items) > 1 or not _is_usual(field.type, item):
                self._member(field, key, items, keys, on)
        for key, field in bean.fields.items() if bean.has_required else ():
            if field.is_required and key not in value:
                self._refuse(on & ~_RMQCTL, f"{key} is missing")
        return 0

    def _member(self, field: Field, key: str, items: list[Any], keys: tuple[str, ...], on: int) -> None:
        knows = on & (_mask(since=field.since) | (_RMQCTL if field.shown else 0))
        for number, item in enumerate(items):
            mask = knows
            if number and field.type.__class__ is Plain and field.type.is_set_once:
                mask &= ~_FIRST_VALUE_COUNTS
            if number < len(items) - 1:
                mask &= ~_RMQCTL
            null = self._take(field.type, item, key, keys, mask)
            self._refuse_value(null & _OF_GENERATIONS[field.needs], None, key, keys)
        self._unknown(key, items, key, keys, on & ~knows)

    def _unknown(self, key: Any, items: list[Any], member: str, keys: tuple[str, ...], on: int) -> None:
        if not isinstance(key, str):
            bad = _SECOND if key is None or isinstance(key, bool) else _BROKERS
            self._refuse_key(on & bad, key, member, keys)
        elif on & _REFUSE_BARE_UNKNOWN and any(map(_has_bare_keys, items)):
            why = f"{_place(key, keys)}, which is unknown, has a key without quotes"
            self._refuse(on & _REFUSE_BARE_UNKNOWN, why)


def _refusing(type_: Plain, value: Any) -> tuple[int, int]:
    """Return the masks of the loaders that refuse a value, and of those that read it as null."""
    if value is None:
        return 0, _BROKERS
    refused_by_rmqctl = 0
    try:
        type_.convert(value, "")
    except ConfigError:
        refused_by_rmqctl = _RMQCTL
    if type_ is Plain.TEXT:
        return refused_by_rmqctl, 0
    if value in ("", "null"):
        return refused_by_rmqctl, _FIRST if type_ is Plain.COUNTER else _BROKERS
    kind = _kind(type_.column, value)
    null = _FIRST if kind == "NULL" else _SECOND if kind == "object" and type_ is Plain.LONG_OBJECT else 0
    return refused_by_rmqctl | _REFUSED_BY[type_.column, kind], null


def _is_usual(type_: Type, value: Any) -> bool:
    """Return True for values that every loader accepts, as nearly all are; False where the table must be checked."""
    found = type(value)
    if not isinstance(type_, Plain) or found is not type_.usual:
        return False
    if type_.usual is int:
        return bool(0 <= value < _INT_END)
    return type_ is not Plain.WORD or (value[:1].isalpha() and value not in ("null", "NULL"))


def _odd_members(bean: Bean, value: dict[Any, Any]) -> list[tuple[str, Any]]:
    """Return the members that need a check. Files have many topics and hardly an odd member, hence a single expression."""
    usual, earlier = bean.usual, value.earlier if isinstance(value, RepeatedMembers) else ()
    return [
        (key, item)
        for key, item in value.items()
        if ((of := item.__class__) is not (known := usual.get(key, _UNKNOWN)) and item != known)
        or (not 0 <= item < _INT_END if of is int else item and (of is dict or of is list))
        or key in earlier
    ]


def _reflected(bean: Bean) -> int:
    """Return the mask of the loaders that read a bean by reflection."""
    return sum(1 << i for i, (members, _) in enumerate(_LOADERS) if members in bean.reflected)


def _values_of(value: dict[Any, Any], key: Any, last: Any) -> list[Any]:
    """Return all values of a member; ``last`` is the one that counts."""
    return [*value.earlier.get(key, ()), last] if isinstance(value, RepeatedMembers) else [last]


def _has_bare_keys(value: Any) -> bool:
    pending = [value]
    while pending:  # not recursive, because references may nest deeper than any text
        item = pending.pop()
        if isinstance(item, dict):
            if any(not isinstance(key, str) for key in item):
                return True
            pending += item.values()
        elif isinstance(item, list):
            pending += item
    return False


def _place(member: str, keys: tuple[str, ...]) -> str:
    """Return the place of a value in a file: the innermost member, and the keys that lead to it."""
    joined = ", ".join(keys)
    return f"{member} of {joined}" if joined and member else member or joined or "it"


def _type_in_words(value: Any, *, as_number: bool = False) -> str:
    """Return a value's type in a few words, for a reason."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return "too large a number" if as_number else "a number"
    if isinstance(value, str):
        return "a text that is no number" if as_number else "a text"
    return "a list" if isinstance(value, list) else "an object"
