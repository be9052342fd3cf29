"""Define the meaning of a finding code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Severity = Literal["info", "warning", "error"]

RECOVER: Final = "Run `rmqctl recover` before a broker starts on this store; it shows what a broker would throw away and what can be kept."
REBUILD_QUEUES: Final = "Run `rmqctl rebuild queues` to rebuild the queues from the log."
REBUILD_INDEX: Final = "Run `rmqctl rebuild index` to rebuild the index from the log."


@dataclass(frozen=True, slots=True)
class Kind:
    """A finding code: its ``title`` (one line), its severity, the explanation in full, and the advice."""

    code: str
    severity: Severity
    title: str
    explanation: str
    advice: str
