"""Count lost messages with the same meaning for every policy, command and format."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from store_core.check.log_begin import LogBegin, log_begin
from store_core.findings import Finding
from store_core.recovery.lost_record import LostRun
from store_core.recovery.plans.plan import Contents, Plan
from store_core.recovery.prediction.outcome import Outcome
from store_core.storage.live import is_locked
from store_core.storage.store import Store


@dataclass(frozen=True, slots=True)
class Losses:
    """Counts of messages by what becomes of them; None for an unknown count.

    * ``unreadable_messages`` were damaged before any start, and stay unreadable
    * ``unreadable_ranges`` may have held messages of which nothing is known
    * ``thrown_away_messages`` are readable, and lost once a broker has started on the store as it is
    * ``kept_messages``: how many of these the plan keeps
    * ``given_up_messages`` are readable, and lost with the plan, or at a broker's start on the planned store
    * ``lost_messages``, unreadable and given up, are lost with the plan
    * ``before_begin_messages`` were before the log's first byte and are in none of the other counts; if
      ``begin_is_missing``, they are missing, else they have expired
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
        """True if no message is known or suspected to be lost."""
        return not (self.lost_messages or self.unreadable_ranges or self.begin_is_missing)

    def as_json(self) -> dict[str, Any]:
        """Return the member ``losses`` of the command line's documents."""
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
    """Count the messages of runs whose number is known."""
    return sum(run.messages or 0 for run in runs)


def losses_predicted(store: Store, outcome: Outcome) -> Losses:
    """Count the losses of a start; the number of unreadable messages stays unknown."""
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
    """Count the losses of a plan.

    Args:
        lost: messages that cannot be kept, including those in ``given_up``.
        given_up: readable messages that the plan removes.
        thrown_away: readable messages that a broker's start removes from the store as it is.
        thrown_away_after: readable messages that a broker's start removes from the planned store.
        begin: the messages before the log's first byte.
    """
    lost = tuple(lost)
    dropped = messages_in(given_up)
    unreadable = messages_in(lost) - dropped
    lost_with_plan = dropped + thrown_away_after
    kept = None if thrown_away is None else max(thrown_away - lost_with_plan, 0)
    ranges = sum(run.messages is None for run in lost)
    return Losses(max(unreadable, 0), ranges, thrown_away, kept, lost_with_plan, begin)


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, and the outcome of a broker's start after it.

    ``lost``: messages that the plan removes, counted in ``losses``. ``findings``: those of the store as it is.
    ``made``: readers of the new files' contents, valid while the caller keeps the scratch files.
    """

    plan: Plan
    after: Outcome
    findings: tuple[Finding, ...]
    lost: tuple[LostRun, ...] = ()
    made: Contents = field(default_factory=dict, repr=False, compare=False)
    losses: Losses | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the members of a writing command's document, without ``store``, ``applied`` and ``undo_id``."""
        return {
            "plan": self.plan.summary(),
            "after": self.after.as_json(),
            "lost": [run.as_json() for run in self.lost],
            **({"losses": self.losses.as_json()} if self.losses is not None else {}),
            "findings": list(self.findings),
        }
