"""Define the loss report as data, with the members of its JSON form.

Times are store times in ms since the epoch. ``time_from`` is the source of a span:

* ``records``: the lost records' own times
* ``neighbours``: the times of the nearest known messages, between which the lost ones were stored
* None: the times are unknown
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from store_core.recovery.loss_report.log_strips import SegmentStrip
from store_core.recovery.losses import Losses

TimeFrom = Literal["records", "neighbours"]
Position = Literal["before", "in", "between", "beyond"]


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """The first and last store time of messages; an open end is None."""

    first_timestamp_ms: int | None = None
    last_timestamp_ms: int | None = None
    time_from: TimeFrom | None = None


@dataclass(frozen=True, slots=True)
class LostRange:
    """Lost messages with consecutive queue offsets; ``keys`` are the first few that are known."""

    first_queue_offset: int
    last_queue_offset: int
    messages: int
    size_bytes: int
    span: TimeSpan
    keys: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "first_queue_offset": self.first_queue_offset,
            "last_queue_offset": self.last_queue_offset,
            "messages": self.messages,
            "bytes": self.size_bytes,
            **plain(self.span),
            "keys": list(self.keys),
        }


@dataclass(frozen=True, slots=True)
class QueueLoss:
    """The losses of a queue; ``ranges`` in order, ``span`` over all of them."""

    topic: str
    queue_id: int
    ranges: tuple[LostRange, ...]
    span: TimeSpan

    @property
    def messages(self) -> int:
        return sum(lost.messages for lost in self.ranges)

    @property
    def size_bytes(self) -> int:
        return sum(lost.size_bytes for lost in self.ranges)

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(key for lost in self.ranges for key in lost.keys))

    def as_json(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "queue_id": self.queue_id,
            "messages": self.messages,
            "bytes": self.size_bytes,
            **plain(self.span),
            "ranges": [lost.as_json() for lost in self.ranges],
        }


@dataclass(frozen=True, slots=True)
class GroupLoss:
    """The losses of a queue by the progress of a consumer group.

    * ``offset``: the next queue offset that the group would consume
    * ``position``: of that offset: ``before`` all lost ones, ``in`` a lost range, ``between`` two, or ``beyond`` the last
    * ``consumed_messages``: lost messages that the group had consumed; ``missed_messages``: those it had not
    * ``beyond_end``: the progress is after ``max_offset``, the queue's future end, so that the group would skip new
      messages with the lost ones' queue offsets
    """

    group: str
    topic: str
    queue_id: int
    offset: int
    position: Position
    consumed_messages: int
    missed_messages: int
    max_offset: int | None
    beyond_end: bool

    @property
    def lost_messages(self) -> int:
        return self.consumed_messages + self.missed_messages


@dataclass(frozen=True, slots=True)
class OpenHalf:
    """A half message of a transaction without a decision in the log.

    ``decision_lost``: it had a decision, which is lost. ``call_again``: its queue offset is not below the check service's
    progress, so a broker asks its producer again.
    """

    queue_id: int
    queue_offset: int
    phy_offset: int
    store_timestamp_ms: int
    topic: str
    producer_group: str
    unique_key: str
    keys: tuple[str, ...]
    decision_lost: bool
    call_again: bool


@dataclass(frozen=True, slots=True)
class HalfMessages:
    """Counts of half messages.

    * ``open_messages``: half messages without a decision, of which ``listed`` has the first ones
    * ``lost_messages``: half messages that are lost themselves
    * ``lost_operations``: lost records of decisions, so that some of the open messages may have been decided
    """

    open_messages: int = 0
    decision_lost: int = 0
    lost_messages: int = 0
    lost_operations: int = 0
    listed: tuple[OpenHalf, ...] = ()


@dataclass(frozen=True, slots=True)
class DelayedLoss:
    """Lost delayed messages of a delay level, or of the timer (``delay_level`` None).

    ``not_delivered`` of them are not before the service's progress, so no consumer got them.
    """

    topic: str
    queue_id: int
    delay_level: int | None
    lost_messages: int
    not_delivered: int


@dataclass(frozen=True, slots=True)
class EarlyDeliveries:
    """The number of delayed messages for a topic that a broker would deliver at once."""

    topic: str
    messages: int


@dataclass(frozen=True, slots=True)
class Loss:
    """The losses of a start or of a plan. ``unknown_ranges`` of the log may have held messages of which nothing is known."""

    lost_messages: int
    queues: tuple[QueueLoss, ...]
    unknown_ranges: int
    unknown_bytes: int
    groups: tuple[GroupLoss, ...]
    half_messages: HalfMessages
    delayed: tuple[DelayedLoss, ...]
    delivered_early: tuple[EarlyDeliveries, ...] = ()
    given_up_messages: int = 0

    @property
    def is_nothing(self) -> bool:
        return not (self.queues or self.unknown_ranges)

    def as_json(self) -> dict[str, Any]:
        return {
            "lost_messages": self.lost_messages,
            "unknown_ranges": self.unknown_ranges,
            "unknown_bytes": self.unknown_bytes,
            "given_up_messages": self.given_up_messages,
            "queues": [queue.as_json() for queue in self.queues],
            "groups": [plain(group) for group in self.groups],
            "half_messages": plain(self.half_messages),
            "delayed": [plain(delayed) for delayed in self.delayed],
            "delivered_early": [plain(early) for early in self.delivered_early],
        }


@dataclass(frozen=True, slots=True)
class StoreIdentity:
    """The store and its state.

    ``file_list_sha256`` is over the sorted lines ``path, size, modification time in ns``, with tabs between these, of all
    files except rmqctl's own.
    """

    path: str
    files: int
    size_bytes: int
    file_list_sha256: str


@dataclass(frozen=True, slots=True)
class BrokerStart:
    """The predicted start of a broker of the assumed release; ``loss`` is None if it does not start.

    ``thrown_away`` are messages that are readable now; ``loss`` also includes messages with a damaged body.
    """

    starts: bool
    reason: str
    recovery: str
    first_file_scanned: str | None
    min_phy_offset: int | None
    max_phy_offset: int | None
    deleted_commitlog_files: tuple[str, ...]
    deleted_index_files: tuple[str, ...]
    ghosts: int
    loss: Loss | None
    thrown_away: Loss | None

    def as_json(self) -> dict[str, Any]:
        of_losses = {"loss": self.loss, "thrown_away": self.thrown_away}
        own = {f.name: plain(getattr(self, f.name)) for f in fields(self) if f.name not in of_losses}
        return {**own, **{name: loss.as_json() if loss else None for name, loss in of_losses.items()}}


@dataclass(frozen=True, slots=True)
class Kept:
    """The store after a plan. ``broker_starts``: a broker starts on it, and loses ``broker_loses`` more messages."""

    policy: str
    plan_id: str
    steps: int
    end_phy_offset: int | None
    messages: int
    broker_starts: bool
    broker_loses: int
    loss: Loss

    def as_json(self) -> dict[str, Any]:
        own = {f.name: plain(getattr(self, f.name)) for f in fields(self) if f.name != "loss"}
        return {**own, "loss": self.loss.as_json()}


@dataclass(frozen=True, slots=True)
class LossReport:
    """The whole report.

    ``kept`` is None in a report of a prediction alone. ``losses`` counts messages by what becomes of them.
    ``readable_messages``: good messages in the log now that belong into queues.
    """

    made_timestamp_ms: int
    store: StoreIdentity
    broker_version: Mapping[str, Any]
    last_exit: str
    readable_messages: int
    first_timestamp_ms: int | None
    last_timestamp_ms: int | None
    broker: BrokerStart
    kept: Kept | None
    losses: Losses
    segments: tuple[SegmentStrip, ...]
    findings: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the document of ``--report FILE.json``."""
        return {
            "report": "loss",
            "format": 1,
            "made_timestamp_ms": self.made_timestamp_ms,
            "store": plain(self.store),
            "broker_version": dict(self.broker_version),
            "last_exit": self.last_exit,
            "readable_messages": self.readable_messages,
            "first_timestamp_ms": self.first_timestamp_ms,
            "last_timestamp_ms": self.last_timestamp_ms,
            "losses": self.losses.as_json(),
            "broker": self.broker.as_json(),
            "kept": self.kept.as_json() if self.kept else None,
            "log": [strip.as_json() for strip in self.segments],
            "findings": dict(self.findings),
            "notes": list(self.notes),
        }


def plain(value: Any) -> Any:
    """Convert dataclasses to objects with JSON's member names, and tuples to lists."""
    if hasattr(value, "__dataclass_fields__"):
        names = {"size_bytes": "bytes"}
        return {names.get(f.name, f.name): plain(getattr(value, f.name)) for f in fields(value)}
    return [plain(item) for item in value] if isinstance(value, tuple | list) else value
