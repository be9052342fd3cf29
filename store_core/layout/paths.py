"""Name the files and folders under a store root (store format, section 1)."""

from __future__ import annotations

from typing import Final

COMMITLOG: Final = "commitlog"
CONSUMEQUEUE: Final = "consumequeue"
CONSUMEQUEUE_EXT: Final = "consumequeue_ext"
CONSUMEQUEUE_ROCKSDB: Final = (
    "consumequeue_rocksdb"  # 5.5: the queues' database, if it is not configured to be in CONSUMEQUEUE
)
BATCHCONSUMEQUEUE: Final = "batchconsumequeue"
INDEX: Final = "index"
QUEUE_DATABASES: Final = (CONSUMEQUEUE, CONSUMEQUEUE_ROCKSDB)
QUEUE_TREES: Final = (CONSUMEQUEUE, BATCHCONSUMEQUEUE, CONSUMEQUEUE_EXT)
CHECKPOINT: Final = "checkpoint"
ABORT: Final = "abort"
ABORT_BAK: Final = "abort.bak"
LOCK: Final = "lock"
LOCK_TEXT: Final = b"lock"
CONFIG: Final = "config"
TIMERWHEEL: Final = "timerwheel"
TIMERLOG: Final = "timerlog"
TIMERCHECK: Final = "config/timercheck"
COMPACTION: Final = "compaction"
COMPACTION_LOG: Final = "compaction/compactionLog"  # a folder for each topic and queue (section 11.3)
BROKER_IDENTITY: Final = "brokerIdentity"  # in controller mode, from 5.1.1 (section 9.8)
# Config files; each has a copy in the same folder, under its name and BAK_SUFFIX (section 9).
TOPICS_JSON: Final = "config/topics.json"
CONSUMER_OFFSET_JSON: Final = "config/consumerOffset.json"
LMQ_CONSUMER_OFFSET_JSON: Final = "config/lmqConsumerOffset.json"
SUBSCRIPTION_GROUP_JSON: Final = "config/subscriptionGroup.json"
DELAY_OFFSET_JSON: Final = "config/delayOffset.json"
CONSUMER_FILTER_JSON: Final = "config/consumerFilter.json"
CONSUMER_ORDER_INFO_JSON: Final = "config/consumerOrderInfo.json"
TOPIC_QUEUE_MAPPING_JSON: Final = "config/topicQueueMapping.json"
MESSAGE_REQUEST_MODE_JSON: Final = "config/messageRequestMode.json"
TIMER_METRICS: Final = "config/timermetrics"
TRANSACTION_METRICS: Final = "config/transactionMetrics"
COMPACTION_POSITIONS: Final = "compaction/position-checkpoint"
ROCKSDB_CONFIGS: Final = ("config/topics", "config/subscriptionGroups", "config/consumerOffsets", "config/rdb")
ROCKSDB_PROGRESS: Final = frozenset({"config/consumerOffsets", "config/rdb"})  # those with the groups' progress
ROCKSDB_MARK: Final = "CURRENT"  # a folder with this file is a RocksDB database
ROCKSDBSTORE: Final = "rocksdbstore"
KV_STORE: Final = "kvStore"
BAK_SUFFIX: Final = ".bak"
OURS: Final = ".rmqctl"  # rmqctl's journal and kept bytes; a broker ignores it

SEGMENT_NAME_DIGITS: Final = 20
INDEX_NAME_DIGITS: Final = 17
LARGEST_OFFSET: Final = (1 << 63) - 1
LARGEST_QUEUE_ID: Final = (1 << 31) - 1
LONGEST_NAME_BYTES: Final = 255  # of a file or folder, on the file systems that brokers use
MULTI_PATH_SPLITTER: Final = ","

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"  # the whole name: the X are literal
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
ROCKSDB_HALF_TOPIC: Final = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"
ROCKSDB_OP_TOPIC: Final = "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"
TRANSACTION_CHECK_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
# Topics that a broker makes for itself, except those of half, op and delayed messages and those with the prefix or suffix below.
SYSTEM_TOPICS: Final = (
    TRANSACTION_CHECK_TOPIC,
    SELF_TEST_TOPIC,
    OFFSET_MOVED_TOPIC,
    "TBW102",  # the template of new topics
    "AUTO_CREATE_TOPIC_KEY",  # the same in 4.3
    "BenchmarkTest",
    "CHECKPOINT_TOPIC",  # of progress in RocksDB, 5.4
)
REPLY_TOPIC_SUFFIX: Final = "_REPLY_TOPIC"  # after the cluster's name
TOPIC_NAME: Final = r"[%|a-zA-Z0-9_-]+"  # the names that a broker accepts
RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
LMQ_PREFIX: Final = "%LMQ%"
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"

DEFAULT_SEGMENT_SIZE_BYTES: Final = 1 << 30
DEFAULT_DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


def segment_name(offset: int) -> str:
    """Return the name of a segment, queue file or timer log file that starts at this byte offset."""
    return f"{offset:0{SEGMENT_NAME_DIGITS}d}"


def no_queue_reason(topic: str) -> str:
    """Return why a broker cannot make a file for a queue of this topic, or "" if it can.

    Java refuses a zero byte in a path, the file system a name that is too long (in a UTF-8 locale), and a broker splits paths
    at a comma.
    """
    if "\0" in topic:
        return "a zero byte"
    if MULTI_PATH_SPLITTER in topic:
        return "a comma"
    if len(topic.encode("utf-8", "surrogatepass")) > LONGEST_NAME_BYTES:
        return f"more than {LONGEST_NAME_BYTES} bytes"
    return ""


def parse_segment_name(name: str) -> int | None:
    """Return the start offset in a segment's file name, None if it is no such name.

    Digits of any script are accepted, as Java writes and parses them in the default locale (section 1.1). A number that
    Java's long cannot hold is no offset.
    """
    offset = int(name) if len(name) == SEGMENT_NAME_DIGITS and name.isdecimal() else None
    return offset if offset is None or offset <= LARGEST_OFFSET else None


def parse_long(name: str) -> int | None:
    """Return the number that a broker parses from a file's name by ``Long.parseLong``, None if it is none.

    Any number of digits and a sign are allowed.
    """
    digits = name.removeprefix("-" if name.startswith("-") else "+")
    if not digits.isdecimal():
        return None
    number = -int(digits) if name.startswith("-") else int(digits)
    return number if -LARGEST_OFFSET - 1 <= number <= LARGEST_OFFSET else None


def parse_negative_queue_id(name: str) -> int | None:
    """Return the negative queue id whose folder a broker would name ``name``, None for other names."""
    number = parse_long(name)
    return number if number is not None and -LARGEST_QUEUE_ID - 1 <= number < 0 and name == str(number) else None


def parse_queue_id(name: str) -> int | None:
    """Return the queue id of a folder's name, None for a name that no broker writes, even if it parses."""
    number = int(name) if name.isdecimal() and len(name) <= len(str(LARGEST_QUEUE_ID)) else None
    return number if number is not None and number <= LARGEST_QUEUE_ID and name == str(number) else None
