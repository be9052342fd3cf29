"""Judge a store: its state, its losses and the next command (the last lines of `recover`, and all of `doctor`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, Self

from store_core.check.log_begin import MISSING_BEGIN, besides_missing_begin
from store_core.findings import Finding, counted
from store_core.recovery.losses import Losses
from store_core.recovery.recover import Recovery

Level = Literal["red", "yellow", "green"]
_NO_LOG: Final = "S007"
_LOG_IN_PART: Final = "S010"
_FINE: Final = "a broker starts and throws nothing away"
_NO_BEGIN: Final = "the log's first segments are missing"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A line of state, a line of loss, and the next command.

    * ``level``: red if no broker must start on the store as it is, yellow if there is something to do or to know
    * ``next``: the command without the program's name and the store; empty if none is needed
    * ``why``: findings that are worse than info, the worst first
    """

    level: Level
    state: str
    loss: str
    next: tuple[str, ...] = ()
    why: tuple[Finding, ...] = ()

    def as_json(self, command: Sequence[str] = ()) -> dict[str, Any]:
        """Return the member ``verdict`` of the command line's documents; ``command`` is ``next`` as typed."""
        return {"level": self.level, "state": self.state, "loss": self.loss, "next": list(command) or None}


@dataclass(frozen=True, slots=True)
class Prospect:
    """The predicted state of the store after a recovery's plan, as a saved plan holds it. ``loss``: the verdict's line."""

    starts: bool
    reason: str
    thrown_away_messages: int
    has_steps: bool
    begin_is_missing: bool
    loss: str

    @classmethod
    def of(cls, recovery: Recovery) -> Self:
        after, losses = recovery.after, recovery.losses
        steps = bool(recovery.plan.steps)
        return cls(
            after.starts, after.reason, after.thrown_away_messages, steps, losses.begin_is_missing, _loss(losses)
        )

    @classmethod
    def from_json(cls, found: object) -> Self | None:
        """Return the prospect in a saved plan; None if it has none, or one with other types."""
        if not isinstance(found, Mapping):
            return None
        values: dict[str, Any] = {name: found.get(name) for name in cls.__annotations__}
        has_types = all(type(values[name]).__name__ == kind for name, kind in cls.__annotations__.items())
        return cls(**values) if has_types else None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def verdict_before(recovery: Recovery, options: Sequence[str] = (), *, live: bool = False) -> Verdict:
    """Judge a store by a recovery that was planned with ``options`` and not applied. ``live``: a broker uses the store."""
    outcome, losses, steps = recovery.prediction.outcome, recovery.losses, recovery.plan.steps
    why, loss = _worst_first(recovery.findings), _loss(losses)
    if any(found.code in (_NO_LOG, _LOG_IN_PART) for found in why):
        return _missing_log(why)
    mend = ("recover", *options, "--apply") if steps else ()
    if live:
        mend = ("doctor",)
    now = "a broker is at work; if it crashed now, one" if live else "a broker"
    if not outcome.starts:
        return Verdict("red", f"{now} would not start: {outcome.reason}", loss, mend or _explain(why), why)
    if outcome.thrown_away_messages:
        state = f"{now} would throw away {_count(outcome.thrown_away_messages, 'readable message')}"
        return Verdict("red", state, loss, mend or _explain(why), why)
    if live:
        level: Level = "yellow" if why or not losses.is_nothing else "green"
        return Verdict(level, "a broker is at work, and would lose nothing in a crash", loss, _explain(why), why)
    if losses.begin_is_missing:
        return Verdict("yellow", f"{_FINE}; {_NO_BEGIN}", loss, mend or _explain(why), why)
    if steps:
        what = f"{_count(len(why), 'finding')} to mend" if why else "what the last stop left is to be tidied"
        return Verdict("yellow", f"{_FINE}; {what}", loss, mend, why)
    if why or not losses.is_nothing:
        return Verdict("yellow", f"{_FINE}; {_count(len(why), 'finding')} to know of", loss, _explain(why), why)
    return Verdict("green", _FINE, loss)


def verdict_after(prospect: Prospect, findings: Iterable[Finding]) -> Verdict:
    """Judge a store after a recovery was applied; ``findings`` are those of the closing check."""
    remaining = _worst_first(besides_missing_begin(findings))
    if any(each.code == _NO_LOG for each in remaining):
        return _missing_log(remaining)
    if not prospect.starts:
        state = f"a broker would still not start: {prospect.reason}"
        return Verdict("red", state, prospect.loss, _explain(remaining), remaining)
    if prospect.thrown_away_messages:
        state = f"a broker would still throw away {_count(prospect.thrown_away_messages, 'readable message')}"
        return Verdict("red", state, prospect.loss, _explain(remaining), remaining)
    if remaining:
        return Verdict(
            "yellow",
            f"{_FINE}; {_count(len(remaining), 'finding')} left",
            prospect.loss,
            _explain(remaining),
            remaining,
        )
    state = f"mended: {_FINE}" if prospect.has_steps else _FINE
    if prospect.begin_is_missing:
        return Verdict("yellow", f"{state}; {_NO_BEGIN}", prospect.loss, ("explain", MISSING_BEGIN))
    return Verdict("green", state, prospect.loss)


def _missing_log(why: tuple[Finding, ...]) -> Verdict:
    away = next(found for found in why if found.code in (_NO_LOG, _LOG_IN_PART))
    state = "the log is not there" if away.code == _NO_LOG else "a part of the log is not there"
    return Verdict("red", f"{state}: mount its disk, then look again", "not known", ("doctor",), why)


def _loss(losses: Losses) -> str:
    """Return the line of loss."""
    if losses.lost_messages is None:
        return "not known"
    parts = []
    if losses.unreadable_messages:
        parts.append(f"{counted(losses.unreadable_messages, 'message is', 'messages are')} unreadable already")
    if losses.unreadable_ranges:
        parts.append(f"{_count(losses.unreadable_ranges, 'range')} of unknown messages")
    if losses.given_up_messages:
        parts.append(f"{_count(losses.given_up_messages, 'readable message')} given up")
    if losses.begin_is_missing:
        parts.append(f"{_count(losses.before_begin_messages, 'message')} missing before the log's start")
    if losses.kept_messages:
        parts.append(f"{losses.kept_messages:,} kept by recover")
    return ", ".join(parts) if parts else "no message is lost"


def _worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    serious = [found for found in findings if found.severity != "info"]
    return tuple(sorted(serious, key=lambda found: found.severity != "error"))


def _explain(why: Sequence[Finding]) -> tuple[str, ...]:
    return ("explain", why[0].code) if why else ()


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
