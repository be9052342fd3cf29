"""Collect findings: the list is bounded, the counts are complete."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Final

from store_core.findings import KINDS, Finding, Severity, finding

MOST_FINDINGS_PER_CODE: Final = 1000  # the rest is counted, not listed


@dataclass(slots=True)
class Findings:
    """Collects findings: at most ``MOST_FINDINGS_PER_CODE`` of each code are listed, all are counted."""

    listed: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def say(
        self,
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
    ) -> None:
        if self.is_full(code):
            self.counts[code] += 1
            return
        self.add(
            finding(
                code,
                message,
                file=file,
                phy_offset=phy_offset,
                size_bytes=size_bytes,
                topic=topic,
                queue_id=queue_id,
                queue_offset=queue_offset,
                severity=severity,
            )
        )

    def is_full(self, code: str) -> bool:
        """Return True if no more findings of a code are listed, so that the caller need not compose one."""
        return self.counts[code] >= MOST_FINDINGS_PER_CODE

    def add(self, found: Finding) -> None:
        self.counts[found.code] += 1
        if self.counts[found.code] <= MOST_FINDINGS_PER_CODE:
            self.listed.append(found)

    def join(self, others: Findings) -> None:
        """Add the findings of another collection."""
        for found in others.listed:
            self.add(found)
        self.counts.update({code: n - min(n, MOST_FINDINGS_PER_CODE) for code, n in others.counts.items()})

    def also_in(self, codes: Set[str]) -> Findings:
        """Return the findings without serious ones of other codes than these, the ``serious_codes`` of an earlier
        check.
        """
        listed = [found for found in self.listed if found.severity == "info" or found.code in codes]
        kept = {found.code for found in listed}
        return Findings(listed, Counter({code: n for code, n in self.counts.items() if code in kept}))

    @property
    def serious_codes(self) -> Set[str]:
        """The codes of findings that are more than information."""
        return {found.code for found in self.listed if found.severity != "info"}

    @property
    def is_serious(self) -> bool:
        """True if any finding is more than information."""
        return any(found.severity != "info" for found in self.listed)

    def all(self) -> list[Finding]:
        """Return the listed findings, and one more for each code with unlisted ones."""
        more = {code: count - MOST_FINDINGS_PER_CODE for code, count in self.counts.items()}
        return [
            *self.listed,
            *(finding(code, f"and {n} more: {KINDS[code].title}") for code, n in sorted(more.items()) if n > 0),
        ]
