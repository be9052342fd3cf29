"""Hold a planned change to a store with its predicted outcome; ``Recovery`` has the same fields and more."""

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
