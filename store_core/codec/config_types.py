"""What of a parsed config file does not fit the type that brokers read it into.

A file that is good JSON fails to load all the same where a value is of a wrong type: null in a table that takes none, a text
for a number, a list for an object.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from store_core.codec.config_beans import (
    ANY,
    FILES,
    PLAIN,
    Array,
    Bean,
    ConfigMembers,
    Flag,
    ListOf,
    Table,
    Text,
    Type,
    Whole,
    Word,
)
from store_core.codec.config_reader import (
    FASTJSON_2,
    FASTJSON_2_59,
    FASTJSON_29,
    FASTJSON_51,
    FASTJSON_61,
    FASTJSON_76,
    INT,
    LONG,
    ConfigReader,
    is_null,
    reads_flag,
    reads_whole,
    reads_word,
)
from store_core.codec.json_quick import RepeatedMembers


class ConfigTypeError(ValueError):
    """A value of a parsed config file that a broker fails to read."""


def what_is_wrong(
    name: str, value: Any, members: ConfigMembers, reader: ConfigReader, *, is_blank: bool = False
) -> str:
    """Why a release fails to load a parsed file of that name, "" where it loads it; ``is_blank``: its text is space alone."""
    bean = FILES[members].get(name)
    if bean is None:
        return ""
    if is_blank and (reader.is_second or (bean.by_reflection and reader.refuses_blank)):
        return "it is blank"
    try:
        _Reading(reader).take(bean, value, _Place())
    except ConfigTypeError as error:
        return str(error)
    return ""


_V: Final = ConfigMembers  # which types come with which library:
_KNOWN: Final = (
    *((_V.V4, reader) for reader in (FASTJSON_29, FASTJSON_51, FASTJSON_61, FASTJSON_76)),
    *((_V.V5, reader) for reader in (FASTJSON_61, FASTJSON_76)),
    *((_V.V5_GROUPS, reader) for reader in (FASTJSON_76, FASTJSON_2, FASTJSON_2_59)),
)


def wrong_for_all(name: str, value: Any) -> str:
    """Why no release loads a parsed file of that name, in the words for the newest; "" where one does, or nothing is known."""
    found = ""
    for members, reader in _KNOWN:
        if name in FILES[members] and not (found := what_is_wrong(name, value, members, reader)):
            return ""
    return found


def distinct(name: str, value: Any) -> Any:
    """Return a parsed file with only the first of all table entries that every release judges alike.

    ``what_is_wrong`` gives the same answer for it, and has a few entries to look at where a file has 50,000 topics.
    """
    bean = FILES[ConfigMembers.V5_GROUPS].get(name)
    if bean is None or value.__class__ is not dict:
        return value
    return {
        key: _first_of_each(type_, item)
        if isinstance(type_ := bean.members.get(key), Table) and isinstance(type_.key, Text) and item.__class__ is dict
        else item
        for key, item in value.items()
    }


def _first_of_each(type_: Table, table: dict[Any, Any]) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    seen: set[Any] = set()
    for key, item in table.items():
        kind = _kind(type_.value, item) if key.__class__ is str else None
        if kind is None or kind not in seen:
            found[key] = item
            seen.add(kind)
    return found


_INT_END: Final = 1 << (INT - 1)


def _kind(type_: Type, value: Any) -> Any:
    """Return what values have in common that no release tells apart; None for a value with which only itself has it.

    Texts of a text member are one kind, and so are numbers that fit an int; a value of any other kind stands for itself.
    """
    of = value.__class__
    if of is str:
        return str if type_.__class__ is Text else (str, value)
    if of is int:
        return int if 0 <= value < _INT_END else (int, value)
    if of is bool or value is None:
        return of, value
    if of is not dict:
        return None
    if not value:
        return dict
    if isinstance(type_, Bean):
        types = type_.members
        kinds = [_kind(types.get(key, ANY), item) for key, item in value.items()]
        return None if None in kinds else (*value, *kinds)
    if isinstance(type_, Table):
        pairs = [(_kind(type_.key, key), _kind(type_.value, item)) for key, item in value.items()]
        return None if any(None in pair for pair in pairs) else (Table, *dict.fromkeys(pairs))
    return None


@dataclass(frozen=True, slots=True)
class _Place:
    """Where in a file a value stands: the innermost member, and the keys that lead there."""

    member: str = ""
    keys: tuple[str, ...] = ()

    def __str__(self) -> str:
        keys = ", ".join(self.keys)
        return f"{self.member} of {keys}" if keys and self.member else self.member or keys or "it"

    def below(self, member: str) -> _Place:
        return _Place(member, self.keys)

    def at(self, key: Any) -> _Place:
        return _Place(self.member, (*self.keys, str(key)))


@dataclass(frozen=True, slots=True)
class _Reading:
    reader: ConfigReader

    def take(self, type_: Type, value: Any, place: _Place, *, cuts: bool = True) -> bool:
        """Whether a value reads as null. Raises ConfigTypeError for one that does not fit the type."""
        match type_:
            case Bean():
                return self._bean(type_, value, place)
            case Table():
                return self._table(type_, value, place)
            case ListOf():
                return self._list(type_, value, place)
            case Array():
                return self._array(type_, value, place)
            case Text():
                return value is None
            case Whole() | Flag() | Word():
                return self._plain(type_, value, place, cuts)
        if self.reader.refuses_bare_keys and _has_bare_keys(value):
            raise ConfigTypeError(f"{place}, which is unknown, has a key without quotes")
        return value is None

    def _plain(self, type_: Whole | Flag | Word, value: Any, place: _Place, cuts: bool) -> bool:
        # The second generation counts versions in an int, whatever their type says.
        counts = place.member == "counter" and self.reader.is_second
        if is_null(self.reader, value):
            return value is None or not counts
        if isinstance(type_, Whole):
            bits, boxed = (INT, False) if counts else (type_.bits, type_.boxed)
            fits = reads_whole(self.reader, value, bits, boxed=boxed, cuts=cuts)
            if fits and self.reader.is_second and boxed and isinstance(value, dict) and "val" not in value:
                return bits == LONG
        elif isinstance(type_, Flag):
            fits = reads_flag(self.reader, value)
        else:
            fits = reads_word(self.reader, value, type_.words, passes=cuts)
        if not fits:
            raise ConfigTypeError(f"{place} is {_called(value, type_)}")
        return False

    def _array(self, type_: Array, value: Any, place: _Place) -> bool:
        if value is None or (value == "" and self.reader.is_second):
            return True
        if not isinstance(value, list):
            raise ConfigTypeError(f"{place} is {_called(value)}")
        for item in value:
            if isinstance(item, int) and type_.bits == INT and not self.reader.is_second:
                continue  # its lowest bits count
            if self._plain(Whole(type_.bits), item, place, cuts=False) and not self.reader.nulls_in_arrays:
                raise ConfigTypeError(f"{place} has null in it")
        return False

    def _list(self, type_: ListOf, value: Any, place: _Place) -> bool:
        if value is None or (value == "" and self.reader.is_second and not isinstance(type_.item, Text)):
            return True
        is_one = isinstance(value, dict) and (type_.takes_one or self.reader.is_second)
        if not isinstance(value, list) and self.reader.is_second:  # what is no list is a list of it
            is_one = isinstance(value, dict | str) or isinstance(type_.item, Whole)
        if not isinstance(value, list) and not is_one:
            raise ConfigTypeError(f"{place} is {_called(value)}")
        for item in [value] if is_one else value:
            if self.take(type_.item, item, place) and isinstance(type_.item, Whole) and not is_one and len(value) > 1:
                raise ConfigTypeError(f"{place} has null in it")  # each is added to the first
        return False

    def _table(self, type_: Table, value: Any, place: _Place) -> bool:
        if value is None or (value == "" and self.reader.is_second):
            return True
        if not isinstance(value, dict):
            raise ConfigTypeError(f"{place} is {_called(value)}")
        for key, items in _members_of(value):
            self._key(type_, key, place)
            for item in items:
                if self.take(type_.value, item, place.at(key)) and not type_.nulls:
                    raise ConfigTypeError(f"{place.at(key)} is {_called(None)}")
        return False

    def _key(self, type_: Table, key: Any, place: _Place) -> None:
        if isinstance(type_.key, Text):
            is_bare = not isinstance(key, str)
            is_number = is_bare and key is not None and not isinstance(key, bool)
            if self.reader.is_second:
                fits = not is_bare if type_.texts else key is not None
            else:
                fits = not is_number and (type_.nulls or key is not None)
        else:
            try:
                fits = not self.take(type_.key, key, place) or type_.nulls
            except ConfigTypeError:
                fits = False
        if not fits:
            raise ConfigTypeError(f"{place} has the key {key if key is not None else 'null'!s}")

    def _bean(self, bean: Bean, value: Any, place: _Place) -> bool:
        if value == "" and not (bean.by_reflection and self.reader.refuses_blank):
            return True
        if value is None or (value == [] and not self.reader.is_second):
            return True
        if not isinstance(value, dict):
            raise ConfigTypeError(f"{place} is {_called(value)}")
        needs = (*bean.needs, *bean.misses, *(() if self.reader.is_second else bean.needs_in_first))
        cuts = True
        for key, items in _members_of(value):
            if not isinstance(key, str) and (self.reader.is_second or (key is not None and not isinstance(key, bool))):
                raise ConfigTypeError(f"{place} has the key {key if key is not None else 'null'!s}")
            type_ = bean.members.get(key, ANY) if isinstance(key, str) else ANY
            cuts = cuts and type_ is not ANY  # behind a member that it does not know a library goes the slow way
            is_set_once = isinstance(type_, PLAIN) or (isinstance(type_, Whole) and not type_.boxed)
            for item in items[:1] if is_set_once and self.reader.first_value_counts else items:
                if self.take(type_, item, place.below(str(key)), cuts=cuts) and type_ is not ANY and key in needs:
                    raise ConfigTypeError(f"{place.below(str(key))} is {_called(None)}")
        for name in bean.misses:
            if name not in value:
                raise ConfigTypeError(f"{name} is missing")
        return False


def _members_of(value: dict[Any, Any]) -> list[tuple[Any, list[Any]]]:
    """Members with all the values that they were given."""
    earlier = value.earlier if isinstance(value, RepeatedMembers) else {}
    return [(key, [*earlier.get(key, ()), item]) for key, item in value.items()]


def _has_bare_keys(value: Any) -> bool:
    left = [value]
    while left:  # references may nest it deeper than any text is
        item = left.pop()
        if isinstance(item, dict):
            if any(not isinstance(key, str) for key in item):
                return True
            left += item.values()
        elif isinstance(item, list):
            left += item
    return False


def _called(value: Any, type_: Type = ANY) -> str:
    """What a value is, in a word or two."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return "too large a number" if isinstance(type_, Whole) else "a number"
    if isinstance(value, str):
        return "a text that is no number" if isinstance(type_, Whole) else "a text"
    return "a list" if isinstance(value, list) else "an object"
