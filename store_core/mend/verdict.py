"""The verdict on a store: how it stands, what is lost, and what to run next. `recover` ends with it, and `doctor` is it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from store_core.check.log_begin import MISSING_BEGIN
from store_core.findings import Finding
from store_core.mend.losses import Losses
from store_core.mend.recover import Recovery

Level = Literal["red", "yellow", "green"]
_NO_LOG: Final = "S007"
_LOG_IN_PART: Final = "S010"
_FINE: Final = "a broker starts and throws nothing away"
_NO_BEGIN: Final = "the log's first segments are missing"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One line of state, one of loss, and one command, without the program's name and the store; empty where none is to be run.

    ``level`` is red where a broker must not start as the store is, yellow where something is to be done or known. ``why`` are findings
    that are worse than info, the worst first.
    """

    level: Level
    state: str
    loss: str
    next: tuple[str, ...] = ()
    why: tuple[Finding, ...] = ()

    def as_json(self, command: Sequence[str] = ()) -> dict[str, Any]:
        """The member ``verdict`` of the command line's documents; ``command`` is ``next`` as it is typed."""
        return {"level": self.level, "state": self.state, "loss": self.loss, "next": list(command) or None}


def verdict_before(recovery: Recovery, options: Sequence[str] = (), *, live: bool = False) -> Verdict:
    """Judge a store as it stands, by a recovery that was planned with ``options`` and not applied. ``live``: a broker is at work on it."""
    outcome, losses, steps = recovery.prediction.outcome, recovery.losses, recovery.plan.steps
    why, loss = _worst_first(recovery.findings), _loss(losses)
    if away := [each for each in why if each.code in (_NO_LOG, _LOG_IN_PART)]:
        state = "the log is not there" if away[0].code == _NO_LOG else "a part of the log is not there"
        return Verdict("red", f"{state}: mount its disk, then look again", "not known", ("doctor",), why)
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


def verdict_after(recovery: Recovery, findings: Iterable[Finding]) -> Verdict:
    """Judge a store to which a recovery was applied; ``findings`` are those of the closing check."""
    left = tuple(each for each in _worst_first(findings) if each.code != MISSING_BEGIN)
    after, losses = recovery.after, recovery.losses
    if any(each.code == _NO_LOG for each in left):
        return verdict_before(recovery)
    if not after.starts:
        return Verdict("red", f"a broker would still not start: {after.reason}", _loss(losses), _explain(left), left)
    if after.thrown_away_messages:
        state = f"a broker would still throw away {_count(after.thrown_away_messages, 'readable message')}"
        return Verdict("red", state, _loss(losses), _explain(left), left)
    if left:
        return Verdict("yellow", f"{_FINE}; {_count(len(left), 'finding')} left", _loss(losses), _explain(left), left)
    state = f"mended: {_FINE}" if recovery.plan.steps else _FINE
    if losses.begin_is_missing:
        return Verdict("yellow", f"{state}; {_NO_BEGIN}", _loss(losses), ("explain", MISSING_BEGIN))
    return Verdict("green", state, _loss(losses))


def _loss(losses: Losses) -> str:
    """What is lost, in a line."""
    if losses.lost_messages is None:
        return "not known"
    parts = []
    if losses.unreadable_messages:
        is_or_are = "is" if losses.unreadable_messages == 1 else "are"
        parts.append(f"{_count(losses.unreadable_messages, 'message')} {is_or_are} unreadable already")
    if losses.unreadable_ranges:
        parts.append(f"{_count(losses.unreadable_ranges, 'range')} that nobody can name")
    if losses.given_up_messages:
        parts.append(f"{_count(losses.given_up_messages, 'readable message')} given up")
    if losses.begin_is_missing:
        parts.append(f"{_count(losses.before_begin_messages, 'message')} missing before the log's begin")
    if losses.kept_messages:
        parts.append(f"{losses.kept_messages:,} kept by recover")
    return ", ".join(parts) if parts else "no message is lost"


def _worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    serious = [each for each in findings if each.severity != "info"]
    return tuple(sorted(serious, key=lambda each: each.severity != "error"))


def _explain(why: Sequence[Finding]) -> tuple[str, ...]:
    return ("explain", why[0].code) if why else ()


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
