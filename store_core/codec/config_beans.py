"""The types that brokers read their JSON config files into (store format, section 9): which members there are depends on the release.

Members that a type does not know are passed over. What reads as what is for its JSON library to say (``config_reader``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from store_core.codec.config_reader import INT, LONG
from store_core.layout import paths


class ConfigMembers(Enum):
    """Which members the types of a release have."""

    V4 = "those of 4.x"
    V5 = "those of 5.0"  # attributes, retry policies, subscriptions, forbidden topics, versions of all tables but the groups'
    V5_GROUPS = "those of 5.3.1"  # also the version of the groups


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


ANY: Final = Type()
_TEXT: Final = Text()
_INT: Final = Whole()
_LONG: Final = Whole(LONG)
_INT_OBJECT: Final = Whole(INT, boxed=True)
_LONG_OBJECT: Final = Whole(LONG, boxed=True)
_ATTRIBUTES: Final = Table(_TEXT, _TEXT, nulls=True, texts=True)
PLAIN: Final = (Flag, Word)  # and what is a bare number: each is set once

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


FILES: Final = {members: _files(members) for members in ConfigMembers}
