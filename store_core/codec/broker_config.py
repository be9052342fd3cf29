"""What the JSON config files say, typed (store format, sections 9.3 to 9.6).

Every ``decode_…`` takes a parsed file (``None`` for one that holds nothing) and raises ConfigError where a value's type is one
that a broker does not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from store_core.codec.coerce import as_flag, as_int, as_int32, as_ints, as_list, as_object, as_text, as_texts

READ_WRITE: Final = 6  # the usual perm: a bit sum of 8 priority, 4 read, 2 write, 1 inherit
KEY_SEPARATOR: Final = "@"


@dataclass(frozen=True, slots=True)
class DataVersion:
    """How often and when a table last changed; ``state_version`` is None in files of 4.x."""

    counter: int
    timestamp_ms: int
    state_version: int | None = None


@dataclass(frozen=True, slots=True)
class TopicConfig:
    topic: str
    read_queues: int = 16
    write_queues: int = 16
    perm: int = READ_WRITE
    order: bool = False
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Topics:
    data_version: DataVersion | None = None
    topics: Mapping[str, TopicConfig] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConsumerOffsets:
    """``offsets``: ``topic@group`` to queue id to next offset; ``lmq_offsets``: ``topic@group`` to next offset."""

    data_version: DataVersion | None = None
    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    lmq_offsets: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SubscriptionGroup:
    group: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queues: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    sys_flag: int = 0
    consume_timeout_minutes: int = 15
    attributes: Mapping[str, str] = field(default_factory=dict)
    subscriptions: tuple[Mapping[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class SubscriptionGroups:
    """``forbidden``: group to topic to a bit sum of what is forbidden."""

    data_version: DataVersion | None = None
    groups: Mapping[str, SubscriptionGroup] = field(default_factory=dict)
    forbidden: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DelayOffsets:
    """``offsets``: delay level (from 1) to the next offset of queue level - 1 of the delay topic."""

    data_version: DataVersion | None = None
    offsets: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConsumerFilter:
    topic: str
    group: str
    expression: str
    expression_type: str
    born_timestamp_ms: int
    dead_timestamp_ms: int
    dead: bool
    client_version: int
    bloom_bits: int
    bloom_positions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ConsumerFilters:
    filters: tuple[ConsumerFilter, ...] = ()


@dataclass(frozen=True, slots=True)
class OrderInfo:
    """What an ordered POP consumer holds of a queue. ``committed_bits``: bit i is set when ``offsets[i]`` is committed."""

    topic_at_group: str
    queue_id: int
    pop_timestamp_ms: int
    invisible_ms: int
    offsets: tuple[int, ...]
    committed_bits: int
    attempt_id: str
    next_visible_timestamps_ms: Mapping[int, int]
    consumed_counts: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class OrderInfos:
    ordered_consumption_level: str | None = None
    orders: tuple[OrderInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class QueueMappingItem:
    generation: int
    queue_id: int
    broker: str
    logic_offset: int
    start_offset: int
    end_offset: int
    start_timestamp_ms: int
    end_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class QueueMapping:
    """A static topic; ``hosted_queues``: global queue id to where its parts lie, oldest first."""

    topic: str
    broker: str
    scope: str
    epoch: int
    total_queues: int
    hosted_queues: Mapping[int, tuple[QueueMappingItem, ...]]


@dataclass(frozen=True, slots=True)
class QueueMappings:
    data_version: DataVersion | None = None
    mappings: Mapping[str, QueueMapping] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RequestMode:
    topic: str
    group: str
    mode: str
    pop_share_queues: int


@dataclass(frozen=True, slots=True)
class RequestModes:
    modes: tuple[RequestMode, ...] = ()


@dataclass(frozen=True, slots=True)
class Metric:
    count: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Metrics:
    """How many timer messages, or half messages, of each topic are waiting."""

    data_version: DataVersion | None = None
    topics: Mapping[str, Metric] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CompactionPositions:
    """``offsets``: topic + ``_`` + queue id to the next queue offset to compact."""

    offsets: Mapping[str, int] = field(default_factory=dict)


def _data_version(root: Mapping[Any, Any]) -> DataVersion | None:
    if root.get("dataVersion") is None:
        return None
    raw = as_object(root["dataVersion"], "dataVersion")
    state = as_int(raw["stateVersion"], "stateVersion") if raw.get("stateVersion") is not None else None
    return DataVersion(as_int(raw.get("counter"), "counter"), as_int(raw.get("timestamp"), "timestamp"), state)


def _table(root: Mapping[Any, Any], name: str) -> list[tuple[str, Mapping[Any, Any]]]:
    """Name and members of every object of a table that is not null."""
    members = as_object(root.get(name), name).items()
    return [(as_text(key, name), as_object(item, f"{name} of {key}")) for key, item in members if item is not None]


def decode_topics(value: Any) -> Topics:
    root = as_object(value, "the file")
    topics = {}
    for name, raw in _table(root, "topicConfigTable"):
        topics[name] = TopicConfig(
            name,
            as_int32(raw.get("readQueueNums"), "readQueueNums", 16),
            as_int32(raw.get("writeQueueNums"), "writeQueueNums", 16),
            as_int32(raw.get("perm"), "perm", READ_WRITE),
            as_flag(raw.get("order"), "order"),
            as_text(raw.get("topicFilterType"), "topicFilterType", "SINGLE_TAG"),
            as_int32(raw.get("topicSysFlag"), "topicSysFlag"),
            as_texts(raw.get("attributes"), "attributes"),
        )
    return Topics(_data_version(root), topics)


def decode_consumer_offsets(value: Any) -> ConsumerOffsets:
    root = as_object(value, "the file")
    offsets = {name: as_ints(raw, name, as_int32) for name, raw in _table(root, "offsetTable")}
    lmq = as_object(root.get("lmqOffsetTable"), "lmqOffsetTable").items()
    lmq_offsets = {as_text(k, "lmqOffsetTable"): as_int(v, "lmqOffsetTable") for k, v in lmq if v is not None}
    return ConsumerOffsets(_data_version(root), offsets, lmq_offsets)


def decode_subscription_groups(value: Any) -> SubscriptionGroups:
    root = as_object(value, "the file")
    groups = {name: _subscription_group(name, raw) for name, raw in _table(root, "subscriptionGroupTable")}
    forbidden = {
        name: {as_text(k, name): as_int32(v, name) for k, v in raw.items() if v is not None}
        for name, raw in _table(root, "forbiddenTable")
    }
    return SubscriptionGroups(_data_version(root), groups, forbidden)


def _subscription_group(name: str, raw: Mapping[Any, Any]) -> SubscriptionGroup:
    def flag(member: str, default: bool) -> bool:
        return as_flag(raw.get(member), member, default)

    def number(member: str, default: int) -> int:
        return as_int32(raw.get(member), member, default)

    data = as_list(raw.get("subscriptionDataSet"), "subscriptionDataSet")
    return SubscriptionGroup(
        name,
        flag("consumeEnable", True),
        flag("consumeFromMinEnable", True),
        flag("consumeBroadcastEnable", True),
        flag("consumeMessageOrderly", False),
        number("retryQueueNums", 1),
        number("retryMaxTimes", 16),
        as_int(raw.get("brokerId"), "brokerId"),
        as_int(raw.get("whichBrokerWhenConsumeSlowly"), "whichBrokerWhenConsumeSlowly", 1),
        flag("notifyConsumerIdsChangedEnable", True),
        number("groupSysFlag", 0),
        number("consumeTimeoutMinute", 15),
        as_texts(raw.get("attributes"), "attributes"),
        tuple(as_texts(item, "subscriptionDataSet") for item in data),
    )


def decode_delay_offsets(value: Any) -> DelayOffsets:
    root = as_object(value, "the file")
    return DelayOffsets(_data_version(root), as_ints(root.get("offsetTable"), "offsetTable", as_int32))


def decode_consumer_filters(value: Any) -> ConsumerFilters:
    filters = []
    for topic, by_topic in _table(as_object(value, "the file"), "filterDataByTopic"):
        for group, raw in _table(by_topic, "groupFilterData"):
            bloom = as_object(raw.get("bloomFilterData"), "bloomFilterData")
            filters.append(
                ConsumerFilter(
                    topic,
                    group,
                    as_text(raw.get("expression"), "expression"),
                    as_text(raw.get("expressionType"), "expressionType"),
                    as_int(raw.get("bornTime"), "bornTime"),
                    as_int(raw.get("deadTime"), "deadTime"),
                    as_flag(raw.get("dead"), "dead"),
                    as_int(raw.get("clientVersion"), "clientVersion"),
                    as_int32(bloom.get("bitNum"), "bitNum"),
                    tuple(as_int(bit, "bitPos") for bit in as_list(bloom.get("bitPos"), "bitPos")),
                )
            )
    return ConsumerFilters(tuple(filters))


def decode_order_infos(value: Any) -> OrderInfos:
    root = as_object(value, "the file")
    orders = [
        _order_info(name, as_int32(queue_id, name), as_object(raw, name))
        for name, queues in _table(root, "table")
        for queue_id, raw in queues.items()
        if raw is not None
    ]
    level = root.get("orderedConsumptionLevel")
    return OrderInfos(None if level is None else as_text(level, "orderedConsumptionLevel"), tuple(orders))


def _order_info(name: str, queue_id: int, raw: Mapping[Any, Any]) -> OrderInfo:
    steps = [as_int(step, "o") for step in as_list(raw.get("o"), "o")]
    return OrderInfo(
        name,
        queue_id,
        as_int(raw.get("popTime"), "popTime"),
        as_int(raw.get("i"), "i"),
        (*steps[:1], *(steps[0] + step for step in steps[1:])),  # the first one, then how far behind it
        as_int(raw.get("cm"), "cm"),
        as_text(raw.get("a"), "a"),
        as_ints(raw.get("ot"), "ot"),
        as_ints(raw.get("oc"), "oc"),
    )


def decode_queue_mappings(value: Any) -> QueueMappings:
    root = as_object(value, "the file")
    mappings = {}
    for topic, raw in _table(root, "topicQueueMappingInfoMap"):
        hosted = {
            as_int32(queue_id, "hostedQueues"): tuple(
                _queue_mapping_item(item) for item in as_list(items, "hostedQueues")
            )
            for queue_id, items in as_object(raw.get("hostedQueues"), "hostedQueues").items()
        }
        mappings[topic] = QueueMapping(
            topic,
            as_text(raw.get("bname"), "bname"),
            as_text(raw.get("scope"), "scope"),
            as_int(raw.get("epoch"), "epoch"),
            as_int32(raw.get("totalQueues"), "totalQueues"),
            hosted,
        )
    return QueueMappings(_data_version(root), mappings)


def _queue_mapping_item(value: Any) -> QueueMappingItem:
    raw = as_object(value, "hostedQueues")
    return QueueMappingItem(
        as_int32(raw.get("gen"), "gen"),
        as_int32(raw.get("queueId"), "queueId"),
        as_text(raw.get("bname"), "bname"),
        as_int(raw.get("logicOffset"), "logicOffset"),
        as_int(raw.get("startOffset"), "startOffset"),
        as_int(raw.get("endOffset"), "endOffset", -1),
        as_int(raw.get("timeOfStart"), "timeOfStart", -1),
        as_int(raw.get("timeOfEnd"), "timeOfEnd", -1),
    )


def decode_request_modes(value: Any) -> RequestModes:
    return RequestModes(
        tuple(
            RequestMode(
                topic, group, as_text(raw.get("mode"), "mode"), as_int32(raw.get("popShareQueueNum"), "popShare")
            )
            for topic, groups in _table(as_object(value, "the file"), "messageRequestModeMap")
            for group, raw in _table({"groups": groups}, "groups")
        )
    )


def _metrics(value: Any, table: str) -> Metrics:
    root = as_object(value, "the file")
    topics = {
        topic: Metric(as_int(raw.get("count"), "count"), as_int(raw.get("timeStamp"), "timeStamp"))
        for topic, raw in _table(root, table)
    }
    return Metrics(_data_version(root), topics)


def decode_timer_metrics(value: Any) -> Metrics:
    return _metrics(value, "timingCount")


def decode_transaction_metrics(value: Any) -> Metrics:
    return _metrics(value, "transactionCount")


def decode_compaction_positions(value: Any) -> CompactionPositions:
    table = as_object(as_object(value, "the file").get("queueOffsetMap"), "queueOffsetMap")
    return CompactionPositions({as_text(k, "queueOffsetMap"): as_int(v, "queueOffsetMap") for k, v in table.items()})
