"""The types that brokers read their JSON config files into, and what of a parsed file does not fit them (store format, section 9).

A file that is good JSON fails to load all the same where a value is of a wrong type: null in a table that takes none, a text
for a number, a list for an object. Members that a type does not know are passed over. Which members there are depends on the
release, what reads as what on its JSON library (``config_reader``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from store_core.codec.config_reader import (
    FASTJSON_2,
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
from store_core.layout import paths


class ConfigMembers(Enum):
    """Which members the types of a release have."""

    V4 = "those of 4.x"
    V5 = "those of 5.0"  # attributes, retry policies, subscriptions, forbidden topics, versions of all tables but the groups'
    V5_GROUPS = "those of 5.3.1"  # also the version of the groups


class ConfigTypeError(ValueError):
    """A value of a parsed config file that a broker fails to read."""


# -- types ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Type:
    """Anything: a member that a type does not know."""


@dataclass(frozen=True, slots=True)
class Text(Type):
    """Any value is one: what is none becomes its JSON."""


@dataclass(frozen=True, slots=True)
class Whole(Type):
    """A whole number of so many bits. ``boxed``: an object; else null leaves the member as it was."""

    bits: int = INT
    boxed: bool = False


@dataclass(frozen=True, slots=True)
class Flag(Type):
    """True or false."""


@dataclass(frozen=True, slots=True)
class Word(Type):
    """One of some words, or its place among them."""

    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Array(Type):
    """An array of bare numbers."""

    bits: int = INT


@dataclass(frozen=True, slots=True)
class ListOf(Type):
    """A list or set. ``takes_one``: in the first generation, too, an object counts as a list of itself."""

    item: Type
    takes_one: bool = False


@dataclass(frozen=True, slots=True)
class Table(Type):
    """A map. ``nulls``: it takes null for a key and a value; ``texts``: its keys have to be texts, whoever reads them."""

    key: Type
    value: Type
    nulls: bool = False
    texts: bool = False


@dataclass(frozen=True, slots=True)
class Bean(Type):
    """An object with known members. ``by_reflection``: one that libraries do not compile, since a member has no setter.

    ``needs``: members that loading trips over when they are null; ``needs_in_first``: only in the first generation's libraries;
    ``misses``: also when they are not there.
    """

    members: dict[str, Type] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    needs_in_first: tuple[str, ...] = ()
    misses: tuple[str, ...] = ()
    by_reflection: bool = False


_ANY: Final = Type()
_TEXT: Final = Text()
_INT: Final = Whole()
_LONG: Final = Whole(LONG)
_INT_OBJECT: Final = Whole(INT, boxed=True)
_LONG_OBJECT: Final = Whole(LONG, boxed=True)
_ATTRIBUTES: Final = Table(_TEXT, _TEXT, nulls=True, texts=True)
_PLAIN: Final = (Flag, Word)  # and what is a bare number: each is set once

# Written out for 5.x; ``_without`` takes away what 4.x does not know.
_VERSION: Final = Bean({"counter": Whole(LONG, boxed=True), "stateVersion": _LONG, "timestamp": _LONG})
_COUNTED: Final = Bean(_VERSION.members, needs=("counter",))  # loading counts it up, or tells it
_TOPIC: Final = Bean(
    {
        "attributes": _ATTRIBUTES,
        "order": Flag(),
        "perm": _INT,
        "readQueueNums": _INT,
        "topicFilterType": Word(("SINGLE_TAG", "MULTI_TAG")),
        "topicName": _TEXT,
        "topicSysFlag": _INT,
        "writeQueueNums": _INT,
    }
)
_RETRY_POLICY: Final = Bean(
    {
        "customizedRetryPolicy": Bean({"next": Array(LONG)}),
        "exponentialRetryPolicy": Bean({"initial": _LONG, "max": _LONG, "multiplier": _LONG}),
        "type": Word(("EXPONENTIAL", "CUSTOMIZED")),
    }
)
_SUBSCRIPTION: Final = Bean({"expression": _TEXT, "expressionType": _TEXT, "topic": _TEXT, "version": _LONG})
_GROUP: Final = Bean(
    {
        "attributes": _ATTRIBUTES,
        "brokerId": _LONG,
        "consumeBroadcastEnable": Flag(),
        "consumeEnable": Flag(),
        "consumeFromMinEnable": Flag(),
        "consumeMessageOrderly": Flag(),
        "consumeTimeoutMinute": _INT,
        "groupName": _TEXT,
        "groupRetryPolicy": _RETRY_POLICY,
        "groupSysFlag": _INT,
        "notifyConsumerIdsChangedEnable": Flag(),
        "retryMaxTimes": _INT,
        "retryQueueNums": _INT,
        "subscriptionDataSet": ListOf(_SUBSCRIPTION, takes_one=True),
        "whichBrokerWhenConsumeSlowly": _LONG,
    }
)
_FILTER: Final = Bean(
    {
        "bloomFilterData": Bean({"bitNum": _INT, "bitPos": Array()}),
        "bornTime": _LONG,
        "clientVersion": _LONG,
        "compiledExpression": Bean(),  # an interface: what is in it is thrown away
        "consumerGroup": _TEXT,
        "deadTime": _LONG,
        "expression": _TEXT,
        "expressionType": _TEXT,
        "topic": _TEXT,
    }
)
_FILTERS_OF_TOPIC: Final = Bean({"groupFilterData": Table(_TEXT, _FILTER), "topic": _TEXT}, needs=("groupFilterData",))
_MAPPING_ITEM: Final = Bean(
    {
        "bname": _TEXT,
        "gen": _INT,
        "queueId": _INT,
        **dict.fromkeys(("endOffset", "logicOffset", "startOffset", "timeOfEnd", "timeOfStart"), _LONG),
    }
)
_MAPPING: Final = Bean(
    {
        "bname": _TEXT,
        "currIdMap": Table(_INT_OBJECT, _INT_OBJECT),
        "dirty": Flag(),
        "epoch": _LONG,
        "hostedQueues": Table(_INT_OBJECT, ListOf(_MAPPING_ITEM)),
        "scope": _TEXT,
        "topic": _TEXT,
        "totalQueues": _INT,
    }
)
_ORDER: Final = Bean(
    {
        "a": _TEXT,
        "cm": _LONG,
        "i": _LONG_OBJECT,
        "l": _LONG,
        "o": ListOf(_LONG_OBJECT),
        "oc": Table(_LONG_OBJECT, _INT_OBJECT, nulls=True),
        "ot": Table(_LONG_OBJECT, _LONG_OBJECT, nulls=True),
        "popTime": _LONG,
    }
)
_OFFSETS: Final = Table(_TEXT, Table(_INT_OBJECT, _LONG_OBJECT))
_FORBIDDEN: Final = Table(_TEXT, Table(_TEXT, _INT_OBJECT))
_FILTERS: Final = Bean({"filterDataByTopic": Table(_TEXT, _FILTERS_OF_TOPIC)})


def _without(bean: Bean, *names: str) -> Bean:
    return Bean({name: type_ for name, type_ in bean.members.items() if name not in names}, bean.needs)


def _files(members: ConfigMembers) -> dict[str, Bean]:
    is_5 = members is not ConfigMembers.V4
    version = _COUNTED if is_5 else _without(_COUNTED, "stateVersion")
    topic = _TOPIC if is_5 else _without(_TOPIC, "attributes")
    of_5 = ("attributes", "consumeMessageOrderly", "consumeTimeoutMinute", "groupRetryPolicy", "groupSysFlag")
    group = _GROUP if is_5 else _without(_GROUP, *of_5, "subscriptionDataSet")
    groups: dict[str, Type] = {"subscriptionGroupTable": Table(_TEXT, group)}
    progress: dict[str, Type] = {"offsetTable": _OFFSETS}
    delays: dict[str, Type] = {"offsetTable": _OFFSETS.value}
    counted = ("dataVersion",) if members is ConfigMembers.V5_GROUPS else ()
    if is_5:
        groups |= {"forbiddenTable": _FORBIDDEN, **dict.fromkeys(counted, _COUNTED)}
        progress |= {"dataVersion": _VERSION, "groupTopicMap": Table(_TEXT, ListOf(_TEXT), nulls=True)}
        delays |= {"dataVersion": _COUNTED}
    files = {
        paths.TOPICS_JSON: Bean(
            {"dataVersion": version, "topicConfigTable": Table(_TEXT, topic)}, ("dataVersion", "topicConfigTable")
        ),
        paths.CONSUMER_OFFSET_JSON: Bean(progress, needs_in_first=("groupTopicMap",), by_reflection=is_5),
        paths.SUBSCRIPTION_GROUP_JSON: Bean(groups, ("subscriptionGroupTable", *counted), by_reflection=not is_5),
        paths.CONSUMER_FILTER_JSON: _FILTERS,
        paths.DELAY_OFFSET_JSON: Bean(delays, ("offsetTable",)),
    }
    if is_5:
        mappings = {"dataVersion": _COUNTED, "topicQueueMappingInfoMap": Table(_TEXT, _MAPPING)}
        files[paths.TOPIC_QUEUE_MAPPING_JSON] = Bean(mappings, ("dataVersion",), misses=("topicQueueMappingInfoMap",))
        orders = Table(_TEXT, Table(_INT_OBJECT, _ORDER))
        files[paths.CONSUMER_ORDER_INFO_JSON] = Bean({"table": orders}, ("table",))
    return files


_FILES: Final = {members: _files(members) for members in ConfigMembers}


# -- reading --------------------------------------------------------------------------------------------------------


def what_is_wrong(
    name: str, value: Any, members: ConfigMembers, reader: ConfigReader, *, is_blank: bool = False
) -> str:
    """Why a release fails to load a parsed file of that name, "" where it loads it; ``is_blank``: its text is space alone."""
    bean = _FILES[members].get(name)
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
    *((_V.V5_GROUPS, reader) for reader in (FASTJSON_76, FASTJSON_2)),
)


def wrong_for_all(name: str, value: Any) -> str:
    """Why no release loads a parsed file of that name, in the words for the newest; "" where one does, or nothing is known."""
    found = ""
    for members, reader in _KNOWN:
        if name in _FILES[members] and not (found := what_is_wrong(name, value, members, reader)):
            return ""
    return found


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
        if self.reader.is_second and _has_bare_keys(value):
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
            type_ = bean.members.get(key, _ANY) if isinstance(key, str) else _ANY
            cuts = cuts and type_ is not _ANY  # behind a member that it does not know a library goes the slow way
            is_set_once = isinstance(type_, _PLAIN) or (isinstance(type_, Whole) and not type_.boxed)
            for item in items[:1] if is_set_once and self.reader.first_value_counts else items:
                if self.take(type_, item, place.below(str(key)), cuts=cuts) and type_ is not _ANY and key in needs:
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


def _called(value: Any, type_: Type = _ANY) -> str:
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
