"""What planning a change to a store comes to, whoever planned it; recover's answer holds more and reads the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from store_core.findings import Finding
from store_core.recovery.losses import Losses
from store_core.recovery.lost_run import LostRun
from store_core.recovery.plans.content import Contents
from store_core.recovery.plans.plan import Plan
from store_core.recovery.prediction.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan, and what a broker ends up with afterwards. ``lost``: what it costs; ``findings``: of the store as it stands.

    ``made``: the new files' contents, while they are kept. ``losses``: what goes, counted, where messages do.
    """

    plan: Plan
    after: Outcome
    findings: tuple[Finding, ...]
    lost: tuple[LostRun, ...] = ()
    made: Contents = field(default_factory=dict, repr=False, compare=False)
    losses: Losses | None = None

    def as_json(self) -> dict[str, Any]:
        """The members of a mending command's document, without ``store``, ``applied`` and ``undo_id``."""
        return {
            "plan": self.plan.summary(),
            "after": self.after.as_json(),
            "lost": [run.as_json() for run in self.lost],
            **({"losses": self.losses.as_json()} if self.losses is not None else {}),
            "findings": list(self.findings),
        }
