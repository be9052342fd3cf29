"""Describe what is wrong with a store as findings with stable codes and advice.

Codes are an interface: add codes, never change the meaning of one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from store_core.kinds import checkpoint, export, index, log, progress, queues, store
from store_core.kinds.kind import Kind, Severity

__all__ = ["FINDING_FIELDS", "KINDS", "Finding", "Kind", "Severity", "finding", "summary"]

FINDING_FIELDS: Final = (
    "code",
    "severity",
    "file",
    "phy_offset",
    "size_bytes",
    "topic",
    "queue_id",
    "queue_offset",
    "message",
    "advice",
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem of a store. ``file`` is relative to the store root; fields that do not apply are None."""

    code: str
    severity: Severity
    message: str
    file: str | None = None
    phy_offset: int | None = None
    size_bytes: int | None = None
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    advice: str = ""

    def as_json(self) -> dict[str, object]:
        """Return the FINDING object of the command line's JSON."""
        return {name: getattr(self, name) for name in FINDING_FIELDS}


KINDS: Final = {
    kind.code: kind
    for kind in (
        *log.KINDS,
        *queues.KINDS,
        *index.KINDS,
        *checkpoint.KINDS,
        *progress.KINDS,
        *store.KINDS,
        *export.KINDS,
    )
}


def finding(
    code: str,
    message: str,
    *,
    file: str | None = None,
    phy_offset: int | None = None,
    size_bytes: int | None = None,
    topic: str | None = None,
    queue_id: int | None = None,
    queue_offset: int | None = None,
    severity: Severity | None = None,
) -> Finding:
    """Make a finding of a known code, with severity and advice from ``KINDS``."""
    kind = KINDS[code]
    return Finding(
        code,
        severity or kind.severity,
        message,
        file,
        phy_offset,
        size_bytes,
        topic,
        queue_id,
        queue_offset,
        kind.advice,
    )


def counted(number: int, one: str, several: str) -> str:
    """Return a number followed by ``one`` if it is 1, else by ``several``."""
    return f"{number:,} {one if number == 1 else several}"


def summary(findings: Iterable[Finding]) -> dict[str, int]:
    """Count findings by code, in code order."""
    return dict(sorted(Counter(f.code for f in findings).items()))
