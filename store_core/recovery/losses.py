"""What a loss is: one meaning for every policy, command and format, on one basis that adds up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from store_core.check.log_begin import LogBegin, log_begin
from store_core.recovery.lost_run import LostRun
from store_core.recovery.prediction.outcome import Outcome
from store_core.storage.live import is_locked
from store_core.storage.store import Store


@dataclass(frozen=True, slots=True)
class Losses:
    """Messages by what becomes of them. None where nobody can know.

    ``unreadable_messages`` were damaged before any start, and stay so; ``unreadable_ranges`` may have held messages that nobody can
    name. ``thrown_away_messages`` can be read, and are gone once a broker has started on the store as it is: the plan keeps
    ``kept_messages`` of them. ``given_up_messages`` can be read, and go with the plan, or at a broker's start on what it leaves.
    ``lost_messages``, unreadable and given up, are what is lost with the plan. ``before_begin_messages`` lay before the log's
    first byte: they are in none of the other numbers, and ``begin_is_missing`` tells whether they are missing or have expired.
    """

    unreadable_messages: int | None = None
    unreadable_ranges: int = 0
    thrown_away_messages: int | None = None
    kept_messages: int | None = None
    given_up_messages: int | None = None
    before_begin: LogBegin = field(default_factory=LogBegin)

    @property
    def lost_messages(self) -> int | None:
        if self.unreadable_messages is None or self.given_up_messages is None:
            return None
        return self.unreadable_messages + self.given_up_messages

    @property
    def before_begin_messages(self) -> int:
        return self.before_begin.messages

    @property
    def begin_is_missing(self) -> bool:
        return self.before_begin.is_missing

    @property
    def is_nothing(self) -> bool:
        """Whether no message is lost, as far as anybody can know."""
        return not (self.lost_messages or self.unreadable_ranges or self.begin_is_missing)

    def as_json(self) -> dict[str, Any]:
        """The member ``losses`` of the command line's documents."""
        return {
            "unreadable_messages": self.unreadable_messages,
            "unreadable_ranges": self.unreadable_ranges,
            "thrown_away_messages": self.thrown_away_messages,
            "kept_messages": self.kept_messages,
            "given_up_messages": self.given_up_messages,
            "lost_messages": self.lost_messages,
            "expired_or_missing_messages": self.before_begin_messages,
            "begin_is_missing": self.begin_is_missing,
            "expired_or_missing": [
                {
                    "topic": each.key.topic,
                    "queue_id": each.key.queue_id,
                    "first_queue_offset": each.first_queue_offset,
                    "last_queue_offset": each.end_queue_offset - 1,
                    "messages": each.messages,
                    "bytes": each.size_bytes,
                }
                for each in self.before_begin.queues
            ],
        }


def messages_in(runs: Iterable[LostRun]) -> int:
    """Count the messages of runs, as far as they are known."""
    return sum(run.messages or 0 for run in runs)


def losses_predicted(store: Store, outcome: Outcome) -> Losses:
    """Count what a start alone tells: nothing of what is unreadable."""
    thrown_away = outcome.thrown_away_messages if outcome.starts else None
    return Losses(thrown_away_messages=thrown_away, before_begin=log_begin(store, live=is_locked(store.root)))


def losses_of(
    lost: Iterable[LostRun],
    given_up: Iterable[LostRun],
    *,
    thrown_away: int | None,
    thrown_away_after: int,
    begin: LogBegin,
) -> Losses:
    """Count what a plan loses.

    ``lost``: what cannot be kept, with what the plan gives up, ``given_up``, among it. ``thrown_away``: readable messages that a
    broker's start takes from the store as it is, ``thrown_away_after`` from what the plan leaves.
    """
    lost = tuple(lost)
    dropped = messages_in(given_up)
    unreadable = messages_in(lost) - dropped
    gone = dropped + thrown_away_after
    kept = None if thrown_away is None else max(thrown_away - gone, 0)
    ranges = sum(run.messages is None for run in lost)
    return Losses(max(unreadable, 0), ranges, thrown_away, kept, gone, begin)
