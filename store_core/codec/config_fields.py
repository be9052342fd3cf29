"""Define the members of brokers' JSON config files: types, first releases, and rmqctl's names for them (store format, section 9).

Unknown members are ignored. The table of ``config_refusals`` has the values of a wrong type that stop a load.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from store_core.codec.coerce import as_flag, as_int, as_int32, as_text
from store_core.layout import paths

KEY_SEPARATOR: Final = "@"
READ_WRITE: Final = 6  # the usual perm: a bit sum of 8 priority, 4 read, 2 write, 1 inherit


class ConfigMembers(Enum):
    """The members that the types of a release have."""

    V4 = "those of 4.x"
    V5 = "those of 5.0"  # attributes, retry policies, subscriptions, forbidden topics, versions of all tables but the groups'
    V5_GROUPS = "those of 5.3.1"  # also the version of the groups


class Plain(Enum):
    """A type without members: its column in the table of refusals, its conversion, the class of its usual values."""

    INT = "int", as_int32, int
    LONG = "long", as_int, int
    INT_OBJECT = "Integer", as_int32, int
    LONG_OBJECT = "Long", as_int, int
    COUNTER = "counter", as_int, int  # a Long, which brokers from 5.4 on count in an int
    INTS = "int[]", as_int, int  # an item of an array of bare numbers
    LONGS = "long[]", as_int, int  # also a long that follows a member that brokers write but do not read
    FLAG = "flag", as_flag, bool
    WORD = "word", as_text, str  # one of two words, or its place among them
    TEXT = "text", as_text, str  # takes any value: one that is no text becomes its JSON

    def __init__(self, column: str, convert: Callable[..., Any], usual: type) -> None:
        self.column = column
        self.convert = convert
        self.usual = usual
        self.is_number = usual is int
        self.is_set_once = column in ("int", "long", "flag", "word")  # with repeated members the first value may count


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list, a set or an array. ``takes_one``: fastjson 1 reads an object as a list of itself."""

    item: Type
    takes_one: bool = False

    @property
    def is_array(self) -> bool:
        return self.item in (Plain.INTS, Plain.LONGS)


@dataclass(frozen=True, slots=True)
class Table:
    """A map. ``nulls``: keys and values may be null; ``texts``: every library requires its keys to be texts."""

    key: Plain
    value: Type
    nulls: bool = False
    texts: bool = False


@dataclass(frozen=True, slots=True)
class Field:
    """A member of an object.

    * ``shown``: rmqctl's name for it, "" where it is not shown.
    * ``default``: its value if it is missing or null.
    * ``since``: None where brokers write it but do not read it.
    * ``needs``: the fastjson generations that fail to load null.
    * ``is_required``: every generation fails to load a file without it.
    """

    type: Type
    shown: str = ""
    default: Any = 0
    since: ConfigMembers | None = ConfigMembers.V4
    needs: str = ""
    is_required: bool = False


@dataclass(frozen=True, slots=True)
class Bean:
    """An object with known members.

    * ``name``: the name under which its key is shown among its members.
    * ``reflected``: members of releases that read it by reflection, because a member has no setter.
    * ``is_raw``: it is shown unchanged.
    """

    fields: dict[str, Field]
    name: str = ""
    reflected: tuple[ConfigMembers, ...] = ()
    is_raw: bool = False
    usual: dict[str, Any] = field(init=False)
    has_required: bool = field(init=False)

    def __post_init__(self) -> None:
        """Set ``usual``: for each member the class of nearly every value, or the value itself; for a table the class of an empty one."""
        object.__setattr__(self, "usual", {name: _usual(member) for name, member in self.fields.items()})
        object.__setattr__(self, "has_required", any(member.is_required for member in self.fields.values()))


Type = Plain | ListOf | Table | Bean


def _usual(member: Field) -> Any:
    if isinstance(member.type, Plain):
        return member.default if member.type is Plain.WORD else member.type.usual
    return list if isinstance(member.type, ListOf) else dict


_INT, _LONG, _FLAG, _TEXT = Plain.INT, Plain.LONG, Plain.FLAG, Plain.TEXT
_INTEGER, _LONG_OBJECT = Plain.INT_OBJECT, Plain.LONG_OBJECT
_V5, _V5_GROUPS = ConfigMembers.V5, ConfigMembers.V5_GROUPS
_BOTH: Final = "12"  # generations of fastjson

_ATTRIBUTES: Final = Field(Table(_TEXT, _TEXT, nulls=True, texts=True), "attributes", since=_V5)


def _version(since: ConfigMembers = _V5, *, is_counted: bool = True, needs: str = "") -> Field:
    """Return the member for a data version. ``is_counted``: loading increments or logs it."""
    counter = Field(Plain.COUNTER, "counter", needs=_BOTH if is_counted else "")
    fields = {"counter": counter, "timestamp": Field(_LONG, "timestamp_ms")}
    fields["stateVersion"] = Field(_LONG, "state_version", None, _V5)
    return Field(Bean(fields), "data_version", None, since, needs)


TOPIC: Final = Bean(
    {
        "readQueueNums": Field(_INT, "read_queues", 16),
        "writeQueueNums": Field(_INT, "write_queues", 16),
        "perm": Field(_INT, "perm", READ_WRITE),
        "order": Field(_FLAG, "order", False),
        "topicFilterType": Field(Plain.WORD, "filter_type", "SINGLE_TAG"),
        "topicSysFlag": Field(_INT, "sys_flag"),
        "attributes": _ATTRIBUTES,
        "topicName": Field(_TEXT),
    },
    "topic",
)
_RETRY_POLICY: Final = Bean(
    {
        "customizedRetryPolicy": Field(Bean({"next": Field(ListOf(Plain.LONGS))})),
        "exponentialRetryPolicy": Field(Bean({name: Field(_LONG) for name in ("initial", "max", "multiplier")})),
        "type": Field(Plain.WORD, default="CUSTOMIZED"),
    }
)
_SUBSCRIPTION: Final = Bean(
    {**{name: Field(_TEXT) for name in ("expression", "expressionType", "topic")}, "version": Field(_LONG)}, is_raw=True
)
_GROUP: Final = Bean(
    {
        "consumeEnable": Field(_FLAG, "consume_enable", True),
        "consumeFromMinEnable": Field(_FLAG, "consume_from_min_enable", True),
        "consumeBroadcastEnable": Field(_FLAG, "consume_broadcast_enable", True),
        "consumeMessageOrderly": Field(_FLAG, "consume_message_orderly", False, _V5),
        "retryQueueNums": Field(_INT, "retry_queues", 1),
        "retryMaxTimes": Field(_INT, "retry_max_times", 16),
        "brokerId": Field(_LONG, "broker_id"),
        "whichBrokerWhenConsumeSlowly": Field(_LONG, "which_broker_when_consume_slowly", 1),
        "notifyConsumerIdsChangedEnable": Field(_FLAG, "notify_consumer_ids_changed_enable", True),
        "groupSysFlag": Field(_INT, "sys_flag", since=_V5),
        "consumeTimeoutMinute": Field(_INT, "consume_timeout_minutes", 15, _V5),
        "attributes": _ATTRIBUTES,
        "subscriptionDataSet": Field(ListOf(_SUBSCRIPTION, takes_one=True), "subscriptions", since=_V5),
        "groupName": Field(_TEXT),
        "groupRetryPolicy": Field(_RETRY_POLICY, since=_V5),
    },
    "group",
)
_FILTER: Final = Bean(
    {
        "expression": Field(_TEXT, "expression", ""),
        "expressionType": Field(_TEXT, "expression_type", ""),
        "bornTime": Field(_LONG, "born_timestamp_ms"),
        "deadTime": Field(Plain.LONGS, "dead_timestamp_ms"),
        "dead": Field(_FLAG, "dead", False, None),
        "clientVersion": Field(_LONG, "client_version"),
        "bloomFilterData": Field(
            Bean({"bitNum": Field(_INT, "bloom_bits"), "bitPos": Field(ListOf(Plain.INTS), "bloom_positions")}),
            "bloom",
        ),
        "compiledExpression": Field(Bean({})),  # an interface: its content is dropped
        "consumerGroup": Field(_TEXT),
        "topic": Field(_TEXT),
    },
    "group",
)
_FILTERS_OF_TOPIC: Final = Bean(
    {"groupFilterData": Field(Table(_TEXT, _FILTER), "filters", needs=_BOTH), "topic": Field(_TEXT)}, "topic"
)
_MAPPING_ITEM: Final = Bean(
    {
        "gen": Field(_INT, "generation"),
        "queueId": Field(_INT, "queue_id"),
        "bname": Field(_TEXT, "broker", ""),
        "logicOffset": Field(_LONG, "logic_offset"),
        "startOffset": Field(_LONG, "start_offset"),
        "endOffset": Field(_LONG, "end_offset", -1),
        "timeOfStart": Field(_LONG, "start_timestamp_ms", -1),
        "timeOfEnd": Field(_LONG, "end_timestamp_ms", -1),
    }
)
_MAPPING: Final = Bean(
    {
        "bname": Field(_TEXT, "broker", ""),
        "scope": Field(_TEXT, "scope", ""),
        "epoch": Field(_LONG, "epoch"),
        "totalQueues": Field(_INT, "total_queues"),
        "hostedQueues": Field(Table(_INTEGER, ListOf(_MAPPING_ITEM)), "hosted_queues"),
        "currIdMap": Field(Table(_INTEGER, _INTEGER)),
        "dirty": Field(_FLAG),
        "topic": Field(_TEXT),
    },
    "topic",
)
_ORDER: Final = Bean(
    {
        "popTime": Field(_LONG, "pop_timestamp_ms"),
        "i": Field(_LONG_OBJECT, "invisible_ms"),
        "o": Field(ListOf(_LONG_OBJECT), "offsets"),
        "cm": Field(_LONG, "committed_bits"),
        "a": Field(_TEXT, "attempt_id", ""),
        "ot": Field(Table(_LONG_OBJECT, _LONG_OBJECT, nulls=True), "next_visible_timestamps_ms"),
        "oc": Field(Table(_LONG_OBJECT, _INTEGER, nulls=True), "consumed_counts"),
        "l": Field(_LONG),
    },
    "queue_id",
)
_REQUEST_MODE: Final = Bean(
    {"mode": Field(_TEXT, "mode", ""), "popShareQueueNum": Field(_INT, "pop_share_queues")}, "group"
)
_METRIC: Final = Bean({"count": Field(_LONG, "count"), "timeStamp": Field(_LONG, "timestamp_ms")})
_QUEUE_OFFSETS: Final = Table(_INTEGER, _LONG_OBJECT)
_CONSUMER_OFFSETS: Final = Bean(
    {
        "dataVersion": _version(is_counted=False),
        "offsetTable": Field(Table(_TEXT, _QUEUE_OFFSETS), "offsets"),
        "lmqOffsetTable": Field(Table(_TEXT, _LONG_OBJECT), "lmq_offsets", since=None),
        "groupTopicMap": Field(Table(_TEXT, ListOf(_TEXT), nulls=True), since=_V5, needs="1"),
    },
    reflected=(_V5, _V5_GROUPS),
)


@dataclass(frozen=True, slots=True)
class ConfigType:
    """The type of a file. ``since``: None where it is not known which values stop a load."""

    bean: Bean
    since: ConfigMembers | None = None


FILES: Final = {
    paths.TOPICS_JSON: ConfigType(
        Bean(
            {
                "dataVersion": _version(ConfigMembers.V4, needs=_BOTH),
                "topicConfigTable": Field(Table(_TEXT, TOPIC), "topics", needs=_BOTH),
            }
        ),
        ConfigMembers.V4,
    ),
    paths.TOPIC_QUEUE_MAPPING_JSON: ConfigType(
        Bean(
            {
                "dataVersion": _version(needs=_BOTH),
                "topicQueueMappingInfoMap": Field(Table(_TEXT, _MAPPING), "mappings", needs=_BOTH, is_required=True),
            }
        ),
        _V5,
    ),
    paths.CONSUMER_OFFSET_JSON: ConfigType(_CONSUMER_OFFSETS, ConfigMembers.V4),
    paths.LMQ_CONSUMER_OFFSET_JSON: ConfigType(_CONSUMER_OFFSETS),
    paths.SUBSCRIPTION_GROUP_JSON: ConfigType(
        Bean(
            {
                "dataVersion": _version(_V5_GROUPS, needs=_BOTH),
                "subscriptionGroupTable": Field(Table(_TEXT, _GROUP), "groups", needs=_BOTH),
                "forbiddenTable": Field(Table(_TEXT, Table(_TEXT, _INTEGER)), "forbidden", since=_V5),
            },
            reflected=(ConfigMembers.V4,),
        ),
        ConfigMembers.V4,
    ),
    paths.CONSUMER_FILTER_JSON: ConfigType(
        Bean({"filterDataByTopic": Field(Table(_TEXT, _FILTERS_OF_TOPIC), "topics")}), ConfigMembers.V4
    ),
    paths.CONSUMER_ORDER_INFO_JSON: ConfigType(
        Bean(
            {
                "orderedConsumptionLevel": Field(_TEXT, "ordered_consumption_level", None, None),
                "table": Field(Table(_TEXT, Table(_INTEGER, _ORDER)), "orders", needs=_BOTH),
            }
        ),
        _V5,
    ),
    paths.DELAY_OFFSET_JSON: ConfigType(
        Bean({"dataVersion": _version(), "offsetTable": Field(_QUEUE_OFFSETS, "offsets", needs=_BOTH)}),
        ConfigMembers.V4,
    ),
    paths.MESSAGE_REQUEST_MODE_JSON: ConfigType(
        Bean({"messageRequestModeMap": Field(Table(_TEXT, Table(_TEXT, _REQUEST_MODE)), "modes")})
    ),
    paths.TIMER_METRICS: ConfigType(
        Bean({"dataVersion": _version(), "timingCount": Field(Table(_TEXT, _METRIC), "topics")})
    ),
    paths.TRANSACTION_METRICS: ConfigType(
        Bean({"dataVersion": _version(), "transactionCount": Field(Table(_TEXT, _METRIC), "topics")})
    ),
    paths.COMPACTION_POSITIONS: ConfigType(Bean({"queueOffsetMap": Field(Table(_TEXT, _LONG_OBJECT), "offsets")})),
}
