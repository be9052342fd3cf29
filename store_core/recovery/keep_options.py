"""Hold the options of ``recover --policy keep``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from store_core.errors import UsageError
from store_core.storage.remote_path import path_of

Gaps = Literal["tombstone", "skip"]
GAPS: Final[tuple[Gaps, ...]] = ("tombstone", "skip")


class LoanRange(NamedTuple):
    """Whole records [phy_offset, phy_offset + size_bytes) of the log, which sibling number ``sibling`` has."""

    sibling: int
    phy_offset: int
    size_bytes: int
    records: int


@dataclass(frozen=True, slots=True)
class KeepOptions:
    """The options of policy ``keep``.

    * ``gaps``: a lost message gets a tombstone, or, with "skip", a dead entry
    * ``fill``: holes in the log are closed
    * ``siblings``: roots of copies of which damaged and missing ranges are taken, in this order
    * ``sibling_configs``: properties files of the first of these, which name the folders of their logs
    * ``sibling_from``: offset of a segment before this log's first one; the log from there to its present start is taken from siblings
    * ``loans``: ranges that planning found in the siblings, for a builder to take the same; None: look for them
    """

    gaps: Gaps = "tombstone"
    fill: bool = True
    siblings: tuple[Path, ...] = ()
    sibling_configs: tuple[Path, ...] = ()
    sibling_from: int | None = None
    loans: tuple[LoanRange, ...] | None = None

    def __post_init__(self) -> None:
        if self.gaps not in GAPS:
            raise UsageError(f"unknown gaps {self.gaps!r}", to_do=f"one of {', '.join(GAPS)}")
        if len(self.sibling_configs) > len(self.siblings):
            raise UsageError(
                "more configurations than siblings", to_do="name each with its --sibling, in the same order"
            )

        if self.sibling_from is not None and not self.siblings:
            raise UsageError("no store is named to take an earlier part of the log from", to_do="add --sibling STORE")

    @property
    def skips(self) -> bool:
        return self.gaps == "skip"

    def as_arguments(self) -> dict[str, Any]:
        """Return the options that differ from the default, as arguments of a builder; so ordinary plans stay the same."""
        arguments: dict[str, Any] = {} if self.gaps == "tombstone" else {"gaps": self.gaps}
        if not self.fill:
            arguments["fill"] = False
        if self.loans:
            arguments["siblings"] = [str(path) for path in self.siblings]
            if self.sibling_configs:
                arguments["sibling_configs"] = [str(path) for path in self.sibling_configs]
            arguments["loans"] = [list(loan) for loan in self.loans]
        return arguments

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> KeepOptions:
        """Return the options from the arguments that ``as_arguments`` returned."""
        return cls(
            gaps=arguments.get("gaps", "tombstone"),
            fill=arguments.get("fill", True),
            siblings=tuple(path_of(path) for path in arguments.get("siblings", ())),
            sibling_configs=tuple(Path(path) for path in arguments.get("sibling_configs", ())),
            loans=tuple(LoanRange(*loan) for loan in arguments.get("loans", ())),
        )
