"""Find half messages of transactions without a decision (store behaviour 4.8).

A half message is decided by one of these:

* an op record that names its queue offset
* a commit record that names its offset in the log
* a later copy of it, which the check service appends each time it asks the producer
* a copy in the topic of messages whose producers were asked too often
* progress of the check service after it, of brokers that write no such copy
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from store_core.codec.properties import (
    FIRST_HALF_NUMBER,
    KEYS,
    PRODUCER_GROUP,
    REAL_TOPIC,
    UNIQ_KEY,
    parse_properties,
    split_keys,
)
from store_core.codec.record import Message
from store_core.read.records import read_message
from store_core.read.transactions import HALF, LONGEST_OP_BODY_BYTES, OP, Place, decided_numbers, transaction_rows
from store_core.recovery.loss_report.log_strips import is_bad
from store_core.recovery.loss_report.model import HalfMessages, OpenHalf
from store_core.scan.frames import FrameTable
from store_core.storage.sequence import SegmentSequence

_MOST_LOOKED_AT: Final = 100_000  # newest half messages without a decision, which are read one by one
_MOST_LISTED: Final = 1_000


@dataclass(slots=True)
class HalfTracker:
    """Collects half messages without a decision from all tables of a walk, up to ``end_phy_offset``.

    Decisions follow their half messages closely, so few are held at a time. Rows are looped over, because each can change
    the result of the next; they are only those of transactions.
    """

    end_phy_offset: int | None = None
    _open: dict[Place, int] = field(default_factory=dict)
    _by_phy_offset: dict[int, Place] = field(default_factory=dict)
    _given_up: set[str] = field(default_factory=set)

    def add(self, table: FrameTable) -> None:
        good = table.messages & ~is_bad(table)
        if self.end_phy_offset is not None:
            good &= table.phy_offset < self.end_phy_offset
        for row, topic in transaction_rows(table, good):
            self._row(table, row, topic)

    def _row(self, table: FrameTable, row: int, topic: bytes | None) -> None:
        queue_id = int(table.queue_id[row])
        if topic is None:
            self._decide_at(int(table.prepared_transaction_offset[row]))
        elif topic == HALF:
            place, phy_offset = (queue_id, int(table.queue_offset[row])), int(table.phy_offset[row])
            self._open[place] = phy_offset
            self._by_phy_offset[phy_offset] = place
        elif topic == OP:
            if int(table.body_length[row]) <= LONGEST_OP_BODY_BYTES:
                for number in decided_numbers(table.body(row)):
                    self._decide((queue_id, number))
        elif len(self._given_up) < _MOST_LOOKED_AT:
            self._given_up.add(parse_properties(table.properties(row)).get(UNIQ_KEY, ""))

    def _decide(self, place: Place) -> None:
        if (phy_offset := self._open.pop(place, None)) is not None:
            self._by_phy_offset.pop(phy_offset, None)

    def _decide_at(self, phy_offset: int) -> None:
        if (place := self._by_phy_offset.pop(phy_offset, None)) is not None:
            self._open.pop(place, None)

    def undecided(self, log: SegmentSequence) -> dict[Place, Message]:
        """Return the half messages without a decision, in log order; of several copies the newest."""
        found: dict[Place, Message] = {}
        by_key: dict[str, Place] = {}
        for place, phy_offset in sorted(self._open.items(), key=lambda item: item[1])[-_MOST_LOOKED_AT:]:
            message = read_message(log, phy_offset)
            if message is None:
                continue
            key = message.properties.get(UNIQ_KEY, "")
            if key and key in self._given_up:
                continue
            if key and key in by_key:
                found.pop(by_key[key], None)
            if (first := _number(message.properties.get(FIRST_HALF_NUMBER))) is not None and first != place[1]:
                found.pop((place[0], first), None)
            by_key[key] = place
            found[place] = message
        return found


def still_open(undecided: Mapping[Place, Message], progress: Mapping[int, int]) -> frozenset[Place]:
    """Return the undecided half messages that are not before the check service's progress."""
    return frozenset(place for place in undecided if place[1] >= progress.get(place[0], 0))


def half_messages(
    undecided: Mapping[Place, Message],
    open_now: frozenset[Place],
    passed: frozenset[Place],
    progress: Mapping[int, int],
    *,
    lost_messages: int,
    lost_operations: int,
) -> HalfMessages:
    """Count half messages after the loss. ``open_now``: open in the present log. ``passed``: before the check's progress."""
    found = [(place, message) for place, message in undecided.items() if place not in passed]
    listed = tuple(
        OpenHalf(
            place[0],
            place[1],
            message.phy_offset,
            message.store_timestamp_ms,
            message.properties.get(REAL_TOPIC, ""),
            message.properties.get(PRODUCER_GROUP, ""),
            message.properties.get(UNIQ_KEY, ""),
            tuple(split_keys(message.properties.get(KEYS))),
            decision_lost=place not in open_now,
            call_again=place[1] >= progress.get(place[0], 0),
        )
        for place, message in found[:_MOST_LISTED]
    )
    lost = sum(place not in open_now for place, _ in found)
    return HalfMessages(len(found), lost, lost_messages, lost_operations, listed)


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() else None
