"""Define how releases differ in storing a message: a row for each feature, a column for each run of releases (store behaviour 4; store format 2, 4,
10.5)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Final

from store_core.broker.detect_version import evidence_of
from store_core.broker.versions import Version
from store_core.codec.json_dialect import Layout
from store_core.errors import UsageError
from store_core.storage.settings import Settings
from store_core.storage.store import Store


@dataclass(frozen=True, slots=True)
class PutRules:
    """The column of a release."""

    topic_limit_in_bytes: bool  # 127 bytes, retry topics up to 255; else 127 Java characters for all
    long_properties_illegal: bool  # a property string of more than 32,767 characters is MESSAGE_ILLEGAL
    refuses_missing_body: bool
    checks_inner_batch: bool
    knows_timers: bool
    adds_unique_key: bool  # to a message without one
    adds_cluster: bool  # its own, to messages of producers
    adds_transaction_id: bool  # a half message keeps its unique key under a second name
    commit_tells_real_topic: bool  # a committed record still has the half's REAL_TOPIC and REAL_QID
    op_is_list: bool  # an op body ends each number with a comma
    final_separator: bool  # the property string's last pair is terminated
    property_crc: bool  # enabledAppendPropCRC is known
    property_map_size: int  # first size of the properties' hash map, which decides their order
    v6_hosts: bool
    slave_may_duplicate: bool  # with duplicationEnable a slave accepts messages
    config_layout: Layout  # the form of new config files
    keeps_queue_offset: bool  # in the checkpoint; it and the queues' time advance when all queues are flushed
    abort_tells_process: bool  # abort holds the process id
    index_tags: bool  # tags are indexed


_NO: Final = False
_YES: Final = True

# fmt: off
# A row lists (first release, value); it holds until the next one.
_TABLE: Final[dict[str, tuple[tuple[tuple[int, int, int], Any], ...]]] = {
    "topic_limit_in_bytes":    (((4, 3, 0), _NO), ((5, 0, 0), _YES)),
    "long_properties_illegal": (((4, 3, 0), _YES), ((5, 0, 0), _NO)),
    "refuses_missing_body":    (((4, 3, 0), _NO), ((5, 0, 0), _YES)),
    "checks_inner_batch":      (((4, 3, 0), _NO), ((5, 0, 0), _YES)),
    "knows_timers":            (((4, 3, 0), _NO), ((5, 0, 0), _YES)),
    "adds_unique_key":         (((4, 3, 0), _NO), ((5, 0, 0), _YES)),
    "adds_cluster":            (((4, 3, 0), _NO), ((4, 6, 0), _YES)),
    "adds_transaction_id":     (((4, 3, 0), _NO), ((5, 0, 0), _YES)),
    "commit_tells_real_topic": (((4, 3, 0), _YES), ((5, 4, 0), _NO)),
    "op_is_list":              (((4, 3, 0), _NO), ((5, 0, 0), _YES)),
    "final_separator":         (((4, 3, 0), _YES), ((4, 9, 1), _NO), ((5, 2, 0), _YES)),
    "property_crc":            (((4, 3, 0), _NO), ((5, 2, 0), _YES)),
    "property_map_size":       (((4, 3, 0), 16), ((5, 0, 0), 128)),
    "v6_hosts":                (((4, 3, 0), _NO), ((4, 6, 0), _YES)),
    "slave_may_duplicate":     (((4, 3, 0), _NO), ((5, 0, 0), _YES)),
    "config_layout":           (((4, 3, 0), "4"), ((5, 0, 0), "5"), ((5, 4, 0), "5.4"), ((5, 5, 0), "5.5")),
    "keeps_queue_offset":      (((4, 3, 0), _NO), ((5, 5, 0), _YES)),
    "abort_tells_process":     (((4, 3, 0), _NO), ((5, 0, 0), _YES)),
    "index_tags":              (((4, 3, 0), _NO), ((5, 4, 0), _YES)),
}
# fmt: on


def _at(row: tuple[tuple[tuple[int, int, int], Any], ...], version: Version) -> Any:
    return [value for first, value in row if Version(*first) <= version][-1]


@cache
def put_rules(version: Version) -> PutRules:
    """Return the column of a release."""
    return PutRules(**{field.name: _at(_TABLE[field.name], version) for field in fields(PutRules)})


def writing_version(store: Store, settings: Settings) -> Version:
    """Return the release to imitate: the named one, else the newest that may have written the store.

    Raises UsageError if it is not known.
    """
    if settings.broker_version:
        return Version.parse(settings.broker_version)
    possible = evidence_of(store).possible
    if not possible:
        raise UsageError("nothing shows which broker wrote the store", to_do="name it with --broker-version")
    return possible[-1]
